"""An axis read from a table: designs somebody listed, a row each, in a CSV file that may be compressed."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from dovetail.arrays import Floats
from dovetail.documents import Spec
from dovetail.errors import InputError, one_of, quoted
from dovetail.hardware.design_space.variable import BOUNDS, variable_of

MAX_BYTES = 200 * 10**6
MAX_ROWS = 10**7

_Column = Annotated[str, Field(min_length=1, max_length=200)]


class TableSpec(Spec):
    """A CSV file with a header, plain or gzip; numbers in SI."""

    table: Annotated[str, Field(min_length=1, max_length=2000)]
    """its path, from the folder of the file it stands in"""
    columns: Annotated[dict[str, _Column], Field(min_length=1, max_length=40)]
    """variable → name of its column"""


def read_table(spec: TableSpec, where: str, folder: Path) -> dict[str, Floats]:
    """The columns of the variables named."""
    path = folder / spec.table
    names = {variable_of(n, f"{where}.columns.{n}"): column for n, column in spec.columns.items()}
    if len(names) < len(spec.columns):
        raise InputError(f"{where}.columns", "name a variable twice", "drop one of them")
    text = _text(path)
    none: list[str] = []
    try:
        header = next(csv.reader([text.readline()]), none)
    except csv.Error:
        raise InputError(f"{path}, header", "is not a line of column names", "end lines with a line feed") from None
    for column in names.values():
        if column not in header:
            raise InputError(f"{path}, header", f"has no column {quoted(column)}", one_of(header, column))
    start = text.tell()
    if not text.read().strip():
        raise InputError(str(path), "has no rows", "list at least one design below the header")
    text.seek(start)
    try:
        values = np.loadtxt(
            islice(text, MAX_ROWS + 1), delimiter=",", quotechar='"', comments=None, ndmin=2,
            usecols=[header.index(column) for column in names.values()],
        )  # fmt: skip
    except ValueError as error:
        reason = str(error).partition(";")[0].rstrip(".")[:100]
        raise InputError(str(path), f"is not a table of numbers ({reason})", "correct it there") from None
    if len(values) > MAX_ROWS:
        raise InputError(str(path), f"has more than {MAX_ROWS:,} rows", "list fewer designs")
    return {name: _checked(name, values[:, n], path) for n, name in enumerate(names)}


def _text(path: Path) -> io.StringIO:
    """What the file holds; at most so much is unpacked."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            source = gzip.GzipFile(fileobj=file) if packed else file
            content = source.read(MAX_BYTES + 1)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "not a file, or damaged"
        raise InputError(str(path), f"cannot be read ({reason})", "name an existing CSV file") from None
    if len(content) > MAX_BYTES:
        raise InputError(str(path), f"has more than {MAX_BYTES:,} bytes", "list fewer designs")
    try:
        return io.StringIO(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(str(path), "is not UTF-8 text", "it should be a CSV file, plain or gzip") from None


def _checked(name: str, column: Floats, path: Path) -> Floats:
    wrong = ~BOUNDS[name].hold(column)
    if wrong.any():
        row = int(wrong.argmax())
        value = f"{column[row]:g}"
        raise InputError(f"{path}, row {row + 1}", f"has {name} {value}", f"it should be {BOUNDS[name].text}")
    return np.ascontiguousarray(column)
