"""Plans on tiles of wafers; their layouts are those of named strategies written out, so no search is needed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from dovetail import hardware, models
from dovetail.hardware import Cluster, DefectMap, Store
from dovetail.layout.encoding import AxesOnTile, TileLayouts, encode
from dovetail.layout.encoding.named import encode_strategy
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.wafer_part import WaferPart


def wafers(
    rows: int,
    cols: int,
    number: int = 1,
    *,
    store: Store | None = None,
    defects: tuple[DefectMap, ...] = (),
    name: str = "watos-like",
) -> Cluster:
    """Wafers of so many dies."""
    cluster = replace(hardware.wafer(name), rows=rows, cols=cols).cluster(number)
    return replace(cluster, store=store, defects=defects)


@lru_cache(maxsize=256)
def _job(model: str, seq_len: int, global_batch: int) -> Job:
    return Job(models.load(model), seq_len=seq_len, global_batch=global_batch)


def job_of(model: str = "gpt3-1.3b", seq_len: int = 1024, global_batch: int = 16) -> Job:
    """A job; equal ones are the same, so that what is known of their layers is kept."""
    return _job(model, seq_len, global_batch)


@lru_cache(maxsize=1024)
def _layouts(model: str, rows: int, cols: int, tensor: int, *, sequence: bool, expert: int) -> TileLayouts:
    tile, job = wafers(rows, cols), job_of(model)
    spec = PlanSpec.model_validate(
        {
            "tensor_parallel": tensor,
            "sequence_parallel": sequence and tensor > 1,
            "expert_parallel": expert,
            "expert_tensor_parallel": 1 if expert > 1 else tensor,
        }
    )
    plan = resolve_plan(spec, chips=rows * cols, global_batch=rows * cols, num_layers=job.model.num_layers)
    found = arrange(plan, job.graph(), tile)
    on = AxesOnTile(*(tuple((axis, found.joins[axis][way]) for axis in found.axes.sizes) for way in range(2)))
    assert (prod(n for _, n in on.rows), prod(n for _, n in on.cols)) == (rows, cols)
    classes = {
        name: {operator: each.forward for operator, each in encode_strategy(layer, found.strategy, on).items()}
        for name, layer in job.graph().layers.items()
    }
    return TileLayouts.of(rows, cols, encode(found.strategy.stream_shard(), on), classes)


def tile_plan(
    job: Job,
    rows: int,
    cols: int,
    stages: int,
    *,
    tensor: int | None = None,
    sequence: bool = False,
    expert: int = 1,
    micro_batch: int | None = None,
    zero_stage: int = 1,
    schedule: str = "1f1b",
    recompute: str = "none",
    virtual_stages: int = 1,
    wafer: WaferPart | None = None,
) -> Plan:
    """Stages of so many dies: `tensor` of them share weights as Megatron does, the others are replicas of these."""
    dies = rows * cols
    tensor = dies if tensor is None else tensor
    batch = micro_batch or dies // tensor
    return Plan(
        data_parallel=1,
        tensor_parallel=dies,
        pipeline_parallel=stages,
        expert_tensor_parallel=dies,
        zero_stage=zero_stage,
        zero_group=1,
        micro_batch=batch,
        num_microbatches=job.global_batch // batch,
        pipeline_schedule=schedule if stages > 1 else "1f1b",
        virtual_stages=virtual_stages,
        layers_per_stage=even_layers(stages * virtual_stages, job.model.num_layers),
        recompute=recompute,
        layouts=_layouts(job.model.name, rows, cols, tensor, sequence=sequence, expert=expert),
        wafer=wafer,
    )
