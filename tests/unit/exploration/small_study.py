"""A study of some seconds, run by the command line in processes of their own, left alone or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from dovetail.cli import main
from dovetail.documents import to_yaml

#: Three objectives, so that most designs are searched; batches of one, so that there are many.
STUDY: dict[str, Any] = {
    "name": "small",
    "jobs": [{"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 64}],
    "hardware": {
        "base": "h100-sxm",
        "vary": {"hbm_stacks": [3, 5], "tensor_cores": [264, 528], "clock_hz": ["1.2 GHz", "1.5 GHz", "1.8 GHz"]},
    },
    "cluster": {"chips": [16, 32], "framework": "megatron"},
    "plans": {
        "tensor_parallel": [1, 2],
        "context_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
    },
    "objectives": ["step_time", "area", "tokens_per_joule"],
    "search": {"window": 3, "batch": 1},
}
#: What a run leaves that may differ.
APART = ("timing.json", "progress.json", ".lock")
LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON it printed, without what differs between runs."""
        found = json.loads(self.out)
        assert found.pop("timing").keys() == {"seconds"}
        return found


def write(folder: Path, study: dict[str, Any] = STUDY) -> None:
    """The study file of a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(to_yaml(study))


#: What study.yaml of the working directory asks, kept in the directory `run`.
ASKED = ("explore", "study.yaml", "--out", "run", "--json")


def command(*arguments: str) -> list[str]:
    """The same as a command line."""
    return [sys.executable, "-m", "dovetail", *ASKED, *arguments]


def explore(folder: Path, *arguments: str, before: Callable[[], None] | None = None, **variables: str) -> Ended:
    """Runs the study of a folder to its end."""
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=before,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def files_of(folder: Path) -> dict[str, bytes]:
    """All of a run that must be the same whenever it is run."""
    run = folder / "run"
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    # plan files of a front follow from the result: the command writes them, not the study
    return {name: content for name, content in found.items() if name not in APART and not name.startswith("front/")}


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a run that was left alone leaves."""

    answer: dict[str, Any]
    files: dict[str, bytes]


@cache
def undisturbed() -> Undisturbed:
    """Run once for all tests of a process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        ended = explore(folder, PYTHONHASHSEED="1")
        assert ended.code == 0, ended.err
        return Undisturbed(ended.answer, files_of(folder))


def check_same(folder: Path, ended: Ended) -> None:
    """The answer and every byte are those of a run that was left alone."""
    assert ended.code == 0, ended.err
    assert ended.answer == undisturbed().answer
    check_files(folder)


def check_files(folder: Path) -> None:
    """Every byte is that of a run that was left alone."""
    files = files_of(folder)
    assert files.keys() == undisturbed().files.keys()
    assert [name for name, content in undisturbed().files.items() if files[name] != content] == []


def sentences(err: str) -> list[str]:
    """What stderr says beside progress: of repairs as events, of a mistake as it is."""
    found = [json.loads(line) if line.startswith("{") else {"sentence": line} for line in err.splitlines()]
    return [event["sentence"] for event in found if event.get("event") != "progress"]


class Forks:
    """Runs commands in forks of a process that has loaded what they need: a second less each, and kills hit the run."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", "import small_study; small_study.serve()"],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def explore(self, folder: Path, *arguments: str) -> Ended:
        """Runs the study of a folder to its end."""
        code, _ = self._ask(folder, None, *arguments)
        return Ended(code, (folder / "out").read_text(), (folder / "err").read_text())

    def seconds(self, folder: Path) -> float:
        """What a run takes from the moment its directory is taken."""
        code, seconds = self._ask(folder, None)
        assert code == 0
        return seconds

    def killed(self, folder: Path, after_s: float) -> bool:
        """Kills a run so long after it took its directory; whether it had not ended by then."""
        code, _ = self._ask(folder, after_s, "--resume")
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def close(self) -> None:
        """Ends the process."""
        self._server.communicate(timeout=LIMIT_S)

    def _ask(self, folder: Path, kill_after_s: float | None, *arguments: str) -> tuple[int, float]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(folder), kill_after_s, arguments]) + "\n")
        self._server.stdin.flush()
        code, seconds = json.loads(self._server.stdout.readline())
        return code, seconds


def serve() -> None:
    """Forks a process for each line of the input."""
    import pyarrow.parquet  # noqa: F401

    import dovetail.exploration.study
    import dovetail.search.plan  # noqa: F401

    for line in sys.stdin:
        folder, kill_after_s, arguments = json.loads(line)
        lock = Path(folder) / "run" / ".lock"
        if kill_after_s is not None:
            lock.unlink(missing_ok=True)  # that of the run before: its return tells that the directory is taken
        child = os.fork()
        if child == 0:
            _run_and_exit(folder, arguments)
        print(json.dumps(_watch(child, lock, kill_after_s)), flush=True)  # noqa: T201


def _run_and_exit(folder: str, arguments: list[str]) -> NoReturn:
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code: object = 1
    try:
        main([*ASKED, *arguments])
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def _watch(child: int, lock: Path, kill_after_s: float | None) -> tuple[int, float]:
    """Exit code, and seconds since the child took its directory."""
    start = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        if ended:
            return os.waitstatus_to_exitcode(status), now - (start or now)
        if start is None and lock.exists():
            start = now
        if start is not None and kill_after_s is not None and now >= start + kill_after_s:
            os.kill(child, signal.SIGKILL)  # not yet waited for, so it still is this process
        time.sleep(0.002)
