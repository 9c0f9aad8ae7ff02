"""Studies on Ray: the bytes of one process, with any number of workers, whoever is killed; and nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_study import STUDY, Ended, check_files, check_same, command, files_of, undisturbed, write
from test_ray_executor import LEAVE_S, left

pytest.importorskip("ray")

LIMIT_S = 180
#: Batches that are done when something is killed: most are not.
DONE = 2


@dataclass(frozen=True, slots=True)
class OnRay:
    """A folder with a study, and the environment of all processes that run it."""

    folder: Path
    token: str

    @property
    def environment(self) -> dict[str, str]:
        """With a token of its own, by which its processes are known; its files go where they are removed."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        return own | token | {"TMPDIR": str(self.folder), "PYTHONWARNINGS": "error"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begins a command in the folder."""
        return subprocess.Popen(
            arguments, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def explore(self, *arguments: str) -> subprocess.Popen[str]:
        """Begins the study on a Ray of its own."""
        return self.start(*command("--executor", "ray", *arguments))

    @property
    def done(self) -> int:
        """Batches of the last level that are kept."""
        return len(list((self.folder / "run" / "index").glob("search-*.json")))

    def workers(self) -> list[int]:
        """Processes of Ray that run batches now: it names them after what they do."""
        return [pid for pid, name in _running(self.token).items() if name == "ray::attempt"]

    def end_agents(self) -> None:
        """After the driver was killed: Ray's agents would go by themselves, after a minute; all others must have."""
        until = time.monotonic() + LEAVE_S
        while (remaining := _running(self.token)).keys() - _agents(remaining) and time.monotonic() < until:
            time.sleep(0.1)
        assert remaining.keys() == _agents(remaining)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _agents(processes: dict[int, str]) -> set[int]:
    return {pid for pid, name in processes.items() if name in ("ray::DashboardA", "ray::RuntimeEnv")}


def _running(token: str) -> dict[int, str]:
    """Processes with a token in their environment."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if token.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "comm").read_text().strip()
    return found


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, out, err)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """While the process runs."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def on_ray() -> Iterator[OnRay]:
    """A folder for a study; whatever of Ray is left in the end fails the test, and is ended."""
    # names of sockets are short, so pytest's own directories lie too deep
    found = OnRay(Path(tempfile.mkdtemp(prefix="t-")), secrets.token_hex(16))
    write(found.folder)
    undisturbed()  # before anything is timed
    yield found
    remaining = left(found.token)
    for pid in remaining:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(found.folder, ignore_errors=True)
    assert remaining == {}


def check_events(result: Ended, workers: int) -> None:
    events = [json.loads(line) for line in result.err.splitlines()]
    assert {event["workers"] for event in events} == {workers}


def test_four_workers_give_the_bytes_of_one_process(on_ray):
    result = ended(on_ray.explore("--workers", "4"))
    check_same(on_ray.folder, result)
    check_events(result, 4)
    assert {path.name for path in on_ray.folder.iterdir()} == {"study.yaml", "run"}, "Ray leaves files"


def test_a_study_that_names_ray_runs_on_it_and_gives_the_same_bytes(on_ray):
    write(on_ray.folder, {**STUDY, "executor": {"name": "ray", "workers": 1}})
    driver = on_ray.start(*command())
    wait_until(lambda: bool(on_ray.workers()), driver)
    result = ended(driver)
    check_same(on_ray.folder, result)
    check_events(result, 1)


@pytest.mark.slow
def test_a_driver_killed_twice_goes_on_as_if_it_had_not_been(on_ray):
    for kill in range(1, 3):
        driver = on_ray.explore("--workers", "2", "--resume")
        wait_until(lambda least=kill * DONE: on_ray.done >= least, driver)
        driver.kill()
        assert ended(driver).code == -signal.SIGKILL
        assert "result.json" not in files_of(on_ray.folder)
        on_ray.end_agents()
    # what was begun on Ray goes on without it
    check_same(on_ray.folder, ended(on_ray.start(*command("--resume"))))


def test_a_killed_worker_changes_nothing(on_ray):
    driver = on_ray.explore("--workers", "2")
    wait_until(lambda: on_ray.done >= 1 and bool(on_ray.workers()), driver)
    os.kill(on_ray.workers()[0], signal.SIGKILL)
    assert "result.json" not in files_of(on_ray.folder)
    check_same(on_ray.folder, ended(driver))


def test_a_lost_node_changes_nothing(on_ray):
    script = str(Path(__file__).with_name("removed_node.py"))
    result = ended(on_ray.start(sys.executable, script))
    assert result.code == 0, result.err
    found = json.loads(result.out.splitlines()[-1])
    assert found["workers"] == 2
    assert found["lost"] >= 1
    check_files(on_ray.folder)


def test_a_cluster_that_does_not_answer_is_one_sentence(on_ray):
    result = ended(on_ray.explore("--address", "127.0.0.1:1"))
    assert (result.code, result.out) == (2, "")
    assert "no Ray cluster answers at '127.0.0.1:1'" in result.err
    assert len(result.err.splitlines()) == 1


BENT = {"name": "own", "formula": "max(step_s, 0.2) * cost_usd", "unit": "s USD"}
TWO_KINDS = [
    {"name": "more", "base": "h100-sxm", "vary": {"tensor_cores": [264, 528]}},
    {"name": "wide", "base": "a100-80gb", "vary": {"hbm_stacks": [3, 5]}},
]
JOBS = [{**STUDY["jobs"][0], "weight": 2}, {**STUDY["jobs"][0], "name": "long", "global_batch": 32}]
SCENARIOS = [
    {"name": "dear", "prices": {"usd_per_kwh": 1.0}},
    {"name": "poor", "coefficients": "high"},
    {"name": "other", "calibrated_as": "mi300x"},
]
#: One study of each form of question.
FORMS: dict[str, dict[str, Any]] = {
    "regret": {"hardware": TWO_KINDS, "objectives": ["tokens_per_dollar"], "scenarios": SCENARIOS[:2]},
    "formula": {"hardware": TWO_KINDS, "objectives": [BENT], "candidates": ["h100-sxm"]},
    "front": {"hardware": TWO_KINDS, "objectives": [BENT, "tokens_per_s_per_w"], "cluster": STUDY["cluster"]},
    "own": {"jobs": JOBS, "over_jobs": {"mean": "geometric", "relative_to": "own"}},
    "chip": {"jobs": JOBS, "over_jobs": {"relative_to": "h100-sxm"}, "candidates": ["h100-sxm"]},
    "racks": {"limits": {"rack_power_w": 5000.0, "rack_chips": 8, "domain_chips": 8}},
    "compared": {"hardware": TWO_KINDS, "objectives": [BENT], "candidates": ["a100-40gb"], "scenarios": SCENARIOS},
}


def run_files(folder: Path) -> dict[str, bytes]:
    """The files of the run, which is removed."""
    files = files_of(folder)
    shutil.rmtree(folder / "run")
    return files


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_question_gives_the_same_bytes(on_ray, form):
    write(on_ray.folder, {**STUDY, "cluster": {"chips": 16}, "objectives": ["step_time"], **FORMS[form]})
    result = ended(on_ray.start(*command("--executor", "inline")))
    assert result.code == 0, result.err
    inline = run_files(on_ray.folder)
    assert "result.json" in inline
    for workers in ("1", "2", "4"):
        result = ended(on_ray.explore("--workers", workers))
        assert result.code == 0, result.err
        files = run_files(on_ray.folder)
        assert files.keys() == inline.keys()
        assert [name for name in files if files[name] != inline[name]] == []
