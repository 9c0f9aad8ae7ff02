"""A run that was killed goes on as if it had not been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from small_run import BATCHES, files_of, undisturbed


@pytest.fixture(scope="module")
def killer() -> Iterator[Callable[..., tuple[int, float]]]:
    """Runs the study in a directory, in a process of its own; gives its exit code and the time it took."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import small_run; small_run.serve()"],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def ask(where: Path, kill_after_s: float | None = None, kill_at_step: int | None = None) -> tuple[int, float]:
        stdin.write(json.dumps([str(where), kill_after_s, kill_at_step]) + "\n")
        stdin.flush()
        code, seconds = json.loads(_line(stdout))
        return code, seconds

    with process:
        yield ask
        stdin.close()


def _line(stream: IO[str]) -> str:
    line = stream.readline()
    assert line, "the process that runs studies has ended"
    return line


def test_a_run_killed_at_any_moment_goes_on_as_if_it_had_not_been(tmp_path, killer):
    moments = np.random.default_rng(4)
    whole_s = min(killer(tmp_path / f"whole{n}")[1] for n in range(3))
    interrupted = 0
    for n in range(20):
        where = tmp_path / str(n)
        code, _ = killer(where, kill_after_s=moments.uniform(0.0, whole_s))
        assert code in (0, -signal.SIGKILL)
        interrupted += not (where / "result.json").exists()
        assert killer(where)[0] == 0
        assert files_of(where) == undisturbed()
    assert interrupted > 5


def test_a_run_killed_before_any_step_goes_on_as_if_it_had_not_been(tmp_path, killer):
    steps = 0
    code = -signal.SIGKILL
    while code == -signal.SIGKILL:
        where = tmp_path / str(steps)
        code, _ = killer(where, kill_at_step=steps)
        assert killer(where)[0] == 0
        assert files_of(where) == undisturbed(), f"killed before step {steps}"
        steps += 1
    assert code == 0
    assert steps > 2 * 2 * len(BATCHES)  # the sync and the move of each part and entry


def test_one_run_killed_again_and_again_gets_there(tmp_path, killer):
    # each attempt gets one batch further
    codes = [killer(tmp_path / "run", kill_at_step=10)[0] for _ in range(len(BATCHES) + 2)]
    assert codes[:8] == [-signal.SIGKILL] * 8
    assert codes[-1] == 0
    assert files_of(tmp_path / "run") == undisturbed()
