"""Which framework of the catalogue a run used, and its behaviour that a row does not state."""

from __future__ import annotations

import re
from dataclasses import replace

from dovetail import frameworks
from dovetail.accuracy.row_configuration import configurations_of, framework_changes
from dovetail.accuracy.table import TableRow
from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks import Framework
from dovetail.frameworks.catalogue import changed
from dovetail.layout.strategy import ContextKind

#: Words in a row's framework → name in the catalogue; the first that is found counts.
FAMILIES = (
    ("metaseq", "fsdp"),
    ("maxtext", "maxtext"),
    ("pax", "maxtext"),  # XLA compiles these too
    ("t5x", "maxtext"),
    ("levanter", "maxtext"),
    ("jax", "maxtext"),
    ("megatron-deepspeed (habana", "megatron"),  # its fp8 modules and ZeRO-0 are Megatron's, not DeepSpeed's
    ("megatron-deepspeed", "deepspeed"),
    ("deepspeed", "deepspeed"),
    ("internevo", "megatron"),  # tensor parallelism, ZeRO-1 and overlaps as Megatron has them
    ("megatron", "megatron"),
    ("automodel", "torchtitan"),  # NeMo's trainer of Hugging Face models, on FSDP2
    ("nemo", "megatron"),
    # names of containers in MLPerf submissions of GPT-3 and Llama: NeMo in NVIDIA's, Megatron under Primus in AMD's
    ("nvidia release", "megatron"),
    ("+rocm", "megatron"),
    ("megascale", "megatron"),
    ("mindspeed", "megatron"),  # patches Megatron for Ascend; its examples were called ModelLink
    ("modellink", "megatron"),
    ("nanotron", "megatron"),
    ("colossal", "megatron"),
    ("neuronx", "megatron"),  # tensor and sequence parallelism, 1F1B and ZeRO-1 as Megatron has them
    ("meta internal", "megatron"),  # Llama 3's trainer has its own tensor, context, pipeline and data parallelism
    ("gpt-neox", "deepspeed"),
    ("composer", "fsdp"),
    ("fairscale", "fsdp"),
    ("torchtitan", "torchtitan"),
    ("primus", "megatron"),  # Megatron on ROCm unless torchtitan is named
    ("galvatron", "fsdp"),  # layers of Megatron under PyTorch's FSDP
    ("llm-foundry", "fsdp"),
    ("bmtrain", "fsdp"),
    ("litgpt", "fsdp"),
    ("torchtune", "fsdp"),
    ("ms-swift", "fsdp"),
    ("axolotl", "fsdp"),
    ("lightning ddp", "fsdp"),
    ("fsdp", "torchtitan"),
)

#: Megatron and its forks pad the vocabulary to multiples of 128 × tensor parallel (tokenizer.py).
_PADS_VOCABULARY = ("megatron", "megatron-2022", "deepspeed")

#: PyTorch's cross entropy in its backward: log-probabilities, their gradient and the logits' gradient, in float32.
EAGER_LOGITS_BYTES = 12.0
#: The same over shards of the vocabulary (torch/distributed/tensor/parallel/loss.py): exponentials once more.
PARALLEL_LOGITS_BYTES = 16.0
#: Fused: logits and their gradient in bf16.
FUSED_LOGITS_BYTES = 4.0

#: Trainers whose norms, activations and loss are fused kernels.
_FUSED = ("galvatron", "composer", "llm-foundry", "metaseq", "fairscale")

#: The default kind of context parallelism of each framework.
_CONTEXT: dict[str, ContextKind] = {"megatron": "ring", "deepspeed": "ulysses"}


#: Trainers whose recipes are NVIDIA's.
_RECIPES = ("nemo", "bridge", "nvidia release")

#: Words that say a run was compiled.
_COMPILED = re.compile(r"(?<!no )(?<!not )(?<!un)(?<!without )(?<!no torch\.)compil(?!e off)")


def framework_name(row: TableRow) -> str:
    """The catalogue's name for the framework of a row, in the version the row states."""
    text = row.text("framework")
    written = text.casefold()
    if written in frameworks.names():
        return written
    name = next((name for words, name in FAMILIES if words in written), None)
    if name is None:
        what = f"{quoted(text)} is not in the catalogue"
        raise InputError("framework", what, one_of(frameworks.names(), text))
    if name == "torchtitan" and not _COMPILED.search(f"{written} {row.text('notes').casefold()}"):
        return "fsdp"
    unfused = row.text("attention").casefold() == "unfused"
    if (
        unfused
        and "container" not in written
        and (name == "megatron" or (name == "deepspeed" and row.text("zero") in ("", "0")))
    ):
        # without ZeRO, Megatron-DeepSpeed runs Megatron's engine
        return "megatron-2022"
    return name


def framework_of(name: str, row: TableRow) -> Framework:
    """The framework as configured in the run, from its notes; what ran then needs no launch file of today."""
    changes, source = framework_changes(row), row.text("source")
    loaded = changed(name, changes, "configurations") if changes else frameworks.load(name)
    framework = replace(loaded, launch=None)
    if changes:
        return framework
    titan = source.casefold().startswith("torchtitan")
    # torchtitan compiles its loss since 2025, before it ran operator by operator
    if name in ("torchtitan", "fsdp") and titan and "2025" not in source:
        framework = replace(framework, logits_bytes=EAGER_LOGITS_BYTES, sharded_logits_bytes=PARALLEL_LOGITS_BYTES)
    if name == "fsdp" and titan:
        # its norms are fused
        framework = replace(framework, saved_copies=(("gated", 1.0),))
    if name == "fsdp" and any(words in row.text("framework").casefold() for words in _FUSED):
        framework = replace(framework, saved_copies=(), logits_bytes=FUSED_LOGITS_BYTES, sharded_logits_bytes=None)
    if "pure" in row.text("precision_as_written").casefold():
        # Composer's FSDP in PURE precision reduces gradients in bf16 too
        states = tuple((name, replace(state, sharded_reduction=2.0)) for name, state in framework.states)
        framework = replace(framework, states=states)
    return framework


def overlap_fields(name: str, row: TableRow) -> dict[str, object]:
    """What a run overlapped, as fields of its plan: overlaps that a framework leaves open are on where a row says so.

    Reductions of gradients and gathering of weights are as the framework has them by default.
    """
    available, notes = frameworks.load(name).overlaps, row.text("notes").casefold()
    # NVIDIA's recipes for dense models set --tp-comm-overlap, scripts for Ascend name their fused products
    recipe = any(words in row.text("framework").casefold() for words in _RECIPES) and not row.text("experts")
    said = {
        "tensor_parallel": ("tp", recipe or "asynctp" in notes or "tp overlap" in notes or "use-mc2" in notes),
        "expert_parallel": ("ep", "a2a overlap" in notes),
    }
    fields: dict[str, object] = {
        f"overlap_{kind}": on
        for kind, (degree, on) in said.items()
        if (row.count(degree) or 1) > 1 and (on or getattr(available, kind) == "optional")
    }
    return fields | ({"dispatcher": "alltoall"} if "dispatcher a2a" in notes else {})


def vocabulary_multiple(framework: str, tensor_parallel: int) -> int:
    """The vocabulary is padded to a multiple of this."""
    return 128 * tensor_parallel if framework in _PADS_VOCABULARY else 1


def context_kind(framework: str, row: TableRow) -> ContextKind:
    """How context parallelism exchanges keys and values."""
    if "cp uses a2a" in row.text("notes").casefold():
        return "ulysses"
    for configuration in configurations_of(row):
        if configuration.context is not None:
            return configuration.context
    return _CONTEXT.get(framework, "all_gather")
