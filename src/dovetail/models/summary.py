"""What `dovetail models show` tells of a model: counts read off its graph."""

from __future__ import annotations

from dovetail.frozen import frozen
from dovetail.graph import ModelGraph, Phase, matmul_flops, parameters, saved_bytes
from dovetail.graph.size import Size
from dovetail.models.build import model_graph, prediction_parameters
from dovetail.models.model import PREDICTION
from dovetail.models.traced import AnyModel, TracedModel, longest_seq_len

#: Long-context models are not trained at their longest sequence: the default stays comparable.
DEFAULT_SEQ_LEN = 4096


@frozen
class LayerSummary:
    """One layer class."""

    name: str
    count: int
    parameters: int
    forward_flops_per_token: float
    saved_bytes_per_token: float


@frozen
class ModelSummary:
    """The figures others rely on; multi-token-prediction modules are counted apart."""

    name: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    vocab: int
    #: matrix FLOPs of a training step at `seq_len`, attention counted in full: the numerator of MFU
    flops_per_token: float
    #: the same without the masked half of attention
    causal_flops_per_token: float
    seq_len: int
    multi_token_prediction_parameters: int
    published_parameters: float | None
    source: str
    note: str
    layer_classes: tuple[LayerSummary, ...]


def summarise(model: AnyModel, seq_len: int | None = None) -> ModelSummary:
    """Counts of a model at one sequence length."""
    seq = seq_len if seq_len is not None else _usual_seq_len(model)
    model.check_seq_len(seq, "seq_len")
    full = model_graph(model)
    graph = _without_prediction(full)
    classes: list[LayerSummary] = []
    for name, count in full.counts().items():
        layer = full.layers[name]
        sizes = layer.resolve(batch=1, seq=seq)
        forward = matmul_flops(layer, sizes, (Phase.FORWARD,))
        classes.append(
            LayerSummary(name, count, parameters(layer), _per(forward, seq), _per(saved_bytes(layer, sizes), seq))
        )
    return ModelSummary(
        name=model.name,
        parameters=graph.parameters(),
        active_parameters=graph.active_parameters(),
        layers=model.num_layers,
        hidden=model.hidden,
        vocab=model.vocab,
        flops_per_token=_per(graph.training_flops(1, seq), seq),
        causal_flops_per_token=_per(graph.training_flops(1, seq, causal=True), seq),
        seq_len=seq,
        multi_token_prediction_parameters=prediction_parameters(full),
        published_parameters=model.published_parameters,
        source=model.source,
        note=model.note,
        layer_classes=tuple(classes),
    )


def _usual_seq_len(model: AnyModel) -> int:
    longest = longest_seq_len(model)
    return longest if isinstance(model, TracedModel) and model.fixed_seq_len else min(longest, DEFAULT_SEQ_LEN)


def _without_prediction(graph: ModelGraph) -> ModelGraph:
    layers = {name: layer for name, layer in graph.layers.items() if name != PREDICTION}
    return ModelGraph(graph.name, layers, tuple(run for run in graph.chain if run.layer != PREDICTION))


def _per(value: Size, tokens: int) -> float:
    return float(value) / tokens
