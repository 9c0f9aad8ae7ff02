"""Mesh axes, how tensors sit on them, what a change of layout costs; strategies."""

from dovetail.layout.collective import Collective, CollectivePhase
from dovetail.layout.convert import CollectiveKind, convert
from dovetail.layout.derive import PlacedLayer, PlacedOperator, PlacedWeight, place_layer
from dovetail.layout.layout import FLAT, PARTIAL, REPLICATED, Layout, local_bytes
from dovetail.layout.mesh import Mesh, degree
from dovetail.layout.strategy import STRATEGIES, Strategy
from dovetail.layout.version import TensorVersion

__all__ = [
    "FLAT",
    "PARTIAL",
    "REPLICATED",
    "STRATEGIES",
    "Collective",
    "CollectiveKind",
    "CollectivePhase",
    "Layout",
    "Mesh",
    "PlacedLayer",
    "PlacedOperator",
    "PlacedWeight",
    "Strategy",
    "TensorVersion",
    "convert",
    "degree",
    "local_bytes",
    "place_layer",
]
