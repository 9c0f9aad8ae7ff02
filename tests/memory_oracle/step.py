"""Runs two training steps of a case on fake tensors and reports what the second one holds, moment by moment."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor.parallel import loss_parallel

from memory_oracle.allocations import (
    ACTIVATIONS,
    GATHERED,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    PARAMETERS,
    RECOMPUTED,
    UNSHARDED,
    AllocationTrace,
)
from memory_oracle.case import Case
from memory_oracle.models import Decoder, QuantizedLinear, loss_of
from memory_oracle.parallel import apply_fsdp, apply_recompute, apply_tensor_parallel, meshes
from memory_oracle.report import TracedStep, report


class MarkFunction(torch.autograd.Function):
    """Passes a tensor on; says when the backward comes past."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, passed: Callable[[], None]) -> torch.Tensor:
        ctx.passed = passed
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.passed()
        return grads[0], None


class StepMarks:
    """Names the moments of one micro-batch as forward and backward come past."""

    def __init__(self, trace: AllocationTrace, case: Case, prefix: str) -> None:
        self.trace, self.case, self.prefix = trace, case, prefix

    def begin(self, moment: str) -> None:
        """Begins a moment of this micro-batch."""
        self.trace.begin(self.prefix + moment)

    def before_layer(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """Marks the boundary in front of a block or of the head."""
        at_head = layer == self.case.layers
        self.begin("forward of head" if at_head else f"forward of layer {layer}")
        if at_head:
            self.trace.logits = self.case.logits
        return MarkFunction.apply(hidden, lambda: self._passed(layer))

    def _passed(self, layer: int) -> None:
        self.trace.logits = None
        self.begin(f"backward of layer {layer - 1}" if layer else "backward of embedding")


@contextmanager
def fsdp_labels(trace: AllocationTrace) -> Iterator[None]:
    """Tells gathered weights and gradients not yet reduced from the rest, by the part of FSDP that makes them."""
    names = {"unshard": GATHERED, "wait_for_unshard": GATHERED, "post_backward": UNSHARDED}
    originals = {name: getattr(FSDPParamGroup, name) for name in names}

    def labelled(original: Callable[..., Any], category: str) -> Callable[..., Any]:
        @wraps(original)
        def call(group: FSDPParamGroup, *args: Any, **options: Any) -> Any:
            if category == UNSHARDED:
                trace.adopt(unsharded_gradients(group), UNSHARDED, "gradient")
            with trace.within(category):
                return original(group, *args, **options)

        return call

    for name, category in names.items():
        setattr(FSDPParamGroup, name, labelled(originals[name], category))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(FSDPParamGroup, name, original)


def unsharded_gradients(group: FSDPParamGroup) -> list[torch.Tensor]:
    """What autograd has left on the gathered parameters of a unit."""
    gathered = [param._unsharded_param for param in group.fsdp_params if hasattr(param, "_unsharded_param")]
    return [param.grad for param in gathered if param.grad is not None]


def label_recomputation(model: Decoder, trace: AllocationTrace) -> None:
    """A block's forward during the backward is a recomputation."""
    for layer in model.layers:
        block = getattr(layer, "_checkpoint_wrapped_module", None)
        if block is not None:
            block.forward = recomputing(block.forward, trace)


def recomputing(forward: Callable[..., Any], trace: AllocationTrace) -> Callable[..., Any]:
    """The same forward, which labels what it makes while a backward runs."""

    @wraps(forward)
    def call(*args: Any, **options: Any) -> Any:
        in_backward = torch._C._current_graph_task_id() != -1
        with trace.within(RECOMPUTED) if in_backward else nullcontext():
            return forward(*args, **options)

    return call


def scales_of(model: Decoder) -> list[torch.Tensor]:
    """What 4-bit weights have besides, which no unit shards."""
    layers = [each for each in model.modules() if isinstance(each, QuantizedLinear)]
    return [scales for each in layers for scales in (each.scales, each.scales_of_scales)]


def traced_step(case: Case) -> TracedStep:
    """Builds the case, trains two steps, and reports the second."""
    trace = AllocationTrace()
    with (
        warnings.catch_warnings(),
        meshes(case) as (data_mesh, tensor_mesh),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        # the local part of a DTensor is a view; nothing here writes into one
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        model = Decoder(case)
        if tensor_mesh is not None:
            apply_tensor_parallel(model, tensor_mesh, case)
        apply_recompute(model, case)
        apply_fsdp(model, data_mesh, case)
        label_recomputation(model, trace)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=1e-4, fused=case.optimizer == "fused", foreach=case.optimizer == "foreach"
        )
        tokens = torch.zeros(case.micro_batch, case.seq_len, dtype=torch.int64)
        labels = torch.zeros_like(tokens)
        sharded_loss = tensor_mesh is not None and case.vocab_parallel_loss
        # Collecting garbage at its own times would free what cycles hold at instants of no meaning.
        gc.collect()
        gc.disable()
        try:
            with fsdp_labels(trace), loss_parallel() if sharded_loss else nullcontext(), trace:
                trace.adopt([*model.parameters(), *scales_of(model)], PARAMETERS, "parameter")
                trace.adopt([tokens, labels, *model.buffers()], INPUTS, "input")
                train(case, model, optimizer, tokens, labels, trace)
                states = [value for state in optimizer.state.values() for value in state.values()]
                trace.adopt(states, OPTIMIZER, "state")
                first = len(trace.changes)
                marks = len(trace.marks)
                train(case, model, optimizer, tokens, labels, trace)
        finally:
            gc.enable()
    return report(case, trace, first, marks)


def train(
    case: Case,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    labels: torch.Tensor,
    trace: AllocationTrace,
) -> None:
    """One optimizer step. Every micro-batch reduces its gradients, as torchtitan's do."""
    for number in range(case.micro_batches):
        last = number == case.micro_batches - 1
        marks = StepMarks(trace, case, "" if last else f"micro-batch {number}: ")
        model.marks = marks
        marks.begin("forward of embedding")
        with trace.within(ACTIVATIONS):
            logits = model(tokens)
        marks.begin("forward end")
        marks.begin("loss")
        loss = loss_of(case, logits, labels)
        del logits
        loss.backward()
        del loss
        trace.adopt([p.grad for p in model.parameters() if p.grad is not None], GRADIENTS, "gradient")
    trace.begin("optimizer")
    optimizer.step()
    trace.begin("end")
    optimizer.zero_grad()
