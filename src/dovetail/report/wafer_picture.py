"""A plan on the dies of a wafer, as characters and as SVG: stages, groups, how full links are, dead dies.

A link's load is the part of what it could carry in the step that it did carry. The simulation knows it by die and axis:
a die's two links along rows are one port, and so are those along columns, with one chip for all of a stage unless every
chip was simulated. Shown between two neighbours is the mean of both their ports along that axis, both directions
together; which of a die's two links carries more is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from dovetail.arrays import Floats
from dovetail.errors import InputError
from dovetail.hardware import Cluster
from dovetail.plans.arrange import Arrangement
from dovetail.plans.wafer_tiles import DieTile, die_tiles, wafer_shape
from dovetail.report.step_breakdown import carried_bytes
from dovetail.report.step_items import num_stages, stage_chips
from dovetail.report.svg import FONT, PALETTE, TITLE_HEIGHT, WIDTH, Drawing, text_width
from dovetail.simulation.simulate import Simulation
from dovetail.units import percent_text

Position = tuple[int, int]
"""row and column of a die, from 0"""

DEAD = "x"
#: A larger grid is left to files.
MOST_COLUMNS, MOST_ROWS = 120, 40
#: Of more wafers the first are shown.
MOST_WAFERS = 4
#: Pixels of the SVG: the widest die with its gap, the part of it that is gap, the widest link.
_LARGEST_DIE, _GAP, _WIDEST_LINK = 72.0, 0.26, 9.0
_LINK = "#767676"


class Link(NamedTuple):
    """Two neighbours and how full the link between them is."""

    one: Position
    other: Position
    load: float


@dataclass(frozen=True, slots=True)
class WaferPicture:
    """One of the wafers that a plan lies on."""

    name: str
    wafer: int
    wafers: int
    shape: Position
    stages: int
    contexts: int
    #: by position; dies that are dead have no part in the plan
    dies: dict[Position, DieTile]
    dead: frozenset[Position]
    #: by row, column and axis: along rows of the grid (from row to row) and along columns
    loads: Floats

    def links(self) -> list[Link]:
        """Links between dies that work."""
        links: list[Link] = []
        for row, col in sorted(self.dies):
            for axis, other in enumerate(((row + 1, col), (row, col + 1))):
                if other in self.dies:
                    load = (self.loads[row, col, axis] + self.loads[*other, axis]) / 2
                    links.append(Link((row, col), other, float(load)))
        return links

    def group(self, position: Position) -> tuple[int, int, int] | None:
        """The tensor group at a position; None where a die is dead or there is none."""
        die = self.dies.get(position)
        return None if die is None else die.tensor_group


def wafer_pictures(
    simulation: Simulation, arrangement: Arrangement, cluster: Cluster, dead: frozenset[Position] = frozenset()
) -> list[WaferPicture]:
    """The wafers of a simulated plan, `dead` on each; whatever the plan has on dead dies is not shown."""
    rows, cols = wafer_shape(cluster)
    outside = sorted((row, col) for row, col in dead if not (0 <= row < rows and 0 <= col < cols))
    if outside:
        raise InputError("dead", f"has {outside[0]}", f"it should be positions of {rows} × {cols} dies")
    wafers = cluster.chips // (rows * cols)
    loads = np.zeros((wafers, rows, cols, 2))
    dies: list[dict[Position, DieTile]] = [{} for _ in range(wafers)]
    by_chip = _loads_by_chip(simulation)
    for tile in die_tiles(simulation.plan, arrangement, cluster):
        # folded, one chip stands for all of its stage
        loads[tile.wafer, tile.row, tile.col] = by_chip[tile.stage, tile.chip % by_chip.shape[1]]
        if (tile.row, tile.col) not in dead:
            dies[tile.wafer][tile.row, tile.col] = tile
    shown = range(min(wafers, MOST_WAFERS))
    counts = num_stages(simulation), simulation.plan.context_parallel
    return [WaferPicture(cluster.name, n, wafers, (rows, cols), *counts, dies[n], dead, loads[n]) for n in shown]


def _loads_by_chip(simulation: Simulation) -> Floats:
    """By stage, simulated chip and axis of the grid, the mean of what its port sends and what it receives."""
    could = simulation.tasks.graph.network.bytes_per_s * simulation.step_time_s
    shares = carried_bytes(simulation) / could
    # ports of a chip: ways from the inside out, the two axes of the grid first, each out and in
    return shares.reshape(num_stages(simulation), stage_chips(simulation), -1, 2)[:, :, :2].mean(axis=3)


def wafer_lines(pictures: Sequence[WaferPicture]) -> list[str]:
    """For a terminal: the stage of every die, lines between tensor groups where these have several dies.

    Wafers that hold the same stages in the same places as one before them are left out.
    """
    seen: list[dict[Position, int]] = []
    lines: list[str] = []
    for picture in pictures:
        stages = {position: die.stage for position, die in picture.dies.items()}
        if stages not in seen:
            seen.append(stages)
            lines += _grid_lines(picture)
    return lines


def _grid_lines(picture: WaferPicture) -> list[str]:
    (rows, cols), width = picture.shape, len(str(picture.stages - 1))
    if rows > MOST_ROWS or cols * (width + 3) > MOST_COLUMNS:
        return [f"{_title(picture)}: too many to show here, --picture FILE draws them"]
    borders = _borders(picture)
    lines = [f"{_title(picture)}, the stage of each"]
    for row in range(rows):
        if row and borders[0][row]:
            lines.append(_text_row(["-" * width] * cols, borders[1], "-", "-+-"))
        cells = [f"{_die_text(picture, (row, col)):>{width}}" for col in range(cols)]
        lines.append(_text_row(cells, borders[1], " ", " | "))
    return [*lines, *_legend_lines(picture, boxed=any(map(any, borders)))]


def _text_row(cells: Sequence[str], borders: Sequence[bool], inside: str, between: str) -> str:
    """Cells of a row with what stands between those of one group, and of two."""
    return (
        "  "
        + cells[0]
        + "".join((between if border else inside) + cell for cell, border in zip(cells[1:], borders[1:], strict=True))
    )


def _borders(picture: WaferPicture) -> tuple[list[bool], list[bool]]:
    """By row and column whether a tensor group begins there; nowhere if each is a single die."""
    rows, cols = picture.shape
    if len({die.tensor_group for die in picture.dies.values()}) == len(picture.dies):
        return [False] * rows, [False] * cols

    def border_between(one: Position, other: Position) -> bool:
        first, second = picture.group(one), picture.group(other)
        return first is not None and second is not None and first != second

    # groups are equal boxes, so a border runs through the whole grid
    between_rows = [any(border_between((row - 1, col), (row, col)) for col in range(cols)) for row in range(rows)]
    between_cols = [any(border_between((row, col - 1), (row, col)) for row in range(rows)) for col in range(cols)]
    return between_rows, between_cols


def _die_text(picture: WaferPicture, position: Position) -> str:
    die = picture.dies.get(position)
    return DEAD if die is None else str(die.stage)


def _title(picture: WaferPicture) -> str:
    rows, cols = picture.shape
    which = f"wafer {picture.wafer} of {picture.wafers}, " if picture.wafers > 1 else ""
    return f"{which}{rows} × {cols} dies of {picture.name}"


def _legend_lines(picture: WaferPicture, *, boxed: bool) -> list[str]:
    words = ["lines stand between tensor groups"] if boxed else []
    words += [f"{DEAD} dead"] if picture.dead else []
    links = picture.links()
    for name, along in (("from row to row", 0), ("from column to column", 1)):
        loads = [link.load for link in links if (link.one[0] == link.other[0]) == bool(along)]
        if loads:
            lowest, highest = percent_text(min(loads)), percent_text(max(loads))
            words.append(f"links {name} {highest if lowest == highest else f'{lowest} to {highest}'} full")
    return [", ".join(words)] if words else []


def wafer_svg(pictures: Sequence[WaferPicture]) -> str:
    """As SVG, wafers below each other: dies coloured by stage, links as wide as they are full, dead dies hatched."""
    first = pictures[0]
    rows, cols = first.shape
    each = min(_LARGEST_DIE, (WIDTH - 40) / cols)
    top, pitch = TITLE_HEIGHT + 8.0, rows * each + 26
    described = f"The stage of each of {rows} × {cols} dies, and how full the links between them are"
    drawing = Drawing(_title(first), described, top + len(pictures) * pitch + 36)
    most = max((link.load for picture in pictures for link in picture.links()), default=0.0)
    if first.dead:
        drawing.elements.append(
            '<defs><pattern id="dead" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><path d="M0,0V6" stroke="currentColor" stroke-width="2"/></pattern></defs>'
        )
    for number, picture in enumerate(pictures):
        place = _Place((WIDTH - each * cols) / 2, top + number * pitch, each)
        if number:
            drawing.text(WIDTH / 2, place.top - 6, _title(picture), "middle")
        for link in picture.links():
            _draw_link(drawing, link, place, _link_width(link.load, most, each))
        _draw_groups(drawing, picture, place)
        for position in product(range(rows), range(cols)):
            _draw_die(drawing, picture, position, place)
    _draw_legend(drawing, first, most, each, top + len(pictures) * pitch - 4)
    return drawing.done()


class _Place(NamedTuple):
    """Where a grid of dies is drawn."""

    left: float
    top: float
    #: pixels from die to die
    each: float

    def middle(self, position: Position) -> tuple[float, float]:
        return self.left + (position[1] + 0.5) * self.each, self.top + (position[0] + 0.5) * self.each


def _link_width(load: float, most: float, each: float) -> float:
    """Pixels: nothing carried is a hair line, the fullest link the widest."""
    return 0.5 + load / most * _WIDEST_LINK * each / _LARGEST_DIE if most else 0.5


def _draw_link(drawing: Drawing, link: Link, place: _Place, width: float) -> None:
    (x1, y1), (x2, y2) = place.middle(link.one), place.middle(link.other)
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    told = f"<title>die {link.one} to {link.other}: {percent_text(link.load)} full</title>"
    drawing.elements.append(f'<line {ends} stroke="{_LINK}" stroke-width="{width:.2f}">{told}</line>')


def _draw_groups(drawing: Drawing, picture: WaferPicture, place: _Place) -> None:
    """Dashed lines between tensor groups."""
    left, top, each = place
    rows, cols = picture.shape
    between_rows, between_cols = _borders(picture)
    for row in [row for row, border in enumerate(between_rows) if border]:
        drawing.line([(left, top + row * each), (left + cols * each, top + row * each)], dashed=True)
    for col in [col for col, border in enumerate(between_cols) if border]:
        drawing.line([(left + col * each, top), (left + col * each, top + rows * each)], dashed=True)


def _draw_die(drawing: Drawing, picture: WaferPicture, position: Position, place: _Place) -> None:
    die, (x, y), side = picture.dies.get(position), place.middle(position), place.each * (1 - _GAP)
    box = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}" rx="2"'
    size = min(FONT + 3, side / 2.4)
    if die is None:
        told = f"<title>die {position}: dead</title>"
        drawing.elements.append(f'<rect {box} fill="url(#dead)" stroke="currentColor">{told}</rect>')
        return
    colour, ink = stage_colours(die.stage)
    told = f"die {position}: stage {die.stage}, replica {die.replica}, context {die.context}, tensor {die.tensor}"
    drawing.elements.append(f'<rect {box} fill="{colour}"><title>{told}</title></rect>')
    texts = [(y + size * 0.35, size, str(die.stage))]
    if side > 32:
        context = f" c{die.context}" if picture.contexts > 1 else ""
        texts = [(y - 1, size, str(die.stage)), (y + size, size * 0.72, f"d{die.replica}{context} t{die.tensor}")]
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
    # black and white stand out equally from this luminance
    return "#" + "".join(f"{part:02x}" for part in mixed), "#000000" if bright > 0.179 else "#ffffff"


def _draw_legend(drawing: Drawing, picture: WaferPicture, most: float, each: float, y: float) -> None:
    x = 20.0
    for load in dict.fromkeys((most, most / 2, 0.0)):
        drawing.line([(x, y - 4), (x + 24, y - 4)], _LINK, _link_width(load, most, each))
        name = f"link {percent_text(load)} full"
        drawing.text(x + 30, y, name)
        x += 50 + text_width(name)
    if any(map(any, _borders(picture))):
        drawing.line([(x, y - 4), (x + 24, y - 4)], dashed=True)
        drawing.text(x + 30, y, "between tensor groups")
        x += 50 + text_width("between tensor groups")
    if picture.dead:
        drawing.elements.append(
            f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="14" height="10" fill="url(#dead)" stroke="currentColor"/>'
        )
        drawing.text(x + 20, y, "dead")
    context = "c: part of the sequence; " if picture.contexts > 1 else ""
    drawing.text(20, y + 20, f"large: stage; d: data-parallel replica; {context}t: place in the tensor group")
