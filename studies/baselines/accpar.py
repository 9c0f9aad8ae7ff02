"""AccPar in our cost model: every product sharded along the batch, its outputs or its reduction, on all dies.

Song et al., AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators, HPCA 2020: three types of
partition per layer, chosen for all levels of a hierarchy; no pipeline and no recompute.
"""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.graph import Operator
from dovetail.hardware import Cluster
from dovetail.mapping.tiles.free_plan import FreeSearch
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.models import Job
from dovetail.plans.wafer_tiles import wafer_shape
from dovetail.step.evaluate import Evaluation, evaluate


def may_partition(operator: Operator, dim: str) -> bool:
    """Whether a dim is one of AccPar's types: it shards samples, not sequence positions."""
    return dim != "seq" and dim in operator.dims


def accpar(
    job: Job, cluster: Cluster, framework: Framework, deadline: float = float("inf"), *, sharded: bool = True
) -> Evaluation | None:
    """The fastest of its plans that fits; `sharded` tunes it with sharded state, which the paper does not have."""
    wafers = cluster.chips // (wafer_shape(cluster)[0] * wafer_shape(cluster)[1])
    search = FreeSearch(
        job,
        cluster,
        framework,
        deadline,
        allowed=may_partition,
        recompute=False,
        zero_stages=tuple(s for s in (1, 3) if s in framework.zero_stages) if sharded else (0,),
        # AccPar has no pipeline, so it runs on one wafer
        most_stages=wafers,
    )
    search.run()
    return min(search.best_of.values(), key=lambda evaluation: evaluation.step_time_s, default=None)


def accpar_as_published(job: Job, cluster: Cluster, framework: Framework) -> Evaluation:
    """Its fastest layout with one sample per die and replicated state, whether it fits or not."""
    rows, cols = wafer_shape(cluster)
    wafers = cluster.chips // (rows * cols)
    if job.global_batch % (rows * cols):
        what = f"is {job.global_batch} for {rows * cols} dies"
        raise InputError("job: global_batch", what, "it should be a multiple of them")
    layers = TileLayers(job, cluster, framework, TileSkeleton(rows, cols, wafers, rows * cols), zero_stage=0)
    evaluations = [
        evaluate(layers.plan_of(layouts), job, cluster, framework)
        for tile in searched_tiles(layers, rows, cols)
        for layouts in TileSearch(layers, tile, may_partition).layouts()[:1]
    ]
    return min(evaluations, key=lambda each: each.step_time_s)
