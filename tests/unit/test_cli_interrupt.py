"""Ctrl-C at any moment of `dovetail plan`: the best plan so far or a sentence, exit code 130, never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from dovetail.cli import exit_codes
from dovetail.cli.interrupt import Interrupt
from dovetail.cli.plan_progress import PlanProgress, progress_text
from dovetail.search import SearchProgress

LARGE = ("llama-3.1-405b", "--chip", "h100-sxm", "--chips", "16384", "--global-batch", "2048", "--seq-len", "8192")
#: Beyond this a search is taken to hang.
PATIENCE_S = 120


#: What `python -m dovetail` does, from where Python itself has started: before that it prints a traceback of its own.
#: Whoever runs the tests may ignore Ctrl-C, and children inherit that.
START = """
import os, signal
from dovetail.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
os.write(2, b"started\\n")
main()
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START, "plan", "--model", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    return process


def interrupted(after_s: float, *arguments: str) -> tuple[int, str, str, float]:
    """Exit code, what is printed, what it complains of, and seconds until it ended."""
    process = started(*arguments)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err, time.monotonic() - sent


def checked(code: int, out: str, err: str) -> str:
    """What was printed, in a few words, once it is known to be right."""
    assert "Traceback" not in err
    assert "Error" not in err
    if not out:
        assert code == exit_codes.EXIT_INTERRUPTED
        assert err.count("\n") == 1
        assert "interrupted" in err
        return err.strip()
    found = json.loads(out)
    certificate = found["certificate"]
    assert found["fits"]
    assert code == (exit_codes.EXIT_INTERRUPTED if err else exit_codes.EXIT_ANSWERED)
    if certificate["status"] == "feasible":
        assert code == exit_codes.EXIT_INTERRUPTED
        assert 0 < certificate["lower_bound_s"] < found["step_time_s"]
        assert certificate["gap"] == pytest.approx(1 - certificate["lower_bound_s"] / found["step_time_s"])
    parts = (certificate[name] for name in ("pruned", "infeasible", "evaluated", "open"))
    assert sum(parts) == certificate["counted"]
    return f"{found['step_time_s']:.4g} s, {certificate['status']}, gap {certificate['gap']:.1%}"


@pytest.mark.parametrize("after_s", [0.2, 2.5, 6.0])
def test_an_interrupt_keeps_what_was_found(after_s):
    code, out, err, _ = interrupted(after_s, *LARGE, "--json")
    checked(code, out, err)


@pytest.mark.slow
def test_interrupts_at_twenty_moments(capsys):
    """Prints a table: when, exit code, seconds until the end, what was printed."""
    moments = random.Random(20)  # noqa: S311
    rows = []
    for number in range(20):
        after_s = 0.15 + (number + moments.random()) * 0.5
        code, out, err, took_s = interrupted(after_s, *LARGE, "--json")
        rows.append(f"{after_s:6.2f} s  {code:4}  {took_s:5.2f} s  {checked(code, out, err)}")
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(rows) + "\n")
    assert any("feasible" in row for row in rows)


def report(**changed: object) -> SearchProgress:
    values = {
        "plan": None, "step_time_s": None, "lower_bound_s": 1.5, "gap": None, "counted": 1000, "pruned": 0,
        "infeasible": 100, "evaluated": 0, "open": 900,
    }  # fmt: skip
    return SearchProgress(**(values | changed))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def _taken():
    """Ctrl-C as a terminal has it: whoever runs the tests may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_taken")
def test_the_first_interrupt_with_a_plan_asks_the_search_to_end():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        interrupt.has_plan = True
        assert not interrupt.notice(report())
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.notice(report())
        assert list(interrupt.until_asked([1, 2])) == []
        assert interrupt.unless(lambda: 1 / 0) is None
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("_taken")
def test_an_interrupt_of_what_is_not_needed_skips_it():
    def extra() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE_S)
        return "explained"

    with Interrupt() as interrupt:
        assert interrupt.unless(lambda: "explained") == "explained"
        with pytest.raises(ZeroDivisionError):
            interrupt.unless(lambda: 1 / 0)
        assert interrupt.unless(extra) is None
        assert interrupt.asked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_on_a_terminal_shows_how_far_it_is():
    assert progress_text(report(counted=0)) == "preparing the search"
    assert progress_text(report()) == "best none yet, bound 1.5 s, 900 of 1,000 plans open"
    assert progress_text(report(step_time_s=2.0, gap=0.25)).startswith("best 2 s, bound 1.5 s, gap 25")
    terminal = Terminal()
    with PlanProgress(as_json=False, stream=terminal) as shown:
        shown(report())
        assert "900 of 1,000 plans open" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()


def test_nothing_is_shown_where_nobody_watches(monkeypatch):
    log, terminal = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    for shown in (PlanProgress(as_json=False, stream=log), PlanProgress(as_json=True, stream=terminal)):
        with shown:
            shown(report())
    assert log.getvalue() == terminal.getvalue() == ""
