"""The algorithms of collectives on a mesh: each says for one byte what every link carries, where it applies."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.mesh.collective import MeshCollective, MeshCollectiveKind, Spread, from_spreads, of_outward
from dovetail.cost.mesh.exchange import mixed_ways
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.cost.mesh.packing import packed_broadcasts, packed_trees
from dovetail.cost.mesh.rings import leg_counts, reversed_legs, ring_dies, ring_legs, snake
from dovetail.cost.mesh.trees import cheapest_tree, comb, middle_of, spread_over

#: A kind, a mesh and who broadcasts; None where the algorithm does not apply.
Algorithm = Callable[[MeshCollectiveKind, DieMesh, Die], MeshCollective | None]

SCATTERED = (MeshCollectiveKind.ALL_GATHER, MeshCollectiveKind.REDUCE_SCATTER)
SUMMED_OR_GATHERED = (*SCATTERED, MeshCollectiveKind.ALL_REDUCE)


def _phases(kind: MeshCollectiveKind) -> int:
    return 2 if kind is MeshCollectiveKind.ALL_REDUCE else 1


def ring(kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> MeshCollective | None:
    """Round a ring in both directions, half of the bytes each: (N − 1)/N over each leg (Patarasuk and Yuan 2009)."""
    legs = ring_legs(mesh)
    if kind is MeshCollectiveKind.PERMUTE:
        sends = [Spread(mesh.links[leg[0]][0], 1.0, leg, tuple(range(-1, len(leg) - 1))) for leg in legs]
        return from_spreads(kind, "ring", mesh, sends)
    if kind is MeshCollectiveKind.BROADCAST:
        return from_spreads(kind, "ring", mesh, [s for s in _round_trips(mesh, 1.0) if s.root == root])
    if kind not in SUMMED_OR_GATHERED:
        return None
    count = mesh.num_dies
    both = np.array(leg_counts(mesh, legs)) + np.array(leg_counts(mesh, reversed_legs(legs)))
    outward = both * ((count - 1) / count / 2)
    # a byte passes all legs but one
    hops = sum(map(len, legs)) - min(map(len, legs), default=0)
    return MeshCollective(
        kind, "ring", mesh, 1.0, of_outward(kind, outward), hops * _phases(kind), lambda: _round_trips(mesh, 1 / count)
    )


def _round_trips(mesh: DieMesh, share: float) -> list[Spread]:
    """Half of each die's share round the ring either way."""
    spreads: list[Spread] = []
    ways = ring_legs(mesh), reversed_legs(ring_legs(mesh))
    for legs in ways:
        for first, die in enumerate(ring_dies(mesh, legs)):
            links = [link for step in range(len(legs) - 1) for link in legs[(first + step) % len(legs)]]
            spreads.append(Spread(die, share / 2, tuple(links), tuple(range(-1, len(links) - 1))))
    return spreads


