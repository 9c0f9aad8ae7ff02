"""A training framework as data: which plans it can run, its bytes per parameter, what it overlaps."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks.buckets import Buckets, BucketsSpec
from dovetail.frameworks.parameter_bytes import state_bytes
from dovetail.frameworks.state import Allowance, AllowanceSpec, BytesAllowanceSpec, StateBytes, StateBytesSpec
from dovetail.frozen import frozen
from dovetail.graph import OPTIMIZERS

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "dualpipe"]
"""the order of microbatches; zb: zero-bubble (Qi et al., 2024)"""

Microbatches = Literal["any", "multiple_of_rounds", "multiple_of_stages"]
"""of an interleaved schedule; rounds: stages' worth of microbatches, rounded down, at least one"""

UnevenStages = Literal["never", "ends", "any"]
"""ends: the first and last differ; any: layers listed per stage"""

ContextParallel = Literal["ring", "all_gather", "ulysses"]
ExpertAxis = Literal["data", "context", "tensor"]
Recompute = Literal["none", "selective", "operators", "full"]
"""selective: a menu of modules; operators: any list of them; full: whole layers"""

Launch = Literal["megatron", "torchtitan", "deepspeed", "accelerate", "maxtext"]
"""a launch format that plans are written for"""

Offloaded = Literal["optimizer", "activations"]
"""what the memory of hosts can hold instead of that of chips"""

AxisOrder = Literal["tp-cp-dp-pp", "tp-cp-pp-dp"]
"""rank order, innermost first: pipeline stages outside data-parallel replicas, or inside them"""

Gathered = Literal["layer", "weight"]
"""layer: a unit of FSDP; weight: a compiler gathers each weight for its product"""

Frees = Literal["operator", "layer"]
"""operator: autograd frees what an operator's backward was the last to read; layer: all at the end of a layer's"""

Allocator = Literal["caching", "expandable", "planned"]
"""PyTorch's caching allocator, with or without expandable segments; planned: memory is laid out ahead of time"""

Gradients = Literal["always", "computed"]
"""always: a buffer for all of them; computed: each from the backward of its layer to the update"""

TensorRule = Literal["megatron", "dtensor"]
"""megatron: saves the shards of what it gathers; dtensor: PyTorch's, which saves it whole"""

WrittenOut = Literal["norm", "gated", "gelu_tanh"]
"""what may run operator by operator: norms, gated activations, GELU by its hyperbolic tangent"""

Availability = Literal["never", "optional", "always"]
Precision = Literal["fp32", "bf16", "fp16", "fp8", "fp4"]

#: Figures of a framework that are not derived.
ALLOWANCES = (
    "context_bytes",
    "allocator_overhead",
    "collective_buffer_bytes",
    "workspace_bytes",
    "memory_error",
    "host_s",
    "traffic",
    "exposed",
    "microbatch_s",
    "step_s",
    "attention",
)

#: Of a framework whose file does not say them.
NO_WORKSPACES = BytesAllowanceSpec.unchecked(value=0.0, low=0.0, high=1e9, status="assumed", source="not counted")
NOTHING_BETWEEN = AllowanceSpec.unchecked(value=0.0, low=0.0, high=1.0, status="assumed", source="not counted")
UNKNOWN_MEMORY_ERROR = AllowanceSpec.unchecked(
    value=0.03, low=0.0, high=0.1, status="assumed", source="as of frameworks with measured runs"
)

DoubtTexts = dict[str, Annotated[str, Field(min_length=1, max_length=2000)]]

AnyT = TypeVar("AnyT")
Several = Annotated[tuple[AnyT, ...], Field(strict=False, max_length=32)]
ZeroStages = Annotated[tuple[Annotated[int, Field(ge=0, le=3)], ...], Field(strict=False, min_length=1, max_length=4)]


