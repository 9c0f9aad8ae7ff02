"""Plans of one layout on given tiles: layers and recompute by the placement solver, then what lending memory adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.cost.calibration import calibration
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tilings import helpers
from dovetail.partition.partition_plan import partition_profiled
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import handover
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import Evaluation, ProfiledJob, evaluation_of, profiled_job, step_from

#: What all blocks recompute where memory is lent, or activations are in a store.
POLICIES = ("none", "selective", "full")


def partitioned(
    layers: TileLayers,
    layouts: TileLayouts,
    tiles: tuple[StageTile, ...],
    *,
    by_block: bool = True,
    lends: bool = False,
) -> Iterator[Evaluation]:
    """Plans that fit: the best partition with recompute by block, and with `lends` some whose stages lend memory.

    Where a store has the activations, layers are dealt evenly and all blocks recompute the same.
    """
    job, cluster = layers.job, layers.cluster
    plan = layers.plan_of(layouts, tiles)
    calibrated = calibration(cluster.chip, job.precision)
    limit = memory_limit(cluster.chip, layers.framework)
    profiled = profiled_job(plan, job, cluster, layers.facts, calibrated.efficiencies)
    policies = POLICIES if by_block else ("none",)
    if "activations" in layers.skeleton.store:
        for policy in policies:
            evaluation = _evaluated(replace(plan, recompute=policy), profiled, layers, str(calibrated))
            if evaluation.fits and evaluation.peak_bytes <= limit:
                yield evaluation
        return
    placed = partition_profiled(plan, job, profiled, str(calibrated), limit, by_block=by_block)
    if placed is not None and placed.evaluation.fits:
        yield placed.evaluation
    if lends and plan.pipeline_parallel > 1:
        for policy in policies:
            lending = _lending(replace(plan, recompute=policy), profiled, layers, str(calibrated), limit)
            if lending is not None:
                yield lending


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
