"""Everything but the layout that the costs of a layer depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from dovetail.cost.operators import ChipUnits
from dovetail.errors import InputError
from dovetail.frameworks import ParameterBytes
from dovetail.frozen import frozen
from dovetail.graph import HALF_PRECISION, LayerGraph
from dovetail.graph.size import Sizes
from dovetail.graph.tensor import Element
from dovetail.layout import Collective, CollectivePhase
from dovetail.profile.layer import CollectivePrice
from dovetail.step.profiles import purpose_of

#: The exposed share of a collective, which computation does not hide, by kind of group and phase.
Exposure = Callable[[str, CollectivePhase], float]


@frozen
class LayerSetting:
    """Everything but the layout that the costs of a layer depend on."""

    graph: LayerGraph
    sizes: Sizes
    chip: ChipUnits
    #: seconds of a collective on the tile
    price: CollectivePrice
    exposure: Exposure
    parameter_bytes: ParameterBytes
    zero_stage: int = 0
    #: the share of a once-per-step collective that counts for a micro-batch, on top of its exposure
    step_weight: float = 0.0
    widths: Mapping[Element, int] = field(default_factory=lambda: HALF_PRECISION)
    #: bytes per parameter of weights while their layer is at work, counted with its state: to choose layouts whose
    #: weights fit where a store has the state; a bound leaves them out
    working_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.zero_stage not in (0, 1, 3):
            raise InputError("zero_stage", f"is {self.zero_stage}", "free layouts support 0, 1 or 3")


def group_of(collective: Collective) -> str:
    """The kind of group a free layout's collective belongs to: between operators it is tensor-parallel."""
    return purpose_of(collective) or "tensor-parallel"
