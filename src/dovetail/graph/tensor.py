"""Tensors: a name, the dims that index it, what it is for, and how wide an element is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType

from dovetail.graph.size import Size, Sizes, product, times


class Role(StrEnum):
    """What a tensor is for; decides whether it has a gradient, optimizer state and a home layout."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    GRADIENT = "gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    OPTIMIZER_STATE = "optimizer_state"
    STATISTIC = "statistic"
    MASK = "mask"
    INDEX = "index"
    CONSTANT = "constant"
    LOSS = "loss"


class Element(StrEnum):
    """How wide an element is: `compute` is the job's precision, the others are fixed."""

    COMPUTE = "compute"
    FLOAT32 = "float32"
    BYTE = "byte"
    INT64 = "int64"


#: Bytes per element of a bf16 or fp16 job.
HALF_PRECISION: Mapping[Element, int] = MappingProxyType(
    {Element.COMPUTE: 2, Element.FLOAT32: 4, Element.BYTE: 1, Element.INT64: 8}
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array over named dims."""

    name: str
    dims: tuple[str, ...]
    role: Role = Role.ACTIVATION
    element: Element = Element.COMPUTE
    #: weights of the same non-empty name are one weight, wherever in the model they stand
    tied: str = ""
    #: the part of a weight one token uses: top_k / experts for a routed expert, else 1
    active_share: Fraction = Fraction(1)

    def points(self, sizes: Sizes) -> Size:
        """How many elements it has."""
        return product(sizes, self.dims)

    def bytes(self, sizes: Sizes, widths: Mapping[Element, int] = HALF_PRECISION) -> Size:
        """How many bytes it takes."""
        return times(self.points(sizes), widths[self.element])
