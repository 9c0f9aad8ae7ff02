"""A plan kept on a wafer that lost dies or links: what of it still runs, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dovetail.frameworks import Framework
from dovetail.hardware import Cluster, DefectMap
from dovetail.models import Job
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import mesh_of, num_wafers, stage_tiles
from dovetail.plans.wafer_part import StageTile, WaferPart
from dovetail.plans.wafer_tiles import wafer_shape
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation


def surviving_plan(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> Evaluation | None:
    """A plan with layouts on a damaged wafer; None if nothing of it fits.

    Tiles stay where they are. A tile with a dead die is lost, and so is one whose dies cannot reach each other. If the
    remaining tiles of a wafer fall into parts that cannot reach each other, the largest part counts. If any tile is
    lost, layers are dealt evenly to the others, in order, with the same layouts, schedule (1F1B for an interleaved
    one) and micro-batches. The recompute choices of blocks stay; if that does not fit, all blocks use full recompute,
    a switch every framework has. Stages send around what is dead, and so do the collectives of their tiles. Loans end.
    """
    survivors = _surviving_tiles(stage_tiles(plan, cluster), cluster)
    if not survivors:
        return None
    part = replace(plan.wafer or WaferPart(), tiles=survivors, loans=(), defects=cluster.defects)
    for candidate in _dealt(replace(plan, wafer=part), len(survivors), job.model.num_layers):
        evaluation = evaluate(candidate, job, cluster, framework)
        if evaluation.fits:
            return evaluation
    return None


def _surviving_tiles(tiles: Sequence[StageTile], cluster: Cluster) -> tuple[StageTile, ...]:
    """Of every wafer the largest set of tiles whose dies are alive and reach each other."""
    shape, kept = wafer_shape(cluster), set[StageTile]()
    for wafer, defects in enumerate(cluster.defects or (DefectMap(),) * num_wafers(cluster)):
        here = [tile for tile in tiles if tile.wafer == wafer]
        parts = mesh_of(shape, defects).components
        in_parts = [[tile for tile in here if set(tile.dies()) <= set(part.dies)] for part in parts]
        kept |= set(max(in_parts, key=len)) if in_parts else set()
    return tuple(tile for tile in tiles if tile in kept)


def _dealt(plan: Plan, stages: int, num_layers: int) -> Iterator[Plan]:
    """The plan on fewer stages: with its recompute choices, then with full recompute."""
    if stages < plan.pipeline_parallel:
        # chunks that alternate between stages need numbers of stages and micro-batches that suit each other
        kept = plan.pipeline_schedule if stages > 1 and plan.virtual_stages == 1 else "1f1b"
        layers = even_layers(stages, num_layers)
        plan = replace(
            plan, pipeline_parallel=stages, layers_per_stage=layers, pipeline_schedule=kept, virtual_stages=1
        )
    yield plan
    yield replace(plan, recompute="full", recompute_share=1.0, recompute_by_block=None)
