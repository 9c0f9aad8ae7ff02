"""Studies of wafers: the clusters designs are planned on, their lower bounds, and how they are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.design_bound import DesignBound
from dovetail.bounds.least_work import least_work
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frameworks.parameter_bytes import state_bytes
from dovetail.hardware import Cluster, Wafer
from dovetail.hardware.design_space.space import Axis, DesignSpace
from dovetail.hardware.wafer_design import WaferDesigns, planned
from dovetail.models import Job
from dovetail.plans.space import Space

#: The variables that determine the grid of dies plans use.
_GRID = ("grid_rows", "grid_cols", "spare_dies")
#: Most combinations of these we enumerate to find all grids of a space.
_MOST_GRIDS = 2**20

#: Columns of searched wafers besides the variables of their space: variables and estimated figures.
COLUMNS = (
    "grid_rows", "grid_cols", "die_width_mm", "die_height_mm", "tensor_cores", "core_sram_bytes", "hbm_stacks",
    "link_port_bytes_per_s", "clock_hz", "spare_dies", "power_limit_w", "wafer_flops", "wafer_hbm_bytes",
    "wafer_power_w", "wafer_yield",
)  # fmt: skip

#: Estimates listed with a point: of a die, then of the wafer.
SILICON = ("area_mm2", "peak_power_w", "wafer_power_w", "wafer_yield")


def wafer_designs(space: DesignSpace, designs: Sequence[int] | Ints) -> WaferDesigns:
    """Designs of a space of wafers."""
    return as_wafers(space.designs(designs))


def as_wafers(designs: object) -> WaferDesigns:
    """Designs, typed as wafers."""
    assert isinstance(designs, WaferDesigns), "the space of the study is not of wafers"
    return designs


def clusters_of(space: DesignSpace, designs: Sequence[int] | Ints, wafers: int) -> list[Cluster]:
    """Clusters of the dies of each wafer design without the spare rows; at least one row must remain.

    A die has the area and power of the silicon estimate, like chips of a space.
    """
    indices = np.asarray(designs, np.int64)
    wafers_designed = wafer_designs(space, indices)
    area, power = (
        space.values("area_mm2", wafers_designed).tolist(),
        space.values("peak_power_w", wafers_designed).tolist(),
    )
    made: dict[str, Any] = dict(space.made_in())
    clusters: list[Cluster] = []
    for position, wafer in enumerate(space.wafers(indices)):
        grid = planned(wafer)
        assert grid is not None, "wafers without a row of dies have no bound"
        die = replace(grid.die, area_mm2=area[position], tdp_w=power[position], **made)
        clusters.append(replace(grid, die=die).cluster(wafers))
    return clusters


def grids(space: DesignSpace) -> tuple[tuple[int, int], ...]:
    """Rows and columns of every grid of the space, whatever its limits."""
    derived = set(dict(space.formulas.derived)) & set(_GRID)
    axes = tuple(axis if derived or set(_GRID) & set(axis.values) else _first(axis) for axis in space.axes)
    few = replace(space, axes=axes)
    if few.size > _MOST_GRIDS:
        what = f"has {few.size:,} combinations of the variables that determine its grids"
        raise InputError("hardware", what, f"keep them to {_MOST_GRIDS:,}: derive them from fewer axes")
    wafers_designed = wafer_designs(few, np.arange(few.size))
    rows, cols = (
        np.broadcast_to(part, (few.size,)) for part in (wafers_designed.planned_rows, wafers_designed.grid_cols)
    )
    sizes = np.unique(np.stack([rows, cols], axis=1), axis=0)
    usable = tuple((int(row), int(col)) for row, col in sizes.tolist() if row >= 1 and col >= 1)
    if not usable:
        raise InputError("hardware", "leaves no row of dies besides spare ones", "give its wafers fewer spare dies")
    return usable


def _first(axis: Axis) -> Axis:
    return Axis(axis.name, {name: values[:1] for name, values in axis.values.items()})


def grid_clusters(space: DesignSpace, wafers: int) -> list[Cluster]:
    """The base's dies on every grid of the space."""
    assert space.wafer is not None
    return [_on_grid(space.wafer, rows, cols).cluster(wafers) for rows, cols in grids(space)]


def _on_grid(wafer: Wafer, rows: int, cols: int) -> Wafer:
    grid = planned(replace(wafer, rows=rows, cols=cols, spare_dies=0))
    assert grid is not None
    return grid


def network_key(designs: WaferDesigns) -> tuple[Floats, ...]:
    """Everything the network of designs depends on, an array of each: grid, links, and off-wafer bandwidth."""
    parts = (designs.planned_rows, designs.grid_cols, designs.link_port_bytes_per_s, designs.edge_bytes_per_s)
    return tuple(np.broadcast_to(part, designs.shape) for part in parts)


