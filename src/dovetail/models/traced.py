"""A model whose graph was traced: the schema of a traced model file, and what it shares with a described one."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError, one_of
from dovetail.frozen import frozen
from dovetail.models.graph_document import MAX_CLASSES, MAX_OPERATORS, GraphSpec
from dovetail.models.limits import MAX_VOCABULARY, Name, Text, Tokens, Width
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION, Model, MultiTokenPrediction

Sentence = Annotated[str, Field(max_length=500)]
#: Operator → what stands for what was traced.
Approximated = Annotated[dict[str, Sentence], Field(max_length=MAX_OPERATORS)]


class TracedModel(Spec):
    """A model by its graph: layer classes as they were traced, and the chain they form."""

    kind: Literal["traced"]
    """what makes a model file a traced one"""
    name: Name
    """how answers call the model"""
    source: Text = ""
    """what was traced"""
    note: Text = ""
    """what is unsure or simplified"""
    published_parameters: Annotated[float, Field(gt=0, le=1e18)] | None = None
    """the size the publication states"""
    max_seq_len: Tokens = 2**20
    """longest sequence"""
    learned_positions: bool = False
    """longer sequences have no positions, so that they are refused"""
    fixed_seq_len: Tokens | None = None
    """the one length that its sequences have, where the graph leaves none open"""
    hidden: Width
    """width of the residual stream"""
    vocab: Annotated[int, Field(ge=0, le=MAX_VOCABULARY)]
    """rows of the token table; 0 where the model has none"""
    approximated: dict[Name, Approximated] = Field(default_factory=dict[str, Approximated], max_length=MAX_CLASSES)
    """layer class → operator → what stands for what was traced"""
    left_out: Annotated[tuple[Sentence, ...], Field(strict=False, max_length=1000)] = ()
    """what was traced and is not in the graph"""
    described: Model | None = None
    """the same model by its blocks, from which launch files are written"""
    graph: GraphSpec
    """layer classes and the chain they form"""

    @model_validator(mode="after")
    def _consistent(self) -> TracedModel:
        for layer, operators in self.approximated.items():
            if layer not in self.graph.layers:
                raise InputError(f"approximated.{layer}", "is no layer of the graph", one_of(self.graph.layers, layer))
            names = {operator.name for operator in self.graph.layers[layer].operators}
            for operator in operators.keys() - names:
                raise InputError(f"approximated.{layer}.{operator}", "is no operator there", one_of(names, operator))
        if self.fixed_seq_len is not None and self.fixed_seq_len > self.max_seq_len:
            raise InputError("fixed_seq_len", f"is {self.fixed_seq_len}", f"it should be at most {self.max_seq_len}")
        if self.described is not None and self.described.num_layers != self.num_layers:
            what = f"has {self.described.num_layers} blocks, and the graph {self.num_layers}"
            raise InputError("described.layers", what, "describe the traced model or leave it out")
        return self

    @property
    def num_layers(self) -> int:
        """Blocks from embedding to head."""
        return sum(run.count for run in self.graph.chain if run.layer not in (EMBEDDING, HEAD, PREDICTION))

    def layers_by_kind(self) -> dict[str, int]:
        """Layers from embedding to head by what they are, in words; classes that differ in a number are of one kind."""
        counts: Counter[str] = Counter()
        for run in self.graph.chain:
            if run.layer not in (EMBEDDING, HEAD, PREDICTION):
                kind = re.sub(r"_\d+$", "", run.layer)
                counts[re.sub(r"block$", "blocks", kind).replace("_", " ")] += run.count
        # what runs between stacks of layers is said after them
        return dict(sorted(counts.items(), key=lambda kind: kind[0] == "between"))

    @property
    def multi_token_prediction(self) -> MultiTokenPrediction | None:
        """Modules of the graph that predict further tokens."""
        modules = sum(run.count for run in self.graph.chain if run.layer == PREDICTION)
        return MultiTokenPrediction(modules=modules, block=self.graph.chain[-1].layer) if modules else None

    def check_seq_len(self, seq_len: int, where: str) -> None:
        """Refuses sequences of a length that the graph does not have."""
        if self.fixed_seq_len is not None and seq_len != self.fixed_seq_len:
            fix = f"it should be {self.fixed_seq_len}, the one length that {self.name} was traced with"
            raise InputError(where, f"is {seq_len}", fix)
        if self.learned_positions and seq_len > self.max_seq_len:
            raise InputError(where, f"is {seq_len}", f"the model has learned positions up to {self.max_seq_len}")

    def check_attention(self, where: str, *, fused: bool) -> None:
        """Refuses attention that is computed otherwise than traced."""
        if not fused:
            what = f"is unfused, and {self.name} keeps the attention it was traced with"
            raise InputError(where, what, "leave it out, or trace the model with eager attention")


@frozen
class Approximation:
    """An operator of a traced model that stands for something else."""

    layer: str
    operator: str
    #: what stands for what
    words: str


#: A model, however its graph is known.
AnyModel: TypeAlias = "Model | TracedModel"


def longest_seq_len(model: AnyModel) -> int:
    """The longest sequences a model takes, the only ones where its graph leaves no length open."""
    fixed = model.fixed_seq_len if isinstance(model, TracedModel) else None
    return fixed or model.max_seq_len


def approximations(model: AnyModel) -> tuple[Approximation, ...]:
    """The operators of a model that stand for something else; none where it was not traced."""
    by_layer = model.approximated if isinstance(model, TracedModel) else {}
    return tuple(Approximation(layer, name, words) for layer, of in by_layer.items() for name, words in of.items())


def left_out(model: AnyModel) -> tuple[str, ...]:
    """What was traced of a model and is not in its graph."""
    return model.left_out if isinstance(model, TracedModel) else ()


def described(model: AnyModel) -> Model | None:
    """The model by its blocks; None where it is known by its graph alone."""
    return model if isinstance(model, Model) else model.described