def tree_packing(kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> MeshCollective | None:
    """Packed trees: the least busy busiest link there is."""
    if kind is MeshCollectiveKind.ALL_REDUCE:
        return from_spreads(kind, "tree_packing", mesh, packed_trees(mesh).spreads)
    if kind in SCATTERED:
        if mesh.whole:
            return _combed(kind, "tree_packing", mesh, _gather_part(mesh.rows, mesh.cols))
        shares = dict.fromkeys(mesh.dies, 1.0 / mesh.num_dies)
        return from_spreads(kind, "tree_packing", mesh, packed_broadcasts(mesh, shares).spreads)
    if kind is MeshCollectiveKind.BROADCAST:
        return from_spreads(kind, "tree_packing", mesh, packed_broadcasts(mesh, {root: 1.0}).spreads)
    return None


def dimension_ordered(kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> MeshCollective | None:
    """Rows, then columns; an all-reduce scatters sums along rows, adds up columns, and gathers along rows again."""
    if not mesh.whole:
        return None
    if kind is MeshCollectiveKind.BROADCAST:
        sends = spread_over(mesh, comb(mesh, row=root[0]), root, 1.0)
        return from_spreads(kind, "dimension_ordered", mesh, [sends])
    if kind not in SUMMED_OR_GATHERED:
        return None
    # sums flow backwards: to add up rows first is to leave along the column first
    return _combed(kind, "dimension_ordered", mesh, 1.0 if kind is MeshCollectiveKind.ALL_GATHER else 0.0)


def _gather_part(rows: int, cols: int) -> float:
    """Which part leaves along rows first so that busiest rows and columns carry the same, (N − 1)/(2N)."""
    if min(rows, cols) == 1:
        return 1.0
    along_row, along_col = (cols - 1) / cols, (rows - 1) / rows
    return (along_row - along_col / cols) / (2 * along_row * along_col)


def _combed(kind: MeshCollectiveKind, name: str, mesh: DieMesh, part: float) -> MeshCollective:
    """Each die's share over combs of its row, this part of it, and of its column, on a whole mesh."""
    hops = (mesh.rows + mesh.cols - 2) * _phases(kind)
    loads = of_outward(kind, _comb_loads(mesh, part))
    return MeshCollective(kind, name, mesh, 1.0, loads, hops, lambda: _comb_spreads(mesh, part))


def _comb_loads(mesh: DieMesh, part: float) -> Floats:
    """What links carry: in its row a share of each die before, in columns that of all rows before, or the reverse."""
    rows, cols, count = mesh.rows, mesh.cols, mesh.num_dies
    links = np.array(mesh.links, np.int64).reshape(-1, 4)
    in_row = links[:, 0] == links[:, 2]
    place = np.where(in_row, links[:, 1], links[:, 0])
    forward = (links[:, 2:] > links[:, :2]).any(axis=1)
    length = np.where(in_row, cols, rows)
    before = np.where(forward, place + 1, length - place)
    weight = np.where(in_row, part + (1 - part) * rows, part * cols + (1 - part))
    return before * weight / count


def _comb_spreads(mesh: DieMesh, part: float) -> list[Spread]:
    spreads: list[Spread] = []
    for row, col in mesh.dies:
        for tree, weight in ((comb(mesh, row=row), part), (comb(mesh, col=col), 1 - part)):
            if weight > 0:
                spreads.append(spread_over(mesh, tree, (row, col), weight / mesh.num_dies))
    return spreads


def relay(kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> MeshCollective | None:
    """Streamed one hop per round to and fro along all dies: no ring to close, for about twice a ring's bytes."""
    order = snake(mesh)
    if order is None:
        return None
    path = [mesh.link_number[pair] // 2 for pair in pairwise(order)]
    if kind is MeshCollectiveKind.BROADCAST:
        return from_spreads(kind, "relay", mesh, [spread_over(mesh, path, root, 1.0)])
    if kind not in SUMMED_OR_GATHERED:
        return None
    outward = np.zeros(len(mesh.links))
    for passed, (a, b) in enumerate(pairwise(order), start=1):
        outward[mesh.link_number[a, b]] = passed / len(order)
        outward[mesh.link_number[b, a]] = 1 - passed / len(order)

    def spreads() -> list[Spread]:
        return [spread_over(mesh, path, die, 1 / len(order)) for die in order]

    hops = (len(order) - 1) * _phases(kind)
    return MeshCollective(kind, "relay", mesh, 1.0, of_outward(kind, outward), hops, spreads)


def shallow_tree(kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> MeshCollective | None:
    """One tree of shortest ways: everything over one link, but over few hops."""
    if kind is MeshCollectiveKind.BROADCAST:
        middle = root
    elif kind is MeshCollectiveKind.ALL_REDUCE:
        middle = min(mesh.dies, key=lambda die: (max(mesh.distances(die).values()), die))
    else:
        return None
    tree = cheapest_tree(mesh, [0.0] * mesh.num_edges, middle)
    middle = middle if kind is MeshCollectiveKind.BROADCAST else middle_of(mesh, tree)
    return from_spreads(kind, "shallow_tree", mesh, [spread_over(mesh, tree, middle, 1.0)])


def routes(kind: MeshCollectiveKind, mesh: DieMesh, _root: Die) -> MeshCollective | None:
    """Every die to every other along its route; on a whole mesh no way is better, as the straight cuts say."""
    if kind is not MeshCollectiveKind.ALL_TO_ALL:
        return None
    sends: list[Spread] = []
    for source in mesh.dies:
        for target in mesh.dies:
            if source != target:
                way = mesh.route(source, target)
                sends.append(Spread(source, 1 / mesh.num_dies, way, tuple(range(-1, len(way) - 1))))
    return from_spreads(kind, "routes", mesh, sends)


def mixed_routes(kind: MeshCollectiveKind, mesh: DieMesh, _root: Die) -> MeshCollective | None:
    """Every die to every other over several ways, on a damaged mesh: the least busy busiest link there is."""
    if kind is not MeshCollectiveKind.ALL_TO_ALL or mesh.whole:
        return None
    return from_spreads(kind, "mixed_routes", mesh, mixed_ways(mesh).spreads)


#: By name; a new one needs a line here.
ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "tree_packing": tree_packing,
    "dimension_ordered": dimension_ordered,
    "relay": relay,
    "shallow_tree": shallow_tree,
    "routes": routes,
    "mixed_routes": mixed_routes,
}


@lru_cache(maxsize=16384)
def unit(name: str, kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> MeshCollective | None:
    """A collective for one byte; None where the algorithm does not apply."""
    return ALGORITHMS[name](kind, mesh, root)
