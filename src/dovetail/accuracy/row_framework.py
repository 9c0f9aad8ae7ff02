"""Which framework of the catalogue a run used, and what it does that a row does not say."""

from __future__ import annotations

from dovetail import frameworks
from dovetail.errors import InputError, one_of, quoted
from dovetail.layout.strategy import ContextKind

#: Words in a row's framework → name in the catalogue; the first that is found counts.
FAMILIES = (
    ("megatron-deepspeed (habana", "megatron"),  # its fp8 modules and ZeRO-0 are Megatron's, not DeepSpeed's
    ("megatron-deepspeed", "deepspeed"),
    ("deepspeed", "deepspeed"),
    ("internevo", "deepspeed"),  # ZeRO-1 in groups, written after it
    ("megatron", "megatron"),
    ("nemo", "megatron"),
    ("megascale", "megatron"),
    ("torchtitan", "torchtitan"),
    ("llm-foundry", "torchtitan"),
    ("fsdp", "torchtitan"),
    ("maxtext", "maxtext"),
)

#: Megatron and its forks fill the vocabulary up to multiples of 128 × tensor parallel (tokenizer.py).
_PADS_VOCABULARY = ("megatron", "deepspeed")

#: What context parallelism does where a row does not say: the default of each.
_CONTEXT: dict[str, ContextKind] = {"megatron": "ring", "deepspeed": "ulysses"}


def framework_name(text: str) -> str:
    """The catalogue's name for a framework as a source calls it."""
    written = text.casefold()
    if written in frameworks.names():
        return written
    for words, name in FAMILIES:
        if words in written:
            return name
    raise InputError("framework", f"{quoted(text)} is none the catalogue stands for", one_of(frameworks.names(), text))


def vocabulary_multiple(framework: str, tensor_parallel: int) -> int:
    """What the vocabulary is filled up to a multiple of."""
    return 128 * tensor_parallel if framework in _PADS_VOCABULARY else 1


def context_kind(framework: str, notes: str) -> ContextKind:
    """How context parallelism exchanges keys and values."""
    if "cp uses a2a" in notes.casefold():
        return "ulysses"
    return _CONTEXT.get(framework, "all_gather")
