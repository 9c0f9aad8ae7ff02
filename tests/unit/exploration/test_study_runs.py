"""Studies in one process: killed, short of room, damaged or changed under way, they end as if nothing had happened."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import STUDY, Forks, check_same, command, explore, files_of, sentences, undisturbed, write

from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.exploration import study as study_module
from dovetail.exploration.store import RunStore
from dovetail.exploration.study import Study
from timing import within

KILLS = 9
#: Of one run, before it is let go on to its end.
KILLS_IN_A_ROW = 4


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    undisturbed()  # what is compiled once is
    found = Forks()
    yield found
    found.close()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder with a study that has run to its end."""
    write(tmp_path)
    (tmp_path / "run").mkdir()
    for name, content in undisturbed().files.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


@pytest.fixture
def refused(forks: Forks) -> Callable[..., str]:
    """The one sentence in which a command is refused."""

    def ask(folder: Path, *arguments: str) -> str:
        ended = forks.explore(folder, *arguments)
        assert (ended.code, ended.out) == (2, "")
        (sentence,) = sentences(ended.err)
        assert sentence.isprintable()
        assert sentence.endswith(".")
        return sentence

    return ask


def test_a_run_killed_at_any_moment_goes_on_as_if_it_had_not_been(tmp_path, forks):
    write(tmp_path / "whole")
    whole_s = forks.seconds(tmp_path / "whole")
    moments = np.random.default_rng(5)
    kills = runs = 0
    while kills < KILLS:
        folder = tmp_path / str(runs)
        write(folder)
        for _ in range(KILLS_IN_A_ROW):
            if not forks.killed(folder, moments.uniform(0.0, whole_s)):
                break
            kills += 1
        runs += 1
        assert runs <= KILLS, "runs end before they are killed"
        check_same(folder, forks.explore(folder, "--resume"))


def test_a_command_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path):
    write(tmp_path)
    process = subprocess.Popen(command(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "run" / "index" / "search-000001.json").exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert "result.json" not in files_of(tmp_path)
    check_same(tmp_path, explore(tmp_path, "--resume"))


def test_the_same_study_gives_the_same_bytes(tmp_path):
    write(tmp_path)
    check_same(tmp_path, explore(tmp_path, PYTHONHASHSEED="2", COLUMNS="40"))


def test_what_is_left_by_a_kill_before_the_first_file_is_no_run(tmp_path, forks):
    write(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / ".partial").write_bytes(b"half")
    check_same(tmp_path, forks.explore(tmp_path))
    assert not list((tmp_path / "run").rglob(".partial"))


class Untouched:
    """An executor that must not be made."""

    def __init__(self, *_: Any) -> None:
        raise AssertionError("something is run")


def test_a_finished_study_returns_at_once(finished, monkeypatch):
    monkeypatch.setattr(study_module, "EXECUTORS", {"inline": Untouched, "ray": Untouched})
    study = Study.load(finished / "study.yaml")
    with within(0.2):
        result = study.run(finished / "run", resume=True)
    assert result.document["front"] == undisturbed().answer["front"]
    assert result.repairs == ()
    assert files_of(finished) == undisturbed().files


def test_a_finished_study_is_told_as_when_it_finished(finished, forks):
    ended = forks.explore(finished, "--resume")
    check_same(finished, ended)
    assert ended.err == ""


def test_a_run_is_gone_on_with_only_when_asked(finished, refused):
    assert refused(finished) == "run: already has a run; add --resume or name another directory."
    assert files_of(finished) == undisturbed().files


def test_a_directory_of_other_files_is_refused(tmp_path, refused):
    write(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    for arguments in ((), ("--resume",)):
        assert "run: has other files and no run" in refused(tmp_path, *arguments)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "file", "said"),
    [
        (cut, "parts/search-000004.parquet", "batch 4 of level search is run again"),
        (flip, "parts/search-000004.parquet", "batch 4 of level search is run again"),
        (cut, "parts/warm_start-000000.parquet", "batch 0 of level warm_start is run again"),
        (Path.unlink, "parts/physical-000001.parquet", "batch 1 of level physical is run again"),
        (cut, "result.json", "result.json is rebuilt"),
        (flip, "result.json", "result.json is rebuilt"),
    ],
)
def test_what_is_damaged_is_made_again_in_so_many_words(finished, damage, file, said, forks):
    damage(finished / "run" / file)
    ended = forks.explore(finished, "--resume")
    assert any(said in sentence and sentence.startswith("run: ") for sentence in sentences(ended.err))
    check_same(finished, ended)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_part_damaged_in_an_unfinished_run_is_run_again(finished, damage, forks):
    (finished / "run" / "result.json").unlink()
    damage(finished / "run" / "parts" / "search-000002.parquet")
    (finished / "run" / "index" / "search-000006.json").write_text("{")
    ended = forks.explore(finished, "--resume")
    assert [sentence.split(" is run again")[0] for sentence in sentences(ended.err)] == [
        "run: batch 2 of level search",
        "run: batch 6 of level search",
    ]
    check_same(finished, ended)


