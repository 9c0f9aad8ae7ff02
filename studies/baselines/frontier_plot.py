"""A recompute frontier as a plot: saved bytes against added seconds, with the named choices of frameworks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dovetail.report.svg import FONT, PALETTE, SLACK, TITLE_HEIGHT, WIDTH, Box, Drawing, Point, Scale, linear_ticks
from dovetail.report.svg import text_width as wide

#: Choices off the frontier use the palette's second colour; frontiers use the others.
BEHIND = PALETTE[1]
COLOURS = (PALETTE[0], PALETTE[2])
HEIGHT = 300.0
#: Distance of a label from its mark, and half of a mark's width.
GAP, HALF = 9.0, 4.0

#: Marks closer than this share a label.
NEAR = 9.0

#: A position and its text.
Labelled = tuple[float, float, str]
#: Left, top, right and bottom of an occupied area.
Rectangle = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class NamedChoice:
    """A named choice: saved bytes, added seconds, and whether it is on the frontier."""

    name: str
    saved_bytes: float
    seconds: float
    on_frontier: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """A frontier as (bytes, seconds) in order of saved bytes, and named choices of the same layer."""

    name: str
    points: tuple[Point, ...]
    choices: tuple[NamedChoice, ...]


def frontier_plot(title: str, curves: Sequence[Curve]) -> str:
    """Stairs of the fewest added seconds by saved bytes; below a choice off the frontier, what it could cost."""
    assert curves
    assert len(curves) <= len(COLOURS)
    box = Box(58, TITLE_HEIGHT + 30, WIDTH - 58 - 24, HEIGHT)
    drawing = Drawing(title, f"seconds added against bytes saved, {len(curves)} frontiers", box.bottom + 46)
    shown = [
        (k / 2**20, 1e3 * s) for c in curves for k, s in (*c.points, *((m.saved_bytes, m.seconds) for m in c.choices))
    ]
    across = _axis(drawing, box, max(x for x, _ in shown), upright=False)
    up = _axis(drawing, box, max(y for _, y in shown), upright=True)
    drawing.text((box.x + box.right) / 2, box.bottom + 38, "saved per layer and micro-batch, MiB", "middle")
    drawing.text(16, (box.y + box.bottom) / 2, "added per layer and micro-batch, ms", "middle", turned=True)
    marks: list[Labelled] = []
    taken: list[Rectangle] = []
    for colour, curve in zip(COLOURS, curves, strict=False):
        stairs = undominated(curve.points)
        corners = _corners([(across(k / 2**20), up(1e3 * s)) for k, s in stairs])
        taken += [(min(x, w) - 2, min(y, z) - 2, max(x, w) + 2, max(y, z) + 2) for (x, y), (w, z) in pairwise(corners)]
        drawing.line(corners, colour, 1.5)
        drawing.dots([(across(k / 2**20), up(1e3 * s)) for k, s in curve.points], colour)
        for choice in curve.choices:
            x, y = across(choice.saved_bytes / 2**20), up(1e3 * choice.seconds)
            if not choice.on_frontier:
                bound = stairs[bisect_right(stairs, choice.saved_bytes * (1 + SLACK), key=lambda point: point[0]) - 1]
                drawing.line([(x, y), (x, up(1e3 * bound[1]))], BEHIND, 1, dashed=True)
            drawing.mark(x - 7, y + 4, "dot", colour if choice.on_frontier else BEHIND)
            marks.append((x, y, choice.name))
            taken.append((x - HALF, y - HALF, x + HALF, y + HALF))
    for x, y, name in placed(joined(marks), box, taken):
        drawing.text(x, y, name)
    names = [("line", colour, curve.name) for colour, curve in zip(COLOURS, curves, strict=False)]
    entries = [*names, ("dot", COLOURS[0], "named choice on the frontier"), ("dot", BEHIND, "behind it")]
    drawing.legend(box.x, TITLE_HEIGHT + 10, entries)
    return drawing.done()


def undominated(points: Iterable[Point]) -> list[Point]:
    """The undominated (bytes, seconds), in order of bytes."""
    stairs: list[Point] = []
    for saved_bytes, seconds in sorted(points):
        if not stairs or seconds < stairs[-1][1]:
            stairs.append((saved_bytes, seconds))
    return stairs


def joined(marks: Sequence[Labelled]) -> list[Labelled]:
    """Merges marks that are too close for separate labels."""
    groups: list[list[Labelled]] = []
    for mark in marks:
        near = (g for g in groups if abs(g[0][0] - mark[0]) < NEAR and abs(g[0][1] - mark[1]) < NEAR)
        group = next(near, None)
        if group is None:
            groups.append([mark])
        else:
            group.append(mark)
    return [(g[0][0], g[0][1], "; ".join(dict.fromkeys(name for _, _, name in g))) for g in groups]


def placed(marks: Sequence[Labelled], box: Box, taken: Sequence[Rectangle] = ()) -> list[Labelled]:
    """Where each label starts: next to its mark, where it overlaps least with others."""
    covered = list(taken)
    labelled: list[Labelled] = []
    for x, y, name in sorted(marks):
        level = min(y + 4, box.bottom - 2)
        width = wide(name)
        sides = [
            (x + GAP, level), (x - GAP - width, level), (x - width / 2, y - GAP), (x + GAP / 2, y - GAP),
            (x - GAP / 2 - width, y - GAP), (x + GAP / 2, y + GAP + FONT), (x - GAP / 2 - width, y + GAP + FONT),
            (x - width / 2, y - 2 * GAP), (x + GAP / 2, y - 2 * GAP), (x - GAP / 2 - width, y - 2 * GAP),
        ]  # fmt: skip
        spots = [(left, base - FONT, left + width, base + 2) for left, base in sides]
        covers = [sum(_overlap(spot, other) for other in covered) + _outside(spot, box) for spot in spots]
        best = covers.index(min(covers))
        covered.append(spots[best])
        labelled.append((*sides[best], name))
    return labelled


def _overlap(one: Rectangle, other: Rectangle) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def _outside(spot: Rectangle, box: Box) -> float:
    """How much of a label is outside the box (the right margin is free): worse than an overlap."""
    beyond = (box.x - spot[0], spot[2] - WIDTH, box.y - spot[1], spot[3] - box.bottom)
    return 1000.0 * sum(max(part, 0.0) for part in beyond)


def _corners(places: Sequence[Point]) -> list[Point]:
    """Stairs from the top left: along each point's height to the next point, then down."""
    steps = (((x, y), (after, y)) for (x, y), (after, _) in pairwise(places))
    return [*(corner for step in steps for corner in step), places[-1]]


def _axis(drawing: Drawing, box: Box, highest: float, *, upright: bool) -> Scale:
    ticks = linear_ticks(highest, 8)
    if upright:
        scale = Scale(0.0, ticks[-1], box.bottom, box.y)
        for tick in ticks:
            drawing.rule(box.x, scale(tick), box.right, scale(tick))
            drawing.text(box.x - 6, scale(tick) + 4, f"{tick:g}", "end")
        drawing.line([(box.x, box.y), (box.x, box.bottom)])
    else:
        scale = Scale(0.0, ticks[-1], box.x, box.right)
        for tick in ticks:
            drawing.line([(scale(tick), box.bottom), (scale(tick), box.bottom + 4)])
            drawing.text(scale(tick), box.bottom + 17, f"{tick:g}", "middle")
        drawing.line([(box.x, box.bottom), (box.right, box.bottom)])
    return scale
