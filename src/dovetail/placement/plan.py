"""A plan: the complete mapping of a job onto a cluster, nothing left to guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frameworks.framework import AxisOrder
from dovetail.layout.axes import Degrees
from dovetail.layout.encoding import Strings, TileLayouts
from dovetail.layout.encoding.tile_layouts import string_of
from dovetail.layout.strategy import ContextKind
from dovetail.pipeline.pipeline_schedule import Pipeline, PipelineSchedule

Degree = Annotated[int, Field(ge=1, le=2**24)]
Blocks = Annotated[int, Field(ge=0, le=2**24)]
OperatorName = Annotated[str, Field(min_length=1, max_length=100)]


#: What blocks compute again: a word, or operators and modules by name.
RecomputeChoice = (
    Literal["none", "selective", "full"] | Annotated[tuple[OperatorName, ...], Field(strict=False, max_length=1000)]
)


class RecomputeRun(Spec):
    """Blocks that follow each other and compute the same again."""

    blocks: Annotated[int, Field(ge=1, le=2**24)]
    again: RecomputeChoice


Text = Annotated[str, Field(max_length=10_000)]
Side = Annotated[int, Field(ge=1, le=4096)]


class StringsSpec(Spec):
    """How an operator or the stream is cut along the rows and along the columns of a tile: `4 seq, 2 replicate`."""

    rows: Text = ""
    cols: Text = ""

    def strings(self, where: str) -> Strings:
        """The strings that the texts mean."""
        return Strings(string_of(self.rows, where), string_of(self.cols, where))


class LayoutsSpec(Spec):
    """Layouts of every operator instead of a named strategy."""

    tile: Annotated[tuple[Side, Side], Field(strict=False)]
    """rows and columns of a stage's dies; 1 and all chips of a stage where there is no grid"""
    stream: StringsSpec = StringsSpec()
    """how what layers hand on lies"""
    classes: Annotated[dict[OperatorName, dict[OperatorName, StringsSpec]], Field(max_length=1000)]
    """layer class, then operator"""

    def layouts(self) -> TileLayouts:
        """The layouts a file describes."""
        classes = {
            layer: {name: spec.strings(f"plan: layouts.{layer}.{name}") for name, spec in operators.items()}
            for layer, operators in self.classes.items()
        }
        return TileLayouts.of(*self.tile, self.stream.strings("plan: layouts.stream"), classes)


class PlanSpec(Spec):
    """The `plan` part of a plan file; what is left out is derived where it can be."""

    data_parallel: Degree | None = None
    """chips / (tensor · context · pipeline) where left out"""
    tensor_parallel: Degree = 1
    pipeline_parallel: Degree = 1
    virtual_stages: Degree = 1
    """chunks of layers per stage, for the interleaved schedule"""
    context_parallel: Degree = 1
    context_kind: ContextKind = "all_gather"
    expert_parallel: Degree = 1
    expert_tensor_parallel: Degree | None = None
    """tensor_parallel where left out"""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    zero_group: Degree | None = None
    """chips that share one copy of the sharded state; data · context where left out"""
    sequence_parallel: bool = False
    micro_batch: Degree = 1
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved", "zb_h1", "dualpipe"] | None = None
    """1f1b, or interleaved where there are several virtual stages, when left out"""
    recompute: RecomputeChoice = "none"
    recompute_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """part of the blocks `recompute` holds for; the others keep everything"""
    recompute_by_block: Annotated[tuple[RecomputeRun, ...], Field(strict=False, max_length=100_000)] | None = None
    """instead of `recompute`: runs of blocks in the order of the model, and what each of them computes again"""
    layers_per_stage: Annotated[tuple[Blocks, ...], Field(strict=False, max_length=100_000)] | None = None
    """blocks per stage (per chunk, chunk by chunk, when interleaved); even where left out; 0 only at the two ends"""
    axis_order: AxisOrder = "tp-cp-dp-pp"
    """which chips are neighbours, innermost first"""
    layouts: LayoutsSpec | None = None
    """how every operator is cut on the dies of a stage; the tensor degree is then all of these"""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan with every field resolved."""

    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    virtual_stages: int
    context_parallel: int
    context_kind: ContextKind
    expert_parallel: int
    expert_tensor_parallel: int
    zero_stage: int
    zero_group: int
    sequence_parallel: bool
    micro_batch: int
    num_microbatches: int
    pipeline_schedule: str
    recompute: str | tuple[str, ...]
    recompute_share: float
    layers_per_stage: tuple[int, ...]
    #: what each run of blocks computes again, where they differ; `recompute` is "none" then
    recompute_by_block: tuple[tuple[int, str | tuple[str, ...]], ...] | None = None
    axis_order: AxisOrder = "tp-cp-dp-pp"
    #: of every operator, on a stage of `tensor_parallel` chips; None: the degrees say it
    layouts: TileLayouts | None = None

    @property
    def stages_inside(self) -> bool:
        """Whether a pipeline's stages are neighbours, and its copies lie outside them."""
        return self.axis_order == "tp-cp-pp-dp"

    @property
    def recompute_choices(self) -> tuple[str | tuple[str, ...], ...]:
        """Every choice that some block makes, once."""
        if self.recompute_by_block is None:
            return (self.recompute,)
        return tuple(dict.fromkeys(choice for _, choice in self.recompute_by_block))

    @property
    def chips(self) -> int:
        """Chips the plan uses."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def stream_copies(self) -> int:
        """Chips of a copy's stage that hold the same part of what it hands on: each sends a part of that."""
        if self.layouts is not None:
            return self.layouts.stream_copies
        return 1 if self.sequence_parallel else self.tensor_parallel

    def degrees(self, kv_heads: int) -> Degrees:
        """The degrees inside one stage."""
        return Degrees(
            tensor=self.tensor_parallel,
            context=self.context_parallel,
            data=self.data_parallel,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
            zero_group=self.zero_group,
            kv_heads=kv_heads,
        )


