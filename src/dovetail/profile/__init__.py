"""One layer class under one layout on one chip: times, saved bytes, collectives, recompute choices."""

from dovetail.profile.layer import (
    WEIGHT_GATHER,
    CollectivePrice,
    Extent,
    LayerPrices,
    LayerProfile,
    TiedParameters,
    layer_works,
    profile_layer,
)
from dovetail.profile.layer_sizes import LayerSizes, sizes_of_layers
from dovetail.profile.recompute import CHOICES, Recompute, RecomputeMenu, recompute
from dovetail.profile.saving import Saving

__all__ = [
    "CHOICES",
    "WEIGHT_GATHER",
    "CollectivePrice",
    "Extent",
    "LayerPrices",
    "LayerProfile",
    "LayerSizes",
    "Recompute",
    "RecomputeMenu",
    "Saving",
    "TiedParameters",
    "layer_works",
    "profile_layer",
    "recompute",
    "sizes_of_layers",
]
