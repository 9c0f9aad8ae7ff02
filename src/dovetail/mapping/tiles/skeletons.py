"""Skeletons of free plans: the tile of a stage, the stages, and the sequences of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from dovetail.hardware import Cluster
from dovetail.plans.space import divisors
from dovetail.plans.wafer_tiles import is_wafer, wafer_shape


@dataclass(frozen=True, slots=True, order=True)
class TileSkeleton:
    """The tile of a stage, the number of stages, and the sequences of a micro-batch on a stage."""

    rows: int
    cols: int
    stages: int
    batch: int

    @property
    def dies(self) -> int:
        """Dies of a stage."""
        return self.rows * self.cols


def tile_skeletons(cluster: Cluster, global_batch: int, num_layers: int) -> Iterator[TileSkeleton]:
    """Every skeleton.

    On a wafer, tiles are side by side in rows and columns and dies may be left over; elsewhere the chips of a stage
    are neighbours and the stages use all chips.
    """
    for rows, cols, most in _tiles(cluster):
        counts = list(range(1, min(most, num_layers) + 1)) if is_wafer(cluster) else [most]
        for stages, batch in product(counts, divisors(global_batch)):
            yield TileSkeleton(rows, cols, stages, batch)


def _tiles(cluster: Cluster) -> Iterator[tuple[int, int, int]]:
    """Tiles of dies, and how many of them fit."""
    if not is_wafer(cluster):
        yield from ((1, n, cluster.chips // n) for n in divisors(cluster.chips))
        return
    grid = wafer_shape(cluster)
    wafers = cluster.chips // (grid[0] * grid[1])
    for rows, cols in product(range(1, grid[0] + 1), range(1, grid[1] + 1)):
        yield rows, cols, wafers * (grid[0] // rows) * (grid[1] // cols)