def resolve_plan(spec: PlanSpec, *, chips: int, global_batch: int, num_layers: int) -> Plan:
    """The plan a spec means for so many chips, sequences a step and layers; contradictions are refused."""
    t, p, c, v = spec.tensor_parallel, spec.pipeline_parallel, spec.context_parallel, spec.virtual_stages
    layouts = None if spec.layouts is None else _layouts(spec, spec.layouts, chips)
    data = 1 if layouts is not None else _data_parallel(spec, chips)
    num_microbatches = _num_microbatches(spec, data, global_batch)
    if spec.sequence_parallel and t == 1:
        raise InputError("plan: sequence_parallel", "needs tensor_parallel above 1", "leave it out")
    return Plan(
        data_parallel=data,
        tensor_parallel=t,
        pipeline_parallel=p,
        virtual_stages=v,
        context_parallel=c,
        context_kind=spec.context_kind,
        expert_parallel=spec.expert_parallel,
        expert_tensor_parallel=t if spec.expert_tensor_parallel is None else spec.expert_tensor_parallel,
        zero_stage=spec.zero_stage,
        zero_group=_zero_group(spec, data * c),
        sequence_parallel=spec.sequence_parallel,
        micro_batch=spec.micro_batch,
        num_microbatches=num_microbatches,
        pipeline_schedule=_pipeline_schedule(spec, num_microbatches),
        recompute=spec.recompute,
        recompute_share=spec.recompute_share,
        layers_per_stage=_layers_per_stage(spec, p * v, num_layers),
        recompute_by_block=_recompute_by_block(spec, num_layers),
        axis_order=spec.axis_order,
        layouts=layouts,
    )


def _layouts(spec: PlanSpec, layouts: LayoutsSpec, chips: int) -> TileLayouts:
    """Layouts of a plan whose degrees say no more than how many chips a stage has; chips may be left over."""
    found = layouts.layouts()
    if spec.tensor_parallel != found.chips:
        fix = f"it should be {found.chips}, all dies of the tile"
        raise InputError("plan: tensor_parallel", f"is {spec.tensor_parallel} beside layouts", fix)
    for field in ("data_parallel", "context_parallel", "expert_parallel"):
        if getattr(spec, field) not in (None, 1):
            raise InputError(f"plan: {field}", "stands beside layouts", "leave it out: layouts say what is cut")
    if spec.sequence_parallel:
        raise InputError("plan: sequence_parallel", "stands beside layouts", "leave it out")
    if spec.zero_stage == 2:
        raise InputError("plan: zero_stage", "is 2 beside layouts", "it should be 0, 1 or 3")
    if found.chips * spec.pipeline_parallel > chips:
        what = f"has {found.chips} dies for each of {spec.pipeline_parallel} stages, of {chips} in all"
        raise InputError("plan: layouts.tile", what, "use smaller tiles or fewer stages")
    return found


