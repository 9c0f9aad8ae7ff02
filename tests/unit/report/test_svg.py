"""Plots as SVG: well-formed, equal bytes for equal input, escaped, in the right places."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.report.svg import (
    PALETTE,
    WIDTH,
    Bars,
    Panel,
    Sample,
    Series,
    bars,
    counted,
    growth,
    histogram,
    linear_ticks,
    log_ticks,
    scatter,
    shortened,
)

NAUGHTY = '<script>alert("1")</script> & \x00\x1b[31m\ud800 ]]>'
EDGES = tuple(number / 10 for number in range(-5, 6))


def scatter_of(name: str = "a100", *points: tuple[float, float]) -> str:
    return scatter(f"times {name}", [Panel(name, (Series(name, points or ((1.0, 1.1), (10.0, 9.0))),))], name, "y")


def histogram_of(name: str = "fitted") -> str:
    samples = [Sample(name, (-0.9, 0.0, 0.12), (1.0, 2.0, 1.0)), Sample("left out", (0.3,), (1.0,))]
    return histogram(name, samples, EDGES, name, "share")


def bars_of(name: str = "bloom") -> str:
    return bars(name, [Bars(name, (0.1, 0.2)), Bars("other", (0.05, None))], (name, "left out"), "MAPE")


def growth_of(name: str = "layers") -> str:
    curves = Series(name, ((10.0, 0.5), (100.0, 5.0), (1000.0, 50.0))), Series("more", ((10.0, 2.0), (1000.0, 90.0)))
    return growth(name, [Panel(name, curves), Panel("widths", (Series(name, ((1.0, 1.0), (8.0, 4.0))),))], "ms")


PLOTS = (scatter_of, histogram_of, bars_of, growth_of)


def elements(text: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))  # noqa: S314


def words(text: str) -> list[str]:
    return ["".join(element.itertext()) for element in elements(text, "text")]


@pytest.mark.parametrize("plot", PLOTS)
def test_documents_are_well_formed_named_and_reproducible(plot):
    text = plot()
    root = ElementTree.fromstring(text)  # noqa: S314
    assert root.get("role") == "img"
    assert root[0].tag.endswith("title")
    assert root[0].text
    assert text == plot()
    assert text.endswith("</svg>\n")


@pytest.mark.parametrize("plot", PLOTS)
def test_names_are_escaped_and_nothing_runs(plot):
    text = plot(NAUGHTY)
    assert elements(text, "script") == []
    assert any("<script>" in each for each in words(text))
    assert text.encode()  # which half a character would not
    assert "\x00" not in text


@pytest.mark.parametrize("plot", PLOTS)
def test_text_takes_the_pages_colour(plot):
    for element in elements(plot(), "text"):
        assert element.get("fill") is None
    assert elements(plot(), "svg")[0].get("fill") == "currentColor"
    assert set(re.findall(r"#[0-9a-f]{6}", plot())) <= {*PALETTE, "#767676"}


@pytest.mark.parametrize("plot", PLOTS)
def test_everything_lies_within_the_picture(plot):
    root = elements(plot(), "svg")[0]
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width == WIDTH
    for element in root.iter():
        across = [element.get(name) for name in ("x", "x1", "x2", "cx")]
        down = [element.get(name) for name in ("y", "y1", "y2", "cy")]
        assert all(0 <= float(value) <= width for value in across if value)
        assert all(0 <= float(value) <= height for value in down if value)


def test_equal_values_lie_on_the_line_and_larger_predictions_above():
    text = scatter_of("a", (1.0, 1.0), (5.0, 5.0), (2.0, 3.0))
    line = next(e.get("points", "") for e in elements(text, "polyline"))
    (x1, y1), (x2, y2) = ([float(v) for v in point.split(",")] for point in line.split())
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in elements(text, "circle")][:3]
    on = [y1 + (x - x1) / (x2 - x1) * (y2 - y1) for x, _ in circles]
    assert circles[0][1] == pytest.approx(on[0], abs=0.2)
    assert circles[1][1] == pytest.approx(on[1], abs=0.2)
    assert circles[2][1] < on[2] - 5


def test_a_single_point_has_an_axis():
    numbers = [word for word in words(scatter_of("a", (1.3, 1.3))) if word.replace(".", "").isdigit()]
    assert len(numbers) >= 4


def test_equal_factors_are_equal_steps_and_panels_share_their_height():
    lines = [e.get("points", "").split() for e in elements(growth_of(), "polyline") if e.get("stroke") == PALETTE[0]]
    # the legend's line comes last
    rising, other = ([tuple(float(v) for v in point.split(",")) for point in line] for line in lines[:2])
    (x1, y1), (x2, y2), (x3, y3) = rising
    assert x3 - x2 == pytest.approx(x2 - x1, abs=0.2)
    assert y3 - y2 == pytest.approx(y2 - y1, abs=0.2)
    assert x2 > x1
    assert y2 < y1
    # 1 and 4 milliseconds, on the scale of the first panel's 0.5 to 5
    per_decade = y1 - y2
    assert y1 - other[0][1] == pytest.approx(per_decade * math.log10(2), abs=0.2)
    assert y1 - other[1][1] == pytest.approx(per_decade * math.log10(8), abs=0.2)


def test_curves_are_named_and_their_axes_numbered():
    found = words(growth_of())
    assert {"10", "100", "1,000", "1", "2", "5", "layers", "widths", "more", "ms"} <= set(found)


def test_every_panel_has_its_legend():
    panels = [Panel(f"panel {n}", (Series(f"chip {n}", ((1.0, 1.0),)), Series("b", ((2.0, 2.0),)))) for n in range(7)]
    found = words(scatter("many", panels, "x", "y"))
    assert {f"chip {n}" for n in range(7)} <= set(found)
    assert "within 10 % of measured" in found


def test_a_long_name_is_shortened_and_told_whole():
    name = "a family with a name that is far longer than there is room for"
    text = bars(name, [Bars(name, (0.1,))], ("fitted",), "MAPE")
    assert shortened(name) in text
    assert f"<title>{name}</title>{shortened(name)}" in text


def test_values_beyond_the_edges_fall_into_the_end_bins():
    sample = Sample("", (-9.0, -0.5, 0.0, 0.05, 0.5, 9.0), (1.0,) * 6)
    found = counted(sample, EDGES)
    assert found == pytest.approx([2 / 6, 0, 0, 0, 0, 2 / 6, 0, 0, 0, 2 / 6])


def test_a_missing_bar_is_left_out():
    found = words(bars_of())
    assert [word for word in found if re.fullmatch(r"\d+\.\d %", word)] == ["10.0 %", "20.0 %", "5.0 %"]
    assert len(elements(bars_of(), "rect")) == 3 + 2  # with the legend's


@given(st.floats(1e-6, 1e6))
def test_linear_ticks_are_few_and_enclose(highest):
    ticks = linear_ticks(highest)
    assert ticks[0] == 0
    assert 3 <= len(ticks) <= 7
    assert ticks[-1] >= highest * (1 - 1e-6)
    assert ticks[-2] < highest


@given(st.floats(1e-3, 1e4), st.floats(6, 1e8))
def test_log_ticks_are_few_and_within(low, factor):
    ticks = log_ticks(low, low * factor)
    assert 2 <= len(ticks) <= 7
    assert all(low <= tick <= low * factor for tick in ticks)
    assert all(f"{tick:e}"[0] in "125" for tick in ticks)
    assert ticks == sorted(ticks)


def test_ticks_of_nothing():
    assert linear_ticks(0.0) == [0.0, 0.1]
    assert math.isfinite(sum(linear_ticks(1e-12)))