def test_a_study_that_nobody_can_read_is_refused(finished, refused):
    cut(finished / "run" / "study.json")
    assert "study.json" in refused(finished, "--resume")


@pytest.mark.parametrize("file", ["study.json", "parts/search-000000.parquet"])
def test_at_the_limit_of_file_sizes_a_run_stops_and_goes_on(tmp_path, file, forks):
    write(tmp_path)
    most = len(undisturbed().files[file]) - 1

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    ended = explore(tmp_path, before=limit)
    assert (ended.code, ended.out) == (2, "")
    (sentence,) = sentences(ended.err)
    assert "cannot be written (the limit on the size of a file is reached)" in sentence
    assert "run again with --resume" in sentence
    assert "result.json" not in files_of(tmp_path)
    check_same(tmp_path, forks.explore(tmp_path, "--resume"))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"limits": {"area_mm2": 800.0}}, "limits.area_mm2: is 800.0, but the study of the existing run had none"),
        ({"objectives": ["step_time"]}, "objectives"),
        ({"seed": 1}, "seed: is 1, but the study of the existing run had 0"),
        ({"search": {"window": 4, "batch": 1}}, "search.window: is 4"),
        ({"jobs": [{**STUDY["jobs"][0], "global_batch": 32}]}, "jobs.0.global_batch: is 32"),
        ({"cluster": {"chips": [16], "framework": "megatron"}}, "cluster.chips"),
    ],
)
def test_a_study_changed_under_a_run_is_refused(finished, part, said, refused):
    write(finished, {**STUDY, **part})
    sentence = refused(finished, "--resume")
    assert sentence.startswith("run: ")
    assert said in sentence
    assert "change it back, or name another directory" in sentence
    assert files_of(finished) == undisturbed().files


def test_where_it_runs_may_change_under_a_run(finished, forks):
    write(finished, {**STUDY, "executor": {"name": "ray", "workers": 2}, "output": "elsewhere"})
    check_same(finished, forks.explore(finished, "--resume"))


def test_a_file_that_changed_under_a_run_is_refused(tmp_path, forks, refused):
    part = {"name": "designs", **STUDY["hardware"]}
    (tmp_path / "space.yaml").write_text(to_yaml(part))
    study = {**STUDY, "hardware": {"space": "space.yaml"}, "objectives": ["area"]}
    write(tmp_path, study)
    assert forks.explore(tmp_path).code == 0
    part["vary"] = {**part["vary"], "tensor_cores": [264, 1056]}
    (tmp_path / "space.yaml").write_text(to_yaml(part))
    sentence = refused(tmp_path, "--resume")
    assert "run: was computed with other content of space (" in sentence
    assert "change it back, add --recompute to discard what was computed, or name another directory" in sentence
    assert forks.explore(tmp_path, "--resume", "--recompute").code == 0


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("study.yaml", "is a file or inside one; name a directory"),
        ("study.yaml/run", "is a file or inside one; name a directory"),
        ("none/run", "cannot be made, for the directory above it does not exist"),
    ],
)
def test_a_directory_that_cannot_be_made_is_refused(tmp_path, out, said, refused):
    write(tmp_path)
    assert said in refused(tmp_path, "--out", out)


def test_an_unwritable_directory_is_refused(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    write(tmp_path)
    study = Study.load(tmp_path / "study.yaml")
    # as root is told on a file system that is mounted read-only: no mode of a directory binds root
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\); allow writing there") as caught:
        study.run(tmp_path / "run")
    assert str(caught.value).startswith(str(tmp_path / "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="for root every directory is writable")
def test_a_directory_without_the_right_to_write_is_refused(tmp_path, refused):
    write(tmp_path)
    tmp_path.chmod(0o555)
    try:
        assert "cannot be written (Permission denied)" in refused(tmp_path)
    finally:
        tmp_path.chmod(0o755)


def test_a_run_that_another_process_writes_is_refused(finished, refused):
    study = Study.load(finished / "study.yaml")
    with RunStore.open(finished / "run", study.document, resume=True):
        assert "another process is writing this run" in refused(finished, "--resume")


class StoppedError(Exception):
    """Ends a run under way."""


@pytest.mark.parametrize("method", ["evolutionary", "random"])
def test_sampled_studies_interrupted_go_on_as_if_they_had_not_been(tmp_path, method):
    search = {"method": method, "evaluations": 10, "window": 2, "batch": 2}
    cluster = {**STUDY["cluster"], "chips": 16}
    write(tmp_path, {**STUDY, "search": search, "cluster": cluster, "objectives": ["step_time", "area"]})
    study = Study.load(tmp_path / "study.yaml")

    def stop(progress: Any) -> None:
        if progress.batches >= 2:
            raise StoppedError

    whole = study.run(tmp_path / "run")
    files = files_of(tmp_path)
    (tmp_path / "run").rename(tmp_path / "whole")
    with pytest.raises(StoppedError):
        study.run(tmp_path / "run", listener=stop)
    assert 0 < len(files_of(tmp_path)) < len(files)
    again = study.run(tmp_path / "run", resume=True)
    assert again.document == whole.document
    assert files_of(tmp_path) == files
