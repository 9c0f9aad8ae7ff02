"""Collectives of real layers: the message each is simulated as, and what its formula says, found apart from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.accuracy.row_model import with_loads
from dovetail.cost.calibration import calibration
from dovetail.cost.collective import TRANSPORT, _depth, _ring, _switch_tree, _tree, _way, tiered_seconds
from dovetail.cost.units import tier_arrays
from dovetail.graph import Element
from dovetail.graph.routing import TOP_K
from dovetail.layout import CollectiveKind
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.simulation.chips import Chips
from dovetail.simulation.layer_steps import Message, _Messages
from dovetail.step.arrangements import Arrangements
from dovetail.step.evaluate import profiled_job
from dovetail.step.facts import facts_of
from dovetail.step.profiles import placed_layer, pricing_of


@dataclass(frozen=True)
class RealCollective:
    """A collective, what it is simulated as, and its seconds alone."""

    name: str
    kind: CollectiveKind
    algorithm: str
    tiers: int
    message: Message
    seconds: float


def real_collectives(
    model: str, cluster_name: str, chips: int, seq_len: int, framework: str, *, exact: bool = False, **spec: Any
) -> tuple[Chips, list[RealCollective]]:
    """The chips of a plan, and the collectives of all layers of its job."""
    job, cluster = (
        Job(with_loads(models.load(model), 1.0), seq_len=seq_len, global_batch=chips),
        hardware.cluster(cluster_name, chips=chips),
    )
    layers = job.model.num_layers
    plan = resolve_plan(PlanSpec(**spec), chips=chips, global_batch=chips, num_layers=layers)
    # weights that travel together take parts of their bucket's time: tests/unit/step/test_buckets.py
    one_by_one = replace(frameworks.load(framework), buckets=None)
    facts = facts_of(one_by_one, job, schedule=plan.pipeline_schedule, stages=1)
    efficiencies = calibration(cluster.chip, job.precision).efficiencies
    profiled = profiled_job(plan, job, cluster, facts, efficiencies)
    arrangement = arrange(plan, job.graph(), cluster)
    arranged = Arrangements.of([arrangement], [plan.micro_batch * plan.data_parallel])
    weight_bytes = facts.gathered_weight_bytes
    pricing = pricing_of(job, cluster, efficiencies, profiled.gradient_bytes, weight_bytes, facts.buckets)
    tiers = [tier_arrays(cluster.chip, tier, efficiencies) for tier in cluster.tiers]
    widths = job.element_bytes()
    wide = {"gradient": profiled.gradient_bytes, "updated": weight_bytes}

    def found() -> Iterator[RealCollective]:
        for layer, graph in job.graph().layers.items():
            placed = placed_layer(graph, arranged.strategy)
            messages = _Messages(graph, placed, job, arrangement, arranged, pricing, profiled).messages
            sizes = graph.resolve(batch=plan.micro_batch * plan.data_parallel, seq=job.seq_len)
            copies = float(np.asarray(sizes[TOP_K])) if facts.one_copy_per_node and TOP_K in sizes else 1.0
            for collective, group, message in messages:
                size = float(np.asarray(collective.bytes(sizes, arrangement.axes.sizes, widths)))
                size *= wide.get(collective.user, widths[Element.COMPUTE]) / widths[Element.COMPUTE]
                joins = [prod(arrangement.joins[a][t] for a in collective.axes) for t in range(len(tiers))]
                groups = [(np.asarray(float(n)), tier) for n, tier in zip(joins, tiers, strict=True) if n > 1]
                seconds = float(tiered_seconds(collective.kind, groups, np.asarray(size), receivers=copies))
                name = f"{layer}: {group} {collective.kind.value} {collective.tensor.name} {collective.phase.value}"
                algorithm = algorithm_of(collective.kind, groups, size)
                yield RealCollective(name, collective.kind, algorithm, len(groups), message, seconds)

    return Chips.of(plan, cluster, arrangement, efficiencies, exact=exact), list(found())


def algorithm_of(kind: CollectiveKind, groups: Any, size: float) -> str:
    """Which of its algorithms a collective takes."""
    if kind is not CollectiveKind.ALL_REDUCE:
        return {CollectiveKind.ALL_TO_ALL: "exchange", CollectiveKind.PERMUTE: "permute"}.get(kind, "ring")
    way = _way(groups)
    depths = [_depth(chips, inside) for chips, inside in zip(way.chips, way.inside, strict=True)]
    seconds = {
        "ring": float(_ring(way, 2.0, np.asarray(size), TRANSPORT).seconds),
        "tree": float(_tree(way, depths, np.asarray(size), TRANSPORT).seconds),
    }
    if any(way.adding):
        seconds["switches"] = float(_switch_tree(way, depths, np.asarray(size), TRANSPORT).seconds)
    return min(seconds, key=lambda name: seconds[name])
