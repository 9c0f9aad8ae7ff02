"""What no algorithm goes below: for every cut of a mesh, what must cross it over the links that do.

On a whole mesh the largest cuts are known. On a damaged one prices of links, from the linear program of the collective
that is best, prove what no cut in two or more parts exceeds.
"""

from __future__ import annotations

from functools import lru_cache

from dovetail.cost.mesh.collective import MeshCollectiveKind
from dovetail.cost.mesh.exchange import mixed_ways
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.cost.mesh.packing import packed_broadcasts, packed_trees


@lru_cache(maxsize=16384)
def lower_bound(kind: MeshCollectiveKind, mesh: DieMesh, root: Die | None = None) -> float:
    """Bytes that the busiest link carries at least, for one byte of a collective; `root` is who broadcasts."""
    if mesh.num_dies < 2:
        return 0.0
    count = mesh.num_dies
    if kind is MeshCollectiveKind.ALL_TO_ALL:
        return _straight_cuts(mesh) if mesh.whole else mixed_ways(mesh).bound
    if kind is MeshCollectiveKind.PERMUTE:
        # each die sends everything over its own links
        return 1.0 / min(len(others) for others in mesh.neighbours.values())
    if not mesh.whole:
        return _packed_bound(kind, mesh, root or mesh.dies[0])
    if kind is MeshCollectiveKind.ALL_REDUCE:
        # every die cut from every other: 2(N − 1) times the bytes over 2|E| directed links
        return (count - 1) / mesh.num_edges
    # a corner is cut from the rest by two links, the end of a line by one
    corner = 1.0 if min(mesh.rows, mesh.cols) == 1 else 2.0
    return 1.0 / corner if kind is MeshCollectiveKind.BROADCAST else (count - 1) / count / corner


def _packed_bound(kind: MeshCollectiveKind, mesh: DieMesh, root: Die) -> float:
    """The prices of links that prove the packing of trees best, which are its largest cut."""
    if kind is MeshCollectiveKind.ALL_REDUCE:
        return packed_trees(mesh).bound
    shares = {root: 1.0} if kind is MeshCollectiveKind.BROADCAST else dict.fromkeys(mesh.dies, 1.0 / mesh.num_dies)
    return packed_broadcasts(mesh, shares).bound


def _straight_cuts(mesh: DieMesh) -> float:
    """An all-to-all across a line between columns or rows: k of n lines send to the n − k others."""
    return max(k * (n - k) / n for n in (mesh.rows, mesh.cols) for k in range(n))
