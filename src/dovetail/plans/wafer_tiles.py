"""The dies of a plan on wafers: the stage, replica and tensor-group rank of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.network import ways
from dovetail.layout.encoding import TileLayouts
from dovetail.plans.arrange import PIPELINE, Arrangement
from dovetail.plans.plan import Plan
from dovetail.plans.wafer_part import StageTile


@frozen
class DieTile:
    """A die of one of the wafers, and the chip of a plan that it is."""

    wafer: int
    row: int
    col: int
    stage: int
    #: of its stage, counted from the inside: tensor, then context, then data parallel
    chip: int
    replica: int
    context: int
    tensor: int

    @property
    def tensor_group(self) -> tuple[int, int, int]:
        """The dies that share its layers have the same."""
        return self.stage, self.replica, self.context


def is_wafer(cluster: Cluster) -> bool:
    """Whether a cluster is one or several grids of dies with links between neighbours."""
    tier = cluster.tiers[0] if cluster.tiers else None
    return tier is not None and tier.routed and tier.topology == "mesh" and len(tier.shape) == 2


def wafer_shape(cluster: Cluster) -> tuple[int, int]:
    """Rows and columns of the grid of dies that a cluster's wafers are."""
    if not is_wafer(cluster):
        raise InputError(f"cluster {cluster.name}", "is no wafer", "take one with rows and columns of dies")
    rows, cols = cluster.tiers[0].shape
    return rows, cols


def die_tiles(plan: Plan, arrangement: Arrangement, cluster: Cluster) -> tuple[DieTile, ...]:
    """The dies of a plan of named degrees, stage by stage and chip by chip; stages follow each other in a snake.

    The factors of an axis along rows and columns are walked one after another, and those beyond the wafer last.
    """
    assert plan.layouts is None, "stages with layouts are on tiles"
    shape = wafer_shape(cluster)
    filled = [math.prod(joins[way] for joins in arrangement.joins.values()) for way in range(len(shape))]
    if tuple(filled) != shape:
        what = f"have groups that do not nest in {shape[0]} × {shape[1]} dies"
        raise InputError("plan: degrees", what, "the product of the inner ones should divide the dies of a wafer")
    beyond = _strides_beyond(arrangement, len(shape), len(ways(cluster.tiers)))
    group = plan.tensor_parallel * plan.context_parallel
    tiles: list[DieTile] = []
    for stage in range(plan.pipeline_parallel):
        for chip in range(group * plan.data_parallel):
            row, col, wafer = _place(arrangement, stage, chip, beyond)
            tensor, context = chip % plan.tensor_parallel, chip // plan.tensor_parallel % plan.context_parallel
            tiles.append(DieTile(wafer, row, col, stage, chip, chip // group, context, tensor))
    return tuple(tiles)


def tile_dies(tiles: Sequence[StageTile], layouts: TileLayouts) -> tuple[DieTile, ...]:
    """The same of a plan with layouts, whose stages are on these tiles: chips count down the rows of the layouts."""
    dies: list[DieTile] = []
    for stage, tile in enumerate(tiles):
        turned = (tile.rows, tile.cols) != (layouts.rows, layouts.cols)
        for chip in range(layouts.chips):
            right, down = divmod(chip, layouts.rows)
            if turned:
                down, right = right, down
            dies.append(DieTile(tile.wafer, tile.row + down, tile.col + right, stage, chip, 0, 0, chip))
    return tuple(dies)


def snake(number: int, box: Sequence[int]) -> list[int]:
    """Where the numbered place of a box is, when every line of it is walked in the direction against the one before."""
    places: list[int] = []
    for length in box:
        number, place = divmod(number, length)
        places.append(length - 1 - place if number % 2 else place)
    return places


def _place(arrangement: Arrangement, stage: int, chip: int, beyond: dict[str, tuple[int, ...]]) -> tuple[int, int, int]:
    """Row, column and wafer of a chip: what each axis adds along each way."""
    where = [0, 0, 0]
    for axis, joins in arrangement.joins.items():
        if axis == PIPELINE:
            places = snake(stage, joins)
        else:
            chip, number = divmod(chip, arrangement.axes.sizes[axis])
            places = _walked(number, joins)
        for way, place in enumerate(places):
            where[min(way, 2)] += place * (arrangement.strides[axis][way] if way < 2 else beyond[axis][way - 2])
    return where[0], where[1], where[2]


def _walked(number: int, box: Sequence[int]) -> list[int]:
    """Where the numbered place of a box is, when every line of it is walked in the same direction."""
    places: list[int] = []
    for length in box:
        number, place = divmod(number, length)
        places.append(place)
    return places


def _strides_beyond(arrangement: Arrangement, inside: int, count: int) -> dict[str, tuple[int, ...]]:
    """The stride in wafers of the groups of every axis, by way beyond the wafer."""
    by_axis: dict[str, list[int]] = {axis: [] for axis in arrangement.joins}
    stride = 1
    for way in range(inside, count):
        for axis, joins in arrangement.joins.items():
            by_axis[axis].append(stride)
            stride *= joins[way]
    return {axis: tuple(strides) for axis, strides in by_axis.items()}
