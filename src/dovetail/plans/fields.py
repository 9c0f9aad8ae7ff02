"""The fields of a plan, each declared once: `Plan`, plan files, spaces, columns, words and flags follow from here.

To add a field, add its line to `PlanFields`. Files, `--fix`, studies and launch files then read and write it, spaces
list its values, and the search looks at each of them with each plan: `searched="product"`, what a declaration says if
it says nothing else. Degrees are enumerated as plans of one stage that carry such a field with each of its values, so
what it does to how a layer is sharded is counted, and where it does nothing both plans are evaluated and the default is
taken. The other words name steps of the search that enumerate many values of a field at once as numbers of a table.
"""

from typing import Annotated

from pydantic import Field

from dovetail.frameworks.framework import AxisOrder, Offloaded
from dovetail.frozen import frozen
from dovetail.layout.encoding import TileLayouts
from dovetail.layout.strategy import ContextKind
from dovetail.plans import derive, domains
from dovetail.plans.declaration import OFFLOADS, SWITCH, WORD, PlanField, Values, recompute_values
from dovetail.plans.field_words import offload_words, recompute_words, wafer_words, zero_words
from dovetail.plans.file_types import (
    Degree,
    Dispatcher,
    Fp8Recipe,
    LayersPerStage,
    LayoutsSpec,
    Offload,
    RecomputeChoice,
    RecomputeRuns,
    ScheduleName,
    layouts_document,
    runs_document,
)
from dovetail.plans.overlap_field import overlap_field
from dovetail.plans.wafer_part import WaferPart, WaferPartSpec, wafer_document


