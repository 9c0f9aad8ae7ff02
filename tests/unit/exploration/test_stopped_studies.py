"""Studies that a time limit, Ctrl-C or SIGTERM ends early: what they say is true, and they go on to the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import STUDY, check_same, explore, files_of, write
from small_study import command as command_line

from dovetail.cli import exit_codes
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.result import StudyResult
from dovetail.exploration.stopping import Stop, StoppedError
from dovetail.exploration.store import RunStore
from dovetail.exploration.study import Study
from dovetail.report.page.studies import study_page

SMALL: dict[str, Any] = {
    **STUDY,
    "objectives": ["step_time"],
    "hardware": {"base": "h100-sxm", "vary": {"hbm_stacks": [3, 5], "clock_hz": ["1.2 GHz", "1.5 GHz", "1.8 GHz"]}},
    "cluster": {"chips": [16, 32], "framework": "megatron"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[StudyResult, dict[str, bytes]]:
    """The study left alone, and its files."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, SMALL)
    result = Study.load(folder / "study.yaml").run(folder / "run")
    return result, files_of(folder)


def stopped_at(folder: Path, level: str, number: signal.Signals) -> StudyResult:
    """The study stopped by a signal that comes after the first batch of a level."""
    write(folder, SMALL)

    def stop(progress: Any) -> None:
        if progress.level == level:
            signal.raise_signal(number)

    return Study.load(folder / "study.yaml").run(folder / "run", listener=stop)


@pytest.mark.parametrize(
    ("level", "number"), [("warm_start", signal.SIGINT), ("physical", signal.SIGTERM), ("profile", signal.SIGINT)]
)
def test_a_study_stopped_at_any_level_tells_what_it_has_and_goes_on(whole, tmp_path, level, number):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    left_alone, files = whole
    best_s = left_alone.document["best"]["objectives"]["step_time"]
    partly = stopped_at(tmp_path, level, number)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)] == handlers
    assert partly.stopped == "interrupt"
    certificate, found_s = partly.certificate, partly.document["best"]["objectives"]["step_time"]
    assert 0 < certificate["lower_bound"] <= best_s <= found_s
    assert certificate["gap"] == pytest.approx(1 - certificate["lower_bound"] / found_s)
    assert "result.json" not in files_of(tmp_path)
    paused = RunStore.view(tmp_path / "run").paused()
    assert paused is not None
    assert paused == (partly.document, "interrupt")
    assert study_page(str(tmp_path / "run"), "").title == "Study small, stopped early"
    again = Study.load(tmp_path / "study.yaml").run(tmp_path / "run", resume=True)
    assert again.document == left_alone.document
    assert files_of(tmp_path) == files


def test_the_bound_of_what_is_not_profiled_yet_counts(tmp_path):
    """A batch of profiles that was never run must not be taken for one that left nothing."""
    write(tmp_path, {**SMALL, "search": {"batch": 1, "window": 1}})
    study = Study.load(tmp_path / "study.yaml")

    def stop(progress: Any) -> None:
        if progress.level == "physical":
            signal.raise_signal(signal.SIGINT)

    partly = study.run(listener=stop)
    physical = [Worker(study).physical_of(n, np.arange(study.space.size))[:, 0] for n in range(2)]
    assert partly.certificate["lower_bound"] <= float(np.min(physical))
    assert partly.certificate["status"] == "feasible"


def test_a_time_limit_ends_a_batch_under_way(tmp_path, monkeypatch):
    write(tmp_path, SMALL)
    study = Study.load(tmp_path / "study.yaml")
    monkeypatch.setattr(Worker, "_profile", lambda *_: time.sleep(60))
    start = time.monotonic()
    result = study.time_limited(2.0).run(tmp_path / "run")
    assert time.monotonic() - start < 30
    assert result.stopped == "time_limit"
    assert result.document["best"] is not None
    assert result.certificate["status"] == "feasible"


def test_nothing_found_in_the_time_is_told(tmp_path, command):
    write(tmp_path, SMALL)
    code, out, err = command(
        "explore", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "run"), "--json", "--time-limit", "0"
    )
    answer = json.loads(out)
    assert code == exit_codes.EXIT_NOTHING_FOUND
    assert (answer["best"], answer["certificate"]["status"]) == (None, "feasible")
    assert "nothing was found yet, --resume goes on" in err


def test_a_command_that_is_told_to_end_prints_the_best_so_far(tmp_path):
    write(tmp_path)
    process = subprocess.Popen(command_line(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "index" / "search-000001.json").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == exit_codes.EXIT_INTERRUPTED
    assert json.loads(out)["certificate"]["status"] == "feasible"
    assert "was interrupted; the best so far is shown, --resume goes on" in err
    assert "Traceback" not in err
    check_same(tmp_path, explore(tmp_path, "--resume"))


def test_what_is_raised_after_a_stop_was_asked_for_is_that_stop():
    stop = Stop()
    with pytest.raises(ValueError, match="a bug"), stop.waiting():
        raise ValueError("a bug")

    def compile_something() -> None:
        with stop.waiting():
            stop.interrupt()
            raise ValueError("made of it by a compiler")

    for _ in range(2):
        with pytest.raises(StoppedError):
            compile_something()


def test_a_stop_that_was_lost_is_raised_again(monkeypatch):
    monkeypatch.setattr("dovetail.exploration.stopping._AGAIN_S", 0.05)
    stop, lost = Stop(0.05), list[BaseException]()

    def lose_one() -> None:
        with stop.signals(), stop.waiting():
            try:
                time.sleep(5)
            except StoppedError as error:
                lost.append(error)
            time.sleep(5)

    with pytest.raises(StoppedError):
        lose_one()
    assert len(lost) == 1
    assert stop.asked == "time_limit"


def test_the_second_interrupt_leaves_at_once():
    stop = Stop()
    with stop.signals():
        signal.raise_signal(signal.SIGINT)
        assert stop.asked == "interrupt"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
