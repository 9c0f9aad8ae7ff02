"""A simulated step as a picture for a terminal: a line for each stage, time from left to right."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkKind
from dovetail.report.step_items import ItemSpans, busy_shares, item_spans, num_stages, skipped_times, stage_chips
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.simulate import Simulation
from dovetail.units import seconds_text

#: Stages that are shown; of more, every second, third, ...
MOST_STAGES = 40

#: What stands for each kind of item: a character for the last digit of its microbatch.
_DIGITS = {
    WorkKind.FORWARD: "0123456789",
    WorkKind.BACKWARD: "abcdefghij",
    WorkKind.INPUT_GRADIENT: "abcdefghij",
    WorkKind.WEIGHT_GRADIENT: "ABCDEFGHIJ",
}
_IDLE, _MESSAGE, _OPTIMIZER, _REPEATED = ".", "=", "#", "~"

#: An item narrower than so many columns cannot be read; then only the ends of the step are shown.
_COLUMNS_PER_ITEM = 2

_BETWEEN = " ... "


@frozen
class _Panel:
    """A part of the step."""

    start_s: float
    end_s: float
    columns: int


@frozen
class _Bars:
    """What a stage does when, and the characters that stand for it in even and odd columns."""

    start_s: Floats
    end_s: Floats
    even: Ints
    odd: Ints


def picture(simulation: Simulation, width: int = 100) -> list[str]:
    """Lines: time, the stages with the part of the step in which their kernels run, and what the characters mean."""
    spans = item_spans(simulation)
    panels = _panels(simulation, spans, width)
    busy = busy_shares(simulation)
    step = -(-num_stages(simulation) // MOST_STAGES)
    stages = range(0, num_stages(simulation), step)
    label = len(f"stage {stages[-1]}")
    rows: dict[int, list[str]] = {}
    repeated = [_all_of(times, _REPEATED) for times in skipped_times(simulation)]
    for stage in stages:
        bars = _messages(simulation, stage), repeated[stage], _works(simulation, spans, stage)
        rows[stage] = [_row(*bars, panel) for panel in panels]
    lines = [f"{'':<{label}}  {_scale(panels)}  busy"]
    for stage, parts in rows.items():
        lines.append(f"{f'stage {stage}':<{label}} |{_BETWEEN.join(parts)}| {busy[stage]:>4.0%}")
    lines += _legend("".join(part for parts in rows.values() for part in parts), simulation, panels, step)
    return lines


def _panels(simulation: Simulation, spans: ItemSpans, width: int) -> tuple[_Panel, ...]:
    """The whole step where items are wide enough to be read, or its beginning and its end on a larger scale."""
    whole = simulation.step_time_s
    lengths = spans.end_s[:, 0] - spans.begin_s[:, 0]
    typical = float(np.median(lengths[simulation.tasks.order.kind[spans.item] == WorkKind.FORWARD]))
    columns = width - len(_BETWEEN)
    firsts = spans.begin_s[np.append(True, spans.stage[1:] != spans.stage[:-1]), 0]
    lasts = spans.end_s[np.append(spans.stage[1:] != spans.stage[:-1], True), 0]
    # the pipeline should be seen to fill, and to run empty
    fill, drain = (max(1.25 * float(part), typical) for part in (firsts.max(), whole - lasts.min()))
    column_s = max(typical / _COLUMNS_PER_ITEM, (fill + drain) / columns)
    if columns * column_s >= whole:
        return (_Panel(0.0, whole, width),)
    left = round(columns * min(max(fill / (fill + drain), 1 / 3), 2 / 3))
    return _Panel(0.0, left * column_s, left), _Panel(whole - (columns - left) * column_s, whole, columns - left)


def _works(simulation: Simulation, spans: ItemSpans, stage: int) -> _Bars:
    """Items and the optimizer on the first chip of a stage."""
    tasks, timeline, order = simulation.tasks, simulation.timeline, simulation.tasks.order
    updates = _end_of_step(simulation, stage, StepKind.OPTIMIZER)
    mine = spans.stage == stage
    items = spans.item[mine]
    # of two items that run together each has every other column
    partners = items + order.joined[items]
    codes = np.array([[ord(c) for c in _DIGITS[kind]] for kind in WorkKind])
    even, odd = (codes[order.kind[shown], order.microbatch[shown] % 10] for shown in (items, partners))
    update = np.full(len(updates), ord(_OPTIMIZER))
    return _Bars(
        np.append(timeline.start_s[updates], timeline.start_s[tasks.begin[items, 0]]),
        np.append(timeline.end_s[updates], timeline.end_s[tasks.end[items, 0]]),
        np.append(update, even),
        np.append(update, odd),
    )


def _messages(simulation: Simulation, stage: int) -> _Bars:
    """Messages of the step, which belong to no item."""
    timeline, sent = simulation.timeline, _end_of_step(simulation, stage, StepKind.COLLECTIVE)
    times = zip(timeline.start_s[sent].tolist(), timeline.end_s[sent].tolist(), strict=True)
    return _all_of(list(times), _MESSAGE)


def _all_of(times: list[tuple[float, float]], character: str) -> _Bars:
    """Bars of one character."""
    start_s, end_s = np.array(times, np.float64).reshape(-1, 2).T
    characters = np.full(len(times), ord(character))
    return _Bars(start_s, end_s, characters, characters)


def _end_of_step(simulation: Simulation, stage: int, kind: StepKind) -> Ints:
    """Tasks of a stage's first chip that belong to no item."""
    labels = simulation.tasks.labels
    chip = stage * stage_chips(simulation)
    return np.nonzero((labels.chip == chip) & (labels.microbatch < 0) & (labels.kind == kind))[0]


