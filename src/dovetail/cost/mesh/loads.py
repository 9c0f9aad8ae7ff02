"""Link loads of many groups at once on one mesh: each group's collective laid along the routes between its dies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.mesh.choose import best, collective
from dovetail.cost.mesh.collective import MeshCollective, MeshCollectiveKind, Spread, from_spreads
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.cost.mesh.rings import reversed_legs
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.layout import CollectiveKind


@frozen
class DieGroup:
    """Dies that act together: rows × cols of them, from a corner on, every so many rows and columns.

    With steps of 1 they are a rectangle; with larger ones they are strided, and their links pass other dies.
    """

    corner: Die
    rows: int
    cols: int
    row_step: int = 1
    col_step: int = 1

    def die(self, place: Die) -> Die:
        """Where on the mesh a place of the group lies."""
        return self.corner[0] + place[0] * self.row_step, self.corner[1] + place[1] * self.col_step

    def mesh_of(self, mesh: DieMesh, *, around: bool = False) -> DieMesh:
        """The group by itself; neighbours are those whose straight way is free, or `around` what is dead any way."""
        places = [(row, col) for row in range(self.rows) for col in range(self.cols)]
        dead = frozenset(place for place in places if self.die(place) not in mesh.number)
        dead_links: set[tuple[Die, Die]] = set()
        for row, col in places:
            for other in ((row, col + 1), (row + 1, col)):
                if other in places and (row, col) not in dead and other not in dead:
                    a, b = self.die((row, col)), self.die(other)
                    span = abs(a[0] - b[0]) + abs(a[1] - b[1])
                    way = mesh.distances(a).get(b)
                    if way is None or (way > span and not around):
                        dead_links.add(((row, col), other))
        return DieMesh(self.rows, self.cols, dead, frozenset(dead_links))


def on_group(
    algorithm: str | None,
    kind: MeshCollectiveKind | CollectiveKind,
    mesh: DieMesh,
    group: DieGroup,
    num_bytes: float,
    bytes_per_s: float = 1.0,
    latency_s: float = 0.0,
) -> MeshCollective:
    """A group's collective by an algorithm, or the best one, with loads on the links of the whole mesh."""
    inner = group.mesh_of(mesh)
    if not inner.dies:
        raise InputError("collective", f"all dies of the group at {group.corner} are dead", "leave the group out")
    if not inner.connected:
        inner = group.mesh_of(mesh, around=True)
    if not inner.connected:
        # dead dies cut the group in parts that are no neighbours, but routes lead from part to part
        return logical_ring(kind, mesh, [group.die(place) for place in inner.dies], num_bytes)
    if algorithm is None:
        made = best(kind, inner, num_bytes, bytes_per_s, latency_s * max(group.row_step, group.col_step))
    else:
        requested = collective(algorithm, kind, inner, num_bytes)
        if requested is None:
            raise InputError("collective", f"{algorithm} does not do {kind} here", "leave the algorithm open")
        made = requested
    return embedded(made, mesh, [group.die(place) for place in inner.dies])


def embedded(made: MeshCollective, mesh: DieMesh, dies: Sequence[Die]) -> MeshCollective:
    """A collective of a group's own mesh, its dies in order, along the routes between them on a larger mesh."""
    inner = made.mesh
    ways = [mesh.route(dies[inner.number[a]], dies[inner.number[b]]) for a, b in inner.edges]
    # there and back over the same links, so that sums flow backwards past the same dies
    there_and_back = [way for there in ways for way in (there, tuple(link ^ 1 for link in reversed(there)))]
    loads = np.zeros(len(mesh.links))
    for load, way in zip(made.loads, there_and_back, strict=True):
        loads[list(way)] += load

    def spreads() -> list[Spread]:
        return [_along(spread, dies[inner.number[spread.root]], there_and_back) for spread in made.spreads()]

    lengths = set(map(len, there_and_back))
    depth = max((spread.depth for spread in spreads()), default=0) if len(lengths) > 1 else 0
    # where all links of the group are equally long its hops are so much longer
    hops = (
        depth * (2 if made.kind is MeshCollectiveKind.ALL_REDUCE else 1)
        if depth
        else made.hops * max(lengths, default=0)
    )
    return MeshCollective(made.kind, made.algorithm, mesh, made.bytes, loads, hops, spreads)


def _along(spread: Spread, root: Die, ways: Sequence[tuple[int, ...]]) -> Spread:
    """The sends of a spread, link by link of the ways they take."""
    links: list[int] = []
    after: list[int] = []
    ends: list[int] = []
    for send, before in zip(spread.links, spread.after, strict=True):
        at = -1 if before < 0 else ends[before]
        for link in ways[send]:
            links.append(link)
            after.append(at)
            at = len(links) - 1
        ends.append(at)
    return Spread(root, spread.part, tuple(links), tuple(after))


def logical_ring(
    kind: MeshCollectiveKind | CollectiveKind, mesh: DieMesh, dies: Sequence[Die], num_bytes: float
) -> MeshCollective:
    """A group of any dies: a ring in the order given, along the routes of the mesh; an all-to-all along its routes."""
    kind = MeshCollectiveKind(kind)
    if kind is MeshCollectiveKind.ALL_TO_ALL:
        return _exchanged(mesh, dies, num_bytes)
    count = len(dies)
    ways = [mesh.route(die, dies[(i + 1) % count]) for i, die in enumerate(dies)] if count > 1 else []
    spreads = _ring_spreads(kind, mesh, ways, dies[0])
    return from_spreads(kind, "logical_ring", mesh, spreads).times(num_bytes)


def _ring_spreads(kind: MeshCollectiveKind, mesh: DieMesh, ways: Sequence[tuple[int, ...]], root: Die) -> list[Spread]:
    """One leg each for a permute; otherwise half of what a die sends round the ring either way."""
    if kind is MeshCollectiveKind.PERMUTE:
        return [Spread(mesh.links[way[0]][0], 1.0, way, tuple(range(-1, len(way) - 1))) for way in ways]
    spreads: list[Spread] = []
    share = 0.5 if kind is MeshCollectiveKind.BROADCAST else 0.5 / max(len(ways), 1)
    for legs in (ways, reversed_legs(ways)):
        for first, leg in enumerate(legs):
            source = mesh.links[leg[0]][0]
            if kind is not MeshCollectiveKind.BROADCAST or source == root:
                links = [link for step in range(len(legs) - 1) for link in legs[(first + step) % len(legs)]]
                spreads.append(Spread(source, share, tuple(links), tuple(range(-1, len(links) - 1))))
    return spreads


def _exchanged(mesh: DieMesh, dies: Sequence[Die], num_bytes: float) -> MeshCollective:
    sends: list[Spread] = []
    for source in dies:
        for target in dies:
            if source != target:
                way = mesh.route(source, target)
                sends.append(Spread(source, 1 / len(dies), way, tuple(range(-1, len(way) - 1))))
    return from_spreads(MeshCollectiveKind.ALL_TO_ALL, "routes", mesh, sends).times(num_bytes)


def total_loads(collectives: Iterable[MeshCollective]) -> Floats:
    """Bytes over every link of one mesh by collectives that run at the same time."""
    return np.sum([made.loads for made in collectives], axis=0)


def concurrent_seconds(collectives: Sequence[MeshCollective], bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Collectives that run at the same time: the link busiest with all of them decides."""
    busiest = float(total_loads(collectives).max(initial=0.0)) if collectives else 0.0
    return busiest / bytes_per_s + max((made.hops for made in collectives), default=0) * latency_s
