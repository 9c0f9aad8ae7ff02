"""A simulated step as SVG: a row for each pipeline stage, time from left to right."""

from __future__ import annotations

import math

from dovetail.pipeline.work_order import WorkKind
from dovetail.report.step_items import ItemSpans, busy_shares, item_name, item_spans, num_stages, skipped_times
from dovetail.report.svg import FONT, PALETTE, TITLE_HEIGHT, WIDTH, Box, Drawing, Scale
from dovetail.simulation.simulate import Simulation
from dovetail.units import percent_text, seconds_text

#: Stages that are drawn; of more, each second, third, ...
MOST_STAGES = 64

_COLOURS = {
    WorkKind.FORWARD: (PALETTE[0], "forward"),
    WorkKind.BACKWARD: (PALETTE[1], "backward"),
    WorkKind.INPUT_GRADIENT: (PALETTE[1], "input gradient"),
    WorkKind.WEIGHT_GRADIENT: (PALETTE[2], "weight gradient"),
}
#: What is the same again for later micro-batches.
_REPEATED = "#d9d9d9"
_ROW, _BAR = 16.0, 12.0
_LEFT, _RIGHT = 120.0, 20.0


def pipeline_svg(simulation: Simulation) -> str:
    """When each stage works on which micro-batch; gaps are bubbles and, at the end, the end of the step."""
    spans, busy = item_spans(simulation), busy_shares(simulation).tolist()
    stages = range(0, num_stages(simulation), math.ceil(num_stages(simulation) / MOST_STAGES))
    box = Box(_LEFT, TITLE_HEIGHT + 24, WIDTH - _LEFT - _RIGHT, _ROW * len(stages))
    described = f"What each of {num_stages(simulation)} pipeline stages works on over the time of a step"
    drawing = Drawing(f"One step: {seconds_text(simulation.step_time_s)}", described, box.bottom + 34)
    kinds = sorted({int(kind) for kind in simulation.tasks.order.kind})
    repeated = skipped_times(simulation)
    legend = [("area", *_COLOURS[WorkKind(kind)]) for kind in kinds]
    legend += [("area", _REPEATED, "the same for later micro-batches")] if any(repeated) else []
    drawing.legend(box.x, TITLE_HEIGHT + 10, legend)
    across = Scale(0.0, simulation.step_time_s, box.x, box.right)
    for row, stage in enumerate(stages):
        y = box.y + row * _ROW
        drawing.text(box.x - 8, y + FONT, f"stage {stage} ({percent_text(busy[stage])} busy)", "end")
        for begin, end in repeated[stage]:
            place = f'x="{across(begin):.2f}" y="{y:.1f}" width="{across(end) - across(begin):.2f}" height="{_BAR}"'
            drawing.elements.append(f'<rect {place} fill="{_REPEATED}"/>')
        _draw_stage(drawing, simulation, spans, stage, across, y)
    drawing.rule(box.x, box.bottom, box.right, box.bottom)
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        seconds = part * simulation.step_time_s
        drawing.text(across(seconds), box.bottom + 18, seconds_text(seconds) if part else "0 s", "middle")
    return drawing.done()


def _draw_stage(
    drawing: Drawing, simulation: Simulation, spans: ItemSpans, stage: int, across: Scale, y: float
) -> None:
    """The work of a stage's first simulated chip, each item with its name and seconds as a hint."""
    order = simulation.tasks.order
    for index in (spans.stage == stage).nonzero()[0].tolist():
        item, begin, end = int(spans.item[index]), float(spans.begin_s[index, 0]), float(spans.end_s[index, 0])
        colour, _ = _COLOURS[WorkKind(int(order.kind[item]))]
        x, width = across(begin), across(end) - across(begin)
        hint = f"<title>{item_name(order, item).replace('&', '&amp;')}: {seconds_text(end - begin)}</title>"
        place = f'x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.2):.2f}" height="{_BAR}"'
        edge = ' stroke="#ffffff" stroke-width="0.4"' if width > 2 else ""
        drawing.elements.append(f'<rect {place} fill="{colour}"{edge}>{hint}</rect>')
