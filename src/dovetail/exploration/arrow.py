"""What a run needs of pyarrow, the only module that uses it: parts as Parquet, and file systems that are not local."""
# the types of pyarrow are unknown
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dovetail.arrays import Array
from dovetail.errors import InputError, require_package
from dovetail.exploration.folder import Folder, LocalFolder, not_read, not_written
from dovetail.exploration.records import DamagedError

if TYPE_CHECKING:
    from pyarrow import Table

Columns = Mapping[str, Array | Sequence[str | None]]

_COLUMN_TYPES = ("int64", "float64", "bool")


def parquet_bytes(columns: Columns, about: Mapping[str, str]) -> bytes:
    """A part with what it is about: bytes that depend on nothing else, such as time or place."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [name for name, values in columns.items() if not isinstance(values, np.ndarray)]
    arrays: list[Any] = []
    for values in columns.values():
        if isinstance(values, np.ndarray):
            assert values.dtype.name in _COLUMN_TYPES, values.dtype
            arrays.append(pa.array(values, from_pandas=False))
        else:
            arrays.append(pa.array(list(values), pa.string()))
    assert len({len(array) for array in arrays}) == 1, "the columns of a part have one length"
    table = pa.Table.from_arrays(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        use_dictionary=cast("Any", texts),  # numbers rarely repeat within a batch
        store_schema=False,  # these few types need no Arrow schema
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({f"dovetail.{name}": text for name, text in about.items()})
    return sink.getvalue().to_pybytes()


def parquet_table(content: bytes, *about: str) -> tuple[Table, list[str]]:
    """The rows of a part, and what it says about these names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # twice as fast as `read_table`, which looks for a dataset of many files
        file = pq.ParquetFile(pa.BufferReader(content))
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"part cannot be read ({str(error)[:100]})") from None
    metadata = cast("dict[bytes, bytes]", file.metadata.metadata or {})
    return table, [metadata.get(f"dovetail.{name}".encode(), b"").decode() for name in about]


def columns_of(table: Table) -> Columns:
    """The columns of a part."""
    texts = {name: str(table.schema.field(name).type) == "string" for name in table.column_names}
    return {n: table.column(n).to_pylist() if text else table.column(n).to_numpy() for n, text in texts.items()}


def joined(tables: Iterable[Table]) -> Table:
    """The rows of parts, one after the other."""
    import pyarrow as pa

    plain = [table.replace_schema_metadata(None) for table in tables]
    return pa.concat_tables(plain) if plain else pa.table({})


def folder_at(address: str) -> Folder:
    """The directory that a URI names."""
    # a URI may contain a password, which must not appear in messages
    shown = re.sub(r"//[^/]*@", "//...@", address)
    require_package("pyarrow", shown, "to read and write there")
    from pyarrow import fs

    fix = "name a local directory, or a URI such as file:///runs/a or s3://bucket/runs/a"
    try:
        system, path = fs.FileSystem.from_uri(address)
    except Exception as error:  # file systems written in Python raise their own errors
        reason = str(error).replace(address, shown)[:200]
        raise InputError(shown, f"is not a known file system ({reason})", fix) from None
    if isinstance(system, fs.LocalFileSystem):
        return LocalFolder(Path(path), shown)
    return RemoteFolder(system, path, shown)


class RemoteFolder:
    """A directory in any other pyarrow file system, such as an object store, which writes whole files.

    It has no lock, since such file systems have none: the user must make sure that only one process writes.
    """

    def __init__(self, system: Any, root: str, where: str) -> None:
        self.where = where
        self.path: Path | None = None
        self._system = system
        self._root = PurePosixPath(root)

    def sizes(self, inner: str = "") -> dict[str, int] | None:
        """Names and sizes of its files, or those of a directory in it; None if that does not exist."""
        from pyarrow import fs

        entry = self._ask(not_read, inner, self._system.get_file_info)
        if entry.type == fs.FileType.NotFound:
            return None
        if entry.type == fs.FileType.File:
            raise InputError(self.where, "is a file", "name a directory")
        infos = self._ask(not_read, inner, lambda path: self._system.get_file_info(fs.FileSelector(path)))
        return {info.base_name: info.size or 0 for info in infos}

    def claim(self) -> None:
        """Creates it if needed."""
        self.prepare("")

    def prepare(self, inner: str) -> None:
        """Creates a directory in it."""
        self._ask(not_written, inner, lambda path: self._system.create_dir(path, recursive=True))

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""

        def read(path: str) -> bytes:
            with self._system.open_input_stream(path, compression=None) as stream:
                return stream.read()

        # checked first: not every file system has a specific error for this
        return self._ask(not_read, name, read) if self._holds(name) else None

    def put(self, name: str, content: bytes) -> None:
        """Writes a file in one put; if that is not atomic, the digests show it."""

        def write(path: str) -> None:
            with self._system.open_output_stream(path, compression=None) as stream:
                stream.write(content)

        self._ask(not_written, name, write)

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        if self._holds(name):
            self._ask(not_written, name, self._system.delete_file)

    def close(self) -> None:
        """Does nothing: there is no lock."""

    def _holds(self, name: str) -> bool:
        from pyarrow import fs

        return self._ask(not_read, name, self._system.get_file_info).type != fs.FileType.NotFound

    def _ask(self, refused: Callable[[str, str, Exception], InputError], name: str, act: Callable[[str], Any]) -> Any:
        try:
            return act(str(self._root / name))
        except Exception as error:  # file systems written in Python raise their own errors
            raise refused(self.where, name, error) from None
