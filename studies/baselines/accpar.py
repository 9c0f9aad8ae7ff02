"""AccPar in our cost model: every product sharded along the batch, its outputs or its reduction, on all dies.

Song et al., AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators, HPCA 2020: three types of
partition per layer, chosen for all levels of a hierarchy; no pipeline and no recompute.
"""

from __future__ import annotations

from baselines.stored import best_of, with_store
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.graph import Operator
from dovetail.hardware import Cluster
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.space import divisors
from dovetail.plans.wafer_part import STORE_CHOICES
from dovetail.plans.wafer_tiles import wafer_shape
from dovetail.step.evaluate import Evaluation

#: Micro-batches that fit before smaller ones are left out, and how much the largest is overestimated.
FITTING, SLACK = 2, 1.25


def may_partition(operator: Operator, dim: str) -> bool:
    """Whether a dim is one of AccPar's types: it shards samples, not sequence positions."""
    return dim != "seq" and dim in operator.dims


def accpar(job: Job, cluster: Cluster, framework: Framework) -> Evaluation | None:
    """Its fastest plan found that fits, tuned with sharded state, which the paper does not have.

    Micro-batches follow from the largest on, each with its cheapest layouts at several prices of memory, until two
    fit: smaller ones shard less and are slower.
    """
    rows, cols = wafer_shape(cluster)
    fits: list[Evaluation] = []
    largest, batches_that_fit = float("inf"), 0
    for batch in reversed(divisors(job.global_batch)):
        if batch <= largest and batches_that_fit < FITTING:
            plans = _plans(job, cluster, framework, batch, zero_stage=3)
            evaluations = [each for plan in plans for each in with_store(plan, job, cluster, framework)]
            fits += [each for each in evaluations if each.fits]
            batches_that_fit += any(each.fits for each in evaluations)
            leanest = min(evaluations, key=lambda each: each.peak_bytes)
            if not leanest.fits and batch % (rows * cols) == 0:
                # other micro-batches leave samples on some axis whole, and say less of smaller ones
                largest = SLACK * batch * _part_that_fits(leanest)
    return best_of(fits)


def _part_that_fits(evaluation: Evaluation) -> float:
    """The part of a micro-batch whose activations fit beside everything else."""
    fullest = max(evaluation.memory_by_stage, key=lambda parts: sum(parts.values()))
    activations = fullest["activations"]
    return max(evaluation.usable_bytes - sum(fullest.values()) + activations, 0.0) / activations


def accpar_as_published(job: Job, cluster: Cluster, framework: Framework) -> Evaluation:
    """Its fastest layout with one sample per die and replicated state, whether it fits or not."""
    rows, cols = wafer_shape(cluster)
    if job.global_batch % (rows * cols):
        what = f"is {job.global_batch} for {rows * cols} dies"
        raise InputError("job: global_batch", what, "it should be a multiple of them")
    fastest = _plans(job, cluster, framework, rows * cols, zero_stage=0, all_prices=False)
    best = best_of([each for plan in fastest for each in with_store(plan, job, cluster, framework)])
    assert best is not None
    return best


def _plans(
    job: Job, cluster: Cluster, framework: Framework, batch: int, *, zero_stage: int, all_prices: bool = True
) -> list[Plan]:
    """Plans of a micro-batch; AccPar has no pipeline, so of several wafers each is a stage."""
    rows, cols = wafer_shape(cluster)
    store = STORE_CHOICES[-1] if cluster.store is not None and zero_stage == 3 else ()
    skeleton = TileSkeleton(rows, cols, cluster.chips // (rows * cols), batch, store)
    layers = TileLayers(job, cluster, framework, skeleton, zero_stage)
    searches = (TileSearch(layers, tile, may_partition) for tile in searched_tiles(layers, rows, cols))
    return [layers.plan_of(each) for search in searches for each in search.layouts()[: None if all_prices else 1]]
