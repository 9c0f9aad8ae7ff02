"""What a framework means for an evaluation: bytes per parameter, overlaps, overheads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.frameworks import Buckets, Framework, ParameterBytes
from dovetail.frameworks.state import StateBytes
from dovetail.frozen import frozen
from dovetail.graph import Element
from dovetail.models import Job
from dovetail.plans.overlaps import OverlapSwitches, framework_overlaps, overlaps_of
from dovetail.plans.plan import Plan
from dovetail.profile import Saving
from dovetail.step.times import Overlaps

#: Longer than anything that is hidden.
UNBOUNDED_S = 1e30
#: On a chip whose host has the optimizer's state: a bucket of gradients on its way down, and one of weights on its way
#: up, of 5e8 elements of two bytes together (DeepSpeed's reduce_bucket_size).
STAGING_BYTES = 1e9


@frozen
class Overheads:
    """What a framework adds to the work of the chips; numbers, or arrays over variants that are tried at once."""

    #: seconds of the host per kernel
    host_s: Floats
    #: what vector kernels move, of what fused ones would
    traffic: Floats
    #: part of overlapped communication that costs time all the same
    exposed: Floats
    #: seconds of every micro-batch, and of every step, outside the layers
    microbatch_s: Floats
    step_s: Floats
    #: what attention kernels reach of the best for the chip
    attention: Floats


def overheads_of(framework: Framework) -> Overheads:
    """A framework's own."""
    return Overheads(*(np.asarray(getattr(framework, each.name).value) for each in fields(Overheads)))


@frozen
class StreamedBytes:
    """Bytes per parameter of what a store may hold, and so send or receive."""

    weights: float
    gradients: float
    optimizer: float


@frozen
class HostFacts:
    """What a host's memory has, and what it does with it."""

    offload: tuple[str, ...]
    #: bytes its update reads and writes per parameter; the norm of gradients is taken on the chips
    update_bytes: float
    #: whether gradients go there after every micro-batch to be added up
    adds_gradients: bool


