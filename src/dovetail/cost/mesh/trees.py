"""Spanning trees of a mesh: shallow ones, cheapest ones, combs, and the sends along them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from dovetail.cost.mesh.collective import Spread
from dovetail.cost.mesh.grid import Die, DieMesh

#: Edges of a mesh by number.
Tree = tuple[int, ...]


def cheapest_tree(mesh: DieMesh, prices: Sequence[float], root: Die) -> Tree:
    """A spanning tree of least price, grown from the root; of equal ones, the shallower branches first."""
    reached = {root}
    edges: list[int] = []
    ahead: list[tuple[float, int, int, Die]] = []

    def offer(die: Die, depth: int) -> None:
        for other in mesh.neighbours[die]:
            if other not in reached:
                edge = mesh.link_number[die, other] // 2
                heappush(ahead, (prices[edge], depth, edge, other))

    offer(root, 0)
    while len(reached) < mesh.num_dies:
        _, depth, edge, die = heappop(ahead)
        if die not in reached:
            reached.add(die)
            edges.append(edge)
            offer(die, depth + 1)
    return tuple(sorted(edges))


def spread_over(mesh: DieMesh, tree: Sequence[int], root: Die, part: float) -> Spread:
    """The sends from a root along a tree."""
    joined: dict[Die, list[Die]] = {die: [] for die in mesh.dies}
    for edge in tree:
        a, b = mesh.edges[edge]
        joined[a].append(b)
        joined[b].append(a)
    return _sends(mesh, root, part, lambda die: joined[die])


def spread_by_links(mesh: DieMesh, links: Sequence[int], root: Die, part: float) -> Spread:
    """The sends from a root along the directed links of an arborescence."""
    ahead: dict[Die, list[Die]] = {die: [] for die in mesh.dies}
    for link in links:
        source, target = mesh.links[link]
        ahead[source].append(target)
    return _sends(mesh, root, part, lambda die: ahead[die])


def _sends(mesh: DieMesh, root: Die, part: float, ahead: Callable[[Die], Sequence[Die]]) -> Spread:
    brought: dict[Die, int] = {root: -1}
    links: list[int] = []
    after: list[int] = []
    for die in (order := [root]):
        for other in ahead(die):
            if other not in brought:
                brought[other] = len(links)
                links.append(mesh.link_number[die, other])
                after.append(brought[die])
                order.append(other)
    return Spread(root, part, tuple(links), tuple(after))


def middle_of(mesh: DieMesh, tree: Sequence[int]) -> Die:
    """The root from which the tree is least deep; of equal ones the first die."""
    return min(mesh.dies, key=lambda die: (spread_over(mesh, tree, die, 1.0).depth, die))


def comb(mesh: DieMesh, row: int | None = None, col: int | None = None) -> Tree:
    """One row and all columns, or one column and all rows, of a whole mesh."""
    along = 0 if row is not None else 1
    edges: list[int] = []
    for edge, (a, b) in enumerate(mesh.edges):
        in_a_tooth = a[along] != b[along]
        if in_a_tooth or a[along] == (row if row is not None else col):
            edges.append(edge)
    return tuple(edges)
