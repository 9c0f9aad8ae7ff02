"""Plots as SVG text without any dependency: scatter panels, curves of growth, histograms and horizontal bars.

Text and lines are `currentColor`, by default a grey that reads on light and on dark pages: a picture in a page does
not know the page's colours. Equal input gives equal bytes, so that a regenerated plot differs only where figures do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape

from dovetail.frozen import frozen

#: Told apart with any colour vision, and against white as against black: six of Okabe and Ito's, and a brown.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a0522d")
INK = "#767676"
SLACK = 1e-9  # figures past a tick or a corner by no more than this part are on it

WIDTH = 720.0
FONT = 11.0
TITLE_HEIGHT = 34.0
CHARACTER = 0.56  # about this part of the font's size is its width
LONGEST_LABEL = 36

Point = tuple[float, float]


@frozen
class Series:
    """Points of one colour."""

    name: str
    points: tuple[Point, ...]


@frozen
class Panel:
    """One of several scatter plots or curves side by side."""

    title: str
    series: tuple[Series, ...]


@frozen
class Sample:
    """Values to count, each with a weight."""

    name: str
    values: tuple[float, ...]
    weights: tuple[float, ...]


@frozen
class Bars:
    """A label and one bar per series; None where there is no value."""

    label: str
    values: tuple[float | None, ...]


def scatter(title: str, panels: Sequence[Panel], x_label: str, y_label: str, band: float = 0.1) -> str:
    """Positive values against each other on logarithmic axes, with the line of equals and a band around it."""
    assert panels
    assert all(len(panel.series) <= len(PALETTE) for panel in panels)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    left, gap, foot = 58.0, 42.0, 40.0
    side = min((WIDTH - left - 8 - (columns - 1) * gap) / columns, 380.0)
    top = TITLE_HEIGHT + 18
    height = top + rows * (side + foot + 12) + 18
    drawing = Drawing(title, f"{y_label} against {x_label}, {len(panels)} panels, logarithmic axes", height)
    for index, panel in enumerate(panels):
        x, y = left + index % columns * (side + gap), top + index // columns * (side + foot + 12)
        _panel(drawing, panel, Box(x, y, side, side), band)
    middle = top + rows * (side + foot + 12) / 2
    drawing.text(14, middle, y_label, "middle", turned=True)
    drawing.text(WIDTH / 2, height - 30, x_label, "middle")
    entries = [("line", "equal"), ("area", f"within {band:.0%} of measured".replace("%", " %"))]
    drawing.legend(WIDTH / 2 - 110, height - 10, [(kind, INK, name) for kind, name in entries])
    return drawing.done()


def growth(title: str, panels: Sequence[Panel], y_label: str) -> str:
    """Positive values against what they grow with, which each panel's title names; one logarithmic axis for all."""
    left, gap, top, bottom = 58.0, 32.0, TITLE_HEIGHT + 30, TITLE_HEIGHT + 250
    side = (WIDTH - left - 14 - (len(panels) - 1) * gap) / len(panels)
    drawing = Drawing(title, f"{y_label} in {len(panels)} panels, logarithmic axes", bottom + 44)
    low, high, up = _log_axis([y for panel in panels for s in panel.series for _, y in s.points], bottom, top)
    for tick in log_ticks(low, high):
        drawing.rule(left, up(tick), WIDTH - 14, up(tick))
        drawing.text(left - 5, up(tick) + 4, f"{tick:,.10g}", "end", size=FONT - 1)
    for index, panel in enumerate(panels):
        x, right = left + index * (side + gap), left + index * (side + gap) + side
        low, high, across = _log_axis([x for series in panel.series for x, _ in series.points], x, right)
        for tick in log_ticks(low, high):
            drawing.rule(across(tick), top, across(tick), bottom)
            drawing.text(across(tick), bottom + 15, f"{tick:,.10g}", "middle", size=FONT - 1)
        drawing.line([(x, top), (x, bottom), (right, bottom)])
        drawing.text((x + right) / 2, bottom + 34, panel.title, "middle")
        for colour, series in zip(PALETTE, panel.series, strict=False):
            drawing.line([(across(x), up(y)) for x, y in series.points], colour, 2)
            drawing.dots([(across(x), up(y)) for x, y in series.points], colour)
    drawing.text(16, (top + bottom) / 2, y_label, "middle", turned=True)
    names = [series.name for series in panels[0].series]
    drawing.legend(left, TITLE_HEIGHT + 14, [("line", PALETTE[i], name) for i, name in enumerate(names)])
    return drawing.done()