def _data_parallel(spec: PlanSpec, chips: int) -> int:
    model_chips = spec.tensor_parallel * spec.pipeline_parallel * spec.context_parallel
    if chips % model_chips:
        raise InputError(
            "plan: tensor_parallel × pipeline_parallel × context_parallel",
            f"is {model_chips}, which does not divide {chips} chips",
            "choose degrees whose product divides the number of chips",
        )
    data = chips // model_chips if spec.data_parallel is None else spec.data_parallel
    if data * model_chips != chips:
        fix = f"it should be {chips // model_chips}, or be left out"
        raise InputError(
            "plan: data_parallel", f"{data} with the other degrees makes {data * model_chips} chips of {chips}", fix
        )
    return data


def _num_microbatches(spec: PlanSpec, data: int, global_batch: int) -> int:
    per_microbatch = spec.micro_batch * data
    if global_batch % per_microbatch:
        raise InputError(
            "plan: micro_batch",
            f"{spec.micro_batch} × data_parallel {data} does not divide the global batch {global_batch}",
            "choose a micro_batch that does",
        )
    return global_batch // per_microbatch


#: What a pipeline calls the fields of a plan.
_PIPELINE_FIELDS = {
    "num_stages": "pipeline_parallel",
    "num_chunks": "virtual_stages",
    "num_microbatches": "micro_batch",
}


def _pipeline_schedule(spec: PlanSpec, num_microbatches: int) -> str:
    p, v = spec.pipeline_parallel, spec.virtual_stages
    schedule = spec.pipeline_schedule or ("interleaved" if v > 1 else "1f1b")
    if v > 1 and schedule != "interleaved":
        raise InputError("plan: virtual_stages", f"is {v} with {schedule}", "set pipeline_schedule to interleaved")
    if v > 1 and p == 1:
        raise InputError("plan: virtual_stages", f"is {v} with one stage", "leave it out, or use more stages")
    try:
        Pipeline(PipelineSchedule(schedule), p, num_microbatches, v)
    except InputError as error:
        field = _PIPELINE_FIELDS[error.where]
        what = f"makes {num_microbatches} microbatches: {error.what}" if field == "micro_batch" else error.what
        raise InputError(f"plan: {field}", what, error.fix) from None
    return schedule


def _zero_group(spec: PlanSpec, ranks: int) -> int:
    group = ranks if spec.zero_group is None else spec.zero_group
    if ranks % group:
        raise InputError(
            "plan: zero_group", f"{group} does not divide the {ranks} data-parallel chips", "it should divide them"
        )
    if group < ranks and not spec.zero_stage:
        raise InputError("plan: zero_group", f"is {group} with zero_stage 0", "shard something or leave it out")
    return group


def _recompute_by_block(spec: PlanSpec, num_layers: int) -> tuple[tuple[int, str | tuple[str, ...]], ...] | None:
    if spec.recompute_by_block is None:
        return None
    if spec.recompute != "none" or spec.recompute_share < 1:
        raise InputError("plan: recompute_by_block", "stands beside recompute or its share", "leave those out")
    blocks = sum(run.blocks for run in spec.recompute_by_block)
    if blocks != num_layers:
        raise InputError("plan: recompute_by_block", f"is for {blocks} blocks", f"it should be for {num_layers}")
    return tuple((run.blocks, run.again) for run in spec.recompute_by_block)


def _layers_per_stage(spec: PlanSpec, parts: int, num_layers: int) -> tuple[int, ...]:
    if spec.layers_per_stage is None:
        # the first and last part may hold nothing but embedding and head
        if parts > num_layers + 2:
            raise InputError(
                "plan: pipeline_parallel", f"makes {parts} parts of {num_layers} layers", "use fewer stages"
            )
        return even_layers(parts, num_layers)
    if len(spec.layers_per_stage) != parts or sum(spec.layers_per_stage) != num_layers:
        raise InputError(
            "plan: layers_per_stage",
            f"has {len(spec.layers_per_stage)} entries of {sum(spec.layers_per_stage)} layers in all",
            f"it should have {parts} entries that add up to {num_layers}",
        )
    if not all(spec.layers_per_stage[1:-1]):
        raise InputError(
            "plan: layers_per_stage", "has 0 between the first and the last", "only embedding or head stand alone"
        )
    return spec.layers_per_stage


def even_layers(parts: int, num_layers: int) -> tuple[int, ...]:
    """Layers dealt evenly; embedding and head make the first and last part heavier, so spare ones go to the middle."""
    base, more = divmod(num_layers, parts)
    order = sorted(range(parts), key=lambda i: (min(i, parts - 1 - i) == 0, i))
    extra = set(order[:more])
    return tuple(base + (i in extra) for i in range(parts))
