"""Tiles of a damaged wafer as SVG: the stage of every die, who follows whom, what is dead and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from dovetail.layout.encoding import WaferGrid
from dovetail.layout.encoding.job_encoding import Die, Tile
from dovetail.report.svg import FONT, TITLE_HEIGHT, WIDTH, Drawing
from dovetail.report.wafer_picture import stage_colours

#: Pixels of a die with its gap, and the part of it that is gap.
_DIE, _GAP = 44.0, 0.2


def tiles_svg(title: str, grid: WaferGrid, tiles: Sequence[Tile]) -> str:
    """A wafer with the tiles of stages in order; dead dies hatched, dead links crossed out, dies left over empty."""
    stages = {die: stage for stage, tile in enumerate(tiles) for die in tile.dies()}
    left, top = (WIDTH - _DIE * grid.cols) / 2, TITLE_HEIGHT + 4
    described = f"The stage of each of {grid.rows} × {grid.cols} dies"
    drawing = Drawing(title, described, top + grid.rows * _DIE + 34)
    drawing.elements.append(
        '<defs><pattern id="dead" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path d="M0,0V6" stroke="currentColor" stroke-width="2"/></pattern></defs>'
    )

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x + 0.5) * _DIE, top + (y + 0.5) * _DIE

    for tile in tiles:
        _draw_tile(drawing, tile, place(tile.x, tile.y))
    for die in product(range(grid.cols), range(grid.rows)):
        _draw_die(drawing, die, place(*die), stages.get(die), dead=die in grid.dead)
    for one, other in sorted(grid.dead_links):
        (x1, y1), (x2, y2) = place(*one), place(*other)
        x, y, arm = (x1 + x2) / 2, (y1 + y2) / 2, _DIE * _GAP / 2
        drawing.line([(x - arm, y - arm), (x + arm, y + arm)], width=2)
        drawing.line([(x - arm, y + arm), (x + arm, y - arm)], width=2)
    idle = grid.rows * grid.cols - len(grid.dead) - len(stages)
    words = [f"numbers: stages, {len(tiles)} in all", "hatched: dead", f"empty: left over, {idle} dies"]
    drawing.text(WIDTH / 2, top + grid.rows * _DIE + 22, "; ".join(words), "middle")
    return drawing.done()


def _draw_tile(drawing: Drawing, tile: Tile, first: tuple[float, float]) -> None:
    """The ground that the dies of a tile stand on."""
    side, margin = _DIE / 2, 1.5
    box = (
        f'x="{first[0] - side + margin:.1f}" y="{first[1] - side + margin:.1f}" '
        f'width="{tile.cols * _DIE - 2 * margin:.1f}" height="{tile.rows * _DIE - 2 * margin:.1f}" rx="5"'
    )
    drawing.elements.append(f'<rect {box} fill="none" stroke="currentColor"/>')


def _draw_die(drawing: Drawing, die: Die, middle: tuple[float, float], stage: int | None, *, dead: bool) -> None:
    (x, y), side = middle, _DIE * (1 - _GAP)
    box = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}" rx="2"'
    where = f"die {die[::-1]}"
    if dead or stage is None:
        # a dead die of a tile that is lost belongs to no stage any more
        fill, told = ('url(#dead)"', "dead") if dead else ('none" stroke-dasharray="3 3"', "left over")
        drawing.elements.append(f'<rect {box} fill="{fill} stroke="currentColor"><title>{where}: {told}</title></rect>')
        return
    colour, ink = stage_colours(stage)
    drawing.elements.append(f'<rect {box} fill="{colour}"><title>{where}: stage {stage}</title></rect>')
    size = FONT + 3
    drawing.elements.append(
        f'<text x="{x:.1f}" y="{y + size * 0.35:.1f}" text-anchor="middle" font-size="{size:.1f}" fill="{ink}">'
        f"{stage}</text>"
    )
