"""Tracing: a real PyTorch module, run without weights, as a model graph."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.documents import read_document
from dovetail.errors import InputError, quoted
from dovetail.models import huggingface
from dovetail.models.graph_document import document_of_graph
from dovetail.models.model import Model
from dovetail.models.traced import TracedModel
from dovetail.models.tracing.lowering import Lowered, lower
from dovetail.models.tracing.trace import Trace

if TYPE_CHECKING:
    from dovetail.models.tracing.transformers_images import Images

__all__ = ["from_torch", "trace_config"]

#: Sequences and tokens a config is traced with: like no other size of a model, and a whole number of usual chunks.
_BATCH, _SEQ = 3, 2816
#: Where an indexer chooses keys, as many that it has to, also among keys that stand for four tokens each.
_SEQ_INDEXED = 5888


_IN_PARTS = "trace its blocks one by one"


def from_torch(
    module: Any, example_inputs: Any, *, name: str = "traced", strict: bool = False, max_seq_len: int | None = None
) -> TracedModel:
    """A module as a model: its first axis is the batch, the second of whole numbers the sequence."""
    from dovetail.models.tracing import pytorch, record

    lowered = _lowered(lambda: record.record(module, example_inputs), "module", name)
    kind = type(module)
    source = f"traced from {kind.__module__}.{kind.__qualname__}, torch {pytorch.torch.__version__}"
    return _model(lowered, name, source, strict=strict, max_seq_len=max_seq_len, where="module")


def trace_config(path: Path, *, strict: bool = False) -> TracedModel:
    """The model that `transformers` builds for a config.json, traced; with its description where a reader has one."""
    config = read_document(path, finite=False)
    return trace_document(config, str(path), huggingface.model_name(path), strict=strict)


def trace_document(config: Mapping[str, Any], where: str, name: str, *, strict: bool = False) -> TracedModel:
    """The same for a config that is already a mapping."""
    from dovetail.models.tracing import transformers_images, transformers_model

    module = transformers_model.build(config, where)
    text = module.config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    seq = _SEQ_INDEXED if hasattr(text, "index_topk") else _SEQ
    if isinstance(longest, int) and longest < seq:
        seq = max(1, longest * 11 // 16)

    def tokens(images: Images | None) -> Lowered:
        return _lowered(lambda: transformers_model.record_tokens(module, _BATCH, seq, images=images), where, name)

    source = f"traced from {type(module).__name__} of transformers {transformers_model.transformers.__version__}"
    lowered, reason = None, ""
    for images in transformers_images.images_of(module, _BATCH):
        try:
            lowered, source = tokens(images), f"{source}, {images.words}"
            break
        except InputError as error:
            reason = reason or f"the encoder of images, which {error.what}"[:500]
    if lowered is None:
        lowered = tokens(None)
        lowered = replace(lowered, left_out=(*lowered.left_out, *([reason] if reason else [])))
    model = _model(lowered, name, source, strict=strict, max_seq_len=longest, where=where)
    described = _described(config, where, name, model)
    return model if described is None else model.model_copy(update={"described": described})


def run(record: Callable[[], Trace], where: str) -> Trace:
    """A recorded forward pass; what a module raises becomes one sentence."""
    try:
        return record()
    except InputError:
        raise
    except Exception as error:  # of any kind: the module is the user's
        reason = quoted(f"{type(error).__name__}: {error}", 200)
        raise InputError(where, f"cannot be run without contents ({reason})", _IN_PARTS) from error


def _lowered(record: Callable[[], Trace], where: str, name: str) -> Lowered:
    """The graph of what is recorded; a module we cannot write as one is refused in a sentence."""
    trace = run(record, where)
    try:
        return lower(trace, name)
    except (AssertionError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = quoted(f"{type(error).__name__}: {error}", 200)
        raise InputError(where, f"has layers that cannot be written as a graph ({reason})", _IN_PARTS) from error


def _described(config: Mapping[str, Any], where: str, name: str, traced: TracedModel) -> Model | None:
    """The description of the same model, where it has the same blocks and parameters."""
    try:
        found = huggingface.import_config(config, where, name=name)
    except InputError:
        return None
    # transformers leaves the modules out that predict further tokens
    found = found.model_copy(update={"multi_token_prediction": None})
    from dovetail.models.build import model_graph

    same = found.num_layers == traced.num_layers
    return found if same and model_graph(found).parameters() == model_graph(traced).parameters() else None


def _model(
    lowered: Lowered, name: str, source: str, *, strict: bool, max_seq_len: int | None, where: str
) -> TracedModel:
    if strict and (lowered.approximated or lowered.left_out):
        _refuse(lowered, where)
    fields: dict[str, Any] = {
        "kind": "traced", "name": name, "source": source, "hidden": lowered.hidden, "vocab": lowered.vocab,
        "graph": document_of_graph(lowered.graph), "left_out": lowered.left_out,
        "approximated": {layer: dict(of) for layer, of in lowered.approximated.items()},
        "learned_positions": lowered.positions is not None, "fixed_seq_len": lowered.fixed_seq_len,
    }  # fmt: skip
    longest = max_seq_len or lowered.positions or lowered.fixed_seq_len
    if longest is not None:
        fields["max_seq_len"] = longest
    return TracedModel(**fields)


def _refuse(lowered: Lowered, where: str) -> None:
    found = [f"{words} in {layer}.{name}" for layer, of in lowered.approximated.items() for name, words in of.items()]
    found += list(lowered.left_out)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    what = f"has operators that can only be approximated: {quoted(', '.join(found[:3]), 300)}{more}"
    raise InputError(where, what, "trace it without strict to estimate it with them")
