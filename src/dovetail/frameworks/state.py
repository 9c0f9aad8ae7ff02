"""Bytes a framework stores per parameter, and what it needs besides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frameworks.parameter_bytes import ParameterBytes
from dovetail.frozen import frozen
from dovetail.graph import OPTIMIZERS
from dovetail.units import parse

Status = Literal["read", "measured", "fitted", "assumed"]


@frozen
class StateBytes:
    """Bytes per parameter before sharding, for one precision."""

    weights: float
    """as the layers use them"""
    gradients: float
    """as they are accumulated over microbatches"""
    master: float
    """a float32 copy of the weights for the optimizer; 0 where the weights are float32 themselves"""
    moment: float
    """one state of the optimizer: Adam has two"""
    gradient_copy: float = 0.0
    """gradients once more in float32 for the optimizer"""
    sharded_reduction: float = 0.0
    """gradients of sharded weights, as they are reduced; 0: as they are accumulated"""
    casts: float = 0.0
    """copies of the weights for a narrower matrix product"""
    cast_on_gather: bool = False
    """with sharded weights only the master is kept: what is gathered is cast from it"""
    pipeline_gradients: float | None = None
    """accumulated gradients where there is a pipeline, if that differs"""
    step_copy: float = 0.0
    """what the optimizer makes of the gradients it owns, there for the update only"""
    layer_gradients: float = 0.0
    """per parameter of the layer at work: its weight gradients before they join the accumulated ones"""
    reduce_buffer: float = 0.0
    """per parameter of a layer, where weights or gradients are sharded: what its reduction sends, until the next one"""
    operands: float = 0.0
    """per element of a matrix product's input that is saved for the backward; 0: as wide as it was written"""

    def on_chips(self, elsewhere: Collection[str]) -> StateBytes:
        """What chips store where a host, or a store off a wafer, has the optimizer's state, gradients or weights too.

        Weights then arrive for the layer at work and its gradients leave: chips hold what ZeRO-3 gathers of them.
        """
        if "optimizer" not in elsewhere:
            return self
        kept = replace(self, master=0.0, moment=0.0, gradient_copy=0.0, step_copy=0.0, cast_on_gather=False)
        if not {"gradients", "weights"} & set(elsewhere):
            return kept
        return replace(
            kept,
            gradients=0.0,
            pipeline_gradients=None,
            cast_on_gather="weights" in elsewhere,
            sharded_reduction=self.gradients,
            layer_gradients=max(self.layer_gradients, self.gradients),
        )

    def parameter_bytes(self, optimizer: str, *, staged: bool = False) -> ParameterBytes:
        """What chips store per parameter, of what every chip uses and of what is sharded; `staged` in a pipeline."""
        gradients = self.pipeline_gradients if staged and self.pipeline_gradients is not None else self.gradients
        rule = OPTIMIZERS[optimizer]
        states, others = len(rule.states), len(OPTIMIZERS[rule.others or optimizer].states)
        each = min(self.moment, rule.state_bytes)
        return ParameterBytes(
            weight=self.weights + self.casts,
            sharded_weight=0.0 if self.cast_on_gather else self.weights,
            gradient=gradients,
            optimizer=self.master + self.gradient_copy + each * states,
            step_copy=self.step_copy,
            layer_gradient=self.layer_gradients,
            sharded_gradient=self.layer_gradients,
            reduce_buffer=self.reduce_buffer,
            vector_state=each * (others - states),
        )


class StateBytesSpec(Spec):
    """The bytes per parameter of one precision as a file has them."""

    weights: Annotated[float, Field(ge=0, le=64)]
    gradients: Annotated[float, Field(ge=0, le=64)]
    master: Annotated[float, Field(ge=0, le=64)]
    moment: Annotated[float, Field(ge=0, le=64)]
    gradient_copy: Annotated[float, Field(ge=0, le=64)] = 0.0
    sharded_reduction: Annotated[float, Field(ge=0, le=64)] = 0.0
    casts: Annotated[float, Field(ge=0, le=64)] = 0.0
    cast_on_gather: bool = False
    pipeline_gradients: Annotated[float, Field(ge=0, le=64)] | None = None
    step_copy: Annotated[float, Field(ge=0, le=64)] = 0.0
    layer_gradients: Annotated[float, Field(ge=0, le=64)] = 0.0
    reduce_buffer: Annotated[float, Field(ge=0, le=64)] = 0.0
    operands: Annotated[float, Field(ge=0, le=8)] = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> StateBytesSpec:
        if self.cast_on_gather and self.master == 0:
            raise InputError("master", "is 0, but cast_on_gather stores only the master copy", "give its bytes")
        return self

    def state_bytes(self) -> StateBytes:
        """The same for use."""
        return StateBytes(**dict(self))


@frozen
class Allowance:
    """A figure that is not derived: its value, the ends it may lie between, and who says so."""

    value: float
    low: float
    high: float
    status: Status
    source: str


class AllowanceSpec(Spec):
    """An allowance as a file has it."""

    value: Annotated[float, Field(ge=0, le=1e12)]
    low: Annotated[float, Field(ge=0, le=1e12)]
    high: Annotated[float, Field(ge=0, le=1e12)]
    status: Status
    source: Annotated[str, Field(min_length=1, max_length=2000)]

    @model_validator(mode="after")
    def _ordered(self) -> AllowanceSpec:
        if not self.low <= self.value <= self.high:
            fix = f"it should lie between low, {self.low:g}, and high, {self.high:g}"
            raise InputError("value", f"is {self.value:g}", fix)
        return self

    def allowance(self) -> Allowance:
        """The same for use."""
        return Allowance(**dict(self))


def _read_bytes(value: object) -> float:
    return parse(value, "bytes", "")


_Bytes = Annotated[
    float,
    Field(ge=0, le=1e12),
    BeforeValidator(_read_bytes),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]


class BytesAllowanceSpec(AllowanceSpec):
    """An allowance in bytes."""

    value: _Bytes
    low: _Bytes
    high: _Bytes