def _row(messages: _Bars, repeated: _Bars, works: _Bars, panel: _Panel) -> str:
    """Characters of a stage: each column shows what takes most of it, messages where no work does."""
    shown = np.full(panel.columns, ord(_IDLE))
    for bars in (messages, repeated, works):
        taken, characters = _columns(bars, panel)
        covered = taken >= (panel.end_s - panel.start_s) / panel.columns / 2
        shown[covered] = characters[covered]
    return "".join(map(chr, shown.tolist()))


def _columns(bars: _Bars, panel: _Panel) -> tuple[Floats, Ints]:
    """Of every column the seconds that bars take, and the character of the bar that takes most."""
    edges = np.linspace(panel.start_s, panel.end_s, panel.columns + 1)
    taken, most = np.zeros(panel.columns), np.zeros(panel.columns)
    shown = np.full(panel.columns, ord(_IDLE))
    lows = np.clip(np.searchsorted(edges, bars.start_s, "right") - 1, 0, panel.columns)
    highs = np.clip(np.searchsorted(edges, bars.end_s, "left"), 0, panel.columns)
    bar: int
    for bar in np.nonzero(highs > lows)[0].tolist():
        low, high = int(lows[bar]), int(highs[bar])
        overlap = np.minimum(edges[low + 1 : high + 1], bars.end_s[bar])
        overlap -= np.maximum(edges[low:high], bars.start_s[bar])
        character = np.where(np.arange(low, high) % 2, int(bars.odd[bar]), int(bars.even[bar]))
        shown[low:high] = np.where(overlap > most[low:high], character, shown[low:high])
        most[low:high] = np.maximum(most[low:high], overlap)
        taken[low:high] += overlap
    return taken, shown


def _scale(panels: tuple[_Panel, ...]) -> str:
    """The times at which panels begin and end."""
    texts: list[str] = []
    for panel in panels:
        begin, end = (seconds_text(at) if at else "0 s" for at in (panel.start_s, panel.end_s))
        texts.append(f"{begin}{end:>{max(panel.columns - len(begin), len(end) + 1)}}")
    return (" " * len(_BETWEEN)).join(texts)


def _legend(shown: str, simulation: Simulation, panels: tuple[_Panel, ...], step: int) -> list[str]:
    """What the characters that are there mean, and what is left out."""
    order = simulation.tasks.order
    digit = min(3, order.pipeline.num_microbatches - 1)
    also = f", {digit + 10}, ..." if order.pipeline.num_microbatches > 10 else ""
    words = [f"{digit} forward and {_DIGITS[WorkKind.BACKWARD][digit]} backward of microbatch {digit}{also}"]
    if WorkKind.WEIGHT_GRADIENT in order.kind:
        words.append(f"{_DIGITS[WorkKind.WEIGHT_GRADIENT][digit]} its weight gradients")
    meanings = (
        (_MESSAGE, "messages once a step"),
        (_REPEATED, "the same for later microbatches"),
        (_OPTIMIZER, "optimizer"),
        (_IDLE, "idle"),
    )
    words += [f"{character} {meaning}" for character, meaning in meanings if character in shown]
    lines = [", ".join(words)]
    if len(panels) > 1:
        between = seconds_text(panels[1].start_s - panels[0].end_s)
        lines.append(f"the beginning and the end of the step; ... stands for {between} between them")
    if step > 1:
        lines.append(f"one of {step} stages is shown")
    return lines
