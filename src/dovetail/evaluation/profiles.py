"""Every layer class of a job under a plan, profiled on a cluster's chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce

import numpy as np

from dovetail import hardware
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.collective import tiered_seconds
from dovetail.cost.energy import EnergyRates, energy_rates
from dovetail.cost.operators import ChipUnits
from dovetail.cost.shapes import Array
from dovetail.cost.units import tier_arrays
from dovetail.graph import Element, LayerGraph, ModelGraph
from dovetail.graph.routing import TOP_K
from dovetail.graph.size import Size, as_array
from dovetail.hardware import Cluster
from dovetail.layout import Collective, PlacedLayer, Strategy, place_layer
from dovetail.layout.axes import AtomicAxes
from dovetail.models import Job
from dovetail.placement.arrange import arrange
from dovetail.placement.plan import Plan
from dovetail.profile import WEIGHT_GATHER, LayerProfile, profile_layer

#: The kind of group whose collectives bring updated weights to every copy (ZeRO 1 and 2).
UPDATED_WEIGHTS = "updated weights"


@dataclass(frozen=True, slots=True)
class JobProfiles:
    """What the layers of a job cost under a plan; of several plans, arrays over them."""

    graph: ModelGraph
    layers: Mapping[str, LayerProfile]
    #: energies of the chip's technology, where it gives them
    rates: EnergyRates | None


def profile_job(
    plans: Sequence[Plan],
    job: Job,
    cluster: Cluster,
    chip: ChipUnits,
    efficiencies: Efficiencies,
    gradient_bytes: float,
    weight_bytes: float,
    *,
    one_copy_per_node: bool,
    energy: bool = True,
) -> JobProfiles:
    """Profiles of every layer class of the job, under plans that cut it along the same axes: `alike`.

    Gradients are reduced `gradient_bytes` wide, updated weights gathered `weight_bytes` wide.
    """
    graph = job.graph()
    arranged = [arrange(plan, graph, cluster) for plan in plans]
    axes, strategy = arranged[0].axes, arranged[0].strategy
    assert all(found.strategy == strategy for found in arranged), "plans along the same axes"
    axis_sizes = {axis: _together([found.axes.sizes[axis] for found in arranged]) for axis in axes.sizes}
    by_tier = {axis: np.array([found.axes.by_tier[axis] for found in arranged], np.float64).T for axis in axes.sizes}
    batch = _together([plan.micro_batch * plan.data_parallel for plan in plans])
    tiers = [tier_arrays(cluster.chip, tier, efficiencies) for tier in cluster.tiers]
    technology = cluster.chip.technology
    rates = energy_rates(hardware.technology(technology)) if energy and technology is not None else None
    widths = job.element_bytes()
    widening = {
        "gradient": gradient_bytes / widths[Element.COMPUTE],
        "updated": weight_bytes / widths[Element.COMPUTE],
    }

    def price(collective: Collective, size: Array, copies: float) -> Array:
        # groups joined in each tier: an array over plans, or a number where there is one plan
        joins = [by_tier[axis] if len(plans) > 1 else by_tier[axis][:, 0] for axis in collective.axes]
        wide = size * widening.get(collective.user, 1.0)
        joined = [(n, tiers[t]) for t, n in enumerate(reduce(np.multiply, joins)) if np.any(n > 1)]
        return tiered_seconds(collective.kind, joined, wide, copies=copies)

    def group_of(collective: Collective) -> str:
        return _group_name(collective, axes)

    layers: dict[str, LayerProfile] = {}
    for name, layer in graph.layers.items():
        sizes = layer.resolve(batch=batch, seq=job.seq_len)
        placed = _placed(_Key(layer.name, id(layer), layer), strategy)
        # tokens for several experts of one node can travel together
        copies = float(as_array(sizes[TOP_K])) if one_copy_per_node and TOP_K in sizes else 1.0
        pricing = partial(price, copies=copies)
        layers[name] = profile_layer(layer, placed, sizes, axis_sizes, chip, widths, pricing, group_of, rates)
    return JobProfiles(graph, layers, rates)


def alike(plans: Sequence[Plan], job: Job, cluster: Cluster) -> list[list[int]]:
    """Which plans can be profiled together: those whose axes serve the same ends, of any size on any tier."""
    groups: dict[Strategy, list[int]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault(arrange(plan, job.graph(), cluster).strategy, []).append(number)
    return list(groups.values())


def _together(values: Sequence[int]) -> Size:
    """One number as it is, several as an array."""
    return values[0] if len(values) == 1 else np.array(values, np.float64)


@dataclass(frozen=True, slots=True)
class _Key:
    """A layer graph as a cache key: graphs are built once per model and shared, so identity serves."""

    name: str
    identity: int
    graph: LayerGraph

    def __hash__(self) -> int:
        return hash((self.name, self.identity))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.graph is self.graph


@lru_cache(maxsize=4096)
def _placed(key: _Key, strategy: Strategy) -> PlacedLayer:
    return place_layer(key.graph, strategy)


def _group_name(collective: Collective, axes: AtomicAxes) -> str:
    """Which parallelism a collective belongs to, for the breakdown."""
    mesh, used = axes.mesh, set(collective.axes)
    if collective.user == "gradient":
        return "data-parallel"
    if collective.user == "updated":
        return UPDATED_WEIGHTS
    if used <= set(mesh.zero) and collective.tensor.name.endswith((".weight", "_table", ".bias")):
        return WEIGHT_GATHER
    if used <= set(mesh.tensor):
        return "tensor-parallel"
    if used <= set(mesh.context):
        return "context-parallel"
    return "expert-parallel"
