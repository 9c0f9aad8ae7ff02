"""What a run directory cannot be, and disks that take no more: each in one sentence."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_run import PART, STUDY, cut, files_of, finished, part_of, printed, refused, run, undisturbed

from dovetail.errors import InputError
from dovetail.exploration.store import RunStore


def test_a_run_is_not_written_over(tmp_path):
    before = finished(tmp_path / "run")
    says = refused(tmp_path / "run", resume=False)
    assert says == f"{tmp_path / 'run'}: already has a run; add --resume or name another directory."
    assert files_of(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("change", "path", "now", "was"),
    [
        ({"name": "other"}, "name", "'other'", "'small'"),
        ({"space": {**STUDY["space"], "rows": [64, 256]}}, "space.rows.1", "256", "128"),
        ({"space": {**STUDY["space"], "rows": [64, 128, 256]}}, "space.rows.2", "256", "none"),
        ({"space": {**STUDY["space"], "shared": 1}}, "space.shared", "1", "True"),
        ({"space": {k: v for k, v in STUDY["space"].items() if k != "limit"}}, "space.limit", "absent", "None"),
        ({"levels": {"warm_start": 1}}, "levels", "{'warm_start': 1}", "['warm_start', 'search']"),
        ({"seed": 2, "name": "x" * 200, "more": 3}, "name", f"'{'x' * 56}...", "'small'"),
    ],
)
def test_another_study_is_refused_by_the_first_field_that_differs(tmp_path, change, path, now, was):
    where = tmp_path / "run"
    before = finished(where)
    assert refused(where, {**STUDY, **change}) == (
        f"{where}: {path}: is {now}, but the study of the existing run had {was}; "
        "change it back, or name another directory."
    )
    assert files_of(where) == before


def test_a_study_written_otherwise_is_the_same(tmp_path):
    run(tmp_path / "run").close()
    study = {**dict(reversed(STUDY.items())), "levels": ("warm_start", "search")}
    with RunStore.open(tmp_path / "run", study, resume=True) as store:
        assert store.result() is not None


@pytest.mark.parametrize("schema", [0, 2])
def test_another_schema_is_refused(tmp_path, schema):
    where = tmp_path / "run"
    run(where).close()
    (where / "study.json").write_text(json.dumps({"schema": schema, "what": "not known here"}))
    assert f"has a run of schema {schema}, but this version of dovetail reads 1" in refused(where)


def test_a_study_file_cut_is_refused(tmp_path):
    run(tmp_path / "run").close()
    cut(tmp_path / "run" / "study.json")
    assert "study.json: is not complete JSON; name another directory" in refused(tmp_path / "run")


@pytest.mark.parametrize("resume", [True, False])
def test_nothing_is_written_among_other_files(tmp_path, resume):
    (tmp_path / "thesis.tex").touch()
    assert "has other files and no run" in refused(tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_directory_is_taken(tmp_path):
    RunStore.open(tmp_path, STUDY, resume=False).close()
    assert (tmp_path / "study.json").exists()


def test_directories_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    assert "is a file or inside one; name a directory" in refused(tmp_path / "file")
    assert "is a file or inside one; name a directory" in refused(tmp_path / "file" / "run")
    assert "the directory above it does not exist" in refused(tmp_path / "no" / "run")
    assert "cannot be read (embedded null byte)" in refused("a\0b")
    assert "is not a known file system" in refused("nosuch://me:secret@runs/a")
    assert "secret" not in refused("nosuch://me:secret@runs/a")
    assert "is not a known file system" in refused("file://runs/a")
    for where in (tmp_path, tmp_path / "no"):
        with pytest.raises(InputError, match="has no run"):
            RunStore.view(where)


@contextmanager
def rights_of_nobody() -> Iterator[None]:
    """For root every directory is writable, so it does without its rights."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError:
        pytest.skip("root here cannot do without its rights, and for root every directory is writable")
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unwritable_directory_is_refused():
    # not below tmp_path, which nobody else may enter
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = finished(folder / "run")
        (folder / "run" / ".lock").chmod(0o444)
        (folder / "run").chmod(0o555)
        folder.chmod(0o555)
        try:
            with rights_of_nobody():
                for where in (folder / "run", folder / "new"):
                    assert "cannot be written (Permission denied); allow writing there" in refused(where)
                assert RunStore.view(folder / "run").result() is not None  # who may read may look
        finally:
            folder.chmod(0o755)
            (folder / "run").chmod(0o755)
        assert files_of(folder / "run") == before


@pytest.mark.parametrize("step", ["mkdir", "open", "replace"])
def test_a_refusal_of_the_system_is_a_sentence(tmp_path, monkeypatch, step):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, refuse)
        assert "cannot be written (Read-only file system); allow writing there" in refused(tmp_path / "run")
    RunStore.open(tmp_path / "run", STUDY, resume=False).close()


def test_there_is_one_writer(tmp_path):
    with RunStore.open(tmp_path / "run", STUDY, resume=False):
        assert "another process is writing this run" in refused(tmp_path / "run")
        script = f"import small_run; print(small_run.refused({str(tmp_path / 'run')!r}))"
        assert "another process is writing this run" in printed(script)
        assert RunStore.view(tmp_path / "run").numbers("warm_start") == frozenset()
    RunStore.open(tmp_path / "run", STUDY, resume=True).close()


def test_a_store_let_go_is_let_go(tmp_path):
    store = RunStore.open(tmp_path / "run", STUDY, resume=False)
    del store
    RunStore.open(tmp_path / "run", STUDY, resume=True).close()


@pytest.mark.parametrize("file", ["study.json", "parts/warm_start-000001.parquet"])
def test_at_the_limit_of_file_sizes_a_run_stops_and_goes_on(tmp_path, file):
    where = tmp_path / "run"
    most = len(undisturbed()[file]) - 1
    says = printed(f"import small_run; print(small_run.limited({str(where)!r}, {most}))").strip()
    assert says == (
        f"{where}: {file}: cannot be written (the limit on the size of a file is reached); "
        "raise it (`ulimit -f unlimited`) and run again with --resume."
    )
    assert not list(where.rglob(".partial"))
    assert finished(where) == undisturbed()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_on_a_full_disk_a_run_stops_and_goes_on(tmp_path):
    where = tmp_path / "run"
    with RunStore.open(where, STUDY, resume=False) as store:
        store.write(part_of("warm_start", 0))
        (where / "index" / ".partial").symlink_to("/dev/full")
        with pytest.raises(InputError, match=r"the disk is full\); free some space and run again with --resume"):
            store.write(part_of("warm_start", 1))
        assert store.numbers("warm_start") == {0}
    assert finished(where) == undisturbed()


def test_a_file_that_cannot_be_read_is_not_given_up(tmp_path):
    run(tmp_path / "run").close()
    part = tmp_path / "run" / PART
    part.unlink()
    part.mkdir()  # what cannot be read may be whole
    with RunStore.open(tmp_path / "run", STUDY, resume=True) as store:
        with pytest.raises(InputError, match="cannot be read"):
            store.read("warm_start", 1)
        assert 1 in store.numbers("warm_start")
