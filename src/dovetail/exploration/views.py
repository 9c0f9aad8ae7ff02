"""A run as tables: a pandas frame of a fidelity level, or a DuckDB connection with a view of each."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import InputError, require_package
from dovetail.exploration.records import PARTS
from dovetail.exploration.store import RunStore

if TYPE_CHECKING:
    import duckdb
    import pandas as pd


def to_pandas(store: RunStore, level: str) -> pd.DataFrame:
    """The finished parts of a level as one frame, in the order of their numbers."""
    require_package("pandas", store.where, "for a data frame")
    import pandas as pd

    frame = store.table(level).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    return frame


def connect(where: str | Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB database in memory with a view of each level over its Parquet files, new ones as they come.

    Rows come in no particular order. Files are checked against the index once, now: `RunStore.table` does so each time.
    """
    store = RunStore.view(where)
    if store.path is None:
        raise InputError(store.where, "is not on this machine", "copy the run to a local directory")
    require_package("duckdb", store.where, "for views")
    import duckdb

    store.check()
    connection = duckdb.connect()
    # a directory's name may contain wildcards
    folder = re.sub(r"([\[*?])", r"[\1]", str((store.path / PARTS).absolute()))
    for level in store.levels():
        files = f"{folder}/{level}-*.parquet".replace("'", "''")
        # a view takes no parameters; directories named like a=b are not columns
        rows = f"SELECT * FROM read_parquet('{files}', hive_partitioning = false)"  # noqa: S608
        connection.execute(f'CREATE VIEW "{level}" AS {rows}')
    return connection
