"""The description of a model: embedding, blocks in order, head. The schema of a model file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError, one_of
from dovetail.models.assembly import GATED, Activation, NormKind
from dovetail.models.block import Block
from dovetail.models.limits import MAX_LAYERS, Factor, Layers, Name, Small, Text, Tokens, Vocabulary, Width
from dovetail.models.positions import Rotary

#: Layer classes of every model beside its blocks.
EMBEDDING, HEAD, PREDICTION = "embedding", "head", "prediction"


class Embedding(Spec):
    """How tokens enter the stream."""

    positions: Tokens | None = None
    """rows of a learned position table; left out: positions come elsewhere"""
    token_types: Small | None = None
    """rows of a segment table (BERT)"""
    width: Width | None = None
    """of the token table, where it differs from hidden"""
    norm: NormKind | None = None
    """of the embedded tokens"""
    scale: Factor = 1.0
    """of the embedded tokens (Gemma, Granite)"""


class Head(Spec):
    """How the stream becomes logits."""

    tied: bool = False
    """shares the token table"""
    bias: bool = False
    """on the logits"""
    norm: NormKind | None = "rms"
    """the final norm"""
    transform: bool = False
    """a dense layer, activation and norm before the projection (BERT)"""
    transform_activation: Activation = "gelu"
    """the activation of the transform"""
    softcap: Factor | None = None
    """logits are squashed to this by a tanh (Gemma 2)"""
    scale: Factor = 1.0
    """of the logits (Granite, Cohere)"""

    @model_validator(mode="after")
    def _consistent(self) -> Head:
        if self.transform_activation in GATED:
            raise InputError("transform_activation", f"is {self.transform_activation!r}", "it should have no gate")
        return self


class MultiTokenPrediction(Spec):
    """Extra modules that predict further tokens (DeepSeek-V3 report, section 2.2)."""

    modules: Small
    """further tokens, each predicted by a module of its own"""
    block: Name
    """the block each module holds"""


class Repeat(Spec):
    """A pattern of blocks and how often it repeats."""

    blocks: Annotated[tuple[Name, ...], Field(strict=False, min_length=1, max_length=MAX_LAYERS)]
    """names of blocks, in order"""
    repeat: Layers = 1
    """how often the pattern stands in a row"""


class Model(Spec, defer_build=False):  # plan files contain it: its schema is built once for both
    """A transformer or hybrid, complete enough to count, differentiate and cost it."""

    name: Name
    """how answers call the model"""
    source: Text = ""
    """where the figures were published"""
    note: Text = ""
    """what is unsure or simplified"""
    published_parameters: Annotated[float, Field(gt=0, le=1e18)] | None = None
    """the size the publication states"""
    hidden: Width
    """width of the residual stream"""
    vocab: Vocabulary
    """rows of the token table"""
    max_seq_len: Tokens = 4096
    """longest sequence"""
    embedding: Embedding = Embedding.unchecked()
    """how tokens enter the stream"""
    blocks: Annotated[dict[Name, Block], Field(min_length=1, max_length=256)]
    """blocks by name"""
    layers: Annotated[tuple[Repeat, ...], Field(strict=False, min_length=1, max_length=MAX_LAYERS)]
    """patterns of blocks, from the embedding to the head"""
    head: Head = Head.unchecked()
    """how the stream becomes logits"""
    multi_token_prediction: MultiTokenPrediction | None = None
    """modules that predict further tokens"""
    dropout: bool = False
    """trained with dropout"""
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """added under the root of a norm"""
    residual_scale: Factor = 1.0
    """of what each half adds to the stream (Granite)"""
    rotary: Rotary = Rotary.unchecked()
    """rotary positions"""

    @model_validator(mode="after")
    def _consistent(self) -> Model:
        for name in {EMBEDDING, HEAD, PREDICTION} & set(self.blocks):
            raise InputError(f"blocks.{name}", "has a name every model uses already", "call it otherwise")
        used = {name: "layers" for part in self.layers for name in part.blocks}
        if self.multi_token_prediction is not None:
            used.setdefault(self.multi_token_prediction.block, "multi_token_prediction.block")
        for name in sorted(used.keys() - self.blocks.keys()):
            raise InputError(
                used[name], f"names the block {name!r}, which is missing in blocks", one_of(self.blocks, name)
            )
        for name in sorted(self.blocks.keys() - used.keys()):
            raise InputError(f"blocks.{name}", "is used nowhere", "name it in layers or remove it")
        if self.multi_token_prediction is not None and self.embedding.width is not None:
            raise InputError("embedding.width", "cannot be combined with multi_token_prediction", "drop one of them")
        rows = self.embedding.positions
        if rows is not None and self.max_seq_len > rows:
            fix = f"it should be at most the {rows} rows of embedding.positions"
            raise InputError("max_seq_len", f"is {self.max_seq_len}", fix)
        if self.num_layers > MAX_LAYERS:
            raise InputError("layers", f"add up to {self.num_layers}", f"they should be at most {MAX_LAYERS}")
        return self

    def check_seq_len(self, seq_len: int, where: str) -> None:
        """Refuses a sequence longer than the positions the model learned."""
        if self.embedding.positions is not None and seq_len > self.max_seq_len:
            raise InputError(where, f"is {seq_len}", f"the model has learned positions up to {self.max_seq_len}")

    @property
    def num_layers(self) -> int:
        """Blocks from embedding to head."""
        return sum(len(part.blocks) * part.repeat for part in self.layers)
