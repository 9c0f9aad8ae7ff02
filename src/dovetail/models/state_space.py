"""State-space mixers: Mamba-2 as Nemotron-H, Bamba and Granite hybrids use it."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.graph import DerivedSize, LayerBuilder
from dovetail.graph.scan import CHUNK, convolution, state_space
from dovetail.models.assembly import Settings, normalise, project
from dovetail.models.limits import Heads, Small, Width

INNER = ("state_groups", "state_heads", "channel")
STATE = ("state_groups", "state")


class StateSpace(Spec):
    """Mamba-2 (Dao & Gu 2024): heads of `head_dim` channels with a state of `state` numbers per channel."""

    kind: Literal["state_space"]
    """names this mixer"""
    heads: Heads
    """heads of the scan"""
    head_dim: Width
    """channels of a head"""
    state: Width
    """numbers kept per channel"""
    groups: Heads = 1
    """heads of one group share B and C"""
    conv_kernel: Small = 4
    """tokens the short convolution sees"""
    conv_bias: bool = True
    """on the short convolution"""
    bias: bool = False
    """on the projections from and to the stream"""
    chunk: Small = 256
    """tokens the scan works on at once"""

    @model_validator(mode="after")
    def _consistent(self) -> StateSpace:
        if self.heads % self.groups:
            raise InputError("groups", f"{self.groups} does not divide {self.heads} heads", "it should divide heads")
        return self

    def build(self, builder: LayerBuilder, source: str, settings: Settings) -> str:
        """Appends the mixer's operators; returns its output over the residual stream's dims."""
        del settings
        builder.size("state_groups", self.groups)
        builder.size("state_heads", self.heads // self.groups)
        builder.size("channel", self.head_dim)
        builder.size("state", self.state)
        builder.size("conv_kernel", self.conv_kernel)
        builder.size(CHUNK, DerivedSize(("seq",), at_most=self.chunk))
        heads = INNER[:-1]
        gate = project(builder, "gate", source, INNER, bias=self.bias, fusion="in")
        x = self._convolved(builder, "x", project(builder, "x_in", source, INNER, bias=self.bias, fusion="in"))
        b = self._convolved(builder, "b", project(builder, "b_in", source, STATE, bias=self.bias, fusion="in"))
        c = self._convolved(builder, "c", project(builder, "c_in", source, STATE, bias=self.bias, fusion="in"))
        step = project(builder, "step_in", source, heads, bias=self.bias, fusion="in")
        step = builder.elementwise("step_biased", "add", step, builder.weight("step_bias", heads))
        step = builder.elementwise("step", "softplus", step)
        rate, skip = builder.weight("rate", heads), builder.weight("skip", heads)
        mixed = state_space(builder, "scan", (x, step, rate, b, c, skip))
        gated = builder.elementwise("gated", "swiglu", gate, mixed)
        gated = normalise(builder, "scan_norm", gated, "rms", INNER[1:], weighted=INNER)
        return project(builder, "output", gated, ("hidden",), over=INNER, bias=self.bias)

    def _convolved(self, builder: LayerBuilder, name: str, source: str) -> str:
        channels = builder.tensors[source].dims[2:]
        weight = builder.weight(f"{name}_conv.weight", (*channels, "conv_kernel"))
        mixed = convolution(builder, f"{name}_conv", source, weight, "conv_kernel")
        if self.conv_bias:
            mixed = builder.elementwise(
                f"{name}_conv.biased", "add", mixed, builder.weight(f"{name}_conv.bias", channels)
            )
        return builder.elementwise(f"{name}_silu", "silu", mixed)
