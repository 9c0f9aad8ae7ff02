"""Feed-forward parts of a block: dense, mixture of experts, and the two side by side."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.graph import DerivedSize, Element, LayerBuilder
from dovetail.graph.routing import EXPERT_TOKENS, TOP_K, ExpertGroups, combine, dispatch, routing
from dovetail.models.assembly import (
    STREAM,
    Activation,
    ProjectionWeights,
    Settings,
    activate,
    add,
    normalise,
    project,
)
from dovetail.models.limits import Experts, Factor, Width

#: Routers score in float32.
_FLOAT32 = ProjectionWeights(element=Element.FLOAT32)


class Dense(Spec):
    """Up, nonlinearity, down; gated activations have a second up projection."""

    kind: Literal["dense"]
    """names this feed-forward"""
    size: Width
    """width between the projections"""
    activation: Activation = "swiglu"
    """nonlinearity; those with a gate have a second up projection"""
    bias: bool = False
    """on both projections"""

    def build(self, builder: LayerBuilder, source: str, stream: str, settings: Settings) -> str:
        """Appends the operators; returns the output over the residual stream's dims."""
        del stream, settings
        builder.size("ffn", self.size)
        hidden = activated(builder, "mlp", source, "ffn", self.activation, bias=self.bias)
        return project(builder, "mlp.down", hidden, ("hidden",), over=("ffn",), bias=self.bias)


class Mixture(Spec):
    """Tokens go to `top_k` of `experts` small feed-forwards; shared experts see every token."""

    kind: Literal["mixture"]
    """names this feed-forward"""
    experts: Experts
    """routed experts"""
    top_k: Experts
    """experts a token goes to"""
    size: Width
    """width of one routed expert"""
    activation: Activation = "swiglu"
    """of routed and shared experts"""
    bias: bool = False
    """on the routed experts' projections"""
    shared_bias: bool = False
    """on the shared experts' projections"""
    router_bias: bool = False
    """a trained bias on the router's logits"""
    router_scale: bool = False
    """trained scales on the router's input and on each expert's gate (Gemma 4)"""
    correction_bias: bool = False
    """a bias that balances the choice, not trained by gradients (DeepSeek-V3)"""
    trained_correction: bool = False
    """the same bias, stored and counted among the parameters (ERNIE 4.5)"""
    score: Literal["softmax", "sigmoid", "top_k_softmax"] = "softmax"
    """how logits become gates; `top_k_softmax` is a softmax over the chosen experts alone"""
    renormalise: bool = True
    """the chosen gates are scaled to add up to one"""
    routed_scale: Factor = 1.0
    """multiplies the gates (routed_scaling_factor)"""
    shared_size: Width | None = None
    """total width of the shared experts"""
    shared_gate: bool = False
    """a sigmoid gate per token on the shared experts"""
    latent: Width | None = None
    """experts work at this width, reached from the stream by a projection"""
    groups: Experts = 1
    """experts stand in this many groups (nodes)"""
    top_groups: Experts = 1
    """and a token may choose from so many of them"""
    imbalance: Annotated[float, Field(ge=1, le=1e3)] | None = None
    """load of the fullest chip over the mean, 1 if balanced; left out, it follows from how many experts a chip has"""

    @model_validator(mode="after")
    def _consistent(self) -> Mixture:
        if self.top_k > self.experts:
            raise InputError("top_k", f"{self.top_k} exceeds {self.experts} experts", "choose at most all experts")
        if self.top_groups > self.groups:
            raise InputError(
                "top_groups", f"{self.top_groups} exceeds {self.groups} groups", "choose at most all groups"
            )
        if self.experts % self.groups:
            raise InputError("groups", f"{self.groups} does not divide {self.experts} experts", "it should divide them")
        for field in ("shared_gate", "shared_bias"):
            if getattr(self, field) and self.shared_size is None:
                raise InputError(field, "needs shared experts", "add shared_size")
        if self.correction_bias and self.trained_correction:
            raise InputError("trained_correction", "cannot be combined with correction_bias", "drop one of them")
        return self

    def build(self, builder: LayerBuilder, source: str, stream: str, settings: Settings) -> str:
        """Appends the operators; returns the output over the residual stream's dims."""
        del stream, settings
        routed = self.build_routed(builder, source, source)
        if self.shared_size is None:
            return routed
        builder.size("shared_ffn", self.shared_size)
        hidden = activated(builder, "shared", source, "shared_ffn", self.activation, bias=self.shared_bias)
        shared = project(builder, "shared.down", hidden, ("hidden",), over=("shared_ffn",), bias=self.shared_bias)
        if self.shared_gate:
            gate = project(builder, "shared.gate_logit", source, ())
            shared = builder.elementwise("shared.gated", "sigmoid_gate", gate, shared, dims=STREAM)
        return add(builder, "experts_and_shared", routed, shared)

    def build_routed(self, builder: LayerBuilder, source: str, router_source: str) -> str:
        """The routed experts alone."""
        builder.size("experts", self.experts)
        builder.size("expert_ffn", self.size)
        builder.size(TOP_K, self.top_k)
        builder.size(
            EXPERT_TOKENS,
            DerivedSize(("batch", "seq", TOP_K), ("experts",), imbalance=self.imbalance),
        )
        gates, choice = self._route(builder, router_source)
        width = "hidden"
        if self.latent is not None:
            width = builder.size("latent", self.latent)
            source = project(builder, "latent_down", source, (width,))
        tokens = dispatch(builder, "dispatch", source, choice, "experts")
        results = self._experts(builder, tokens, width)
        merged = combine(builder, "combine", results, gates, choice, (*STREAM[:2], width))
        if self.latent is None:
            return merged
        return project(builder, "latent_up", merged, ("hidden",), over=("latent",))

    def _route(self, builder: LayerBuilder, source: str) -> tuple[str, str]:
        if self.router_scale:
            source = normalise(builder, "router.norm", source, "plain_rms")
            scale = builder.weight("router.scale", ("hidden",))
            source = builder.elementwise("router.scaled", "multiply", source, scale)
        logits = project(builder, "router", source, ("experts",), bias=self.router_bias, weights=_FLOAT32)
        correction = None
        if self.correction_bias or self.trained_correction:
            declare = builder.weight if self.trained_correction else builder.constant
            correction = declare("router.correction", ("experts",))
        gates, choice = routing(
            builder, "gates", self.score, logits, "experts",
            bias=correction, renormalise=self.renormalise, groups=ExpertGroups(self.groups, self.top_groups),
        )  # fmt: skip
        if self.router_scale:
            rows = builder.weight("router.expert_scale", ("experts",))
            scales = builder.embedding("gates.scale", rows, choice, builder.tensors[gates].dims)
            gates = builder.elementwise("gates.scaled", "multiply", gates, scales)
        return gates, choice

    def _experts(self, builder: LayerBuilder, tokens: str, width: str) -> str:
        weights = ProjectionWeights(("experts",), Fraction(self.top_k, self.experts))

        def up(part: str) -> str:
            return project(
                builder, f"expert.{part}", tokens, ("expert_ffn",), over=(width,), bias=self.bias,
                fusion="expert_up", weights=weights,
            )  # fmt: skip

        hidden = activate(builder, "expert", self.activation, up)
        return project(builder, "expert.down", hidden, (width,), over=("expert_ffn",), bias=self.bias, weights=weights)


