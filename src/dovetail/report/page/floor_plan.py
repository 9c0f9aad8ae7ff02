"""A design as a sketch: a die with its parts drawn to scale, or a wafer with its dies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from dovetail.report.svg import PALETTE
from dovetail.units import quantity_text

_WIDTH, _DIE = 300.0, 200.0
_STACK = 26.0
#: Parts of a die in the order they are drawn, with their colours.
_COLOURS = {
    "tensor": PALETTE[0],
    "vector": PALETTE[5],
    "core memory": PALETTE[2],
    "shared memory": PALETTE[4],
    "network on chip": PALETTE[3],
    "memory interface": PALETTE[1],
    "links": PALETTE[6],
}


def die_sketch(parts: Mapping[str, float], stacks: int) -> str:
    """A square die whose parts have areas to scale, HBM stacks along its sides."""
    area = sum(parts.values())
    left, top = (_WIDTH - _DIE) / 2, 20.0
    shapes = [_text(left, 14, f"{area:,.0f} mm², {sqrt(area):.1f} mm wide")]
    ordered = [(name, parts[name]) for name in _COLOURS if parts.get(name, 0.0) > 0]
    other = area - sum(value for _, value in ordered)
    rest = [*ordered, ("other", other)] if other > 1e-9 * area else ordered
    for name, (x, y, width, height) in _slices(rest, (left, top, _DIE, _DIE)):
        mm2 = dict(rest)[name]
        shapes.append(_rect(x, y, width, height, _COLOURS.get(name, "#8c8c8c"), f"{name}: {mm2:,.0f} mm²"))
        if height > 13 and width > 6.2 * len(name):
            shapes.append(_text(x + 4, y + height / 2 + 4, name, "#ffffff"))
    for number in range(stacks):
        side, place = number % 2, number // 2
        each = _DIE / max(-(-stacks // 2), 1)
        x = left - _STACK - 6 if side == 0 else left + _DIE + 6
        shapes.append(_rect(x, top + place * each + 2, _STACK, each - 4, "#767676", "an HBM stack"))
    return _svg(top + _DIE + 10, shapes, "Floor plan of the die, parts to scale")


def wafer_sketch(facts: Mapping[str, Any]) -> str:
    """The dies of a wafer in their grid, with their HBM stacks as dots; rows of spare dies are hatched grey."""
    rows, cols = int(facts["rows"]), int(facts["cols"])
    wide, high = cols * float(facts["die_width_mm"]), rows * float(facts["die_height_mm"])
    scale = 240.0 / max(wide, high)
    left, top = (_WIDTH - wide * scale) / 2, 20.0
    width, height = float(facts["die_width_mm"]) * scale, float(facts["die_height_mm"]) * scale
    shapes = [_text(10, 14, f"{rows} × {cols} dies, {quantity_text(float(facts['die_flops']), 'FLOPS')} each")]
    for row in range(rows):
        for col in range(cols):
            colour = PALETTE[0] if row < int(facts["planned_rows"]) else "#8c8c8c"
            x, y = left + col * width, top + row * height
            shapes.append(_rect(x, y, width - 1, height - 1, colour, f"die {row}, {col}"))
            stacks = [x + 1 + stack * width / 8.5 for stack in range(min(int(facts["hbm_stacks"]), 8))]
            shapes += [_rect(at, y + height * 0.8, width / 10, height * 0.12, PALETTE[1], "") for at in stacks]
    return _svg(top + high * scale + 8, shapes, "The dies of the wafer; grey ones are spare")


def _slices(
    parts: Sequence[tuple[str, float]], box: tuple[float, float, float, float]
) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Rectangles with areas in proportion, halves cut across the longer side."""
    if len(parts) == 1:
        return [(parts[0][0], box)]
    x, y, width, height = box
    total, half, count = sum(value for _, value in parts), 0.0, 0
    while count < len(parts) - 1 and (count == 0 or half + parts[count][1] <= total / 2):
        half += parts[count][1]
        count += 1
    share = half / total
    if width >= height:
        first, second = (x, y, width * share, height), (x + width * share, y, width * (1 - share), height)
    else:
        first, second = (x, y, width, height * share), (x, y + height * share, width, height * (1 - share))
    return [*_slices(parts[:count], first), *_slices(parts[count:], second)]


def _rect(x: float, y: float, width: float, height: float, colour: str, told: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}"'
    hint = f"<title>{told}</title>" if told else ""
    return f'<rect {place} fill="{colour}" stroke="#ffffff" stroke-width="0.6">{hint}</rect>'


def _text(x: float, y: float, content: str, colour: str = "currentColor") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{content}</text>'


def _svg(height: float, shapes: Sequence[str], words: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:.0f}" width="{_WIDTH:g}" role="img" '
    )
    return f'{head}aria-label="{words}" font-family="system-ui, sans-serif" font-size="11">{"".join(shapes)}</svg>'
