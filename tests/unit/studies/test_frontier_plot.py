"""Recompute frontiers as SVG: stairs, marks in the right places and colours, labels that can be read."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import pytest
from baselines.frontier_plot import BEHIND, COLOURS, Curve, NamedChoice, frontier_plot, joined, placed, undominated

from dovetail.report.svg import FONT, WIDTH, Box, text_width

MIB = 2**20
NAUGHTY = '<script>alert("1")</script> & \x00\x1b[31m ]]>'
POINTS = ((10.0 * MIB, 4e-3), (20.0 * MIB, 1e-3), (40.0 * MIB, 0.0))
BOX = Box(58, 64, 638, 300)


def plot(*choices: NamedChoice, name: str = "frontier") -> str:
    return frontier_plot(f"block {name}", [Curve(name, POINTS, choices)])


def elements(text: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))  # noqa: S314


def corners(element: ElementTree.Element) -> list[tuple[float, ...]]:
    return [tuple(map(float, pair.split(","))) for pair in element.get("points", "").split()]


def test_equal_input_gives_equal_bytes_and_names_are_escaped():
    text = plot(NamedChoice(NAUGHTY, 15.0 * MIB, 2e-3, False), name=NAUGHTY)
    assert text == plot(NamedChoice(NAUGHTY, 15.0 * MIB, 2e-3, False), name=NAUGHTY)
    assert not elements(text, "script")
    assert any("alert" in "".join(e.itertext()) for e in elements(text, "text"))


def test_the_frontier_is_drawn_as_stairs():
    (line,) = (e for e in elements(plot(), "polyline") if e.get("stroke") == COLOURS[0] and len(corners(e)) > 2)
    xs, ys = zip(*corners(line), strict=True)
    # along to where the next point begins, then down to it
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)
    assert [xs[1], xs[3]] == [xs[2], xs[4]]
    assert [ys[0], ys[2]] == [ys[1], ys[3]]


def test_a_choice_behind_is_joined_to_what_it_could_cost_instead():
    text = plot(NamedChoice("on", 20.0 * MIB, 1e-3, True), NamedChoice("behind", 30.0 * MIB, 3e-3, False))
    (dashed,) = (e for e in elements(text, "polyline") if e.get("stroke-dasharray"))
    (stairs,) = (e for e in elements(text, "polyline") if e.get("stroke") == COLOURS[0] and len(corners(e)) > 2)
    top, foot = corners(dashed)
    assert top[0] == foot[0]
    # at 30 MiB the stairs are as high as at 20 MiB
    assert foot[1] == corners(stairs)[2][1] > top[1]
    marks = [e for e in elements(text, "circle") if e.get("r") == "3.5"]
    drawn = {(float(e.get("cx", 0)), float(e.get("cy", 0))): e.get("fill") for e in marks}
    assert drawn[top[0], top[1]] == BEHIND
    assert drawn[corners(stairs)[2]] == COLOURS[0]  # type: ignore[index]


def test_of_a_frontier_in_three_labels_the_stairs_take_the_least_seconds():
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 6.0), (3.0, 2.0), (4.0, 1.0)]
    assert undominated(points) == [(1.0, 5.0), (3.0, 1.0)]


def test_marks_that_nearly_coincide_share_a_label():
    assert joined([(10, 10, "full"), (12, 14, "early"), (90, 10, "none"), (11, 10, "full")]) == [
        (10, 10, "full; early"),
        (90, 10, "none"),
    ]


@pytest.mark.parametrize("y", [84.0, 200.0, 324.0])
@pytest.mark.parametrize("x", [58.0, 300.0, 656.0])
def test_labels_stay_in_the_picture_and_apart(x, y):
    marks = [(x, y, "selective"), (x + 40, y, "none"), (x, y + 20, "mlp"), (x + 40, y + 40, "layernorm")]
    found = placed(marks, BOX, [(a - 4, b - 4, a + 4, b + 4) for a, b, _ in marks])
    assert sorted(name for _, _, name in found) == ["layernorm", "mlp", "none", "selective"]
    for left, base, name in found:
        assert BOX.x <= left
        assert left + text_width(name) <= WIDTH
        assert BOX.y <= base - FONT
        assert base <= BOX.bottom
    for (a, b, one), (c, d, other) in combinations(found, 2):
        apart = a + text_width(one) <= c or c + text_width(other) <= a or abs(b - d) >= FONT
        assert apart, (one, other)
