"""Trees packed so that the busiest link of a mesh, damaged or not, carries least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.cost.mesh.arborescence import cheapest_arborescence
from dovetail.cost.mesh.collective import Spread
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.cost.mesh.least_busy import Column, Mix, least_busy
from dovetail.cost.mesh.trees import Tree, cheapest_tree, comb, middle_of, spread_by_links, spread_over
from dovetail.frozen import frozen

#: More than all prices of a tree together: a second root never pays.
FAR = 1e3


@frozen
class Packing:
    """Trees with parts that add up to 1; no packing loads its busiest link with less than `bound`."""

    spreads: tuple[Spread, ...]
    bound: float


@lru_cache(maxsize=4096)
def packed_trees(mesh: DieMesh) -> Packing:
    """Spanning trees whose busiest edge is in as few as can be: 1 / the strength of the graph.

    No all-reduce is faster: between k parts of the mesh go at least 2(k − 1) times the bytes, and the trees meet the
    largest (k − 1) / edges between parts (Tutte 1961, Nash-Williams 1961).
    """
    if mesh.whole:
        return _combs(mesh)
    if mesh.num_dies == 1:
        return Packing((Spread(mesh.dies[0], 1.0, (), ()),), 0.0)
    mix = _mixed_trees(mesh)
    images = [(image, weight) for column, weight in mix.columns for image in _images(mesh, column.name)]
    alike = len(mesh.symmetries)
    spreads = [spread_over(mesh, image, middle_of(mesh, image), weight / alike) for image, weight in images]
    return Packing(tuple(spreads), mix.bound)


def _combs(mesh: DieMesh) -> Packing:
    """A whole mesh: a row and all columns, or a column and all rows, so mixed that all links carry the same.

    With the part x on combs of rows a link in a row carries x/R + 1 − x and one in a column x + (1 − x)/C; equal,
    both are (RC − 1) / (2RC − R − C): each tree has RC − 1 edges, so no packing does with less.
    """
    rows, cols = mesh.rows, mesh.cols
    part = (1 - 1 / cols) / (2 - 1 / rows - 1 / cols) if rows * cols > 1 else 1.0
    combs = [(comb(mesh, row=row), (row, cols // 2), part / rows) for row in range(rows)]
    combs += [(comb(mesh, col=col), (rows // 2, col), (1 - part) / cols) for col in range(cols)]
    spreads = tuple(spread_over(mesh, tree, root, weight) for tree, root, weight in combs if weight > 0)
    return Packing(spreads, (rows * cols - 1) / max(mesh.num_edges, 1))


def _mixed_trees(mesh: DieMesh) -> Mix[Tree]:
    orbit, sizes = _orbits(mesh, directed=False)
    roots = sorted(mesh.dies, key=lambda die: (max(mesh.distances(die).values()), die))

    def column(tree: Tree) -> Column[Tree]:
        return Column(np.bincount(orbit[list(tree)], minlength=len(sizes)) / sizes, 0, tree)

    def cheapest(prices: Floats, _worth: Floats) -> list[Column[Tree]]:
        return [column(cheapest_tree(mesh, (prices / sizes)[orbit].tolist(), roots[0]))]

    return least_busy([column(cheapest_tree(mesh, [0.0] * mesh.num_edges, roots[0]))], np.ones(1), cheapest)


def packed_broadcasts(mesh: DieMesh, shares: Mapping[Die, float]) -> Packing:
    """Arborescences from roots with given shares, which add up to 1, with the least busy busiest link.

    The optimum is the largest cut: for a set of dies the shares outside of it over the links into it (Edmonds 1973).
    """
    return _packed_broadcasts(mesh, tuple(sorted(shares.items())))


@lru_cache(maxsize=1024)
def _packed_broadcasts(mesh: DieMesh, shares: tuple[tuple[Die, float], ...]) -> Packing:
    if mesh.num_dies == 1:
        return Packing(tuple(Spread(die, part, (), ()) for die, part in shares), 0.0)
    # shares that differ have no symmetry to keep
    symmetries = mesh.symmetries if len(shares) == mesh.num_dies and len({part for _, part in shares}) == 1 else None
    program = _Arborescences(mesh, shares, symmetries or (mesh.dies,))
    mix = least_busy(program.first(), program.root_shares, program.cheapest)
    spreads: list[Spread] = []
    for column, weight in mix.columns:
        root, links = column.name
        for moved in program.symmetries:
            image = [_moved_link(mesh, moved, link) for link in links]
            part = weight / len(program.symmetries)
            spreads.append(spread_by_links(mesh, image, moved[mesh.number[root]], part))
    return Packing(tuple(spreads), mix.bound)


class _Arborescences:
    """Arborescences as columns, alike under the symmetries taken together."""

    def __init__(
        self, mesh: DieMesh, shares: Sequence[tuple[Die, float]], symmetries: Sequence[tuple[Die, ...]]
    ) -> None:
        self.mesh, self.symmetries = mesh, symmetries
        self.orbit, self.sizes = _orbits(mesh, directed=True, symmetries=symmetries)
        firsts: dict[Die, int] = {}
        self.root_orbit: dict[Die, int] = {}
        for die, _ in shares:
            first = min(moved[mesh.number[die]] for moved in symmetries)
            self.root_orbit[die] = firsts.setdefault(first, len(firsts))
        self.roots = [die for die, _ in shares]
        self.root_shares = np.zeros(len(firsts))
        for die, part in shares:
            self.root_shares[self.root_orbit[die]] += part
        source = mesh.num_dies
        self.arcs = [(mesh.number[a], mesh.number[b]) for a, b in mesh.links]
        self.arcs += [(source, mesh.number[die]) for die in self.roots]

    def column(self, root: Die, links: tuple[int, ...]) -> Column[tuple[Die, tuple[int, ...]]]:
        loads = np.bincount(self.orbit[list(links)], minlength=len(self.sizes)) / self.sizes
        return Column(loads, self.root_orbit[root], (root, links))

    def first(self) -> list[Column[tuple[Die, tuple[int, ...]]]]:
        """A shallow arborescence for each kind of root."""
        by_orbit: dict[int, Column[tuple[Die, tuple[int, ...]]]] = {}
        for die in self.roots:
            if self.root_orbit[die] not in by_orbit:
                tree = cheapest_tree(self.mesh, [0.0] * self.mesh.num_edges, die)
                by_orbit[self.root_orbit[die]] = self.column(die, spread_over(self.mesh, tree, die, 1.0).links)
        return [by_orbit[number] for number in range(len(by_orbit))]

    def cheapest(self, prices: Floats, worth: Floats) -> list[Column[tuple[Die, tuple[int, ...]]]]:
        """The arborescence that costs least for its root, found from a source before all roots."""
        costs = (prices / self.sizes)[self.orbit].tolist()
        # roots of one kind share a column's root row, and each reaches the dies at its own price
        costs += [FAR - float(worth[self.root_orbit[die]]) for die in self.roots]
        arcs = cheapest_arborescence(self.mesh.num_dies + 1, self.mesh.num_dies, self.arcs, costs)
        num_links = len(self.mesh.links)
        (entered,) = [arc - num_links for arc in arcs if arc >= num_links]
        return [self.column(self.roots[entered], tuple(sorted(arc for arc in arcs if arc < num_links)))]


def _orbits(
    mesh: DieMesh, *, directed: bool, symmetries: Sequence[tuple[Die, ...]] | None = None
) -> tuple[Ints, Floats]:
    """Links, or edges, that a symmetry takes to each other have one number; and how many have each."""
    places = mesh.symmetries if symmetries is None else symmetries
    firsts: dict[int, int] = {}
    numbers: list[int] = []
    step = 1 if directed else 2
    for link in range(0, len(mesh.links), step):
        first = min(_moved_link(mesh, moved, link) // step for moved in places)
        numbers.append(firsts.setdefault(first, len(firsts)))
    orbit = np.array(numbers, np.int64)
    return orbit, np.bincount(orbit).astype(np.float64)


def _moved_link(mesh: DieMesh, moved: Sequence[Die], link: int) -> int:
    a, b = mesh.links[link]
    return mesh.link_number[moved[mesh.number[a]], moved[mesh.number[b]]]


def _images(mesh: DieMesh, tree: Tree) -> list[Tree]:
    """The tree under every symmetry of the mesh."""
    return [tuple(sorted(_moved_link(mesh, moved, 2 * edge) // 2 for edge in tree)) for moved in mesh.symmetries]
