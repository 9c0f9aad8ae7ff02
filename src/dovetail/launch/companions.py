"""Files that a launch names: a configuration or a list of hosts, written by the script itself or at the given path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from dovetail.documents import read_bytes
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen

#: Configurations are short; anything longer is something else.
MAX_BYTES = 2**20


@frozen
class Companions:
    """Where files are looked for; without a folder only what the script writes is there."""

    folder: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict[str, str])

    def with_written(self, files: Mapping[str, str]) -> Companions:
        """The same, and files that a script writes."""
        return Companions(self.folder, {**self.written, **files})

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        if any(Path(each) == Path(name) for each in self.written):
            return True
        try:
            return self.folder is not None and (self.folder / name).is_file()
        except (OSError, ValueError):
            return False

    def text(self, name: str, where: str) -> str:
        """The text of a file that an option names; a path is taken from the script's folder."""
        for written, text in self.written.items():
            if Path(written) == Path(name):
                return text
        if "$" in name or "`" in name:
            raise InputError(where, f"is {quoted(name)}, which the file does not set", "write the path out")
        if self.folder is None:
            raise InputError(
                where, f"names {quoted(name)}, which is not known here", "give the launch file by its path"
            )
        path = self.folder / name
        try:
            exists = path.is_file()
        except (OSError, ValueError):
            exists = False
        if not exists:
            fix = "put it there (paths are taken from the folder of the launch file)"
            raise InputError(where, f"names {quoted(name)}, and there is no file {path}", fix)
        try:
            return read_bytes(path, MAX_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(str(path), "is not UTF-8 text", "name a configuration") from None
