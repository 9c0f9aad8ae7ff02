"""Steps of made-up kernels and messages, small enough to be worked out apart from the simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pipeline_graph import Times

from dovetail import hardware
from dovetail.cost.tier import TierArrays
from dovetail.hardware import Cluster, Tier
from dovetail.layout import Strategy
from dovetail.layout.axes import atomic_axes
from dovetail.pipeline import Pipeline, work_order
from dovetail.plans.arrange import Arrangement
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.simulation.chips import Chips
from dovetail.simulation.layer_steps import LayerStep, LayerSteps, StepKind
from dovetail.simulation.step_tasks import StepParts, StepTasks, step_tasks


def kernel(kind: StepKind, seconds: float) -> LayerStep:
    return LayerStep(kind.name, kind, seconds)


def layer_of(
    forward: Sequence[LayerStep], backward: Sequence[LayerStep] = (), **collectives: Sequence[LayerStep]
) -> LayerSteps:
    names = ("forward_gather", "backward_gather", "microbatch_reduction", "step_reduction", "updated_gather")
    assert set(collectives) <= set(names)
    return LayerSteps(tuple(forward), tuple(backward), *(tuple(collectives.get(name, ())) for name in names))


def chips_of(plan: Plan, tiers: Sequence[tuple[int, TierArrays]], *, exact: bool = False) -> Chips:
    """Chips of a plan on tiers of (chips of a group, what its links do)."""
    sizes = [size for size, _ in tiers]
    found = [Tier(f"tier {n}", size, "switch", 1.0, 0.0) for n, size in enumerate(sizes)]
    cluster = Cluster("made up", hardware.chip("h100-sxm"), plan.chips, tuple(found))
    axes = atomic_axes(plan.degrees(plan.tensor_parallel), sizes or [1])
    arrangement = Arrangement(axes, Strategy(axes.mesh), {}, {})
    return Chips(plan, cluster, tuple(tier for _, tier in tiers), arrangement, exact)


def links_of(bytes_per_s: float, wait_s: float = 0.0) -> TierArrays:
    return TierArrays(np.array(bytes_per_s), np.array(wait_s), np.zeros(()), np.ones(()))


def plan_of(stages: int, tensor: int = 1, data: int = 1) -> Plan:
    """So many chips: all that is asked of it here is where they lie."""
    spec = PlanSpec(pipeline_parallel=stages, tensor_parallel=tensor, data_parallel=data)
    return resolve_plan(spec, chips=stages * tensor * data, global_batch=data, num_layers=stages)


def kernel_step(
    pipeline: Pipeline,
    times: Times,
    node: int = 1,
    delays_s: tuple[float, float] = (0.0, 0.0),
    *,
    sending: bool = False,
) -> StepTasks:
    """A pipeline of one layer a chunk, whose transfers wait but send nothing: less between stages of a node."""
    tiers = [(size, links_of(1.0, wait)) for size, wait in zip((node, pipeline.num_stages), delays_s, strict=True)]
    tiers = [tier for tier, inside in zip(tiers, (1, node), strict=True) if tier[0] > inside]
    layers = {
        str(place): layer_of(
            [kernel(StepKind.FORWARD, f)],
            [kernel(StepKind.INPUT_GRADIENT, i), kernel(StepKind.WEIGHT_GRADIENT, w)],
        )
        for place, (f, i, w) in enumerate(zip(times.forward, times.of_input, times.of_weight, strict=True))
    }
    contents = [{str(place): 1} for place in range(pipeline.num_places)]
    none = [0.0] * pipeline.num_stages
    parts = StepParts(work_order(pipeline), contents, layers, 0.0, sending, (), none, 0.0)
    return step_tasks(parts, chips_of(plan_of(pipeline.num_stages), tiers))


def link_delays(pipeline: Pipeline, node: int, delays_s: tuple[float, float]) -> list[float]:
    """By link: what a transfer over it takes."""
    p = pipeline.num_stages
    ends = [(link, (link + 1) % p) for link in range(pipeline.num_links)]
    return [delays_s[0] if one // node == other // node else delays_s[1] for one, other in ends]
