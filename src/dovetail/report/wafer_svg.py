"""Wafers as SVG: dies coloured by stage, links as wide as they are full, what is dead, left over and lent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dovetail.frozen import frozen
from dovetail.hardware.defects import Position, grid_positions
from dovetail.plans.wafer_part import Loan
from dovetail.report.svg import FONT, PALETTE, TITLE_HEIGHT, WIDTH, Drawing, Point, text_width
from dovetail.report.wafer_lines import borders, is_boxed, wafer_title
from dovetail.report.wafer_picture import Link, WaferPicture
from dovetail.units import bytes_text, percent_text

#: Pixels: the widest die with its gap, the part of it that is gap, the widest link.
_LARGEST_DIE, _GAP, _WIDEST_LINK = 72.0, 0.26, 9.0
_LINK = "#767676"
#: Arrows cross dies of any colour: dark on a light ground.
_ARROW, _GROUND = "#222222", "#ffffff"
_ROW = 20.0

_DEFINITIONS = (
    '<defs><pattern id="dead" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0,0V6" stroke="currentColor" stroke-width="2"/></pattern>'
    '<marker id="lent" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0.5L8,4L0,7.5Z" fill="{_ARROW}" stroke="{_GROUND}" stroke-width="0.7"/></marker></defs>'
)


def wafer_svg(pictures: Sequence[WaferPicture]) -> str:
    """As SVG, wafers below each other, with a legend."""
    first = pictures[0]
    rows, cols = first.shape
    each = min(_LARGEST_DIE, (WIDTH - 40) / cols)
    top, pitch = TITLE_HEIGHT + 8.0, rows * each + 26
    legend = _Legend.of(pictures, each)
    bottom = top + len(pictures) * pitch
    described = f"The stage of each of {rows} × {cols} dies, and how full the links between them are"
    drawing = Drawing(wafer_title(first), described, bottom + legend.height)
    drawing.elements.append(_DEFINITIONS)
    places = {p.wafer: _Place((WIDTH - each * cols) / 2, top + n * pitch, each) for n, p in enumerate(pictures)}
    for picture in pictures:
        place = places[picture.wafer]
        if picture is not first:
            drawing.text(WIDTH / 2, place.top - 6, wafer_title(picture), "middle")
        _draw_wafer(drawing, picture, place, legend.most)
    for loan, start, end in _loan_ends(pictures, places):
        _draw_loan(drawing, loan, start, end)
    legend.draw(drawing, bottom - 4)
    return drawing.done()


class _Place(NamedTuple):
    """Where a grid of dies is drawn."""

    left: float
    top: float
    #: pixels from die to die
    each: float

    def middle(self, position: tuple[float, float]) -> Point:
        return self.left + (position[1] + 0.5) * self.each, self.top + (position[0] + 0.5) * self.each

    def between(self, one: Position, other: Position) -> tuple[Point, Point]:
        """From the edge of a die to that of its neighbour."""
        (x1, y1), (x2, y2) = self.middle(one), self.middle(other)
        x, y = (x2 - x1) * (1 - _GAP) / 2, (y2 - y1) * (1 - _GAP) / 2
        return (x1 + x, y1 + y), (x2 - x, y2 - y)


def _draw_wafer(drawing: Drawing, picture: WaferPicture, place: _Place, most: float) -> None:
    for link in picture.links():
        _draw_link(drawing, link, place, _link_width(link.load or 0.0, most, place.each))
    for one, other in picture.dead_links():
        _draw_dead_link(drawing, one, other, place)
    if picture.tiled:
        _draw_tiles(drawing, picture, place)
    _draw_groups(drawing, picture, place)
    for position in grid_positions(*picture.shape):
        _draw_die(drawing, picture, position, place)


def _link_width(load: float, most: float, each: float) -> float:
    """Pixels: nothing carried is a hair line, the fullest link the widest."""
    return 0.5 + load / most * _WIDEST_LINK * each / _LARGEST_DIE if most else 0.5


def _draw_link(drawing: Drawing, link: Link, place: _Place, width: float) -> None:
    (x1, y1), (x2, y2) = place.between(link.one, link.other)
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    full = "" if link.load is None else f": {percent_text(link.load)} full"
    told = f"<title>die {link.one} to {link.other}{full}</title>"
    drawing.elements.append(f'<line {ends} stroke="{_LINK}" stroke-width="{width:.2f}">{told}</line>')


def _draw_dead_link(drawing: Drawing, one: Position, other: Position, place: _Place) -> None:
    """A hair line crossed out between its dies."""
    ends = place.between(one, other)
    drawing.line(ends, dashed=True, width=0.5)
    x, y = ((a + b) / 2 for a, b in zip(*ends, strict=True))
    drawing.elements.append(_cross(x, y, place.each * _GAP * 0.42, f"die {one} to {other}: dead link"))


def _cross(x: float, y: float, arm: float, told: str) -> str:
    left, right, top, bottom = (f"{n:.1f}" for n in (x - arm, x + arm, y - arm, y + arm))
    path = f"M{left},{top}L{right},{bottom}M{left},{bottom}L{right},{top}"
    title = f"<title>{told}</title>" if told else ""
    return f'<path class="dead-link" d="{path}" stroke="currentColor" stroke-width="2.2">{title}</path>'


def _draw_tiles(drawing: Drawing, picture: WaferPicture, place: _Place) -> None:
    """A line around the dies of each stage."""
    margin = place.each * _GAP / 6
    for top, left, bottom, right in _boxes(picture).values():
        x, y = place.left + left * place.each + margin, place.top + top * place.each + margin
        width, height = (n * place.each - 2 * margin for n in (right - left + 1, bottom - top + 1))
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"'
        drawing.elements.append(f'<rect class="tile" {size} fill="none" stroke="currentColor"/>')


def _boxes(picture: WaferPicture) -> dict[int, tuple[int, int, int, int]]:
    """By stage of a wafer, the first and last row and column of its dies."""
    by_stage: dict[int, list[Position]] = {}
    for position, die in picture.dies.items():
        by_stage.setdefault(die.stage, []).append(position)
    boxes: dict[int, tuple[int, int, int, int]] = {}
    for stage, positions in by_stage.items():
        rows, cols = zip(*positions, strict=True)
        boxes[stage] = min(rows), min(cols), max(rows), max(cols)
    return boxes


def _draw_groups(drawing: Drawing, picture: WaferPicture, place: _Place) -> None:
    """Dashed lines between tensor groups."""
    left, top, each = place
    rows, cols = picture.shape
    between_rows, between_cols = borders(picture)
    for row in [row for row, border in enumerate(between_rows) if border]:
        drawing.line([(left, top + row * each), (left + cols * each, top + row * each)], dashed=True)
    for col in [col for col, border in enumerate(between_cols) if border]:
        drawing.line([(left + col * each, top), (left + col * each, top + rows * each)], dashed=True)


def _draw_die(drawing: Drawing, picture: WaferPicture, position: Position, place: _Place) -> None:
    die, (x, y), side = picture.dies.get(position), place.middle(position), place.each * (1 - _GAP)
    box = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}" rx="2"'
    size = min(FONT + 3, side / 2.4)
    if die is None:
        dead = position in picture.dead
        fill, what = ('"url(#dead)"', "dead") if dead else ('"none" stroke-dasharray="3 3"', "left over")
        told = f"<title>die {position}: {what}</title>"
        drawing.elements.append(f'<rect {box} fill={fill} stroke="currentColor">{told}</rect>')
        return
    colour, ink = stage_colours(die.stage)
    context = f" c{die.context}" if picture.contexts > 1 else ""
    told, short = f"replica {die.replica}, context {die.context}, tensor {die.tensor}", f"d{die.replica}{context} "
    if picture.tiled:
        told, short = f"place {die.tensor} of its tile", ""
    title = f"<title>die {position}: stage {die.stage}, {told}</title>"
    drawing.elements.append(f'<rect {box} fill="{colour}">{title}</rect>')
    texts = [(y + size * 0.35, size, str(die.stage))]
    if side > 32:
        texts = [(y - 1, size, str(die.stage)), (y + size, size * 0.72, f"{short}t{die.tensor}")]
    for base, font, text in texts:
        drawing.elements.append(
            f'<text x="{x:.1f}" y="{base:.1f}" text-anchor="middle" font-size="{font:.1f}" fill="{ink}">{text}</text>'
        )


def stage_colours(stage: int) -> tuple[str, str]:
    """Of a stage's dies and of the text on them: the palette, then again lighter, then again."""
    lighter = (0.0, 0.5)[stage // len(PALETTE) % 2]
    parts = [int(PALETTE[stage % len(PALETTE)][i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [round(part + (255 - part) * lighter) for part in parts]
    linear = [(part / 255 / 12.92) if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in mixed]
    bright = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    # black and white differ equally from this luminance
    return "#" + "".join(f"{part:02x}" for part in mixed), "#000000" if bright > 0.179 else "#ffffff"


def _loan_ends(pictures: Sequence[WaferPicture], places: dict[int, _Place]) -> Iterator[tuple[Loan, Point, Point]]:
    """Loans between stages that are drawn, with the middles of their tiles."""
    middles: dict[int, Point] = {}
    for picture in pictures:
        for stage, (top, left, bottom, right) in _boxes(picture).items():
            middles[stage] = places[picture.wafer].middle(((top + bottom) / 2, (left + right) / 2))
    for loan in pictures[0].loans:
        if loan.stage in middles and loan.lender in middles:
            yield loan, middles[loan.stage], middles[loan.lender]


def _draw_loan(drawing: Drawing, loan: Loan, start: Point, end: Point) -> None:
    """A thin arrow from a stage to its lender, bent so that two ways differ."""
    (x1, y1), (x2, y2) = start, end
    bend = 0.14
    x, y = (x1 + x2) / 2 + bend * (y1 - y2), (y1 + y2) / 2 + bend * (x2 - x1)
    path = f'd="M{x1:.1f},{y1:.1f}Q{x:.1f},{y:.1f} {x2:.1f},{y2:.1f}" fill="none"'
    told = f"stage {loan.lender} lends each die of stage {loan.stage} {bytes_text(loan.bytes)}"
    drawing.elements += [
        f'<path {path} stroke="{_GROUND}" stroke-width="3.4" stroke-opacity="0.8"/>',
        f'<path class="loan" {path} stroke="{_ARROW}" stroke-width="1.3" marker-end="url(#lent)">'
        f"<title>{told}</title></path>",
    ]


@frozen
class _Legend:
    """What signs mean, in rows that fit the picture."""

    #: the fullest link
    most: float
    each: float
    #: kind of sign, its number where it has one, and its name
    rows: tuple[tuple[tuple[str, float, str], ...], ...]
    words: tuple[str, ...]

    @staticmethod
    def of(pictures: Sequence[WaferPicture], each: float) -> _Legend:
        first = pictures[0]
        loads = [link.load for picture in pictures for link in picture.links() if link.load is not None]
        most = max(loads, default=0.0)
        signs = [("link", load, f"link {percent_text(load)} full") for load in dict.fromkeys((most, most / 2, 0.0))]
        signs = signs if loads else []
        if is_boxed(first):
            signs.append(("border", 0.0, "between tensor groups"))
        for kind, shown in (
            ("dead", any(picture.dead for picture in pictures)),
            ("dead link", any(picture.dead_links() for picture in pictures)),
            ("left over", any(picture.left_over for picture in pictures)),
            ("lent memory", bool(first.loans)),
        ):
            signs += [(kind, 0.0, kind)] if shown else []
        return _Legend(most, each, tuple(_in_rows(signs)), tuple(_legend_words(pictures)))

    @property
    def height(self) -> float:
        """Pixels below the wafers."""
        return _ROW * (len(self.rows) + len(self.words)) - 4

    def draw(self, drawing: Drawing, y: float) -> None:
        """From the base of its first row."""
        for row in self.rows:
            x = _ROW
            for kind, number, name in row:
                self._draw_sign(drawing, x, y, kind, number)
                drawing.text(x + 30, y, name)
                x += _sign_width(name)
            y += _ROW
        for line in self.words:
            drawing.text(_ROW, y, line)
            y += _ROW

    def _draw_sign(self, drawing: Drawing, x: float, y: float, kind: str, number: float) -> None:
        ends: list[Point] = [(x, y - 4), (x + 24, y - 4)]
        if kind == "link":
            drawing.line(ends, _LINK, _link_width(number, self.most, self.each))
        elif kind == "border":
            drawing.line(ends, dashed=True)
        elif kind == "dead link":
            drawing.line(ends, dashed=True, width=0.5)
            drawing.elements.append(_cross(x + 12, y - 4, 4, ""))
        elif kind == "lent memory":
            _draw_arrow_sign(drawing, x, y)
        else:
            fill = '"url(#dead)"' if kind == "dead" else '"none" stroke-dasharray="3 3"'
            box = f'x="{x + 5:.1f}" y="{y - 10:.1f}" width="14" height="12" rx="2"'
            drawing.elements.append(f'<rect {box} fill={fill} stroke="currentColor"/>')


def _draw_arrow_sign(drawing: Drawing, x: float, y: float) -> None:
    path = f'd="M{x:.1f},{y - 4:.1f}H{x + 24:.1f}"'
    drawing.elements += [
        f'<path {path} stroke="{_GROUND}" stroke-width="3.4" stroke-opacity="0.8"/>',
        f'<path {path} stroke="{_ARROW}" stroke-width="1.3" marker-end="url(#lent)"/>',
    ]


def _sign_width(name: str) -> float:
    return 50 + text_width(name)


def _in_rows(signs: Sequence[tuple[str, float, str]]) -> Iterator[tuple[tuple[str, float, str], ...]]:
    """Signs as many in a row as there is space for."""
    row: list[tuple[str, float, str]] = []
    width = 0.0
    for sign in signs:
        if row and width + _sign_width(sign[2]) > WIDTH - 2 * _ROW:
            yield tuple(row)
            row, width = [], 0.0
        row.append(sign)
        width += _sign_width(sign[2])
    if row:
        yield tuple(row)


def _legend_words(pictures: Sequence[WaferPicture]) -> Iterator[str]:
    first = pictures[0]
    if first.tiled:
        yield "large: stage; t: place in its tile"
    else:
        context = "c: part of the sequence; " if first.contexts > 1 else ""
        yield f"large: stage; d: data-parallel replica; {context}t: place in the tensor group"
    shares = [(p.wafer, p.store_share) for p in pictures if p.store_share is not None]
    if shares:
        several = first.wafers > 1
        words = [f"{f'wafer {wafer} ' if several else ''}{percent_text(share)} full" for wafer, share in shares]
        yield f"link to the store {', '.join(words)}"
