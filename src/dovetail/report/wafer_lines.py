"""Wafers for a terminal: the stage of every die, lines between groups, what is dead, left over and lent."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.hardware import DefectMap
from dovetail.hardware.defects import Position
from dovetail.plans.wafer_part import Loan
from dovetail.report.wafer_picture import WaferPicture
from dovetail.units import bytes_text, percent_text

DEAD, LEFT_OVER = "x", "."
#: A larger grid is left to files.
MOST_COLUMNS, MOST_ROWS = 120, 40
#: Of more loans the first are told.
MOST_LOANS = 8


def wafer_lines(pictures: Sequence[WaferPicture]) -> list[str]:
    """For a terminal: the stage of every die, lines between tensor groups where these have several dies.

    Wafers that hold the same stages in the same places as one before them, and on which the same is dead, are left out.
    """
    seen: list[tuple[dict[Position, int], DefectMap]] = []
    lines: list[str] = []
    for picture in pictures:
        shown = {position: die.stage for position, die in picture.dies.items()}, picture.defects
        if shown not in seen:
            seen.append(shown)
            lines += _grid_lines(picture)
    return [*lines, *loan_lines(pictures[0].loans)]


def loan_lines(loans: Sequence[Loan]) -> list[str]:
    """Who holds how much for whom."""
    lines = [
        f"stage {loan.lender} lends each die of stage {loan.stage} {bytes_text(loan.bytes)}"
        for loan in loans[:MOST_LOANS]
    ]
    return lines if len(loans) <= MOST_LOANS else [*lines, f"and {len(loans) - MOST_LOANS} more loans"]


def wafer_title(picture: WaferPicture) -> str:
    """Which wafer it is."""
    rows, cols = picture.shape
    which = f"wafer {picture.wafer} of {picture.wafers}, " if picture.wafers > 1 else ""
    return f"{which}{rows} × {cols} dies of {picture.name}"


def borders(picture: WaferPicture) -> tuple[list[bool], list[bool]]:
    """By row and column whether a tensor group begins there; nowhere if each is a single die, or all of a stage."""
    rows, cols = picture.shape
    # tiles have one group each, and numbers of their own
    if picture.tiled or len({die.tensor_group for die in picture.dies.values()}) == len(picture.dies):
        return [False] * rows, [False] * cols
    has = picture.has_border
    # groups are equal boxes, so a border runs through the whole grid
    between_rows = [any(has((row - 1, col), (row, col)) for col in range(cols)) for row in range(rows)]
    between_cols = [any(has((row, col - 1), (row, col)) for row in range(rows)) for col in range(cols)]
    return between_rows, between_cols


def is_boxed(picture: WaferPicture) -> bool:
    """Whether there is a line between any groups."""
    return any(map(any, borders(picture)))


def _grid_lines(picture: WaferPicture) -> list[str]:
    (rows, cols), width = picture.shape, len(str(picture.stages - 1))
    if rows > MOST_ROWS or cols * (width + 3) > MOST_COLUMNS:
        return [f"{wafer_title(picture)}: too many to show here, --picture FILE draws them"]
    between_rows, between_cols = borders(picture)
    lines = [f"{wafer_title(picture)}, the stage of each"]
    for row in range(rows):
        if row and between_rows[row]:
            lines.append(_text_row(["-" * width] * cols, between_cols, "-", "-+-"))
        cells = [f"{_die_text(picture, (row, col)):>{width}}" for col in range(cols)]
        lines.append(_text_row(cells, between_cols, " ", " | "))
    return [*lines, *_legend_lines(picture)]


def _text_row(cells: Sequence[str], borders: Sequence[bool], inside: str, between: str) -> str:
    """Cells of a row with what is between those of one group, and of two."""
    return (
        "  "
        + cells[0]
        + "".join((between if border else inside) + cell for cell, border in zip(cells[1:], borders[1:], strict=True))
    )


def _die_text(picture: WaferPicture, position: Position) -> str:
    die = picture.dies.get(position)
    if die is not None:
        return str(die.stage)
    return DEAD if position in picture.dead else LEFT_OVER


def _legend_lines(picture: WaferPicture) -> list[str]:
    words = ["lines stand between tensor groups"] if is_boxed(picture) else []
    words += [f"{DEAD} dead"] if picture.dead else []
    words += [f"{LEFT_OVER} left over"] if picture.left_over else []
    links, dead = picture.links(), len(picture.dead_links())
    for name, along in (("from row to row", 0), ("from column to column", 1)):
        loads = [link.load for link in links if (link.one[0] == link.other[0]) == bool(along) and link.load is not None]
        if loads:
            lowest, highest = percent_text(min(loads)), percent_text(max(loads))
            words.append(f"links {name} {highest if lowest == highest else f'{lowest} to {highest}'} full")
    words += [f"{dead} dead {'link' if dead == 1 else 'links'}"] if dead else []
    words += [] if picture.store_share is None else [f"link to the store {percent_text(picture.store_share)} full"]
    return [", ".join(words)] if words else []
