"""Runs in other file systems, and runs as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_run import PART, STUDY, files_of, flip, part_of, printed, refused, run, undisturbed

from dovetail.errors import InputError
from dovetail.exploration import store as store_module
from dovetail.exploration.arrow import RemoteFolder
from dovetail.exploration.store import Part, RunStore


def test_a_file_uri_is_a_local_directory(tmp_path):
    where = (tmp_path / "a b").as_uri()
    with run(where) as store:
        assert store.where == where
        assert store.path == tmp_path / "a b"
        assert "another process is writing" in refused(where)
    assert files_of(tmp_path / "a b") == undisturbed()


@pytest.fixture(params=["subtree", "memory"])
def elsewhere(request, tmp_path, monkeypatch) -> Iterator[tuple[str, Any]]:
    """A URI in a file system that is none of this machine's disks, and that file system."""
    from pyarrow import fs

    if request.param == "memory":
        pytest.importorskip("fsspec")
        system, _ = fs.FileSystem.from_uri("fsspec+memory://runs")
        yield "fsspec+memory://runs/a", system
        system.delete_dir("/runs")
    else:
        system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        monkeypatch.setattr(
            store_module, "_folder", lambda where: RemoteFolder(system, where.partition("://")[2], where)
        )
        yield "tree://runs/a", system


def test_a_run_in_another_file_system(elsewhere):
    from pyarrow import fs

    where, system = elsewhere
    with run(where) as store:
        assert store.path is None
    paths = [info.path for info in system.get_file_info(fs.FileSelector("runs/a", recursive=True)) if info.is_file]
    contents = {path.partition("runs/a/")[2]: system.open_input_stream(path).read() for path in paths}
    contents.pop("timing.json")
    contents.pop("progress.json", None)
    assert contents == {name: content for name, content in undisturbed().items() if name != ".lock"}
    assert "already has a run" in refused(where, resume=False)
    assert "name: is 'b', but" in refused(where, {**STUDY, "name": "b"})
    with system.open_output_stream(f"runs/a/{PART}") as stream:
        stream.write(b"other")
    with run(where) as store:
        assert "part has 5 bytes" in store.repairs[0]
        assert store.result() is not None
        assert store.table("warm_start").num_rows == 120
    assert "is a file" in refused(f"{where}/study.json")
    assert "study.json/below: " in refused(f"{where}/study.json/below")


def test_a_table_has_the_parts_in_order(tmp_path):
    with RunStore.open(tmp_path / "run", STUDY, resume=False) as store:
        for number in (1_000_000, 2, 10, 0):
            store.write(Part("warm_start", number, {"number": np.array([number, number])}, {}))
        assert store.table("warm_start").column("number").to_pylist() == [0, 0, 2, 2, 10, 10, 1_000_000, 1_000_000]
        assert store.table("search").num_rows == 0


def test_a_frame_of_a_level(tmp_path):
    pytest.importorskip("pandas")
    from dovetail.exploration.views import to_pandas

    with run(tmp_path / "run") as store:
        frame = to_pandas(store, "warm_start")
    parts = [part_of("warm_start", number) for number in range(6)]
    assert list(frame.columns) == ["design", "step_time_s", "fits", "reason"]
    assert frame["design"].tolist() == [n for part in parts for n in part.columns["design"]]
    assert frame["step_time_s"].tolist() == [n for part in parts for n in part.columns["step_time_s"]]
    assert [isinstance(text, str) for text in frame["reason"]] == [True, False] * 60


@pytest.mark.parametrize("name", ["run", "it's [1] *?", "a=b"])
def test_views_in_duckdb(tmp_path, name):
    pytest.importorskip("duckdb")
    from dovetail.exploration.views import connect

    with run(tmp_path / name) as store, connect(tmp_path / name) as connection:
        (row,) = connection.execute("SELECT count(*), sum(design), count(reason) FROM warm_start").fetchall()
        designs = [
            n for number in range(6) for n in np.asarray(part_of("warm_start", number).columns["design"]).tolist()
        ]
        assert row == (len(designs), sum(designs), len(designs) / 2)
        columns = [column[0] for column in connection.execute("SELECT * FROM search").description]
        assert columns == ["design", "step_time_s", "fits", "reason"]
        store.write(part_of("warm_start", 7))
        assert connection.execute("SELECT count(*) FROM warm_start").fetchall() == [(len(designs) + 20,)]


def test_a_damaged_part_is_found_before_anything_is_shown(tmp_path):
    pytest.importorskip("duckdb")
    pytest.importorskip("pandas")
    from dovetail.exploration.views import connect, to_pandas

    run(tmp_path / "run").close()
    flip(tmp_path / "run" / PART)
    for look in (lambda: connect(tmp_path / "run"), lambda: to_pandas(RunStore.view(tmp_path / "run"), "warm_start")):
        with pytest.raises(InputError, match=f"{PART}: is damaged .*; run its study with --resume"):
            look()


def test_views_need_a_local_run_and_their_packages(tmp_path, monkeypatch):
    from dovetail.exploration.views import connect, to_pandas

    with run(tmp_path / "run") as store:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(InputError, match=r"pip install \"dovetail\[study\]\""):
            to_pandas(store, "warm_start")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError, match=r"pip install \"dovetail\[study\]\""):
        connect(tmp_path / "run")
    with pytest.raises(InputError, match="has no run"):
        connect(tmp_path)


def test_a_run_needs_pyarrow_to_be_written_and_to_be_read(tmp_path, monkeypatch):
    run(tmp_path / "run").close()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    install = r'which is not installed; run `pip install "dovetail\[study\]"`\.$'
    with pytest.raises(InputError, match=f"other: needs the package pyarrow to save a run, {install}"):
        RunStore.open(tmp_path / "other", STUDY, resume=False)
    assert not (tmp_path / "other").exists()
    store = RunStore.view(tmp_path / "run")
    assert store.result() is not None, "a result is JSON"
    for look in (lambda: store.read("warm_start", 0), lambda: store.table("warm_start")):
        with pytest.raises(InputError, match=f"run: needs the package pyarrow to read the designs of a run, {install}"):
            look()
    with pytest.raises(InputError, match=f"^s3://bucket/run: needs the package pyarrow .*, {install}"):
        RunStore.view("s3://bucket/run")


def test_looking_for_a_local_run_loads_no_heavy_library(tmp_path):
    run(tmp_path / "run").close()
    script = f"""
import sys
from dovetail.exploration import views
from dovetail.exploration.store import RunStore
with RunStore.open({str(tmp_path / "run")!r}, {STUDY!r}, resume=True) as store:
    assert store.result()
print({{"pyarrow", "duckdb", "pandas"}} & set(sys.modules))
"""
    assert printed(script).strip() == "set()"