@frozen(kw_only=True)
class PlanFields:
    """The table: a field's type with its limits, what else there is to say of it, and its default."""

    data_parallel: Annotated[
        Degree,
        PlanField(
            "chips / (tensor · context · pipeline) where left out",
            resolve=derive.data_parallel,
            searched="degrees",
            short="DP",
            order=5,
            always=True,
            flags={"deepspeed": "data_parallel_size"},
        ),
    ]
    tensor_parallel: Annotated[
        Degree,
        PlanField(
            domain=domains.chip_divisors,
            searched="degrees",
            short="TP",
            order=1,
            always=True,
            flags={
                "megatron": "--tensor-model-parallel-size",
                "torchtitan": "parallelism.tensor_parallel_degree",
                "deepspeed": "tensor_parallel.autotp_size",
                "accelerate": "parallelism_config_tp_size",
            },
        ),
    ] = 1
    pipeline_parallel: Annotated[
        Degree,
        PlanField(
            domain=domains.stages,
            searched="pipeline",
            short="PP",
            order=3,
            always=True,
            flags={
                "megatron": "--pipeline-model-parallel-size",
                "torchtitan": "parallelism.pipeline_parallel_degree",
                "deepspeed": "pipeline.stages",
            },
        ),
    ] = 1
    virtual_stages: Annotated[
        Degree,
        PlanField(
            "virtual stages per rank, for the interleaved schedule",
            domain=domains.virtual_stages,
            searched="pipeline",
            short="VPP",
            order=4,
        ),
    ] = 1
    context_parallel: Annotated[
        Degree,
        PlanField(
            domain=domains.context_degrees,
            searched="degrees",
            short="CP",
            order=2,
            flags={
                "megatron": "--context-parallel-size",
                "torchtitan": "parallelism.context_parallel_degree",
                "deepspeed": "sequence_parallel_size",
                "accelerate": "parallelism_config_cp_size",
            },
        ),
    ] = 1
    context_kind: Annotated[
        ContextKind,
        PlanField(
            domain=domains.context_kinds,
            searched="degrees",
            matters=lambda plan: plan.context_parallel > 1,
            behind=True,
            order=1,
            words=lambda plan: plan.context_kind if plan.context_parallel > 1 else "",
            flags={"maxtext": "context_parallel_strategy"},
        ),
    ] = "all_gather"
    expert_parallel: Annotated[
        Degree,
        PlanField(
            domain=domains.expert_degrees,
            searched="degrees",
            short="EP",
            order=6,
            flags={
                "megatron": "--expert-model-parallel-size",
                "torchtitan": "parallelism.expert_parallel_degree",
                "deepspeed": "expert_parallel.autoep_size",
            },
        ),
    ] = 1
    expert_tensor_parallel: Annotated[
        Degree,
        PlanField(
            "tensor_parallel where left out",
            resolve=derive.expert_tensor_parallel,
            domain=domains.expert_tensor_degrees,
            searched="degrees",
            short="ETP",
            order=7,
            words=lambda plan: f"ETP{plan.expert_tensor_parallel}" if plan.expert_parallel > 1 else "",
            flags={"megatron": "--expert-tensor-parallel-size"},
        ),
    ]
    zero_stage: Annotated[
        int,
        Field(ge=0, le=3),
        PlanField(
            domain=domains.zero_stages,
            searched="sharding",
            short="ZeRO",
            order=9,
            words=zero_words,
            flags={"deepspeed": "zero_optimization.stage"},
        ),
    ] = 0
    zero_group: Annotated[
        Degree,
        PlanField(
            "chips that share one copy of the sharded state; data · context where left out",
            resolve=derive.zero_group,
            domain=domains.chip_divisors,
            searched="sharding",
            matters=lambda plan: plan.zero_stage > 0,
            words=lambda _: "",  # behind the ZeRO stage, where it is not all of them
        ),
    ]
    sequence_parallel: Annotated[
        bool,
        PlanField(
            resolve=derive.sequence_parallel,
            domain=domains.sequence_parallel,
            searched="degrees",
            short="SP",
            behind=True,
            order=2,
            flags={"megatron": "--sequence-parallel"},
        ),
    ] = False
    micro_batch: Annotated[
        Degree,
        PlanField(
            domain=domains.micro_batches,
            searched="pipeline",
            short="MBS",
            order=8,
            always=True,
            flags={"megatron": "--micro-batch-size", "deepspeed": "train_micro_batch_size_per_gpu"},
        ),
    ] = 1
    num_microbatches: Annotated[
        Degree,
        PlanField(
            written=False,
            resolve=derive.num_microbatches,
            words=lambda _: "",
            flags={"deepspeed": "gradient_accumulation_steps", "maxtext": "num_pipeline_microbatches"},
        ),
    ]
    pipeline_schedule: Annotated[
        str,
        PlanField(
            "1f1b, or interleaved where there are several virtual stages, when left out",
            resolve=derive.pipeline_schedule,
            in_file=ScheduleName,
            domain=domains.schedules,
            searched="pipeline",
            matters=lambda plan: plan.pipeline_parallel > 1,
            behind=True,
            order=3,
            words=lambda plan: "" if plan.pipeline_schedule in ("1f1b", "interleaved") else plan.pipeline_schedule,
        ),
    ]
    recompute: Annotated[
        str | tuple[str, ...],
        PlanField(
            in_file=RecomputeChoice,
            domain=domains.recompute_policies,
            values=recompute_values(domains.BY_BLOCK),
            searched="recompute",
            behind=True,
            order=5,
            words=recompute_words,
        ),
    ] = "none"
    recompute_share: Annotated[
        float,
        Field(gt=0, le=1),
        PlanField(
            "part of the blocks `recompute` holds for; the others save everything",
            domain=domains.recompute_shares,
            searched="recompute",
            words=lambda _: "",
        ),
    ] = 1.0
    layers_per_stage: Annotated[
        tuple[int, ...],
        PlanField(
            "blocks per stage (per virtual stage, one after the other, when interleaved); even where left out; 0 only "
            "at the two ends",
            resolve=derive.layers_per_stage,
            in_file=LayersPerStage,
            domain=domains.partitions,
            listed_as="partition",
            searched="partition",
            values=Values(domains.Partition, lambda _, word: word, single=True),
            words=lambda _: "",
        ),
    ]
    recompute_by_block: Annotated[
        tuple[tuple[int, str | tuple[str, ...]], ...] | None,
        PlanField(
            "instead of `recompute`: runs of blocks in the order of the model, and what each of them recomputes",
            resolve=derive.recompute_by_block,
            in_file=RecomputeRuns,
            write=runs_document,
            words=lambda _: "",
        ),
    ] = None
    axis_order: Annotated[
        AxisOrder,
        PlanField(
            "which chips are neighbours, innermost first",
            domain=domains.axis_orders,
            searched="pipeline",
            matters=lambda plan: plan.pipeline_parallel > 1 and plan.data_parallel > 1,
            behind=True,
            order=4,
            words=lambda plan: f"rank order {plan.axis_order.upper()}" if plan.stages_inside else "",
        ),
    ] = "tp-cp-dp-pp"
    layouts: Annotated[
        TileLayouts | None,
        PlanField(
            "how each operator is sharded on the dies of a stage; the tensor degree is then all of these",
            resolve=derive.layouts,
            in_file=LayoutsSpec,
            write=layouts_document,
            order=0,
            words=lambda plan: "" if plan.layouts is None else f"free {plan.layouts.rows}×{plan.layouts.cols}",
        ),
    ] = None
    wafer: Annotated[
        WaferPart | None,
        PlanField(
            "where the stages are on a wafer, memory they lend each other, what a store off the wafer holds, and the "
            "dead dies and links the plan goes around",
            resolve=derive.wafer,
            in_file=WaferPartSpec,
            write=wafer_document,
            behind=True,
            order=9,
            words=wafer_words,
        ),
    ] = None
    offload: Annotated[
        tuple[Offloaded, ...],
        PlanField(
            "what the memory of hosts holds: the optimizer's state, which they update, and saved activations",
            in_file=Offload,
            domain=domains.nothing_offloaded,
            fixed_to=domains.offloads,
            values=OFFLOADS,
            searched="fixed",
            behind=True,
            order=14,
            words=offload_words,
        ),
    ] = ()
    overlap_tensor_parallel: Annotated[
        bool | None,
        overlap_field(
            "tensor-parallel communication overlapped with the matrix products it belongs to",
            "TP",
            "overlap_tensor_parallel",
            megatron="--tp-comm-overlap",
            torchtitan="compile.enable_async_tensor_parallel",
        ),
    ] = None
    overlap_expert_parallel: Annotated[
        bool | None,
        overlap_field(
            "tokens to and from experts overlapped with another micro-batch, whose memory is not counted",
            "EP",
            "overlap_expert_parallel",
            megatron="--overlap-moe-expert-parallel-comm",
        ),
    ] = None
    overlap_gradients: Annotated[
        bool | None,
        overlap_field(
            "gradients reduced during the backward",
            "gradient",
            "overlap_gradients",
            megatron="--overlap-grad-reduce",
            deepspeed="zero_optimization.overlap_comm",
        ),
    ] = None
    overlap_parameters: Annotated[
        bool | None,
        overlap_field(
            "updated weights gathered during the next forward",
            "parameter",
            "overlap_parameters",
            megatron="--overlap-param-gather",
        ),
    ] = None
    dispatcher: Annotated[
        Dispatcher | None,
        PlanField(
            "how tokens go to experts: one message for each expert, or one for all on a node (deepep); where "
            "left out, the latter if the framework can",
            domain=domains.left_open,
            fixed_to=domains.dispatchers,
            values=WORD,
            searched="fixed",
            behind=True,
            order=11,
            words=lambda plan: "" if plan.dispatcher is None else f"dispatcher {plan.dispatcher}",
            flags={"megatron": "--moe-token-dispatcher-type"},
        ),
    ] = None
    cuda_graphs: Annotated[
        bool | None,
        PlanField(
            "kernels launched as CUDA graphs; for launch files alone, no effect on the time",
            domain=domains.left_open,
            fixed_to=domains.cuda_graphs,
            values=SWITCH,
            searched="fixed",
            behind=True,
            order=12,
            words=lambda plan: "" if plan.cuda_graphs is None else f"CUDA graphs {'on' if plan.cuda_graphs else 'off'}",
            flags={"megatron": "--cuda-graph-impl", "torchtitan": "training.disable_cuda_graphs"},
        ),
    ] = None
    fp8_recipe: Annotated[
        Fp8Recipe | None,
        PlanField(
            "how values are scaled to fp8, tensorwise where left out; for launch files alone, no effect on the time",
            domain=domains.left_open,
            fixed_to=domains.fp8_recipes,
            values=WORD,
            searched="fixed",
            behind=True,
            order=13,
            words=lambda plan: "" if plan.fp8_recipe is None else f"fp8 {plan.fp8_recipe}",
            flags={"megatron": "--fp8-recipe"},
        ),
    ] = None
