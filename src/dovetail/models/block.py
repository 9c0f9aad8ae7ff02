"""A block: a sequence mixer and a feed-forward around the residual stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.graph import LayerBuilder
from dovetail.models.assembly import NormKind, Settings, add, drop, normalise
from dovetail.models.attention import Attention
from dovetail.models.feed_forward import Dense, DenseAndMixture, Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.models.linear_attention import GatedDelta, KimiDelta, Lightning
from dovetail.models.state_space import StateSpace

Mixer = Annotated[
    Attention | LatentAttention | GatedDelta | KimiDelta | Lightning | StateSpace, Field(discriminator="kind")
]
FeedForward = Annotated[Dense | Mixture | DenseAndMixture, Field(discriminator="kind")]


class Block(Spec):
    """One layer of the model; either half may be absent (hybrids put them in layers of their own)."""

    mixer: Mixer | None = None
    """mixes tokens: attention or a scan"""
    feed_forward: FeedForward | None = None
    """works on each token alone"""
    norm: NormKind = "rms"
    """of both halves"""
    norm_position: Literal["before", "after", "around", "residual"] = "before"
    """of each half's norm: before it, after it, both, or after the residual addition (BERT)"""
    parallel: bool = False
    """both halves read the same stream and are added at once (GPT-J, NeoX, Falcon)"""
    shared_norm: bool = False
    """parallel halves share one norm"""

    @model_validator(mode="after")
    def _consistent(self) -> Block:
        if self.mixer is None and self.feed_forward is None:
            raise InputError("mixer", "is absent, as is feed_forward", "add at least one of the two")
        if self.parallel and (self.mixer is None or self.feed_forward is None):
            raise InputError("parallel", "needs two halves", "add the mixer or feed_forward that is absent")
        if self.parallel and self.norm_position != "before":
            raise InputError("parallel", "needs norms before its halves", "set norm_position to before")
        if self.shared_norm and not self.parallel:
            raise InputError("shared_norm", "needs parallel halves", "set parallel to true or leave it out")
        return self

    def build(self, builder: LayerBuilder, stream: str, settings: Settings) -> str:
        """Appends the block's operators; returns the new residual stream."""
        if self.parallel:
            return self._build_parallel(builder, stream, settings)
        if self.mixer is not None:
            source = self._norm_before(builder, "mixer_norm", stream)
            stream = self._close(builder, "mixer", stream, self.mixer.build(builder, source, settings), settings)
        if self.feed_forward is not None:
            source = self._norm_before(builder, "feed_forward_norm", stream)
            result = self.feed_forward.build(builder, source, stream, settings)
            stream = self._close(builder, "feed_forward", stream, result, settings)
        return stream

    def _build_parallel(self, builder: LayerBuilder, stream: str, settings: Settings) -> str:
        assert self.mixer is not None
        assert self.feed_forward is not None
        first = normalise(builder, "mixer_norm", stream, self.norm)
        second = first if self.shared_norm else normalise(builder, "feed_forward_norm", stream, self.norm)
        mixed = drop(builder, "mixer_dropout", self.mixer.build(builder, first, settings), settings)
        fed = self.feed_forward.build(builder, second, stream, settings)
        both = add(builder, "both_halves", mixed, drop(builder, "feed_forward_dropout", fed, settings))
        return add(builder, "stream_out", stream, both)

    def _norm_before(self, builder: LayerBuilder, name: str, stream: str) -> str:
        return normalise(builder, name, stream, self.norm) if self.norm_position in ("before", "around") else stream

    def _close(self, builder: LayerBuilder, half: str, stream: str, result: str, settings: Settings) -> str:
        if self.norm_position in ("after", "around"):
            result = normalise(builder, f"{half}_norm_after", result, self.norm)
        result = drop(builder, f"{half}_dropout", result, settings)
        stream = add(builder, f"{half}_residual", stream, result)
        if self.norm_position == "residual":
            stream = normalise(builder, f"{half}_residual_norm", stream, self.norm)
        return stream
