"""What a long search says of itself: how often, in which words, and on which stream."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from dovetail.cli.progress import Display, JsonLines, LiveView, PlainLines, listener_for
from dovetail.exploration.events import LevelRate, StudyProgress

BEGUN = StudyProgress(
    level="warm_start",
    counted=0,
    total=29_073_408,
    pruned={},
    evaluated=0,
    incumbent=None,
    objective="step time",
    unit="s",
    bound=None,
    gap=None,
    front=0,
    batches=0,
    batches_total=None,
    workers=1,
    elapsed_s=0.2,
    eta_s=None,
)
MIDWAY = StudyProgress(
    level="physical",
    counted=12_582_912,
    total=29_073_408,
    pruned={"warm_start": 8_123_456, "physical": 4_010_203, "profile": 0},
    evaluated=329_253,
    incumbent=0.0123456,
    objective="step time",
    unit="s",
    bound=0.0121,
    gap=0.021,
    front=1,
    batches=120,
    batches_total=400,
    workers=8,
    elapsed_s=72.4,
    eta_s=3700.0,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def viewed(progress: StudyProgress | None, since_s: float = 0.0, width: int = 80) -> list[str]:
    """The live view, so long after the last word."""
    clock = Clock()
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    live = LiveView(clock, console)
    if progress is not None:
        live(progress)
    clock.now_s += since_s
    console.print(live.view())
    return [line.rstrip() for line in console.export_text().splitlines() if line.strip()]


def test_the_live_view():
    assert viewed(MIDWAY, since_s=3) == [
        "level      physical    ━━━━━━━━━━──────────────",
        "designs    12,582,912 of 29,073,408 (43.3 %)",
        "pruned     8,123,456 by warm_start, 4,010,203 by physical",
        "evaluated  329,253 (120 of 400 batches, 8 workers)",
        "best       step time 12.3 ms, bound 12.1 ms, gap 2.1 %",
        "elapsed    0:01:15, about 1:01:37 left",
    ]


def test_the_live_view_before_anything_is_known():
    assert viewed(None) == []
    assert viewed(BEGUN) == [
        "level      warm_start  ────────────────────────",
        "designs    0 of 29,073,408 (0.0 %)",
        "pruned     none yet",
        "evaluated  0 (0 batches, 1 worker)",
        "best       none yet",
        "elapsed    0:00:00",
    ]


def test_the_live_view_of_several_objectives():
    several = replace(MIDWAY, incumbent=None, bound=None, gap=None, front=17, objective="step time, cost", unit="")
    lines = viewed(several)
    assert "front      17 designs by step time, cost" in lines
    assert not any(line.startswith("best") for line in lines)


def test_designs_left_and_their_rate():
    known = replace(MIDWAY, left=1234, rate_per_s=5.5)
    assert viewed(known)[3] == "left       1,234 (5.5 designs/s)"
    assert viewed(replace(known, rate_per_s=None))[3] == "left       1,234"
    rate = LevelRate()
    told = [rate.per_second("search", left, now_s) for left, now_s in ((100, 1.0), (100, 2.0), (60, 3.0))]
    assert told == [None, None, 20.0]
    assert rate.per_second("replay", 60, 4.0) is None


def test_time_that_is_over_is_not_left():
    assert viewed(MIDWAY, since_s=4000)[-1] == "elapsed    1:07:52"


def test_all_is_not_done_while_one_design_is_left():
    almost, done = (replace(MIDWAY, counted=MIDWAY.total - left) for left in (1, 0))
    assert viewed(almost)[1].endswith("(99.9 %)")
    assert "─" in viewed(almost)[0]
    assert viewed(done)[1].endswith("(100.0 %)")


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_lost(width):
    lines = viewed(MIDWAY, width=width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for figure in ("12,582,912", "29,073,408", "8,123,456", "329,253", "400", "12.3", "2.1"):
        assert figure in words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7200.0, "s", "2 h"),
        (1.23, "s", "1.23 s"),
        (1.2345e7, "USD", "12.35 MUSD"),
        (2.5e9, "J", "2.5 GJ"),
        (812.34, "mm2", "812.34 mm2"),
        (1.5, "", "1.5"),
        (math.inf, "s", "unknown"),
    ],
)
def test_values_have_the_form_of_their_unit(value, unit, text):
    lines = viewed(replace(MIDWAY, incumbent=value, unit=unit, bound=None, gap=None, objective="it"))
    assert lines[4] == f"best       it {text}"


def test_the_live_view_refreshes_four_times_a_second_at_most_and_leaves_stdout_alone(capsys):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    stdout = sys.stdout
    started = time.perf_counter()
    with LiveView(console=console) as live:
        assert sys.stdout is stdout
        while time.perf_counter() - started < 0.6:
            live(MIDWAY)
            time.sleep(0.001)
    taken_s = time.perf_counter() - started
    shown = file.getvalue().count("12,582,912")
    # one at the end, whatever the time
    assert 1 <= shown <= 4 * taken_s + 1
    assert capsys.readouterr() == ("", "")
    # the cursor is back
    assert file.getvalue().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")


def test_the_live_view_goes_on_while_nothing_is_said():
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with LiveView(clock, console) as live:
        live(MIDWAY)
        clock.now_s += 60
        deadline = time.perf_counter() + 10
        while "0:02:12" not in file.getvalue() and time.perf_counter() < deadline:
            time.sleep(0.02)
        assert "0:02:12" in file.getvalue()


def said(display: Display, clock: Clock, words: list[tuple[float, StudyProgress]]) -> None:
    with display:
        for after_s, progress in words:
            clock.now_s += after_s
            display(progress)


def test_plain_lines_every_ten_seconds_and_at_each_level(capsys):
    clock = Clock()
    steps = [(0.0, 1), (9.0, 2), (0.9, 3), (0.2, 4), (5.0, 5), (4.9, 6), (0.2, 7)]
    words = [(after, replace(BEGUN, counted=counted)) for after, counted in steps]
    words += [(1.0, replace(MIDWAY, counted=8)), (1.0, replace(MIDWAY, counted=9))]
    said(PlainLines(clock), clock, words)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": ")[2].split()[0] for line in err.splitlines()] == ["1", "4", "7", "8"]


def test_a_plain_line_says_everything(capsys):
    clock = Clock()
    several = replace(MIDWAY, level="search", incumbent=None, front=17, batches=1, batches_total=1, eta_s=None)
    said(PlainLines(clock), clock, [(0.0, MIDWAY), (0.0, BEGUN), (0.0, several)])
    assert capsys.readouterr().err.splitlines() == [
        "0:01:12 physical: 12,582,912 of 29,073,408 designs (43.3 %); pruned 8,123,456 by warm_start, 4,010,203 by "
        "physical; 329,253 evaluated; step time 12.3 ms, bound 12.1 ms, gap 2.1 %; 120 of 400 batches; 8 workers; "
        "about 1:01:40 left",
        "0:00:00 warm_start: 0 of 29,073,408 designs (0.0 %); 0 evaluated; 0 batches; 1 worker",
        "0:01:12 search: 12,582,912 of 29,073,408 designs (43.3 %); pruned 8,123,456 by warm_start, 4,010,203 by "
        "physical; 329,253 evaluated; 17 designs on the Pareto front; 1 of 1 batch; 8 workers",
    ]


@pytest.mark.parametrize("last", [0.1, 1.0])
def test_json_twice_a_second_at_each_level_and_the_last_once(last, capsys):
    clock = Clock()
    words = [(after, replace(BEGUN, counted=counted)) for after, counted in [(0.0, 1), (0.4, 2), (0.2, 3), (0.1, 4)]]
    words += [(0.1, replace(MIDWAY, counted=5)), (0.1, replace(MIDWAY, counted=6)), (last, replace(MIDWAY, counted=7))]
    said(JsonLines(clock), clock, words)
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["counted"] for line in err.splitlines()] == [1, 3, 5, 7]


def test_the_last_json_line_is_written_though_the_search_failed(capsys):
    def interrupted() -> None:
        with JsonLines(Clock()) as display:
            display(BEGUN)
            display(replace(BEGUN, counted=2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [json.loads(line)["counted"] for line in capsys.readouterr().err.splitlines()] == [0, 2]


def test_json_has_every_field_and_no_infinity():
    text = json.dumps(replace(MIDWAY, gap=math.inf, bound=math.nan).as_json(), allow_nan=False)
    read = json.loads(text)
    assert list(read) == ["event", *StudyProgress.__match_args__]
    assert (read["event"], read["gap"], read["bound"]) == ("progress", None, None)
    assert read["pruned"] == {"warm_start": 8_123_456, "physical": 4_010_203, "profile": 0}
    assert (read["incumbent"], read["batches_total"]) == (0.0123456, 400)


@pytest.mark.parametrize(
    ("as_json", "terminal", "kind"),
    [(True, True, JsonLines), (True, False, JsonLines), (False, True, LiveView), (False, False, PlainLines)],
)
def test_who_reads_decides(as_json, terminal, kind, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert type(listener_for(as_json)) is kind
