"""A small study, run in this process, in one that is killed, or in one whose files may not grow."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.exploration.store import Part, RunStore

STUDY: dict[str, Any] = {
    "name": "small",
    "space": {"rows": [64, 128], "clock_hz": 1e9, "shared": True, "limit": None},
    "levels": ["warm_start", "search"],
}
BATCHES = [("warm_start", number) for number in range(6)] + [("search", number) for number in range(3)]

PART, ENTRY = "parts/warm_start-000001.parquet", "index/warm_start-000001.json"


def part_of(level: str, number: int) -> Part:
    """What a batch finds: the same each time."""
    rng = np.random.default_rng([number, len(level)])
    rows = 20 * (number % 3)
    columns = {
        "design": rng.integers(0, 2**40, rows),
        "step_time_s": np.where(rng.random(rows) < 0.2, np.inf, rng.random(rows)),
        "fits": rng.random(rows) < 0.5,
        "reason": [None if n % 2 else f"why {n} é" for n in range(rows)],
    }
    return Part(level, number, columns, {"seen": rows * 7, "least": 0.1 * number, "names": ["a", None]})


def run(where: str | Path, study: dict[str, Any] = STUDY, before: Callable[[], None] = lambda: None) -> RunStore:
    """A study as its driver runs it: batches that are not there yet, then the result of all."""
    before()
    store = RunStore.open(where, study, resume=True)
    before()
    if store.result() is None:
        seen = 0
        for level, number in BATCHES:
            part = store.read(level, number)
            if part is None:
                part = part_of(level, number)
                store.write(part)
                store.note_time(level, number, time.process_time())
            seen += part.facts["seen"]
        store.finish({"seen": seen, "front": [1.5, None]})
    return store


def files_of(where: Path) -> dict[str, bytes]:
    """All that must be the same in every run."""
    found = {str(path.relative_to(where)): path.read_bytes() for path in where.rglob("*") if path.is_file()}
    for name in ("timing.json", "progress.json"):
        found.pop(name, None)
    return found


def finished(where: Path, study: dict[str, Any] = STUDY) -> dict[str, bytes]:
    run(where, study).close()
    return files_of(where)


@cache
def undisturbed() -> dict[str, bytes]:
    """The files of a run that was left alone."""
    with tempfile.TemporaryDirectory() as folder:
        return finished(Path(folder) / "run")


def refused(where: str | Path, study: dict[str, Any] = STUDY, *, resume: bool = True) -> str:
    """The sentence in which a directory is refused."""
    with pytest.raises(InputError) as caught:
        RunStore.open(where, study, resume=resume)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert sentence.endswith(".")
    return sentence


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def serve() -> None:
    """Forks a process for each line of the input: it runs the study and is killed after a time, or before a step."""
    undisturbed()  # libraries are loaded once, not in each fork
    for line in sys.stdin:
        where, kill_after_s, kill_at_step = json.loads(line)
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_and_exit(where, kill_at_step)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(child, signal.SIGKILL)  # not yet waited for, so it still is this process
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - start]), flush=True)  # noqa: T201


def _run_and_exit(where: str, kill_at_step: int | None) -> None:
    steps = 0

    def before(*_: Any) -> None:
        nonlocal steps
        if steps == kill_at_step:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (before(), function(*given))[1]

    os.fsync, os.replace, os.mkdir = killing(os.fsync), killing(os.replace), killing(os.mkdir)
    code = 1
    try:
        store = run(where, before=before)
        code = 3 if store.repairs else 0  # a kill damages nothing
    finally:
        os._exit(code)


def printed(script: str) -> str:
    """What a script in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def limited(where: str, most: int) -> str:
    """What a run says when files may have only so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    with pytest.raises(InputError) as caught:
        run(where)
    return str(caught.value)
