"""Steps of made-up kernels and messages, small enough to be worked out apart from the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from pipeline_graph import RESULT, Times, duration, hop, place_of, sorted_ends

from dovetail import hardware
from dovetail.cost.collective import TierArrays
from dovetail.hardware import Cluster, Tier
from dovetail.layout.axes import atomic_axes
from dovetail.placement import Pipeline, WorkKind, WorkOrder, work_order
from dovetail.placement.plan import Plan, PlanSpec, resolve_plan
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
    return Chips(plan, cluster, tuple(tier for _, tier in tiers), axes, exact)


def links_of(bytes_per_s: float, wait_s: float = 0.0) -> TierArrays:
    return TierArrays(np.array(bytes_per_s), np.array(wait_s), np.zeros(()), np.ones(()))


def plan_of(stages: int, tensor: int = 1, data: int = 1) -> Plan:
    """So many chips: all that is asked of it here is where they lie."""
    spec = PlanSpec(pipeline_parallel=stages, tensor_parallel=tensor, data_parallel=data)
    return resolve_plan(spec, chips=stages * tensor * data, global_batch=data, num_layers=stages)


def kernel_step(
    pipeline: Pipeline, times: Times, node: int = 1, delays_s: tuple[float, float] = (0.0, 0.0), *, sending: bool = False
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


def longest_path_with_copies(order: WorkOrder, times: Times, *, sending: bool) -> float:
    """As `pipeline_graph.longest_path`, but what a stage hands to another goes one after another.

    Where a stage is `sending`, it works on when what it hands over is there.
    """
    assert times.pairs is None
    seconds: dict[object, float] = {}
    groups: list[list[list[int]]] = []
    done_by: dict[tuple[str, int, int], tuple[int, int]] = {}
    items = [order.items(stage) for stage in range(order.pipeline.num_stages)]
    for stage, own in enumerate(items):
        groups.append([[]])
        for index, item in enumerate(own):
            groups[stage][-1].append(index)
            place = place_of(order.pipeline, stage, item.chunk)
            done_by[RESULT[item.kind], item.microbatch, place] = (stage, index)
            if not item.joined:
                groups[stage].append([])
        groups[stage].pop()
    node_of = {(s, index): (s, group[0]) for s, own in enumerate(groups) for group in own for index in group}
    after: dict[object, object] = {}
    edges: dict[object, list[tuple[object, float]]] = defaultdict(list)
    for stage, own in enumerate(groups):
        for group in own:
            parts = [(items[stage][index], place_of(order.pipeline, stage, items[stage][index].chunk)) for index in group]
            seconds[stage, group[0]] = sum(duration(item.kind, place, times) for item, place in parts)
        for one, other in zip(own, own[1:], strict=False):
            after[stage, one[0]] = (stage, other[0])
            edges[stage, one[0]].append(((stage, other[0]), 0.0))
    last: dict[tuple[int, int], object] = {}
    for stage, own in enumerate(items):
        for index, item in enumerate(own):
            place, node = place_of(order.pipeline, stage, item.chunk), node_of[stage, index]
            onward = place + 1 if item.kind is WorkKind.FORWARD else place - 1
            if item.kind is WorkKind.WEIGHT_GRADIENT:
                edges[node_of[done_by["gradient", item.microbatch, place]]].append((node, 0.0))
                continue
            if item.kind is not WorkKind.FORWARD and node_of[done_by["forward", item.microbatch, place]] != node:
                edges[node_of[done_by["forward", item.microbatch, place]]].append((node, 0.0))
            if not 0 <= onward < order.pipeline.num_places:
                continue
            user = node_of[done_by[RESULT[item.kind], item.microbatch, onward]]
            if user[0] == stage:
                edges[node].append((user, 0.0))
                continue
            link = hop(order.pipeline, min(place, onward), item.chunk)
            assert link is not None
            copy, way = ("copy", stage, index), (stage, user[0])
            seconds[copy] = times.links[link]
            edges[node].append((copy, 0.0))
            edges[copy].append((user, 0.0))
            if way in last:
                edges[last[way]].append((copy, 0.0))
            last[way] = copy
            if sending and node in after:
                edges[copy].append((after[node], 0.0))
    waiting: dict[object, int] = defaultdict(int)
    for following, _ in (edge for found in edges.values() for edge in found):
        waiting[following] += 1
    return max(sorted_ends(seconds, edges, waiting).values())
