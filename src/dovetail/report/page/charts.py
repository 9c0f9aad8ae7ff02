"""The charts of a page, as Plotly takes them: colours of series are here, those of text and grid are the page's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from dovetail.frozen import frozen
from dovetail.report.page.document import Chart
from dovetail.report.svg import PALETTE

#: Computation, communication, and time in which a chip does neither.
COMPUTING, SENDING, IDLE = PALETTE[0], PALETTE[1], "#8c8c8c"
_LIMIT = {"color": PALETTE[1], "dash": "dash", "width": 2}
#: Pixels of a bar with its gap, and around all of them.
_BAR, _AROUND = 28, 90
#: Ticks of an axis by factors are at least this apart.
_TICK_FACTOR = 1.4


@frozen
class Curve:
    """Points joined by a line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@frozen
class Mark:
    """A point with the label beside it and the text that tells more of it."""

    x: float
    y: float
    label: str
    text: str
    joined: bool


def waterfall(parts: Sequence[tuple[str, float, str]], total: tuple[str, float], words: str) -> Chart:
    """Parts that add up to a total, each with its colour, from top to bottom."""
    values = [value for _, value, _ in parts]
    starts = [0.0, *accumulate(values)][:-1]
    names = [*(name for name, _, _ in parts), total[0]]
    whole = total[1] or 1.0
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [*values, total[1]],
        "base": [*starts, 0.0],
        "marker": {"color": [*(colour for _, _, colour in parts), IDLE]},
        "text": [*(f"{value:.3g} s, {value / whole:.1%}" for value in values), f"{total[1]:.3g} s"],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "seconds"}, "range": [0, 1.25 * whole]},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": False,
    }
    return Chart([bars], layout, words, _AROUND + _BAR * len(names))


def signed_bars(rows: Sequence[tuple[str, Sequence[float | None], str]], series: Sequence[str], words: str) -> Chart:
    """Percentages to the left and right of zero, one bar per row and series; the text tells more of a row."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [label for label, _, _ in rows],
            "x": [None if values[number] is None else 100 * (values[number] or 0.0) for _, values, _ in rows],
            "customdata": [text for _, _, text in rows],
            "marker": {"color": PALETTE[number]},
            "hovertemplate": "%{y}: %{x:+.2f} %<br>%{customdata}<extra></extra>",
        }
        for number, name in enumerate(series)
    ]
    layout = {
        "xaxis": {"title": {"text": "percent"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": len(series) > 1,
        "barmode": "group",
    }
    return Chart(data, layout, words, _AROUND + (_BAR + 12 * (len(series) - 1)) * len(rows))


def stacked(labels: Sequence[str], parts: Mapping[str, Sequence[float]], unit: str, limit: float, words: str) -> Chart:
    """Parts on top of each other, a column per label, below a limit."""
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": list(labels),
            "y": list(values),
            "marker": {"color": _colour(number), "pattern": {"shape": _pattern(number)}},
            "hovertemplate": f"%{{x}}, {name}: %{{y:.3g}} {unit}<extra></extra>",
        }
        for number, (name, values) in enumerate(parts.items())
    ]
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit, "line": _LIMIT}
    layout = {
        "barmode": "stack",
        "bargap": 0.2 if len(labels) > 4 else 0.7,
        "shapes": [across],
        "annotations": [
            {"xref": "paper", "x": 1, "y": limit, "yshift": 9, "showarrow": False, "text": "limit of a chip"}
        ],
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "xaxis": {"title": {"text": "pipeline stage"}, "type": "category"},
        "showlegend": True,
    }
    return Chart(data, layout, words, 380)


def steps(curves: Sequence[Curve], unit: str, limit: float | None, words: str, x_title: str = "seconds") -> Chart:
    """Curves that jump, over time, below a limit."""
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": curve.name,
            "x": list(curve.x),
            "y": list(curve.y),
            "line": {"shape": "hv", "width": 1.5, "color": _colour(number), "dash": _dash(number)},
            "hovertemplate": f"{curve.name}: %{{y:.4g}} {unit} at %{{x:.3g}} s<extra></extra>",
        }
        for number, curve in enumerate(curves)
    ]
    if limit is not None:
        last = max(max(curve.x) for curve in curves)
        data.append(_limit_line([0.0, last], limit))
    layout = {
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero" if limit is not None else "normal"},
        "showlegend": True,
    }
    return Chart(data, layout, words, 340)


def marked(points: Sequence[Mark], x_axis: Mapping[str, Any], y_axis: Mapping[str, Any], words: str) -> Chart:
    """Points, the joined ones with a line through them in their order; the axes as Plotly takes them."""
    joined = [point for point in points if point.joined]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [point.x for point in joined],
        "y": [point.y for point in joined],
        "line": {"width": 1.5, "color": PALETTE[0]},
        "hoverinfo": "skip",
    }
    marks = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [point.x for point in points],
        "y": [point.y for point in points],
        "text": [point.label for point in points],
        "customdata": [point.text for point in points],
        "textposition": "top right",
        "cliponaxis": False,
        "marker": {"size": 9, "color": [PALETTE[0] if point.joined else IDLE for point in points]},
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    return Chart([line, marks], {"xaxis": x_axis, "yaxis": y_axis, "showlegend": False}, words, 380)


def factors(values: Sequence[float], texts: Sequence[str], title: str = "") -> dict[str, Any]:
    """An axis by factors with ticks at the values that are far enough apart to be read."""
    ticks: list[tuple[float, str]] = []
    for value, text in sorted(zip(values, texts, strict=True)):
        if not ticks or value >= _TICK_FACTOR * ticks[-1][0]:
            ticks.append((value, text))
    axis = {"type": "log", "tickvals": [value for value, _ in ticks], "ticktext": [text for _, text in ticks]}
    return axis | {"automargin": True, "title": {"text": title}}


def grouped(labels: Sequence[str], series: Mapping[str, Sequence[float | None]], words: str) -> Chart:
    """Percentages of 0 or more, horizontal bars per label and series."""
    rows = [(label, [values[n] for values in series.values()], "") for n, label in enumerate(labels)]
    return signed_bars(rows, tuple(series), words)


def _limit_line(x: Sequence[Any], limit: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "limit of a chip",
        "x": list(x),
        "y": [limit] * len(x),
        "line": _LIMIT,
        "hovertemplate": "limit of a chip: %{y:.4g}<extra></extra>",
    }


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _pattern(number: int) -> str:
    """Where colours repeat, a hatch tells them apart."""
    return ("", "/", "x")[number // len(PALETTE) % 3]


def _dash(number: int) -> str:
    return ("solid", "dot", "dash")[number // len(PALETTE) % 3]
