"""The fastest algorithm for a collective on a mesh."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.cost.mesh.algorithms import ALGORITHMS, unit
from dovetail.cost.mesh.collective import MeshCollective, MeshCollectiveKind
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.errors import InputError
from dovetail.layout import CollectiveKind

#: What stays without packed trees: a ring, and routes where no ring does it.
RINGS = ("ring", "routes")


def best(
    kind: MeshCollectiveKind | CollectiveKind,
    mesh: DieMesh,
    num_bytes: float,
    bytes_per_s: float,
    latency_s: float = 0.0,
    *,
    optimal: bool = True,
    root: Die | None = None,
) -> MeshCollective:
    """The algorithm that takes least time; not `optimal`, a ring. `root` broadcasts, the first die if none is named."""
    names = tuple(ALGORITHMS) if optimal else RINGS
    candidates = [made for name in names if (made := collective(name, kind, mesh, num_bytes, root=root)) is not None]
    return min(candidates, key=lambda made: (made.seconds(bytes_per_s, latency_s), made.hops))


def collective(
    algorithm: str,
    kind: MeshCollectiveKind | CollectiveKind,
    mesh: DieMesh,
    num_bytes: float,
    *,
    root: Die | None = None,
) -> MeshCollective | None:
    """A collective by one algorithm; None where it does not apply to this kind or mesh."""
    if not mesh.connected:
        raise InputError("mesh", "its live dies are not connected", "run a collective on each of its components")
    one = unit(algorithm, MeshCollectiveKind(kind), mesh, root or mesh.dies[0])
    return None if one is None else one.times(num_bytes)


def on_components(
    kind: MeshCollectiveKind | CollectiveKind,
    mesh: DieMesh,
    num_bytes: float,
    bytes_per_s: float,
    latency_s: float = 0.0,
) -> Sequence[MeshCollective]:
    """The best collective on each connected part of a damaged mesh."""
    return [best(kind, part, num_bytes, bytes_per_s, latency_s) for part in mesh.components]
