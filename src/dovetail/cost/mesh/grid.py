"""A mesh of dies: which live, the links between them, and fixed shortest routes around what is dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dovetail.errors import InputError

#: Row and column.
Die = tuple[int, int]
#: Two neighbours; which comes first does not matter.
Edge = tuple[Die, Die]


@dataclass(frozen=True)
class DieMesh:
    """Dies in rows and columns, each linked with its neighbours in both directions.

    A dead link is dead in both directions, and so are the links of a dead die. Directed links are numbered in pairs:
    edge k is link 2k from the die above or to the left, and link 2k + 1 back.
    """

    rows: int
    cols: int
    dead_dies: frozenset[Die] = frozenset()
    dead_links: frozenset[Edge] = frozenset()

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1:
            raise InputError("mesh", f"{self.rows} × {self.cols} dies", "rows and columns are at least 1")
        for die in self.dead_dies:
            if not self._inside(die):
                raise InputError("mesh", f"the dead die {die} lies outside", f"it has {self.rows} × {self.cols} dies")
        for a, b in self.dead_links:
            if not (self._inside(a) and self._inside(b) and abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1):
                raise InputError("mesh", f"no link joins {a} and {b}", "a dead link joins two neighbours of the mesh")
        ordered = frozenset((min(pair), max(pair)) for pair in self.dead_links)
        object.__setattr__(self, "dead_links", ordered)

    def _inside(self, die: Die) -> bool:
        return 0 <= die[0] < self.rows and 0 <= die[1] < self.cols

    @cached_property
    def dies(self) -> tuple[Die, ...]:
        """The live dies, row by row."""
        places = ((row, col) for row in range(self.rows) for col in range(self.cols))
        return tuple(die for die in places if die not in self.dead_dies)

    @property
    def num_dies(self) -> int:
        """How many dies live."""
        return len(self.dies)

    @cached_property
    def number(self) -> dict[Die, int]:
        """Where each live die stands in `dies`."""
        return {die: i for i, die in enumerate(self.dies)}

    @cached_property
    def whole(self) -> bool:
        """Whether nothing is dead."""
        return not self.dead_dies and self.num_edges == 2 * self.rows * self.cols - self.rows - self.cols

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Live links without their direction."""
        pairs = ((die, other) for die in self.dies for other in ((die[0], die[1] + 1), (die[0] + 1, die[1])))
        return tuple(pair for pair in pairs if pair[1] in self.number and pair not in self.dead_links)

    @property
    def num_edges(self) -> int:
        """How many pairs of dies are linked."""
        return len(self.edges)

    @cached_property
    def links(self) -> tuple[Edge, ...]:
        """Directed links by number."""
        return tuple(link for a, b in self.edges for link in ((a, b), (b, a)))

    @cached_property
    def link_number(self) -> dict[Edge, int]:
        """The number of each directed link."""
        return {link: i for i, link in enumerate(self.links)}

    @cached_property
    def neighbours(self) -> dict[Die, tuple[Die, ...]]:
        """Linked dies, those of the same row first."""
        linked: dict[Die, list[Die]] = {die: [] for die in self.dies}
        for a, b in self.edges:
            linked[a].append(b)
            linked[b].append(a)
        return {die: tuple(sorted(others, key=lambda o: (o[0] != die[0], o))) for die, others in linked.items()}

    @cached_property
    def components(self) -> tuple[DieMesh, ...]:
        """The connected parts, each a mesh in which all other dies are dead; the one with most dies first."""
        left: list[Die] = list(self.dies)
        parts: list[DieMesh] = []
        places = {(row, col) for row in range(self.rows) for col in range(self.cols)}
        while left:
            reached = set(self.distances(left[0]))
            parts.append(DieMesh(self.rows, self.cols, frozenset(places - reached), self.dead_links))
            left = [die for die in left if die not in reached]
        return tuple(sorted(parts, key=lambda part: -part.num_dies))

    @property
    def connected(self) -> bool:
        """Whether every live die reaches every other."""
        return bool(self.dies) and len(self.distances(self.dies[0])) == self.num_dies

    @cached_property
    def _distances(self) -> dict[Die, dict[Die, int]]:
        return {}

    def distances(self, die: Die) -> dict[Die, int]:
        """Hops between a die and every die it reaches."""
        if die not in self._distances:
            hops = {die: 0}
            ahead = deque([die])
            while ahead:
                here = ahead.popleft()
                for other in self.neighbours[here]:
                    if other not in hops:
                        hops[other] = hops[here] + 1
                        ahead.append(other)
            self._distances[die] = hops
        return self._distances[die]

    def hops(self, source: Die, target: Die) -> int:
        """Links on the shortest way."""
        return len(self.route(source, target))

    def route(self, source: Die, target: Die) -> tuple[int, ...]:
        """Links from one die to another: along the row, then along the column where this is free.

        Otherwise a shortest way around: at every die the first neighbour that is nearer, those of the same row first.
        """
        for die in (source, target):
            if die not in self.number:
                raise InputError("mesh", f"the die {die} is dead or outside", "routes join live dies")
        straight = self._straight(source, target)
        if straight is not None:
            return straight
        left = self.distances(target)
        if source not in left:
            raise InputError("mesh", f"no way leads from {source} to {target}", "routes join dies of one component")
        links: list[int] = []
        here = source
        while here != target:
            ahead = next(other for other in self.neighbours[here] if left[other] < left[here])
            links.append(self.link_number[here, ahead])
            here = ahead
        return tuple(links)

    def _straight(self, source: Die, target: Die) -> tuple[int, ...] | None:
        links: list[int] = []
        here = source
        for ahead in _row_then_column(source, target):
            link = self.link_number.get((here, ahead))
            if link is None:
                return None
            links.append(link)
            here = ahead
        return tuple(links)

    @cached_property
    def symmetries(self) -> tuple[tuple[Die, ...], ...]:
        """Where each live die goes under the reflections and turns that leave the mesh as it is; itself first."""
        last_row, last_col = self.rows - 1, self.cols - 1
        images: list[tuple[Die, ...]] = []
        for turned in (False, True) if self.rows == self.cols else (False,):
            for upside_down in (False, True):
                for mirrored in (False, True):
                    moved: list[Die] = []
                    for die in self.dies:
                        row, col = die[::-1] if turned else die
                        moved.append((last_row - row if upside_down else row, last_col - col if mirrored else col))
                    if self._is_symmetric(moved) and tuple(moved) not in images:
                        images.append(tuple(moved))
        return tuple(images)

    def _is_symmetric(self, moved: list[Die]) -> bool:
        return all(die in self.number for die in moved) and all(
            (moved[self.number[a]], moved[self.number[b]]) in self.link_number for a, b in self.edges
        )


def _row_then_column(source: Die, target: Die) -> Iterator[Die]:
    (row, col), (last_row, last_col) = source, target
    while col != last_col:
        col += 1 if last_col > col else -1
        yield row, col
    while row != last_row:
        row += 1 if last_row > row else -1
        yield row, col
