"""Layers on tiles of wafers and nodes, with what free layouts of them cost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from dovetail import hardware, models
from dovetail.cost.units import chip_units, way_arrays
from dovetail.frameworks import ParameterBytes
from dovetail.graph import LayerGraph
from dovetail.layout import CollectivePhase
from dovetail.mapping.layouts import LayerProblem, LayerSetting, LayerTile, axis_orders, tile_price
from dovetail.models import Job
from dovetail.step.profiles import Pricing
from layout_costs import layout_costs

WAFER, NODE = ("watos-like", 56), ("hgx-h100", 8)

#: All different, so that no two can be taken for each other.
EXPOSED: Mapping[str, float] = {
    "tensor-parallel": 0.7,
    "expert-parallel": 0.9,
    "weight-gather": 0.4,
    "data-parallel": 0.3,
    "updated weights": 0.25,
}
STATE = ParameterBytes(2.0, 2.5, 4.0, 12.0)


def exposure(group: str, phase: CollectivePhase) -> float:
    """More is exposed in the backward."""
    return EXPOSED[group] * (1.1 if phase is CollectivePhase.BACKWARD else 1.0)


@cache
def layer(model: str, name: str, seq: int = 1536) -> LayerGraph:
    """A layer class of a catalogue model."""
    return Job(model=models.load(model), seq_len=seq, global_batch=64).graph().layers[name]


def tile_of(
    rows: int, cols: int, batch_axes: tuple[str, ...] = (), group_axes: tuple[str, ...] = (), order: int = 0
) -> LayerTile:
    """A tile with its axes in one of their orders."""
    return LayerTile(rows, cols, axis_orders(rows, cols)[order], batch_axes, group_axes)


def setting_of(
    graph: LayerGraph,
    tile: LayerTile,
    cluster: tuple[str, int] = WAFER,
    *,
    batch: int = 4,
    seq: int = 1536,
    zero_stage: int = 0,
) -> LayerSetting:
    """Costs of a layer on the chips and links of a cluster."""
    found = hardware.cluster(*cluster)
    pricing = Pricing(way_arrays(found), {"gradient": 2.0, "updated": 1.5})
    return LayerSetting(
        graph,
        graph.resolve(batch=batch, seq=seq),
        chip_units(found.chip, "bf16"),
        tile_price(pricing, found, tile),
        exposure,
        STATE,
        zero_stage=zero_stage,
        step_weight=0.1,
    )


def costs_of(setting: LayerSetting, problem: LayerProblem, choice: np.ndarray) -> tuple[float, float, float]:
    """What a choice costs, derived and profiled by itself."""
    return layout_costs(
        setting, problem.tile, problem.strings(choice), problem.stream(choice), problem.recomputed(choice)
    )
