"""The front of a study with step time, tokens per joule and tokens per dollar, as a table and as a plot.

Reads the run directory of a finished `dovetail explore`; `--plot FILE` draws it too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.report.svg import PALETTE, TITLE_HEIGHT, WIDTH, Box, Drawing, Scale, linear_ticks

#: Rows of the table: the best of each objective, and others evenly between them.
SHOWN = 12
HEADS = (
    *("step, s", "tokens/J", "million tokens/USD"),
    *("cores", "array", "lanes", "SRAM, MiB", "stacks", "ports", "GHz", "mm2", "W", "plan"),
)
STEP, JOULE, DOLLAR = "step_time", "tokens_per_joule", "tokens_per_dollar"


def some(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points in the order of their steps: the best of each objective and others between them."""
    ordered = sorted(points, key=lambda point: point["objectives"][STEP])
    best = {max(range(len(ordered)), key=lambda n: ordered[n]["objectives"][name]) for name in (JOULE, DOLLAR)}
    even = {round(n * (len(ordered) - 1) / (SHOWN - 1)) for n in range(SHOWN)}
    return [ordered[n] for n in sorted(best | even)]


def print_table(points: Sequence[dict[str, Any]]) -> None:
    """Markdown."""
    print("| " + " | ".join(HEADS) + " |")
    print("|" + "---|" * len(HEADS))
    for point in some(points):
        figures, chip, silicon = point["objectives"], point["variables"], point["silicon"]
        (job,) = point["jobs"].values()
        plan = job["plan"]
        words = f"TP{plan['tensor_parallel']} PP{plan['pipeline_parallel']} DP{plan['data_parallel']}"
        words += f" MBS{plan['micro_batch']} ZeRO-{plan['zero_stage']}"
        words += ", SP" if plan["sequence_parallel"] else ""
        words += f", recompute {plan['recompute']}" if plan["recompute"] != "none" else ""
        cells = [
            f"{figures[STEP]:.2f}",
            f"{figures[JOULE]:.2f}",
            f"{figures[DOLLAR] / 1e6:.2f}",
            f"{chip['tensor_cores']:.0f}",
            f"{chip['rows']:.0f} × {chip['cols']:.0f}",
            f"2 × {chip['vector_lanes']:.0f}",
            f"{chip['shared_sram_bytes'] / 2**20:.0f}",
            f"{chip['hbm_stacks']:.0f}",
            f"{chip['link_ports']:.0f}",
            f"{chip['clock_hz'] / 1e9:.2f}",
            f"{silicon['area_mm2']:.0f}",
            f"{silicon['peak_power_w']:.0f}",
            words,
        ]
        print("| " + " | ".join(cells) + " |")


def draw(points: Sequence[dict[str, Any]]) -> str:
    """Energy and money against step time, each as a part of the front's best."""
    box = Box(58, TITLE_HEIGHT + 26, WIDTH - 58 - 24, 240)
    title = f"{len(points)} designs that nothing beats in step time, energy and money together"
    drawing = Drawing(title, "tokens per joule and per dollar against step time", box.bottom + 46)
    steps = [point["objectives"][STEP] for point in points]
    margin = 0.03 * (max(steps) - min(steps))
    across = Scale(min(steps) - margin, max(steps) + margin, box.x, box.right)
    shares = {name: [point["objectives"][name] for point in points] for name in (JOULE, DOLLAR)}
    least = min(min(values) / max(values) for values in shares.values())
    floor = int(least * 10) / 10
    up = Scale(floor, 1.0, box.bottom, box.y)
    for tenth in range(round(floor * 10), 11):
        drawing.rule(box.x, up(tenth / 10), box.right, up(tenth / 10))
        drawing.text(box.x - 6, up(tenth / 10) + 4, f"{10 * tenth} %", "end")
    for tick in linear_ticks(max(steps), 20):
        if not across.low <= tick <= across.high:
            continue
        drawing.line([(across(tick), box.bottom), (across(tick), box.bottom + 4)])
        drawing.text(across(tick), box.bottom + 17, f"{tick:g}", "middle")
    drawing.line([(box.x, box.y), (box.x, box.bottom), (box.right, box.bottom)])
    for colour, values in zip(PALETTE, shares.values(), strict=False):
        most = max(values)
        drawing.dots([(across(x), up(y / most)) for x, y in zip(steps, values, strict=True)], colour)
    drawing.text((box.x + box.right) / 2, box.bottom + 38, "step time, s", "middle")
    drawing.text(16, (box.y + box.bottom) / 2, "of the front's best", "middle", turned=True)
    names = [("dot", PALETTE[0], "tokens per joule"), ("dot", PALETTE[1], "tokens per dollar")]
    drawing.legend(box.x, TITLE_HEIGHT + 10, names)
    return drawing.done()


def main() -> None:
    """Prints the table, and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the front there")
    options = parser.parse_args()
    result = json.loads((options.run / "result.json").read_text(encoding="utf-8"))["result"]
    print_table(result["front"])
    if options.plot is not None:
        options.plot.write_text(draw(result["front"]), encoding="utf-8")


if __name__ == "__main__":
    main()