def least_seconds(
    jobs: Sequence[Job], framework: Framework, designs: WaferDesigns, wafers: int, sizes: Sequence[Sequence[int]]
) -> Floats:
    """Lower bounds of all plans with these micro-batches on a number of each wafer (L0): designs × jobs, in seconds.

    Infinite if the state of the weights does not fit all dies and stores together, if no row of dies is left, or if
    several wafers have no links between them. The bound depends on the number of dies and the off-wafer bandwidth, so
    designs that agree in these are bounded together.
    """
    count = len(np.ravel(np.broadcast_to(0, designs.shape)))
    flat = {name: np.broadcast_to(designs.value(name), designs.shape).reshape(-1) for name in designs.variables}
    flattened = as_wafers(designs.varied(flat))
    dies, edge = np.broadcast_to(flattened.planned_dies, count), flattened.edge_bytes_per_s
    usable = (dies >= 1) & ((edge > 0) | (wafers == 1))
    seconds = np.full((count, len(jobs)), np.inf)
    keys, member = np.unique(np.stack([dies, edge if wafers > 1 else 0 * edge], axis=1), axis=0, return_inverse=True)
    capacity = np.where(flattened.hbm_bytes > 0, flattened.hbm_bytes, sram_bytes(flattened)) * dies * wafers
    # what dies do not hold a store may
    capacity = capacity + flattened.store_bytes * wafers
    for number, (group, off) in enumerate(keys.tolist()):
        alike = usable & (member.reshape(-1) == number)
        for column, job in enumerate(jobs):
            (rows,) = np.nonzero(alike & (capacity >= least_state_bytes(job, framework)))
            if not len(rows):
                continue
            # the bound ignores the shape, so any grid with as many dies will do
            wafer = replace(_on_grid(flattened.wafer, 1, int(group)), edge_bytes_per_s=off)
            members = flattened.varied({name: values[rows] for name, values in flat.items()})
            if group == 1 and wafers > 1:
                # single dies have only the links off their wafers
                members = members.varied({"link_ports": np.ones(()), "link_port_bytes_per_s": np.asarray(off)})
            seconds[rows, column] = DesignBound(job, wafer.cluster(wafers), sizes[column]).least_s(members)
    return seconds.reshape(*designs.shape, len(jobs))


def sram_bytes(designs: WaferDesigns) -> Floats:
    """The memory of a die's cores, and what they share."""
    return designs.vector_cores * designs.core_sram_bytes + designs.shared_sram_bytes


def least_state_bytes(job: Job, framework: Framework) -> float:
    """A lower bound of the bytes of weights, gradients and optimizer state on all chips together, however sharded."""
    state, work = framework.state_bytes(job.precision), least_work(job, None)
    parameters = work.dense_parameters + work.expert_parameters
    sizes = [state.parameter_bytes(job.optimizer, staged=staged) for staged in (False, True)]
    return min(float(sum(state_bytes(parameters, parameters, 3, each))) for each in sizes) * (1 - TOLERANCE)


def columns_of(space: DesignSpace, designs: Ints) -> dict[str, Floats]:
    """Variables and figures of wafers, as columns of a part."""
    designed = space.designs(designs)
    names = dict.fromkeys((*COLUMNS, *space.variables))
    return {name: np.array(space.values(name, designed), np.float64) for name in names}


def joined_space(spaces: Sequence[Space]) -> Space:
    """The plan spaces of several grids merged: they differ in degrees, which divide their dies."""
    degrees = ("tensor_parallel", "context_parallel", "pipeline_parallel", "zero_group")
    values = {name: sorted({value for space in spaces for value in getattr(space, name)}) for name in degrees}
    return replace(spaces[0], **{name: tuple(degree_values) for name, degree_values in values.items()})


def space_words(space: DesignSpace, counts: Sequence[int], plans: str) -> str:
    """The space of a certificate, in words; `plans` describes the plans of all grids."""
    sizes = grids(space)
    most = max(rows * cols for rows, cols in sizes)
    fewest = min(rows * cols for rows, cols in sizes)
    dies = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    number = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    word = "wafer" if tuple(counts) == (1,) else "wafers"
    return (
        f"{space.size:,} designs of {space.name} within physical rules and limits, {number} {word} with {dies} dies "
        f"besides rows of spare ones, each with its fastest plans, degrees that divide its dies: {plans}"
    )


def wafer_facts(space: DesignSpace, design: int) -> dict[str, Any]:
    """The figures of one wafer for a report."""
    (wafer,) = space.wafers([design])
    grid, die = planned(wafer), wafer.die
    assert grid is not None
    return {
        "rows": wafer.rows,
        "cols": wafer.cols,
        "planned_rows": grid.rows,
        "spare_dies": wafer.spare_dies,
        "die_width_mm": wafer.die_width_mm,
        "die_height_mm": wafer.die_height_mm,
        "cores": die.tensor_cores,
        "vector_cores": die.vector_cores,
        "clock_hz": die.clock_hz,
        "die_flops": die.peak_flops("bf16"),
        "core_sram_bytes": die.core_sram_bytes,
        "die_sram_bytes": die.sram_bytes,
        "hbm_stacks": wafer.hbm_stacks,
        "hbm_bytes": die.hbm_bytes,
        "hbm_bytes_per_s": die.hbm_bytes_per_s,
        "d2d_bytes_per_s": wafer.d2d_bytes_per_s,
        "edge_bytes_per_s": wafer.edge_bytes_per_s,
        "power_limit_w": wafer.power_limit_w,
    }
