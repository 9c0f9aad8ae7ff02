"""Multi-head attention with grouped keys, as every decoder since GPT-2 varies it."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.graph import DerivedSize, LayerBuilder, Mask, Span
from dovetail.graph.attention import attention, indexer
from dovetail.models.assembly import NormKind, Settings, drop, normalise, project
from dovetail.models.limits import Factor, Heads, Tokens, Width
from dovetail.models.positions import Base

HEADS = ("kv_heads", "group")


class Indexer(Spec):
    """Scores all keys with small heads and keeps the best (DeepSeek sparse attention)."""

    heads: Heads
    """scoring heads"""
    head_dim: Width
    """width of a scoring head"""
    top_k: Tokens
    """keys each query attends to"""
    query_from: Literal["hidden", "latent"] = "hidden"
    """what scoring queries are projected from: the stream, or the query latent of latent attention"""
    query_norm: NormKind | None = None
    """of scoring queries"""
    key_norm: NormKind | None = "layer"
    """of scoring keys"""
    weighted: bool = True
    """one learned weight per index head and token"""


class Attention(Spec):
    """Softmax attention: `kv_heads` keys and values, each shared by heads / kv_heads queries."""

    kind: Literal["attention"]
    """names this mixer"""
    heads: Heads
    """heads of queries"""
    kv_heads: Heads
    """heads of keys and values, a divisor of heads"""
    head_dim: Width
    """width of a query or key head"""
    value_dim: Width | None = None
    """where it differs from head_dim"""
    causal: bool = True
    """a query sees no later key"""
    window: Tokens | None = None
    """sliding window: keys a query sees, itself included"""
    chunk: Tokens | None = None
    """chunked attention: the sequence is cut into pieces that do not see each other"""
    rotary: bool = True
    """rotary positions"""
    alibi: bool = False
    """scores fall with distance instead (BLOOM, MPT)"""
    rotary_base: Base | None = None
    """their base where it is not the model's; such layers are not scaled (Gemma 3)"""
    scale: Factor | None = None
    """of scores; left out: one over the root of head_dim"""
    value_scale: Factor = 1.0
    """of values (MiMo)"""
    softcap: Factor | None = None
    """scores are squashed to this by a tanh (Gemma 2)"""
    qkv_bias: bool = False
    """on the projections to queries, keys and values"""
    output_bias: bool = False
    """on the output projection"""
    qk_norm: Literal["none", "head", "heads", "all"] = "none"
    """normalise queries and keys: per head with one weight, per head with own weights, over all heads"""
    qk_norm_kind: NormKind = "rms"
    """which norm qk_norm is"""
    qk_norm_after_rotary: bool = False
    """qk_norm comes after the rotary positions (Hunyuan)"""
    value_norm: bool = False
    """normalise values per head, without weights"""
    key_is_value: bool = False
    """one projection serves as keys and values"""
    output_gate: Literal["none", "channel", "head"] = "none"
    """a sigmoid gate on the output of attention: per channel or per head"""
    gate_bias: bool = False
    """on the gate's projection"""
    sinks: bool = False
    """a learned extra logit per head"""
    indexer: Indexer | None = None
    """chooses the keys each query attends to"""

    @model_validator(mode="after")
    def _consistent(self) -> Attention:
        if self.heads % self.kv_heads:
            raise InputError(
                "kv_heads", f"{self.kv_heads} does not divide {self.heads} heads", "it should divide heads"
            )
        if self.window is not None and self.chunk is not None:
            raise InputError("chunk", "cannot be combined with a window", "drop one of window and chunk")
        if self.key_is_value and self.value_dim not in (None, self.head_dim):
            raise InputError("value_dim", "differs from head_dim", "leave it out where keys are values")
        if self.gate_bias and self.output_gate == "none":
            raise InputError("gate_bias", "needs an output gate", "set output_gate or leave it out")
        if self.indexer is not None and (self.window is not None or self.chunk is not None):
            raise InputError("indexer", "cannot be combined with a window or chunk", "drop one of them")
        if self.indexer is not None and self.indexer.query_from == "latent":
            raise InputError("indexer.query_from", "is 'latent'", "it should be 'hidden': this attention has no latent")
        return self

    def build(self, builder: LayerBuilder, source: str, settings: Settings) -> str:
        """Appends the attention's operators; returns its output over the residual stream's dims."""
        builder.size("kv_heads", self.kv_heads)
        builder.size("group", self.heads // self.kv_heads)
        builder.size("head_dim", self.head_dim)
        builder.size("value_dim", self.value_dim or self.head_dim)
        builder.size("key_seq", DerivedSize(("seq",)))
        q = project(builder, "query", source, (*HEADS, "head_dim"), bias=self.qkv_bias, fusion="qkv")
        k = project(builder, "key", source, ("kv_heads", "head_dim"), bias=self.qkv_bias, fusion="qkv")
        v = k
        if not self.key_is_value:
            v = project(builder, "value", source, ("kv_heads", "value_dim"), bias=self.qkv_bias, fusion="qkv")
        if self.value_norm:
            v = normalise(builder, "value_norm", v, "plain_rms", over=(builder.tensors[v].dims[-1],))
        q = self._query_key_norm(builder, "query", q, HEADS)
        k = self._query_key_norm(builder, "key", k, ("kv_heads",))
        if self.rotary:
            q = builder.elementwise("query_rotary", "rotary", q, fusion="rotary")
            k = builder.elementwise("key_rotary", "rotary", k, fusion="rotary")
        sinks = builder.weight("sinks", HEADS) if self.sinks else None
        choice = index_keys(self.indexer, builder, source, None) if self.indexer is not None else None
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        mixed = attend(builder, (q, k, v), self.mask, settings, scale=scale, sinks=sinks, choice=choice)
        mixed = self._gate(builder, source, mixed)
        over = (*HEADS, "value_dim")
        return project(builder, "output", mixed, ("hidden",), over=over, bias=self.output_bias)

    @property
    def mask(self) -> Mask:
        """Which keys each query sees."""
        if self.indexer is not None:
            return Mask(self.causal, Span.TOP_K, self.indexer.top_k)
        if self.window is not None:
            return Mask(self.causal, Span.WINDOW, self.window)
        if self.chunk is not None:
            return Mask(self.causal, Span.CHUNK, self.chunk)
        return Mask(self.causal)

    def _query_key_norm(self, builder: LayerBuilder, name: str, source: str, heads: tuple[str, ...]) -> str:
        if self.qk_norm == "none":
            return source
        over = (*heads, "head_dim") if self.qk_norm == "all" else ("head_dim",)
        weighted = ("head_dim",) if self.qk_norm == "head" else (*heads, "head_dim")
        return normalise(builder, f"{name}_norm", source, self.qk_norm_kind, over, weighted)

    def _gate(self, builder: LayerBuilder, source: str, mixed: str) -> str:
        if self.output_gate == "none":
            return mixed
        dims = HEADS if self.output_gate == "head" else (*HEADS, "value_dim")
        gate = project(builder, "gate", source, dims, bias=self.gate_bias, fusion="qkv")
        return builder.elementwise("gated", "sigmoid_gate", gate, mixed, dims=builder.tensors[mixed].dims)


def attend(
    builder: LayerBuilder,
    tensors: tuple[str, str, str],
    mask: Mask,
    settings: Settings,
    *,
    scale: float,
    sinks: str | None = None,
    choice: str | None = None,
) -> str:
    """Softmax attention of queries to keys and values: one fused kernel, or its parts where the job says so."""
    query, k, v = tensors
    key = builder.use(k, seq=mask.key)
    # where keys are also the values, their dim still needs two names: scores sum it, outputs have it
    value = builder.use(v, {"seq": mask.key, "head_dim": "value_dim"})
    if settings.fused_attention or sinks is not None or choice is not None:
        return attention(builder, "attention", (query, key, value), mask, scale=scale, sinks=sinks, choice=choice)
    batch, seq, *heads, _ = builder.tensors[query].dims
    scores = builder.contraction("scores", query, key, (batch, *heads, seq, mask.key), mask=mask)
    probabilities = builder.softmax("probabilities", scores, mask.key, mask=mask, scale=scale)
    probabilities = drop(builder, "probabilities_dropout", probabilities, settings)
    return builder.contraction("attention", probabilities, value, (batch, seq, *heads, "value_dim"), mask=mask)


def index_keys(spec: Indexer, builder: LayerBuilder, source: str, latent: str | None) -> str:
    """The keys each query attends to, chosen by small scoring heads."""
    builder.size("index_heads", spec.heads)
    builder.size("index_dim", spec.head_dim)
    selected = builder.size("selected", DerivedSize(("seq",), at_most=spec.top_k))
    origin = latent if spec.query_from == "latent" and latent is not None else source
    over = (builder.tensors[origin].dims[-1],)
    q = project(builder, "index_query", origin, ("index_heads", "index_dim"), over=over)
    if spec.query_norm is not None:
        q = normalise(builder, "index_query_norm", q, spec.query_norm, over=("index_dim",))
    k = project(builder, "index_key", source, ("index_dim",))
    if spec.key_norm is not None:
        k = normalise(builder, "index_key_norm", k, spec.key_norm, over=("index_dim",))
    weights = project(builder, "index_weight", source, ("index_heads",)) if spec.weighted else None
    key = builder.use(k, seq="key_seq")
    return indexer(builder, "index", q, key, weights, Mask(causal=True), selected)
