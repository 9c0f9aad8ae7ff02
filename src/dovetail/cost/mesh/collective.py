"""One collective on a mesh: what every link carries, how many hops follow each other, and so its seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.frozen import frozen


class MeshCollectiveKind(StrEnum):
    """What the dies of a mesh do together; the names of layout.CollectiveKind, and a broadcast."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    #: every die hands its bytes to the next die of the ring
    PERMUTE = "permute"
    BROADCAST = "broadcast"


@frozen
class Spread:
    """How one part of the bytes leaves a die: sends over links, each after the one that brought the bytes there.

    Sums flow the same way backwards: links reversed, a send after all those that follow it here.
    """

    root: Die
    #: of the bytes of the collective
    part: float
    links: tuple[int, ...]
    #: the place in `links` of the send before, -1 at the root
    after: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Sends that follow each other."""
        depths: list[int] = []
        for before in self.after:
            depths.append(1 if before < 0 else depths[before] + 1)
        return max(depths, default=0)


@dataclass(frozen=True)
class MeshCollective:
    """A collective by one algorithm; bytes stated as layout.Collective.bytes does."""

    kind: MeshCollectiveKind
    algorithm: str
    mesh: DieMesh
    bytes: float
    #: bytes over every directed link
    loads: Floats
    #: hops that follow each other for the byte that is last
    hops: int
    #: the sends behind the loads of one byte
    spreads: Callable[[], Sequence[Spread]] = field(repr=False, compare=False)

    @property
    def busiest_bytes(self) -> float:
        """Over the link that carries most."""
        return float(self.loads.max(initial=0.0))

    def seconds(self, bytes_per_s: float, latency_s: float = 0.0) -> float:
        """Streamed in small chunks: the busiest link decides, and the hops of one chunk come on top."""
        return self.busiest_bytes / bytes_per_s + self.hops * latency_s

    def times(self, factor: float) -> MeshCollective:
        """The same with other bytes."""
        return MeshCollective(
            self.kind, self.algorithm, self.mesh, self.bytes * factor, self.loads * factor, self.hops, self.spreads
        )


def counted_loads(mesh: DieMesh, kind: MeshCollectiveKind, spreads: Iterable[Spread]) -> Floats:
    """Bytes over every link for one byte of a collective made of these sends."""
    outward = np.zeros(len(mesh.links))
    for spread in spreads:
        np.add.at(outward, list(spread.links), spread.part)
    return of_outward(kind, outward)


def of_outward(kind: MeshCollectiveKind, outward: Floats) -> Floats:
    """Loads of a kind from those of its outward half: sums flow backwards."""
    if kind is MeshCollectiveKind.REDUCE_SCATTER:
        return _reversed(outward)
    return outward + _reversed(outward) if kind is MeshCollectiveKind.ALL_REDUCE else outward


def _reversed(loads: Floats) -> Floats:
    return loads.reshape(-1, 2)[:, ::-1].reshape(-1)


def from_spreads(kind: MeshCollectiveKind, algorithm: str, mesh: DieMesh, spreads: Sequence[Spread]) -> MeshCollective:
    """The collective for one byte that these sends make."""
    hops = max((spread.depth for spread in spreads), default=0) * (2 if kind is MeshCollectiveKind.ALL_REDUCE else 1)
    return MeshCollective(kind, algorithm, mesh, 1.0, counted_loads(mesh, kind, spreads), hops, lambda: spreads)
