"""A CSV file of measured runs as rows with typed cells: bounded in size, with clear errors for wrong cells."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from dovetail.documents import read_bytes
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen

MAX_FILE_BYTES = 64 * 2**20
MAX_ROWS = 100_000
#: Above any rate in FLOP/s or bytes/s; products of two are still finite.
MAX_NUMBER = 1e30
#: Below any time in seconds; ratios of two such numbers are still finite.
MIN_NUMBER = 1e-30
#: Far above any count of a training run, low enough that products of a few stay exact.
MAX_COUNT = 2**40

_NO_CELLS: list[str] = []


@frozen
class TableRow:
    """One line of the file; an empty cell and a missing column read the same."""

    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell's text; empty if there is none."""
        return self.cells.get(column, "")

    def number(self, column: str) -> float | None:
        """A positive number; None if the cell is empty."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not MIN_NUMBER <= value <= MAX_NUMBER:
            raise InputError(column, f"is {quoted(text)}", "it should be a number above 0")
        return value

    def count(self, column: str, *, smallest: int = 1) -> int | None:
        """A whole number (8.0 is one too); None if the cell is empty."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value == int(value) and smallest <= value <= MAX_COUNT):
            raise InputError(column, f"is {quoted(text)}", f"it should be a whole number of {smallest} or more")
        return int(value)

    def needed(self, column: str) -> int:
        """A whole number that must be given."""
        value = self.count(column)
        if value is None:
            raise InputError(column, "is empty", "the source has to state it")
        return value

    def flag(self, column: str) -> bool:
        """Yes or no; an empty cell means no."""
        text = self.text(column).casefold()
        if text not in ("", "0", "1", "no", "yes", "false", "true"):
            raise InputError(column, f"is {quoted(self.text(column))}", "it should be yes or no")
        return text in ("1", "yes", "true")

    def choice(self, column: str, choices: Mapping[str, str], empty: str) -> str:
        """The meaning of a word; `empty` if the cell is empty."""
        text = self.text(column).casefold()
        if not text:
            return empty
        if text not in choices:
            raise InputError(column, f"is {quoted(self.text(column))}", one_of(choices, text))
        return choices[text]


def read_table(path: Path | str, needed: Iterable[str], optional: Iterable[str]) -> list[TableRow]:
    """The rows of a CSV file, with its needed columns, which must exist, and the optional ones it has."""
    where = str(path)
    lines = csv.reader(io.StringIO(_text(Path(path), where), newline=""), strict=True)
    columns = frozenset(optional)
    rows: list[TableRow] = []
    try:
        header = [name.strip() for name in next(lines, _NO_CELLS)]
        _check_header(header, needed, where)
        for cells in lines:
            if not any(cells):
                continue
            if len(cells) != len(header):
                at = f"{where}, line {lines.line_num}"
                raise InputError(at, f"has {len(cells)} cells", f"it should have {len(header)}, as the header has")
            if len(rows) == MAX_ROWS:
                raise InputError(where, f"has more than {MAX_ROWS} rows", "keep it shorter")
            named = zip(header, cells, strict=True)
            rows.append(TableRow(lines.line_num, {name: cell.strip() for name, cell in named if name in columns}))
    except csv.Error as error:
        at = f"{where}, line {lines.line_num}"
        raise InputError(at, f"is not CSV ({error})", "correct the quotation marks or commas there") from None
    return rows


def _text(path: Path, where: str) -> str:
    """The file's text; a gzipped file is unpacked up to the limit."""
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        if path.suffix == ".gz":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(where, f"has more than {MAX_FILE_BYTES} bytes", "keep it shorter")
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error):
        raise InputError(where, "is not gzip", "it should be a gzipped CSV file") from None
    except UnicodeDecodeError:
        raise InputError(where, "is not UTF-8 text", "it should be a CSV file") from None


def _check_header(header: list[str], needed: Iterable[str], where: str) -> None:
    counts = Counter(header)
    missing = [name for name in needed if name not in counts]
    if missing:
        what = f"has no column {missing[0]}" if len(missing) == 1 else f"has no columns {', '.join(missing)}"
        raise InputError(where, what, "add them to the header, which is the first line")
    for name, count in counts.items():
        if name and count > 1:
            raise InputError(where, f"has the column {quoted(name)} twice", "keep one of them")
