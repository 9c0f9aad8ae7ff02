"""Skeletons of free plans: the tile of a stage, the stages, and the sequences of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from dovetail.hardware import Cluster
from dovetail.mapping.tiles.sites import most_stages
from dovetail.plans.space import divisors
from dovetail.plans.wafer_part import STORE_CHOICES, Stored
from dovetail.plans.wafer_tiles import is_wafer, wafer_shape


@dataclass(frozen=True, slots=True, order=True)
class TileSkeleton:
    """The tile of a stage, the number of stages, the sequences of a micro-batch on a stage, and what a store holds."""

    rows: int
    cols: int
    stages: int
    batch: int
    store: tuple[Stored, ...] = ()

    @property
    def dies(self) -> int:
        """Dies of a stage."""
        return self.rows * self.cols


def tile_skeletons(cluster: Cluster, global_batch: int, num_layers: int) -> Iterator[TileSkeleton]:
    """Every skeleton.

    On a wafer, tiles are side by side in rows and columns (around what is dead anywhere) and dies may be left over;
    elsewhere the chips of a stage are neighbours and the stages use all chips.
    """
    stores = ((),) if cluster.store is None else STORE_CHOICES
    for rows, cols, most in _tiles(cluster):
        counts = list(range(1, min(most, num_layers) + 1)) if is_wafer(cluster) else [most]
        for stages, batch, store in product(counts, divisors(global_batch), stores):
            yield TileSkeleton(rows, cols, stages, batch, store)


def _tiles(cluster: Cluster) -> Iterator[tuple[int, int, int]]:
    """Tiles of dies, and how many of them fit."""
    if not is_wafer(cluster):
        yield from ((1, n, cluster.chips // n) for n in divisors(cluster.chips))
        return
    grid = wafer_shape(cluster)
    for rows, cols in product(range(1, grid[0] + 1), range(1, grid[1] + 1)):
        yield rows, cols, most_stages(cluster, rows, cols)
