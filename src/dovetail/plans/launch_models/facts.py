"""What launch rules ask of a model: read off its blocks, or off its graph where it was traced without a description."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.errors import InputError
from dovetail.graph import Role, Span
from dovetail.models import Job, Model, described
from dovetail.models.model import EMBEDDING, HEAD
from dovetail.plans.launch_models import torchtitan_shapes

#: What to do where the files of a framework describe the model and it has no description.
PLAN_AGAIN = "plan again with --framework fsdp or deepspeed, where the model is your code"


def model_for(job: Job, version: str) -> Model:
    """The model by its blocks, for a launch file that has to describe it."""
    model = described(job.model)
    if model is None:
        what = f"{job.model.name} is traced and has no description that {version} knows"
        raise InputError("job: model", what, PLAN_AGAIN)
    return model


def key_heads(job: Job) -> Iterator[int]:
    """Heads that tensor parallelism shares, of every kind of attention."""
    model = described(job.model)
    if model is None:
        for layer in job.graph().layers.values():
            heads = layer.sizes.get("kv_heads") or layer.sizes.get("heads")
            if isinstance(heads, int):
                yield heads
        return
    for block in model.blocks.values():
        heads = getattr(block.mixer, "kv_heads", None) or getattr(block.mixer, "heads", None)
        if isinstance(heads, int):
            yield heads


def has_experts(job: Job) -> bool:
    """Whether some layers have experts."""
    model = described(job.model)
    if model is None:
        return any("experts" in layer.sizes for layer in job.graph().layers.values())
    return any(hasattr(block.feed_forward, "experts") for block in model.blocks.values())


def experts_have_biases(job: Job) -> bool:
    """Whether the products of experts have biases."""
    model = described(job.model)
    if model is None:
        weights = (weight for layer in job.graph().layers.values() for weight in layer.weights())
        return any(set(weight.dims) == {"experts", "expert_ffn"} for weight in weights)
    halves = [block.feed_forward for block in model.blocks.values() if hasattr(block.feed_forward, "experts")]
    return bool(halves) and bool(getattr(halves[0], "bias", False))


def varies_in_length(job: Job) -> bool:
    """Whether torchtitan's attention is the one over variable lengths, which cannot be split along the sequence."""
    model = described(job.model)
    if model is not None:
        return torchtitan_shapes.varies_in_length(model)
    operators = (operator for layer in job.graph().layers.values() for operator in layer.operators)
    return any(
        operator.attributes.get("sinks") is True or (operator.mask is not None and operator.mask.span is Span.WINDOW)
        for operator in operators
    )


def is_tied(job: Job) -> bool:
    """Whether the head shares the token table."""
    model = described(job.model)
    if model is not None:
        return model.head.tied
    layers = job.graph().layers
    tables, heads = (
        {tensor.tied for tensor in layers[name].tensors.values() if tensor.role is Role.WEIGHT and tensor.tied}
        for name in (EMBEDDING, HEAD)
    )
    return bool(tables & heads)