@frozen
class FrameworkFacts:
    """A framework's figures for one job."""

    #: as memory counts them, with an overhead of all tensors that is meant for those of layers alone
    parameter_bytes: ParameterBytes
    #: as they are
    stored_bytes: ParameterBytes
    overlaps: Overlaps
    #: bytes one optimizer update reads and writes per parameter it owns
    update_bytes: float
    #: memory the process takes besides tensors
    context_bytes: float
    #: what of it is the allocator's, for matrix libraries
    workspace_bytes: float
    #: part of the bytes of layers' tensors that the allocator holds beyond them
    allocator_overhead: float
    #: scale of the error of predicted memory, as a part of it without context
    memory_error: float
    #: how tensor parallelism shards, and what it saves
    tensor_rule: str
    #: bytes per logit at the peak of the loss, where a chip has all of the vocabulary or a shard of it, and the chunks
    #: the logits come in
    logits_bytes: float
    sharded_logits_bytes: float
    loss_chunks: int
    #: how layers save and free, whose weight gradients are accumulated or (ZeRO 2 and 3) reduced layer by layer
    saving: Saving
    sharded_saving: Saving
    overheads: Overheads
    #: per parameter, as gradients are reduced at the end of a step
    reduction_bytes: float
    #: per parameter, as gradients of sharded weights are reduced, one micro-batch at a time
    sharded_reduction_bytes: float
    #: per parameter, as updated weights are gathered
    gathered_weight_bytes: float
    #: how weights and gradients travel together; None: one by one
    buckets: Buckets | None
    #: tokens for several experts of one node travel once
    one_copy_per_node: bool
    #: attention kernels from before chips that copy and multiply asynchronously
    synchronous: bool
    #: bytes the loss moves per logit, forward and backward together
    loss_traffic: float
    #: the module or policy that selective recompute is
    selective: str
    #: state as a host or a store off the wafer holds it
    streamed: StreamedBytes
    host: HostFacts

    @property
    def offload(self) -> tuple[str, ...]:
        """What the host's memory has."""
        return self.host.offload

    def recomputed(self, choice: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """A recompute choice in words that mean the same for every framework."""
        return (self.selective,) if choice == "selective" else choice

    def loss_bytes(self, logits: Floats, sharded: Floats) -> Floats:
        """Bytes of a loss at its peak; `sharded` is 1 where a chip has a shard of the vocabulary, else 0."""
        each = self.logits_bytes + sharded * (self.sharded_logits_bytes - self.logits_bytes)
        return logits * each / self.loss_chunks

    def saves(self, *, sharded: bool, narrow: bool = True) -> Saving:
        """How a layer saves and frees; embedding and head multiply in the wide format and offload nothing.

        For these `narrow` is off.
        """
        saving = self.sharded_saving if sharded else self.saving
        return saving if narrow else replace(saving, operand_share=1.0, offloads=False)

    def at_least(self, *, schedule: str = "", stages: int = 1) -> FrameworkFacts:
        """Figures under which no step takes longer than one that is simulated (L1⁻).

        What can be hidden is, however little there is to hide it. A stage that is done early ends its step while others
        still work, so with several stages nothing of that is sure to be seen. DualPipe's pairs hide each other's
        messages.
        """
        overlaps = replace(self.overlaps, min_overlap_s=UNBOUNDED_S)
        if stages > 1:
            overlaps = replace(overlaps, gradient_reduction=1.0, updated_weights=1.0)
        if schedule == "dualpipe":
            overlaps = replace(overlaps, tensor_forward=1.0, tensor_backward=1.0, context=1.0, expert=1.0)
        return replace(self, overlaps=overlaps)


def plan_facts(plan: Plan, framework: Framework, job: Job, overheads: Overheads | None = None) -> FrameworkFacts:
    """The framework's figures for a plan, with the overlaps it has."""
    schedule, stages, overlapped = plan.pipeline_schedule, plan.pipeline_parallel, overlaps_of(plan, framework, job)
    store = () if plan.wafer is None else plan.wafer.store
    return facts_of(
        framework,
        job,
        overheads,
        schedule=schedule,
        stages=stages,
        overlapped=overlapped,
        store=store,
        offload=plan.offload,
    )


def facts_of(
    framework: Framework,
    job: Job,
    overheads: Overheads | None = None,
    *,
    schedule: str = "",
    stages: int = 1,
    overlapped: OverlapSwitches | None = None,
    store: Collection[str] = (),
    offload: tuple[str, ...] = (),
) -> FrameworkFacts:
    """The framework's figures, with its own overheads or others, and what overlaps: else what does in any plan.

    `store` says which state is off the wafer, `offload` what hosts have; weights are then updated there.
    """
    overheads, on = overheads or overheads_of(framework), overlapped or framework_overlaps(framework, stages)
    whole = framework.state_bytes(job.precision)
    adds_gradients = "optimizer" in offload and framework.gradients_to_host
    elsewhere = {*store, *offload, *(("gradients",) if adds_gradients else ())}
    state = whole.on_chips(elsewhere)
    sizes, sizes_whole = (_sizes(framework, each, job, stages) for each in (state, whole))
    saving = _saving(framework, state, job, offloads="activations" in offload)
    overlaps, hidden = framework.overlaps, 1.0 - overheads.exposed
    return FrameworkFacts(
        buckets=framework.buckets,
        parameter_bytes=sizes.packed(framework.allocator_overhead.value),
        stored_bytes=sizes,
        overlaps=Overlaps(
            tensor_forward=hidden * on.tensor_parallel,
            tensor_backward=hidden * np.maximum(on.tensor_parallel, overlaps.tensor_backward),
            context=hidden * (overlaps.context_parallel == "always"),
            expert=hidden * on.expert_parallel,
            weight_gather=hidden * (overlaps.weight_prefetch != "never"),
            updated_weights=hidden * on.parameters,
            gradient_reduction=hidden * on.gradients,
            transfers=stages == 1 or schedule in overlaps.pipeline_transfers,
        ),
        # gradients are read for their norm and again for the update; the state is read and written, weights written
        update_bytes=0.0 if "optimizer" in elsewhere else 2 * state.gradients + 2 * sizes.optimizer + state.weights,
        context_bytes=_outside_bytes(framework, offload),
        workspace_bytes=framework.workspace_bytes.value,
        allocator_overhead=framework.allocator_overhead.value,
        memory_error=framework.memory_error.value,
        tensor_rule=framework.tensor_rule,
        logits_bytes=framework.logits_bytes,
        sharded_logits_bytes=framework.sharded_logits_bytes or framework.logits_bytes,
        loss_chunks=framework.loss_chunks,
        saving=saving,
        sharded_saving=replace(saving, layer_gradient_bytes=state.layer_gradients),
        overheads=overheads,
        reduction_bytes=_reduction_bytes(whole, stages),
        sharded_reduction_bytes=state.sharded_reduction or state.gradients,
        gathered_weight_bytes=state.weights,
        one_copy_per_node=on.dispatcher == "deepep",
        synchronous=framework.synchronous_attention,
        loss_traffic=framework.loss_traffic,
        selective=framework.selective,
        streamed=StreamedBytes(whole.weights, whole.gradients, sizes_whole.optimizer),
        host=HostFacts(offload, whole.gradients + 2 * sizes_whole.optimizer + whole.weights, adds_gradients),
    )


def _reduction_bytes(state: StateBytes, stages: int) -> float:
    """What a pipeline accumulates besides the gradients of a micro-batch is what it reduces."""
    return state.pipeline_gradients - state.gradients if stages > 1 and state.pipeline_gradients else state.gradients


def _outside_bytes(framework: Framework, offload: tuple[str, ...]) -> float:
    """Device memory besides the model's tensors: where the host updates, at least a buffer for what it exchanges."""
    staging = STAGING_BYTES if "optimizer" in offload else 0.0
    return framework.outside_bytes + max(staging - framework.collective_buffer_bytes.value, 0.0)


def _saving(framework: Framework, state: StateBytes, job: Job, *, offloads: bool) -> Saving:
    """How layers save and free under a framework; weight gradients apart."""
    return Saving(
        operand_share=state.operands / job.element_bytes()[Element.COMPUTE] if state.operands else 1.0,
        stops_early=framework.recompute_stops_early,
        frees_by_operator=framework.frees == "operator",
        copies=framework.saved_copies,
        whole_tables=framework.tensor_rule == "dtensor",
        loss_chunks=framework.loss_chunks,
        offloads=offloads,
    )


def _sizes(framework: Framework, state: StateBytes, job: Job, stages: int) -> ParameterBytes:
    """What chips store per parameter under a framework."""
    # working bytes of layers have their gradients where operators free what they read
    sharded = 0.0 if framework.frees == "operator" else state.layer_gradients
    return state.parameter_bytes(job.optimizer, staged=stages > 1)._replace(
        by_weight=framework.gathered == "weight",
        sharded_gradient=sharded,
        late_gradients=framework.gradients == "computed" and stages == 1,
        frozen=state.weights + state.casts,
    )
