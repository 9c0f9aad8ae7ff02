"""Tracing: a real PyTorch module, run without weights, as a model graph."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.documents import read_document, validate
from dovetail.errors import InputError, quoted
from dovetail.models import huggingface
from dovetail.models.graph_document import GraphSpec, document_of_graph
from dovetail.models.huggingface.reader import MissingOperatorError
from dovetail.models.model import Model
from dovetail.models.traced import TracedModel
from dovetail.models.tracing.lowering import Lowered, lower
from dovetail.models.tracing.trace import Trace

if TYPE_CHECKING:
    from dovetail.models.tracing.transformers_images import Images

__all__ = ["from_torch", "trace_config", "trace_document"]

#: Sequences and tokens a config is traced with: like no other size of a model, and a whole number of usual chunks.
_BATCH, _SEQ = 3, 2816
#: Where an indexer chooses keys, as many that it has to, also among keys that stand for four tokens each.
_SEQ_INDEXED = 5888

#: What a graph that does not come together ends in.
_UNWRITTEN = (AssertionError, LookupError, RecursionError, TypeError, ValueError)


def from_torch(
    module: Any, example_inputs: Any, *, name: str = "traced", strict: bool = False, max_seq_len: int | None = None
) -> TracedModel:
    """A module as a model: its first axis is the batch, the second of whole numbers the sequence."""
    from dovetail.models.tracing import pytorch, record

    if not isinstance(module, pytorch.nn.Module):
        raise InputError("module", f"is a {type(module).__name__}", "it should be a torch.nn.Module")
    fix = "give it what its forward takes, or trace a part of it alone"
    lowered, graph = _lowered(partial(record.record, module, example_inputs), "module", name, fix)
    kind = type(module)
    source = f"traced from {kind.__module__}.{kind.__qualname__}, torch {pytorch.torch.__version__}"
    return _model(lowered, graph, name, source, strict=strict, max_seq_len=max_seq_len, where="module")


def trace_config(path: Path, *, strict: bool = False) -> TracedModel:
    """The model that `transformers` builds for a config.json, traced; with its description where a reader has one."""
    config = read_document(path, finite=False)
    return trace_document(config, str(path), huggingface.model_name(path), strict=strict)


def trace_document(config: Mapping[str, Any], where: str, name: str, *, strict: bool = False) -> TracedModel:
    """The same for a config that is already a mapping."""
    from dovetail.models.tracing import transformers_images, transformers_model

    described = _described(config, where, name)
    module = transformers_model.build(config, where)
    text = module.config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    seq = _SEQ_INDEXED if hasattr(text, "index_topk") else _SEQ
    if isinstance(longest, int) and longest < seq:
        seq = max(2, longest * 11 // 16)

    def traced(images: Images | None) -> tuple[Lowered, GraphSpec]:
        record = partial(transformers_model.record_tokens, module, _BATCH, seq, images=images)
        return _lowered(record, where, name, "correct the config, or report it if it is right")

    source = f"traced from {type(module).__name__} of transformers {transformers_model.transformers.__version__}"
    found, left_out = None, list[str]()
    for images in transformers_images.images_of(module, _BATCH):
        try:
            found, source = traced(images), f"{source}, {images.words}"
            break
        except InputError as error:
            left_out = left_out or [f"the encoder of images, which {error.what}"[:500]]
    if found is None:
        found = traced(None)
    else:
        left_out = []
    if described is not None and described.multi_token_prediction is not None:
        left_out.append("the modules that predict further tokens, which transformers does not build")
    model = _model(*found, name, source, strict=strict, max_seq_len=longest, where=where, left_out=left_out)
    named = config.get("architectures")
    if isinstance(named, list | tuple) and named and type(module).__name__ not in named:
        note = (
            f"transformers has no {quoted(named[0])}, which architectures names; traced is its {type(module).__name__}"
        )
        model = model.model_copy(update={"note": note})
    return model if described is None else _with_description(model, described)


def run(record: Callable[..., Trace], where: str, fix: str, *, every_layer: bool = False) -> Trace:
    """A recorded forward pass; what a module raises becomes one sentence."""
    try:
        trace = record(every_layer=every_layer)
        # layers that run again with their own weights stand for no others
        return record(every_layer=every_layer, apart=trace.repeated) if trace.repeated else trace
    except InputError:
        raise
    except Exception as error:  # of any kind: the module is the user's
        raise InputError(where, f"cannot be run without contents ({_said(error)})", fix) from error


def _lowered(record: Callable[..., Trace], where: str, name: str, fix: str) -> tuple[Lowered, GraphSpec]:
    """The graph of what is recorded, as data too; a module we cannot write as one is refused in a sentence."""
    try:
        return _written(run(record, where, fix), name)
    except _UnwrittenError:
        pass  # layers that hand on more than a stream cannot stand for each other
    try:
        return _written(run(record, where, fix, every_layer=True), name)
    except _UnwrittenError as error:
        what = f"has layers that cannot be written as a graph ({_said(error.__cause__)})"
        raise InputError(where, what, "trace a part of it alone, or report it") from error


class _UnwrittenError(Exception):
    """What was recorded makes no graph."""


def _written(trace: Trace, name: str) -> tuple[Lowered, GraphSpec]:
    try:
        lowered = lower(trace, name)
        return lowered, document_of_graph(lowered.graph)
    except _UNWRITTEN as error:
        if isinstance(error, InputError) and not error.where.startswith("graph"):
            raise
        raise _UnwrittenError from error


def _said(error: BaseException | None) -> str:
    """What an error says, in one line."""
    if isinstance(error, InputError):
        return quoted(f"{error.where}: {error.what}", 200)
    return quoted(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}", 200)


def _described(config: Mapping[str, Any], where: str, name: str) -> Model | None:
    """The description of a family that a reader has; a config that the reader finds wrong is wrong."""
    try:
        return huggingface.import_config(config, where, name=name)
    except (huggingface.NotReadError, MissingOperatorError):
        return None


def _with_description(traced: TracedModel, described: Model) -> TracedModel:
    """The model with its description, where that is the same model."""
    from dovetail.models.build import check_description

    # transformers leaves the modules out that predict further tokens
    own = described.model_copy(update={"multi_token_prediction": None})
    found = traced.model_copy(update={"described": own})
    try:
        check_description(found, traced.name)
    except InputError:
        return traced
    return found if own.num_layers == traced.num_layers else traced


def _model(
    lowered: Lowered, graph: GraphSpec, name: str, source: str, *, strict: bool, max_seq_len: int | None, where: str,
    left_out: list[str] | None = None,
) -> TracedModel:  # fmt: skip
    lost = (*lowered.left_out, *(left_out or []))
    if strict and (lowered.approximated or lost):
        _refuse(lowered, lost, where)
    fields: dict[str, Any] = {
        "kind": "traced", "name": name, "source": source, "hidden": lowered.hidden, "vocab": lowered.vocab,
        "graph": graph, "left_out": lost,
        "approximated": {layer: dict(of) for layer, of in lowered.approximated.items()},
        "learned_positions": lowered.positions is not None, "fixed_seq_len": lowered.fixed_seq_len,
    }  # fmt: skip
    longest = lowered.positions or lowered.fixed_seq_len if max_seq_len is None else max_seq_len
    if longest is not None:
        fields["max_seq_len"] = longest
    return validate(TracedModel, fields, where)


def _refuse(lowered: Lowered, lost: tuple[str, ...], where: str) -> None:
    found = [f"{words} in {layer}.{name}" for layer, of in lowered.approximated.items() for name, words in of.items()]
    found += lost
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    what = f"has operators that can only be approximated: {quoted(', '.join(found[:3]), 300)}{more}"
    raise InputError(where, what, "trace it without strict to estimate it with them")
