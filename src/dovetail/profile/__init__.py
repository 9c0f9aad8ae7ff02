"""One layer class under one layout on one chip: times, saved bytes, collectives, recompute choices."""

from dovetail.profile.layer import WEIGHT_GATHER, CollectivePrice, LayerProfile, TiedParameters, profile_layer
from dovetail.profile.layer_sizes import LayerSizes
from dovetail.profile.recompute import CHOICES, Recompute, recompute

__all__ = [
    "CHOICES",
    "WEIGHT_GATHER",
    "CollectivePrice",
    "LayerProfile",
    "LayerSizes",
    "Recompute",
    "TiedParameters",
    "profile_layer",
    "recompute",
]
