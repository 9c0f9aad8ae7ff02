"""Meshes with sampled faults, and cuts of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from dovetail.cost.mesh import Die, DieMesh, MeshCollectiveKind


def damaged(seed: int, rows: int, cols: int) -> DieMesh:
    """Between 1 and 20 % of links or of dies dead; the largest part that is connected."""
    random_ = random.Random(seed)  # noqa: S311
    whole = DieMesh(rows, cols)
    part = random_.uniform(0.01, 0.2)
    if random_.random() < 0.5:
        dead = random_.sample(whole.edges, max(1, round(part * whole.num_edges)))
        mesh = DieMesh(rows, cols, dead_links=frozenset(dead))
    else:
        mesh = DieMesh(rows, cols, frozenset(random_.sample(whole.dies, max(1, round(part * whole.num_dies)))))
    return mesh.components[0]


def some_cuts(mesh: DieMesh, seed: int, count: int) -> Iterator[set[Die]]:
    """Every die alone, and connected sets grown at random."""
    random_ = random.Random(seed)  # noqa: S311
    yield from ({die} for die in mesh.dies)
    for _ in range(count if mesh.num_dies > 2 else 0):
        grown = {random_.choice(mesh.dies)}
        for _ in range(random_.randrange(mesh.num_dies - 1)):
            around = sorted({o for die in grown for o in mesh.neighbours[die]} - grown)
            grown.add(random_.choice(around))
        if len(grown) < mesh.num_dies:
            yield grown


def must_cross(kind: MeshCollectiveKind, mesh: DieMesh, inside: set[Die], root: Die) -> float:
    """For one byte, what must go into a set over each of its links at least."""
    links = sum((a in inside) != (b in inside) for a, b in mesh.edges)
    count, within = mesh.num_dies, len(inside)
    crossing = {
        MeshCollectiveKind.ALL_REDUCE: 1.0,
        MeshCollectiveKind.ALL_GATHER: (count - within) / count,
        # sums of what is outside, for the shares inside
        MeshCollectiveKind.REDUCE_SCATTER: within / count,
        MeshCollectiveKind.ALL_TO_ALL: within * (count - within) / count,
        MeshCollectiveKind.BROADCAST: float(root not in inside),
        MeshCollectiveKind.PERMUTE: 0.0,
    }
    return crossing[kind] / links
