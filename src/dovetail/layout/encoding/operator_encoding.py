"""One operator in full: its strings, those of its gradients, what becomes of its output, where its weights live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TypeAlias

from dovetail.frozen import frozen
from dovetail.graph import Phase
from dovetail.layout.encoding.factor import MeshAxis, Strings


class Activation(StrEnum):
    """What becomes of an operator's output between forward and backward."""

    STASH = "stash"
    RECOMPUTE = "recompute"
    HELPER = "helper"
    OFF_WAFER = "off_wafer"


class StateStore(StrEnum):
    """Where a state lives; `streamed`: outside the wafer, sent in whenever it is used."""

    SRAM = "sram"
    HBM = "hbm"
    STREAMED = "streamed"


#: A factor of the operator's own strings: the axis and the position, from 0.
FactorPosition: TypeAlias = "tuple[MeshAxis, int]"


@frozen
class Home:
    """Where weights, gradients or optimizer state live, and the factors along which each die stores only its shard."""

    store: StateStore = StateStore.SRAM
    #: factors along which the weight is the same on every die: ZeRO's groups
    sharded: tuple[FactorPosition, ...] = ()


@frozen
class OperatorEncoding:
    """How one operator of a layer class runs on a tile."""

    forward: Strings
    #: where the gradients run otherwise than the forward
    input_gradient: Strings | None = None
    weight_gradient: Strings | None = None
    activation: Activation = Activation.STASH
    weights: Home = Home()
    gradients: Home = Home()
    optimizer: Home = Home()

    def strings(self, phase: Phase) -> Strings:
        """The strings of a phase."""
        override = {Phase.INPUT_GRADIENT: self.input_gradient, Phase.WEIGHT_GRADIENT: self.weight_gradient}.get(phase)
        return self.forward if override is None else override

    @property
    def homes(self) -> Mapping[str, Home]:
        """The homes by what lives there."""
        return {"weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer}

    def transposed(self) -> OperatorEncoding:
        """The same on the tile mirrored along its diagonal."""
        return replace(
            self,
            forward=self.forward.transposed(),
            input_gradient=None if self.input_gradient is None else self.input_gradient.transposed(),
            weight_gradient=None if self.weight_gradient is None else self.weight_gradient.transposed(),
            **{name: _transposed(home) for name, home in self.homes.items()},
        )


def _transposed(home: Home) -> Home:
    return replace(home, sharded=tuple(sorted((axis.other, position) for axis, position in home.sharded)))
