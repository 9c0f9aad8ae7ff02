"""Draws the picture of the README and the home page from a real answer: `python docs/answer_picture.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail as dt
from dovetail.explanation.bottleneck import COMPUTATION
from dovetail.pipeline.work_order import WorkKind
from dovetail.plans.words import plan_words
from dovetail.report.certificate_words import proof_text
from dovetail.report.page.answers import WAITING
from dovetail.report.step_items import item_spans, num_stages
from dovetail.report.svg import FONT, PALETTE, WIDTH, Box, Drawing, Scale
from dovetail.units import bytes_text, percent_text, seconds_text

PICTURE = Path(__file__).parent / "assets" / "answer.svg"
MODEL, CHIP, CHIPS, BATCH, LENGTH = "llama-3.1-70b", "h100-sxm", 256, 512, 8192
COLOURS = {WorkKind.FORWARD: PALETTE[0], WorkKind.BACKWARD: PALETTE[1]}
GIB = 2.0**30


def answer_picture() -> str:
    """The answer to one question: the plan, its proof, where time and memory go, and the step it runs."""
    job = dt.Job(dt.models.load(MODEL), seq_len=LENGTH, global_batch=BATCH)
    best = dt.plan(job, dt.hardware.cluster(CHIP, chips=CHIPS))
    step = dt.simulate(best)
    drawing = Drawing(
        f"{MODEL} on {CHIPS} × {CHIP}: which parallel plan?",
        "The answer of Dovetail: a plan, its proof, the parts of its step, its memory by stage and its pipeline",
        486.0,
    )
    told = (
        f"Run {plan_words(best.plan)}",
        f"{seconds_text(best.step_time_s)} a step, {percent_text(best.best.mfu)} MFU, "
        f"{bytes_text(best.best.peak_bytes)} of {bytes_text(best.best.usable_bytes)} per chip",
        proof_text(best.certificate).partition(";")[0],
    )
    for line, text in enumerate(told):
        drawing.text(WIDTH / 2, 46 + 18 * line, text, "middle", size=13 if line == 0 else FONT + 1)
    _time(drawing, best.best.breakdown, best.step_time_s, Box(130, 116, 180, 110))
    _memory(drawing, best.best, Box(450, 116, 240, 110))
    _pipeline(drawing, step, Box(70, 290, WIDTH - 90, 150))
    return drawing.done()


def _time(drawing, breakdown, step_s, box):
    drawing.text(box.x - 118, box.y - 8, "where the time goes")
    shown = sorted(((s, n) for n, s in breakdown.items() if s > 0.004 * step_s), reverse=True)[:7]
    across = Scale(0.0, step_s, 0.0, box.width)
    for row, (seconds, name) in enumerate(shown):
        y = box.y + row * 17
        colour = PALETTE[0] if name in COMPUTATION else "#8c8c8c" if name in WAITING else PALETTE[1]
        drawing.text(box.x - 6, y + 10, name, "end")
        drawing.bar(box.x, y, across(seconds), 12, colour, f"{name}: ", seconds / step_s)
        drawing.text(box.x + across(seconds) + 5, y + 10, percent_text(seconds / step_s))


def _memory(drawing, cost, box):
    drawing.text(box.x - 34, box.y - 8, "memory of a chip, by pipeline stage")
    up = Scale(0.0, cost.usable_bytes, 0.0, box.height)
    each = box.width / len(cost.memory_by_stage)
    stages = cost.memory_by_stage
    names = [name for name in stages[0] if any(parts[name] > 0.02 * cost.usable_bytes for parts in stages)]
    for stage, parts in enumerate(stages):
        y = box.bottom
        for number, name in enumerate(names):
            high = up(parts[name])
            y -= high
            share = parts[name] / cost.usable_bytes
            drawing.bar(box.x + stage * each + 2, y, each - 4, high, PALETTE[number % 7], f"{name}: ", share)
        drawing.text(box.x + (stage + 0.5) * each, box.bottom + 13, str(stage), "middle")
    drawing.line([(box.x, box.y), (box.right, box.y)], PALETTE[1], 1.5, dashed=True)
    for row in range(0, len(names), 3):
        entries = [("area", PALETTE[number % 7], names[number]) for number in range(row, min(row + 3, len(names)))]
        drawing.legend(box.x - 34, box.bottom + 30 + 5 * row, entries)
    drawing.text(box.x - 6, box.y + 4, f"{cost.usable_bytes / GIB:.0f} GiB", "end")


def _pipeline(drawing, step, box):
    drawing.text(box.x - 58, box.y - 10, "one step of the pipeline, simulated: forward blue, backward orange")
    spans, order = item_spans(step), step.tasks.order
    across, rows = Scale(0.0, step.step_time_s, box.x, box.right), num_stages(step)
    high = box.height / rows
    for index in range(len(spans.item)):
        stage = int(spans.stage[index])
        begin, end = across(float(spans.begin_s[index, 0])), across(float(spans.end_s[index, 0]))
        colour = COLOURS.get(WorkKind(int(order.kind[spans.item[index]])), PALETTE[2])
        place = f'x="{begin:.2f}" y="{box.y + stage * high:.1f}" width="{end - begin:.2f}" height="{high - 3:.1f}"'
        drawing.elements.append(f'<rect {place} fill="{colour}"/>')
    for stage in range(rows):
        drawing.text(box.x - 6, box.y + (stage + 0.6) * high, f"stage {stage}", "end")
    for part in (0.0, 0.5, 1.0):
        seconds = part * step.step_time_s
        drawing.text(across(seconds), box.bottom + 14, seconds_text(seconds) if part else "0 s", "middle")


if __name__ == "__main__":
    text = answer_picture()
    if "--check" in sys.argv:
        sys.exit(None if PICTURE.read_text() == text else f"{PICTURE} is not this answer: run this without --check")
    PICTURE.write_text(text)