class DenseAndMixture(Spec):
    """A dense feed-forward and a mixture in parallel, each with norms of its own (Gemma 4)."""

    kind: Literal["dense_beside_mixture"]
    """names this feed-forward"""
    dense: Dense
    """sees the normalised stream"""
    mixture: Mixture
    """sees the stream itself under a norm of its own"""

    @model_validator(mode="after")
    def _consistent(self) -> DenseAndMixture:
        if self.mixture.shared_size is not None:
            raise InputError(
                "mixture.shared_size", "cannot be combined with dense", "drop it: dense already sees every token"
            )
        return self

    def build(self, builder: LayerBuilder, source: str, stream: str, settings: Settings) -> str:
        """Appends the operators; the mixture takes the residual stream itself, normalised anew."""
        dense = self.dense.build(builder, source, stream, settings)
        dense = normalise(builder, "dense_norm", dense, "rms")
        fresh = normalise(builder, "mixture_in_norm", stream, "rms")
        routed = self.mixture.build_routed(builder, fresh, stream)
        routed = normalise(builder, "mixture_norm", routed, "rms")
        return add(builder, "dense_and_mixture", dense, routed)


def activated(
    builder: LayerBuilder, prefix: str, source: str, width: str, activation: Activation, *, bias: bool
) -> str:
    """The first half of a dense feed-forward: up (and gate), then the nonlinearity."""

    def up(part: str) -> str:
        return project(builder, f"{prefix}.{part}", source, (width,), bias=bias, fusion=f"{prefix}.up")

    return activate(builder, prefix, activation, up)
