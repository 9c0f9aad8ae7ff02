"""What of a grid of dies is dead: dies and links between neighbours."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.errors import InputError
from dovetail.frozen import frozen

Position = tuple[int, int]
"""row and column of a die, from 0"""

Link = tuple[Position, Position]
"""two neighbours, the smaller position first"""


@frozen
class DefectMap:
    """Dies and links of a wafer that do not work; kept in one order, links with their smaller end first."""

    dead_dies: tuple[Position, ...] = ()
    dead_links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        links = {(min(link), max(link)) for link in self.dead_links}
        object.__setattr__(self, "dead_dies", tuple(sorted(set(self.dead_dies))))
        object.__setattr__(self, "dead_links", tuple(sorted(links)))

    @classmethod
    def sampled(cls, rows: int, cols: int, die_yield: float, link_yield: float, seed: int) -> DefectMap:
        """Every die and every link works with its probability, whatever the others do; the same map for a seed."""
        import numpy as np  # which reading wafers does without

        for name, chance in (("die_yield", die_yield), ("link_yield", link_yield)):
            if not 0 <= chance <= 1:
                raise InputError(name, f"is {chance:g}", "it should be from 0 to 1")
        random = np.random.default_rng(seed)
        dies, links = grid_positions(rows, cols), grid_links(rows, cols)
        # dies first: maps of one seed have the same dead dies whatever the yield of links
        dead_dies = [die for die, drawn in zip(dies, random.random(len(dies)), strict=True) if drawn >= die_yield]
        dead_links = [link for link, drawn in zip(links, random.random(len(links)), strict=True) if drawn >= link_yield]
        return cls(tuple(dead_dies), tuple(dead_links))


def grid_positions(rows: int, cols: int) -> tuple[Position, ...]:
    """Places of a grid, row by row."""
    return tuple((row, col) for row in range(rows) for col in range(cols))


def grid_links(rows: int, cols: int) -> tuple[Link, ...]:
    """Pairs of neighbours of a grid: of each die, in order, the one to the east and the one to the south."""
    pairs: list[Link] = []
    for row, col in grid_positions(rows, cols):
        pairs += [((row, col), (row, col + 1))] if col + 1 < cols else []
        pairs += [((row, col), (row + 1, col))] if row + 1 < rows else []
    return tuple(pairs)


def components(dies: Iterable[Position], links: Iterable[Link]) -> tuple[tuple[Position, ...], ...]:
    """Dies by who reaches whom, each part and the parts in order."""
    leader = {die: die for die in dies}

    def find(die: Position) -> Position:
        while leader[die] != die:
            leader[die] = leader[leader[die]]
            die = leader[die]
        return die

    for a, b in links:
        first, second = sorted((find(a), find(b)))
        leader[second] = first
    parts: dict[Position, list[Position]] = {}
    for die in leader:
        parts.setdefault(find(die), []).append(die)
    return tuple(sorted(tuple(sorted(part)) for part in parts.values()))


def check_defects(defects: DefectMap, rows: int, cols: int, where: str) -> None:
    """Refuses dead dies outside a grid, and dead links between dies that are no neighbours."""
    for row, col in defects.dead_dies:
        if not (0 <= row < rows and 0 <= col < cols):
            fix = f"it should be [row, col] below [{rows}, {cols}]"
            raise InputError(f"{where}.dead_dies", f"has [{row}, {col}]", fix)
    neighbours = set(grid_links(rows, cols))
    for a, b in defects.dead_links:
        if (a, b) not in neighbours:
            fix = f"it should join two neighbours of the {rows} x {cols} grid"
            raise InputError(f"{where}.dead_links", f"has [{list(a)}, {list(b)}]", fix)