def histogram(
    title: str,
    samples: Sequence[Sample],
    edges: Sequence[float],
    x_label: str,
    y_label: str,
    number: Callable[[float], str] = str,
) -> str:
    """Weights by value; the first sample is filled, others are outlines; the end bins hold what lies beyond."""
    assert samples and len(samples) <= len(PALETTE)  # noqa: PT018
    box = Box(64, TITLE_HEIGHT + 26, WIDTH - 96, 250)
    drawing = Drawing(title, f"{y_label} by {x_label}", box.bottom + 64)
    counts = [counted(sample, edges) for sample in samples]
    ticks = linear_ticks(max(max(each) for each in counts))
    across = Scale(edges[0], edges[-1], box.x, box.right)
    up = Scale(0.0, ticks[-1], box.bottom, box.y)
    for tick in ticks:
        drawing.rule(box.x, up(tick), box.right, up(tick))
        drawing.text(box.x - 6, up(tick) + 4, _tick(tick), "end")
    for position, (low, high) in enumerate(pairwise(edges)):
        value = counts[0][position]
        x, width = across(low) + 0.5, across(high) - across(low) - 1
        drawing.bar(
            x, up(value), width, box.bottom - up(value), PALETTE[0], f"{number(low)} to {number(high)}: ", value
        )
    for colour, heights in zip(PALETTE[1:], counts[1:], strict=False):
        corners = [
            (across(edge), up(value)) for pair, value in zip(pairwise(edges), heights, strict=True) for edge in pair
        ]
        drawing.line([(across(edges[0]), box.bottom), *corners, (across(edges[-1]), box.bottom)], colour, 2)
    drawing.line([(box.x, box.bottom), (box.right, box.bottom)])
    for edge in edges[:: max(1, len(edges) // 10)]:
        drawing.line([(across(edge), box.bottom), (across(edge), box.bottom + 4)])
        drawing.text(across(edge), box.bottom + 17, number(edge), "middle")
    if edges[0] < 0 < edges[-1]:
        drawing.line([(across(0), box.y - 4), (across(0), box.bottom)], dashed=True)
    drawing.text((box.x + box.right) / 2, box.bottom + 40, x_label, "middle")
    drawing.text(16, (box.y + box.bottom) / 2, y_label, "middle", turned=True)
    kinds = ["area", *["line"] * (len(samples) - 1)]
    names = [(kind, PALETTE[i], sample.name) for i, (kind, sample) in enumerate(zip(kinds, samples, strict=True))]
    drawing.legend(box.x, TITLE_HEIGHT + 10, names)
    return drawing.done()


def bars(title: str, rows: Sequence[Bars], names: Sequence[str], x_label: str) -> str:
    """Horizontal bars from 0, one per series and row, with the value written beside each."""
    assert rows and len(names) <= len(PALETTE)  # noqa: PT018
    labels = [shortened(row.label) for row in rows]
    left = max(80.0, 16 + text_width(max(labels, key=len)))
    thick = 11.0
    each = len(names) * thick + 9
    box = Box(left, TITLE_HEIGHT + 26, WIDTH - left - 64, len(rows) * each)
    drawing = Drawing(title, f"{x_label} of {len(rows)} rows", box.bottom + 52)
    ticks = linear_ticks(max((v for row in rows for v in row.values if v is not None), default=0.0))
    across = Scale(0.0, ticks[-1], box.x, box.right)
    for tick in ticks:
        drawing.rule(across(tick), box.y, across(tick), box.bottom)
        drawing.text(across(tick), box.bottom + 16, _tick(tick), "middle")
    for position, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = box.y + position * each + 4.5
        drawing.text(box.x - 8, y + len(names) * thick / 2 + 4, label, "end", whole=row.label)
        for index, value in enumerate(row.values):
            if value is not None:
                width, top = across(value) - box.x, y + index * thick
                drawing.bar(box.x, top, width, thick - 1, PALETTE[index], f"{row.label}, {names[index]}: ", value)
                drawing.text(box.x + width + 5, top + thick - 2, share(value), size=FONT - 1)
    drawing.line([(box.x, box.y), (box.x, box.bottom)])
    drawing.text((box.x + box.right) / 2, box.bottom + 38, x_label, "middle")
    drawing.legend(box.x, TITLE_HEIGHT + 10, [("area", PALETTE[i], name) for i, name in enumerate(names)])
    return drawing.done()


@frozen
class Box:
    """Where a plot's data is drawn."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@frozen
class Scale:
    """Values as coordinates, linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass
class Drawing:
    """SVG elements in the order they are drawn."""

    title: str
    description: str
    height: float
    elements: list[str] = field(default_factory=list[str])

    def text(
        self,
        x: float,
        y: float,
        content: str,
        anchor: str = "start",
        *,
        size: float = FONT,
        turned: bool = False,
        whole: str | None = None,
    ) -> None:
        """A line of text; `whole` is told where the content is a shortened form."""
        place = f'x="{_n(x)}" y="{_n(y)}"'
        turn = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
        hint = f"<title>{_safe(whole)}</title>" if whole not in (None, content) else ""
        style = f' font-size="{_n(size)}"' if size != FONT else ""
        self.elements.append(f'<text {place} text-anchor="{anchor}"{style}{turn}>{hint}{_safe(content)}</text>')

    def line(
        self, points: Sequence[Point], colour: str = "currentColor", width: float = 1, dashed: bool = False
    ) -> None:
        """A line through points."""
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.elements.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{_n(width)}"{dashes}/>'
        )

    def rule(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A faint line to read values by."""
        ends = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self.elements.append(f'<line {ends} stroke="currentColor" stroke-opacity="0.25"/>')

    def area(self, points: Sequence[Point]) -> None:
        """A faint polygon."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.elements.append(f'<polygon points="{path}" fill="currentColor" fill-opacity="0.22"/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str, what: str, value: float) -> None:
        """A filled rectangle that tells its value."""
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"'
        self.elements.append(f'<rect {size} fill="{colour}"><title>{_safe(what + share(value))}</title></rect>')

    def dots(self, points: Sequence[Point], colour: str) -> None:
        """Points, fainter where there are many, so that those lying close darken."""
        opacity = 0.85 if len(points) <= 200 else 0.4
        marks = "".join(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="2"/>' for x, y in points)
        self.elements.append(f'<g fill="{colour}" fill-opacity="{opacity}">{marks}</g>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
        """Names beside what they are drawn as (area, line or dot), in one line."""
        for kind, colour, name in entries:
            self.mark(x, y, kind, colour)
            self.text(x + 20, y, name)
            x += 36 + text_width(name)

    def mark(self, x: float, y: float, kind: str, colour: str) -> None:
        """The sign of a legend's entry."""
        if kind == "line":
            self.line([(x, y - 4), (x + 14, y - 4)], colour, 2)
        elif kind == "dot":
            self.elements.append(f'<circle cx="{_n(x + 7)}" cy="{_n(y - 4)}" r="3.5" fill="{colour}"/>')
        else:
            faint = ' fill-opacity="0.3"' if colour == INK else ""
            place = f'x="{_n(x)}" y="{_n(y - 9)}" width="14" height="10"'
            self.elements.append(f'<rect {place} fill="{colour}"{faint}/>')

    def done(self) -> str:
        """The document."""
        width, height = _n(WIDTH), _n(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" color="{INK}" fill="currentColor" '
            f'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif" font-size="{_n(FONT)}">'
        )
        place = f'x="{_n(WIDTH / 2)}" y="20" text-anchor="middle"'
        title = f'<text {place} font-size="15" font-weight="600">{_safe(self.title)}</text>'
        described = f"<title>{_safe(self.title)}</title>\n<desc>{_safe(self.description)}</desc>"
        return "\n".join((head, described, title, *self.elements, "</svg>")) + "\n"


def counted(sample: Sample, edges: Sequence[float]) -> list[float]:
    """The part of a sample's weight in every bin; values beyond the edges fall into the end bins."""
    totals = [0.0] * (len(edges) - 1)
    for value, weight in zip(sample.values, sample.weights, strict=True):
        position = bisect_right(edges, value) - 1
        totals[min(max(position, 0), len(totals) - 1)] += weight
    whole = math.fsum(sample.weights) or 1.0
    return [total / whole for total in totals]


def linear_ticks(highest: float, most: int = 6) -> list[float]:
    """Round values from 0 to the first that is not below the highest."""
    if highest <= 0:
        return [0.0, 0.1]
    power = 10.0 ** math.floor(math.log10(highest / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if highest <= power * factor * most)
    return [round(step * number, 12) for number in range(math.ceil(highest / step - SLACK) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round values within a range: 1, 2 and 5 of each decade where few decades are shown, fewer of many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = math.log10(high / low)
    ticks = [10.0**power for power in range(first, last + 1, math.ceil(decades / 5))]
    if decades <= 1.6 or sum(low <= tick <= high for tick in ticks) < 2:
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def share(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.1f} %"


def shortened(label: str, most: int = LONGEST_LABEL) -> str:
    """A label shortened to fit."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def text_width(text: str) -> float:
    """About how wide a text is; fonts differ."""
    return len(text) * FONT * CHARACTER


def _panel(drawing: Drawing, panel: Panel, box: Box, band: float) -> None:
    values = [value for series in panel.series for point in series.points for value in point]
    low, high, across = _log_axis(values, box.x, box.right)
    _, _, up = _log_axis(values, box.bottom, box.y)
    corners = [(low, low), (low, low * (1 + band)), (high / (1 + band), high), (high, high), (high, high * (1 - band))]
    drawing.area([(across(x), up(y)) for x, y in (*corners, (low / (1 - band), low))])
    for tick in log_ticks(low, high):
        x, y = across(tick), up(tick)
        drawing.rule(x, box.y, x, box.bottom)
        drawing.rule(box.x, y, box.right, y)
        drawing.text(x, box.bottom + 15, f"{tick:,.10g}", "middle", size=FONT - 1)
        drawing.text(box.x - 5, y + 4, f"{tick:,.10g}", "end", size=FONT - 1)
    drawing.line([(box.x, box.bottom), (box.right, box.y)])
    drawing.line([(box.x, box.y), (box.x, box.bottom), (box.right, box.bottom)])
    drawing.text(box.x, box.y - 8, panel.title)
    for colour, series in zip(PALETTE, panel.series, strict=False):
        drawing.dots([(across(x), up(y)) for x, y in series.points], colour)
    # points lie near the rising diagonal, so the corner below it is free
    widest = int(0.5 * box.width / text_width("x"))
    for line, (colour, series) in enumerate(reversed([*zip(PALETTE, panel.series, strict=False)])):
        y = box.bottom - 8 - 14 * line
        drawing.text(box.right - 18, y, shortened(series.name, widest), "end", size=FONT - 1, whole=series.name)
        drawing.mark(box.right - 16, y, "dot", colour)


def _log_axis(values: Sequence[float], start: float, end: float) -> tuple[float, float, Callable[[float], float]]:
    """The ends of an axis around positive values, and the coordinate of each."""
    assert min(values) > 0
    # one value alone needs some room for ticks too
    spread = max(1.25, math.sqrt(6 * min(values) / max(values)))
    low, high = min(values) / spread, max(values) * spread
    scale = Scale(math.log(low), math.log(high), start, end)
    return low, high, lambda value: scale(math.log(value))


def _tick(value: float) -> str:
    return f"{round(100 * value, 6):g} %"


def _n(value: float) -> str:
    """A coordinate: a tenth of a pixel, without a sign of zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _safe(text: str) -> str:
    """Text as it may stand in XML, which has no control characters."""
    return escape("".join(c if c.isprintable() else " " for c in text))