@frozen
class FrameworkOverlaps:
    """Which communication overlaps with computation."""

    gradient_reduction: Availability
    """data-parallel reduction, overlapped with the backward"""
    gradient_reduction_with_pipeline: Availability
    """the same where stages pass microbatches on"""
    weight_gather: Availability
    """updated weights gathered during the next forward (ZeRO 1 and 2)"""
    weight_prefetch: Availability
    """the next layer's sharded weights gathered ahead (ZeRO 3)"""
    tensor_parallel: Availability
    """overlapped with the matrix products they belong to"""
    tensor_backward: float
    """share of the backward's that is hidden anyway, behind products that do not need it"""
    context_parallel: Availability
    """blocks of keys and values sent during attention"""
    expert_parallel: Availability
    """tokens to and from experts, overlapped with another micro-batch"""
    pipeline_transfers: tuple[PipelineSchedule, ...]
    """the schedules in which transfers between stages are hidden"""


@frozen
class Framework:
    """What one framework can run, and what that costs on top of the model's own work."""

    name: str
    version: str
    """which one the data speaks for"""
    source: str
    launch: Launch | None
    """the launch format that starts its plans; None: nothing does, so only the framework's own limits hold"""
    excluded: tuple[str, ...]
    """what it runs and no plan expresses"""
    pipeline_schedules: tuple[PipelineSchedule, ...]
    interleaved_microbatches: Microbatches
    uneven_stages: UnevenStages
    zero_stages: tuple[int, ...]
    zero_stages_with_pipeline: tuple[int, ...]
    zero_group: bool
    """the group that shares one replica of sharded state may be smaller than the data-parallel group"""
    sequence_parallel: Availability
    """activations between tensor-parallel regions sharded along the sequence"""
    context_parallel: tuple[ContextParallel, ...]
    expert_parallel: tuple[ExpertAxis, ...]
    """the axes experts may be distributed over; empty: no expert parallelism"""
    expert_tensor_parallel: bool
    """an expert may be sharded further, differently from the layers around it"""
    experts_along_sequence: bool
    """expert parallelism with tensor parallelism needs sequence parallelism"""
    recompute: tuple[Recompute, ...]
    selective: str
    """the module or policy that its selective recompute is"""
    recompute_modules: tuple[str, ...]
    """what may be recomputed together, by name"""
    recompute_policies: tuple[str, ...]
    """named policies, one at a time"""
    recompute_some_layers: bool
    """full recompute of only some layers of a stage"""
    axis_orders: tuple[AxisOrder, ...]
    offload: tuple[Offloaded, ...]
    """what it can keep in the memory of hosts, which then update the weights"""
    offload_zero_stages: tuple[int, ...]
    """the ZeRO stages with which the optimizer's state can be there"""
    gradients_to_host: bool
    """gradients go there after every micro-batch and are added up there, instead of once a step"""
    tensor_rule: TensorRule
    """what tensor parallelism saves"""
    layouts: bool
    """every operator may be sharded its own way"""
    recompute_stops_early: bool
    """full recompute leaves out what the backward does not need"""
    states: tuple[tuple[Precision, StateBytes], ...]
    overlaps: FrameworkOverlaps
    one_copy_per_node: bool
    """a token for several experts of a node travels there once"""
    fused_attention: bool
    """by default"""
    synchronous_attention: bool
    """its attention kernels are from before chips that copy and multiply asynchronously (2022)"""
    logits_bytes: float
    """per logit while the loss is at its fullest: logits, wider copies, probabilities and gradients together"""
    sharded_logits_bytes: float | None
    """the same where the vocabulary is sharded, if that differs"""
    loss_traffic: float
    """bytes the loss moves per logit, forward and backward together"""
    loss_chunks: int
    """parts the logits and loss are computed in, one at a time"""
    gathered: Gathered
    """what is whole at a time where weights are sharded"""
    buckets: Buckets | None
    """weights and gradients that travel together; None: a compiler sends each by itself"""
    frees: Frees
    """when the backward frees activations"""
    gradients: Gradients
    """when gradients are there, with one stage and one micro-batch a step; accumulated ones always are"""
    saved_copies: tuple[tuple[WrittenOut, float], ...]
    """what is saved beyond a fused kernel's, in copies of the operator's input, where operators are written out"""
    allocator: Allocator
    """how it gets memory"""
    context_bytes: Allowance
    """device memory of the driver, libraries and communicators"""
    allocator_overhead: Allowance
    """fraction of what tensors need that the allocator holds beyond it"""
    collective_buffer_bytes: Allowance
    """buckets and staging buffers"""
    workspace_bytes: Allowance
    """what matrix libraries hold of the allocator's memory"""
    memory_error: Allowance
    """scale of the logistic error of what a run takes, as a fraction of tensors and allocator"""
    host_s: Allowance
    """seconds the host needs to launch one kernel: chips that finish sooner wait for it"""
    traffic: Allowance
    """bytes vector kernels move, of what they would if every chain of them were one kernel"""
    exposed: Allowance
    """share of overlapped communication that costs time all the same: both share memory and cores"""
    microbatch_s: Allowance
    """seconds of every micro-batch outside the layers: its batch, masks, messages and loss"""
    step_s: Allowance
    """seconds of every step outside the layers: data, logging, synchronisation"""
    attention: Allowance
    """what its attention kernels reach of the best for the chip"""
    doubts: tuple[tuple[str, str], ...] = ()

    @property
    def outside_bytes(self) -> float:
        """Device memory besides tensors of the model and what the allocator holds for them."""
        return self.context_bytes.value + self.collective_buffer_bytes.value + self.workspace_bytes.value

    def state_bytes(self, precision: str) -> StateBytes:
        """Bytes per parameter before sharding."""
        states: dict[str, StateBytes] = dict(self.states)
        if precision not in states:
            where = f"framework {self.name}: precision"
            raise InputError(where, f"{quoted(precision)} is not run", one_of(states, precision))
        return states[precision]

    def bytes_per_parameter(
        self, precision: str, *, zero_stage: int = 0, shards: int = 1, optimizer: str = "adamw"
    ) -> float:
        """Weights, gradients and optimizer state per parameter on one chip, sharded over `shards` chips."""
        if zero_stage not in self.zero_stages:
            stages = ", ".join(map(str, self.zero_stages))
            raise InputError(
                f"framework {self.name}: zero_stage", f"is {quoted(zero_stage)}", f"it should be one of {stages}"
            )
        if optimizer not in OPTIMIZERS:
            raise InputError("optimizer", f"is {quoted(optimizer)}", one_of(OPTIMIZERS, optimizer))
        if shards < 1:
            raise InputError("shards", f"is {quoted(shards)}", "it should be 1 or more")
        sizes = self.state_bytes(precision).parameter_bytes(optimizer)
        return float(sum(state_bytes(1.0, 1 / shards, zero_stage, sizes)))

    def can_interleave(self, microbatches: int, stages: int) -> bool:
        """Whether the framework's interleaved schedule takes so many microbatches."""
        if "interleaved" not in self.pipeline_schedules:
            return False
        match self.interleaved_microbatches:
            case "any":
                return True
            case "multiple_of_stages":
                return microbatches % stages == 0
            case "multiple_of_rounds":
                return microbatches % max(1, microbatches // stages) == 0


class OverlapsSpec(Spec):
    """The overlaps as a file has them."""

    gradient_reduction: Availability
    gradient_reduction_with_pipeline: Availability | None = None
    weight_gather: Availability
    weight_prefetch: Availability
    tensor_parallel: Availability
    tensor_backward: Annotated[float, Field(ge=0, le=1)] = 0.0
    context_parallel: Availability
    expert_parallel: Availability
    pipeline_transfers: Several[PipelineSchedule] = ()


class FrameworkSpec(Spec):
    """A framework file."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, Field(min_length=1, max_length=200)]
    source: Annotated[str, Field(min_length=1, max_length=2000)]
    launch: Launch | None = None
    excluded: Several[Annotated[str, Field(min_length=1, max_length=200)]] = ()
    pipeline_schedules: Several[PipelineSchedule]
    interleaved_microbatches: Microbatches = "any"
    uneven_stages: UnevenStages
    zero_stages: ZeroStages
    zero_stages_with_pipeline: ZeroStages
    zero_group: bool
    sequence_parallel: Availability
    context_parallel: Several[ContextParallel]
    expert_parallel: Several[ExpertAxis]
    expert_tensor_parallel: bool
    experts_along_sequence: bool = False
    recompute: Several[Recompute]
    selective: Annotated[str, Field(min_length=1, max_length=100)] = "core_attn"
    recompute_modules: Several[Annotated[str, Field(max_length=100)]] = ()
    recompute_policies: Several[Annotated[str, Field(max_length=100)]] = ()
    recompute_some_layers: bool = False
    axis_orders: Several[AxisOrder] = ("tp-cp-dp-pp",)
    offload: Several[Offloaded] = ()
    offload_zero_stages: ZeroStages = (0, 1, 2, 3)
    gradients_to_host: bool = False
    tensor_rule: TensorRule = "megatron"
    layouts: bool = False
    recompute_stops_early: bool = False
    states: Annotated[dict[Precision, StateBytesSpec], Field(min_length=1)]
    overlaps: OverlapsSpec
    one_copy_per_node: bool = False
    fused_attention: bool
    synchronous_attention: bool = False
    logits_bytes: Annotated[float, Field(ge=1, le=64)]
    sharded_logits_bytes: Annotated[float, Field(ge=1, le=64)] | None = None
    loss_traffic: Annotated[float, Field(ge=0, le=1000)]
    loss_chunks: Annotated[int, Field(ge=1, le=4096)] = 1
    gathered: Gathered = "layer"
    buckets: BucketsSpec | None = BucketsSpec.unchecked()
    frees: Frees = "operator"
    gradients: Gradients = "always"
    saved_copies: dict[WrittenOut, Annotated[float, Field(ge=0, le=16)]] = Field(
        default_factory=lambda: dict[WrittenOut, float]()
    )
    allocator: Allocator = "caching"
    context_bytes: BytesAllowanceSpec
    allocator_overhead: AllowanceSpec
    collective_buffer_bytes: BytesAllowanceSpec
    workspace_bytes: BytesAllowanceSpec = NO_WORKSPACES
    memory_error: AllowanceSpec = UNKNOWN_MEMORY_ERROR
    host_s: AllowanceSpec
    traffic: AllowanceSpec
    exposed: AllowanceSpec
    microbatch_s: AllowanceSpec = NOTHING_BETWEEN
    step_s: AllowanceSpec
    attention: AllowanceSpec
    doubts: DoubtTexts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> FrameworkSpec:
        _check_within("zero_stages_with_pipeline", self.zero_stages_with_pipeline, "zero_stages", self.zero_stages)
        transfers = self.overlaps.pipeline_transfers
        _check_within("overlaps.pipeline_transfers", transfers, "pipeline_schedules", self.pipeline_schedules)
        for name in self.doubts:
            if name not in type(self).model_fields:
                raise InputError(
                    f"doubts.{name}", "is not about a field of this file", one_of(type(self).model_fields, name)
                )
        return self

    def framework(self) -> Framework:
        """The framework a file describes."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        fields["states"] = tuple((name, spec.state_bytes()) for name, spec in self.states.items())
        fields["saved_copies"] = tuple(self.saved_copies.items())
        overlaps: dict[str, Any] = dict(self.overlaps)
        overlaps["gradient_reduction_with_pipeline"] = (
            overlaps["gradient_reduction_with_pipeline"] or overlaps["gradient_reduction"]
        )
        fields["overlaps"] = FrameworkOverlaps(**overlaps)
        fields["buckets"] = None if self.buckets is None else Buckets(self.buckets.least, self.buckets.per_chip)
        for name in ALLOWANCES:
            fields[name] = fields[name].allowance()
        fields["doubts"] = tuple(self.doubts.items())
        return Framework(**fields)


def _check_within(field: str, part: tuple[object, ...], whole: str, allowed: tuple[object, ...]) -> None:
    for item in part:
        if item not in allowed:
            raise InputError(
                field, f"names {quoted(item)}, which is missing in {whole}", f"add it to {whole} or drop it"
            )
