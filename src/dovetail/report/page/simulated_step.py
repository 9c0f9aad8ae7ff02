"""The sections of a simulated step: the pipeline to zoom into, memory over the step, and the dies of wafers."""

from __future__ import annotations

import math

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.pipeline.work_order import WorkKind
from dovetail.plans.arrange import arrange
from dovetail.plans.plan_file import Task
from dovetail.plans.wafer_tiles import is_wafer
from dovetail.report.page.charts import Curve, steps
from dovetail.report.page.document import Section, Table, Widget
from dovetail.report.step_items import WORDS, busy_shares, item_spans, num_stages, skipped_times
from dovetail.report.svg import PALETTE
from dovetail.report.wafer_picture import wafer_pictures
from dovetail.report.wafer_svg import wafer_svg
from dovetail.simulation.memory_over_time import MemoryOverTime
from dovetail.simulation.simulate import Simulation, simulate
from dovetail.units import bytes_text, percent_text, seconds_text

#: Items of work that the timeline shows; where there are more, stages are left out.
MOST_ITEMS = 60_000
#: Stages whose memory is drawn, and points of each curve.
MOST_CURVES, MOST_POINTS = 8, 400
GIB = 2.0**30

_COLOURS = {
    WorkKind.FORWARD: PALETTE[0],
    WorkKind.BACKWARD: PALETTE[1],
    WorkKind.INPUT_GRADIENT: PALETTE[1],
    WorkKind.WEIGHT_GRADIENT: PALETTE[2],
}

#: The number of a kind of its own: periods that repeat what came before.
_REPEATED = len(WorkKind)


def step_sections(task: Task) -> tuple[Section, ...]:
    """A step of the plan, simulated."""
    step = simulate(task.plan, task.job, task.cluster, task.framework)
    sections = [_memory(step, task.cluster.chip.usable_bytes), _pipeline(step)]
    if is_wafer(task.cluster):
        sections.append(_wafers(step, task))
    return tuple(sections)


def _pipeline(step: Simulation) -> Section:
    busy = busy_shares(step).tolist()
    lead = (
        f"One step simulated kernel by kernel and message by message: {seconds_text(step.step_time_s)}, "
        f"{step.ratio - 1:+.1%} against the estimate. Gaps are pipeline bubbles, communication and the end of the step."
    )
    words = (
        "Scroll or press + and − to zoom, drag or press the arrows to move, 0 shows the whole step; "
        "point at a piece of work to read what it is."
    )
    rows = tuple((f"stage {stage}", percent_text(share)) for stage, share in enumerate(busy))
    widget = Widget("timeline", timeline_data(step), words)
    return Section("pipeline", "The pipeline", lead, (widget,), Table(("stage", "computing, of the step"), rows))


def timeline_data(step: Simulation) -> dict[str, object]:
    """When each stage works on what: per stage, begin and length in steps of a millionth, kind and micro-batch."""
    spans, order, count = item_spans(step), step.tasks.order, num_stages(step)
    every = math.ceil(count * max(len(spans.item) / count, 1) / MOST_ITEMS)
    unit = step.step_time_s / 1e6
    rows: list[dict[str, object]] = []
    repeated = skipped_times(step)
    for stage in range(0, count, every):
        (at,) = np.nonzero(spans.stage == stage)
        items: Ints = spans.item[at]
        begin, end = spans.begin_s[at, 0], spans.end_s[at, 0]
        kind, number = order.kind[items], order.microbatch[items]
        for again_s, until_s in repeated[stage]:
            (place,) = np.searchsorted(begin, [until_s])
            begin, end = np.insert(begin, place, again_s), np.insert(end, place, until_s)
            kind, number = np.insert(kind, place, _REPEATED), np.insert(number, place, number[place - 1])
        rows.append(
            {
                "name": f"stage {stage}",
                "begin": _whole(begin / unit),
                "length": _whole((end - begin) / unit),
                "kind": kind.tolist(),
                "microbatch": number.tolist(),
            }
        )
    kinds = {str(int(kind)): {"name": WORDS[kind], "colour": _COLOURS[kind]} for kind in _COLOURS}
    kinds[str(_REPEATED)] = {"name": "repeats the work", "colour": "#bdbdbd"}
    shown = [str(int(kind)) for kind in WorkKind if (order.kind == kind).any()]
    shown += [str(_REPEATED)] if any(repeated) else []
    return {
        "seconds": step.step_time_s,
        "rows": rows,
        "kinds": {key: value for key, value in kinds.items() if key in shown},
    }


def _whole(values: Floats) -> list[int]:
    return [int(value) for value in np.rint(values)]


def _memory(step: Simulation, usable_bytes: float) -> Section:
    peaks = [memory.peak_bytes for memory in step.memory]
    fullest = int(np.argmax(peaks))
    apart = range(0, len(peaks), max(-(-len(peaks) // (MOST_CURVES - 1)), 1))
    shown = sorted({*apart, fullest, len(peaks) - 1})
    curves = [_curve(f"stage {stage}", step.memory[stage], step.step_time_s) for stage in shown]
    lead = (
        f"Stage {fullest} peaks at {bytes_text(peaks[fullest])} of {bytes_text(usable_bytes)}: activations pile up "
        "while forwards run ahead of their backwards, weights and optimizer state stay."
    )
    words = f"Memory of a chip over the step, {len(curves)} of {len(peaks)} stages. {lead}"
    chart = steps(curves, "GiB", usable_bytes / GIB, words)
    rows = tuple((f"stage {stage}", bytes_text(peak)) for stage, peak in enumerate(peaks))
    return Section("memory-over-time", "Memory over the step", lead, (chart,), Table(("stage", "peak"), rows))


def _curve(name: str, memory: MemoryOverTime, until_s: float) -> Curve:
    """A curve of a bounded number of points that keeps every peak."""
    at, amount = memory.at_s, memory.bytes
    if len(at) > MOST_POINTS:
        windows = np.array_split(np.arange(len(at)), MOST_POINTS)
        at = np.array([at[window[0]] for window in windows])
        amount = np.array([amount[window].max() for window in windows])
    x = [*at.tolist(), until_s]
    return Curve(name, [round(each, 6) for each in x], [round(each / GIB, 4) for each in (*amount, amount[-1])])


def _wafers(step: Simulation, task: Task) -> Section:
    lead = "Dies coloured by pipeline stage; links are as wide as they are busy; what is dead is hatched or crossed."
    try:
        pictures = wafer_pictures(step, arrange(task.plan, task.job.graph(), task.cluster), task.cluster)
    except InputError as error:
        # a plan that cannot be drawn has been simulated all the same
        return Section("wafer", "The wafer", f"No map of the wafer: {error}")
    return Section("wafer", "The wafer", lead, (wafer_svg(pictures),))
