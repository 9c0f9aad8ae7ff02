"""Tensors: a name, the dims that index it, what it is for, and how wide an element is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType

from dovetail.frozen import frozen
from dovetail.graph.size import Size, Sizes, divided, product, times


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
    #: 4-bit NormalFloat of frozen weights, two in a byte
    NF4 = "nf4"


#: Bytes per element of a bf16 or fp16 job; per two of NF4.
HALF_PRECISION: Mapping[Element, int] = MappingProxyType(
    {Element.COMPUTE: 2, Element.FLOAT32: 4, Element.BYTE: 1, Element.INT64: 8, Element.NF4: 1}
)

#: Bytes per NF4 element of its scales: one of 8 bits for 64 elements, one of float32 for 256 of these (Dettmers et al.
#: 2023, section 3, double quantization).
NF4_SCALE_BYTES = (1 + 4 / 256) / 64


@frozen
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
    #: a weight that is not trained: it has neither gradient nor optimizer state
    frozen: bool = False

    def points(self, sizes: Sizes) -> Size:
        """How many elements it has."""
        return product(sizes, self.dims)

    def bytes(self, sizes: Sizes, widths: Mapping[Element, int] = HALF_PRECISION) -> Size:
        """How many bytes it takes."""
        size = times(self.points(sizes), widths[self.element])
        return divided(size, 2) if self.element is Element.NF4 else size
