"""Plans of one layout on given tiles: layers and recompute by the placement solver, then what lending memory adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dovetail.cost.calibration import calibration
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tilings import helpers
from dovetail.partition.partition_plan import least_partition_s, partition_profiled
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import handover
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import Evaluation, ProfiledJob, evaluation_of, profiled_job, step_from

#: What all blocks recompute where memory is lent, or activations are in a store.
POLICIES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Partitions:
    """Plans of one layout that fit, and what none of its plans falls below: infinite where none fits."""

    plans: tuple[Evaluation, ...]
    lower_bound_s: float


def partitioned(
    layers: TileLayers,
    layouts: TileLayouts,
    tiles: tuple[StageTile, ...],
    *,
    by_block: bool = True,
    lends: bool = False,
    poll: Callable[[], None] = lambda: None,
) -> Partitions:
    """The best partition with recompute by block, and with `lends` plans whose stages lend memory.

    Where a store has the activations, layers are dealt evenly and all blocks recompute the same.
    """
    job, cluster = layers.job, layers.cluster
    plan = layers.plan_of(layouts, tiles)
    calibrated = calibration(cluster.chip, job.precision)
    limit = memory_limit(cluster.chip, layers.framework)
    profiled = profiled_job(plan, job, cluster, layers.facts, calibrated.efficiencies)
    policies = POLICIES if by_block else ("none",)
    found: list[Evaluation] = []
    if "activations" in layers.skeleton.store:
        for policy in policies:
            evaluation = _evaluated(replace(plan, recompute=policy), profiled, layers, str(calibrated))
            found += [evaluation] if evaluation.fits and evaluation.peak_bytes <= limit else []
        return Partitions(tuple(found), least_partition_s(plan, profiled, float("inf"), by_block=by_block, poll=poll))
    placed = partition_profiled(plan, job, profiled, str(calibrated), limit, by_block=by_block, poll=poll)
    if placed is not None and placed.evaluation.fits:
        found.append(placed.evaluation)
    if lends and plan.pipeline_parallel > 1:
        for policy in policies:
            lending = _lending(replace(plan, recompute=policy), profiled, layers, str(calibrated), limit)
            found += [] if lending is None else [lending]
        limit = float("inf")
    elif placed is not None:
        return Partitions(tuple(found), placed.lower_bound_s)
    return Partitions(tuple(found), least_partition_s(plan, profiled, limit, by_block=by_block, poll=poll))


def _evaluated(plan: Plan, profiled: ProfiledJob, layers: TileLayers, basis: str) -> Evaluation:
    return evaluation_of(step_from(plan, profiled), plan, layers.job, layers.cluster, layers.facts, basis)


def _lending(plan: Plan, profiled: ProfiledJob, layers: TileLayers, basis: str, limit: float) -> Evaluation | None:
    """The plan with what its full stages lack held by others, the fewest bytes over the fewest links."""
    plain = _evaluated(plan, profiled, layers, basis)
    peaks = [sum(parts.values()) for parts in plain.memory_by_stage]
    # activations grow by what the allocator adds to them
    growth = 1 + layers.facts.allocator_overhead
    needs = [max(peak - limit, 0.0) / growth for peak in peaks]
    spares = [max(limit - peak, 0.0) / growth for peak in peaks]
    if not any(needs):
        return None
    stages = range(plan.pipeline_parallel)
    ways = {(a, b): handover(plan, layers.cluster, a, b) for a in stages for b in stages if a != b}
    hops = [[float(ways[a, b].hops) if a != b and ways[a, b].hops else float("inf") for b in stages] for a in stages]
    # a hair more, so that rounding leaves nothing over
    lent = helpers([need * (1 + 1e-9) for need in needs], spares, hops)
    if lent is None:
        return None
    part = replace(plan.wafer or WaferPart(), loans=tuple(sorted(Loan(*each) for each in lent)))
    evaluation = _evaluated(replace(plan, wafer=part), profiled, layers, basis)
    return evaluation if evaluation.fits and evaluation.peak_bytes <= limit else None
