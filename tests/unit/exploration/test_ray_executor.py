"""Ray as executor: results complete and once each, whoever dies; what the work raises as itself; refusals in words."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.exploration.executors import EXECUTORS

SCENARIOS = Path(__file__).with_name("ray_scenarios.py")
LIMIT_S = 180
#: A worker whose node was killed looks for it now and then, and ends.
LEAVE_S = 20

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the [cluster] extra")


def run(scenario: str, scratch: Path) -> dict[str, Any]:
    """Runs a scenario in a process of its own, warnings being errors; nothing of it is left afterwards."""
    token = secrets.token_hex(16)
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OMP_", "NUMBA_NUM"))
    }
    # a token of its own, as Ray would write one to the home directory; its files go where they are removed
    variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "TMPDIR": str(scratch)}
    command = [sys.executable, "-W", "error", str(SCENARIOS), scenario, str(scratch)]
    try:
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    finally:
        remaining = left(token)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 1, f"Ray prints on our output: {ended.stdout}"
    assert remaining == {}
    return json.loads(lines[0])


def left(token: str) -> dict[int, str]:
    """Processes of a scenario that stay: they have its token in their environment."""
    until = time.monotonic() + LEAVE_S
    while True:
        found: dict[int, str] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if token.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


@pytest.fixture
def scratch() -> Iterator[Path]:
    # names of sockets are short, so pytest's own directories lie too deep
    directory = tempfile.mkdtemp(prefix="t-")
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@needs_ray
def test_a_private_ray_runs_single_threaded_workers_and_leaves_nothing(scratch):
    found = run("local", scratch)
    assert found["workers"] == 2
    assert found["variables"] == {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    assert found["seconds"] < 60
    assert found["alive"] == []
    assert found["left"] == []


@needs_ray
def test_what_the_work_raises_comes_as_itself_and_once(scratch):
    found = run("errors", scratch)
    assert found["refusal"] == {
        "kind": "InputError",
        "text": "space: is empty; give it a point.",
        "fix": "give it a point",
        "noted": True,
    }
    assert (found["bug"]["kind"], found["bug"]["text"], found["bug"]["noted"]) == ("KeyError", "'missing'", True)
    assert found["unsendable"]["kind"] == "RuntimeError"
    assert found["unsendable"]["text"].startswith("UnsendableError: <unlocked")
    assert found["unsendable result"]["kind"] == "TypeError"
    assert "the worker of batch 8 died 3 times" in found["death"]["text"]
    ran = found["ran"]
    assert [ran.count(task) for task in ("refusal", "bug", "unsendable", "unsendable result", "death")] == [
        1, 1, 1, 1, 3,
    ]  # fmt: skip


@needs_ray
@pytest.mark.slow
def test_killed_workers_lose_nothing(scratch):
    found = run("killed_worker", scratch)
    assert found["killed"] >= 1
    assert found["lost"] >= 1


@needs_ray
@pytest.mark.slow
def test_a_killed_node_loses_nothing_and_one_that_joins_is_counted(scratch):
    found = run("killed_node", scratch)
    assert found["workers"] == [2, 1]
    assert found["lost"] >= 1


@needs_ray
def test_a_cluster_that_was_there_stays_and_gives_no_more_than_asked(scratch):
    assert run("joined", scratch) == {"counts": [2, 2], "still there": True, "free": 3.0}


def unused_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


@needs_ray
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:{port}", "no Ray cluster answers at '127.0.0.1:{port}'"),
        ("nowhere", "is 'nowhere'; it should be auto, local, ray://host:port or host:port"),
        ("http://127.0.0.1:{port}", "it should be auto, local, ray://host:port or host:port"),
        ("127.0.0.1:99999", "it should be auto, local, ray://host:port or host:port"),
    ],
)
def test_a_wrong_address_is_refused_at_once(refusal, monkeypatch, address, said):
    keep_environment(monkeypatch)
    port = unused_port()
    assert said.format(port=port) in refusal(EXECUTORS["ray"], len, address.format(port=port), None)


@needs_ray
def test_what_ray_s_own_variable_names_is_refused_too(refusal, monkeypatch):
    keep_environment(monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused_port()}")
    assert "no Ray cluster answers at '127.0.0.1:" in refusal(EXECUTORS["ray"], len, "auto", None)


@needs_ray
def test_the_client_s_missing_package_is_named(refusal, monkeypatch):
    keep_environment(monkeypatch)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "grpc" else found(name, *rest))
    sentence = refusal(EXECUTORS["ray"], len, "ray://127.0.0.1:1", None)
    assert "grpcio" in sentence
    assert 'pip install "dovetail[cluster]"' in sentence


def test_without_the_package_the_sentence_says_how_to_install_it(refusal, monkeypatch):
    keep_environment(monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = refusal(EXECUTORS["ray"], len, "local", 2)
    assert sentence == 'executor: the package ray is not installed; install it with `pip install "dovetail[cluster]"`.'


def test_no_workers_are_refused(refusal):
    assert "workers: is 0" in refusal(EXECUTORS["ray"], len, "local", 0)


def keep_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives back after the test what it sets."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_DEDUP_LOGS_SKIP_REGEX"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
