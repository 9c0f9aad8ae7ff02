"""Seconds of every collective of a layer on a tile, by the axes that take part and the axes that shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dovetail.arrays import Floats
from dovetail.graph import Tensor
from dovetail.layout import Collective, CollectiveKind, CollectivePhase
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.profile.layer import CollectivePrice

#: The kinds of conversions, in the order of `conversion_kernels`.
KINDS = (
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
)


class TilePrices:
    """Seconds of collectives along every set of axes; `prepare` prices many sizes at once."""

    def __init__(self, price: CollectivePrice, tile: LayerTile) -> None:
        self._price = price
        self._tile = tile
        sets = range(1 << len(tile.names))
        self._names = [tuple(a for i, a in enumerate(tile.names) if mask >> i & 1) for mask in sets]
        #: by set of axes, how many dies they join
        self.parts = np.array([np.prod([tile.sizes[a] for a in names]) for names in self._names], np.float64)
        self._seconds: dict[tuple[CollectiveKind, str, float], Floats] = {}

    def prepare(self, sizes: Iterable[float], user: str = "", kinds: Iterable[CollectiveKind] = KINDS) -> None:
        """Prices tensors of these bytes."""
        for kind in kinds:
            missing = sorted({size for size in sizes if (kind, user, size) not in self._seconds})
            if not missing:
                continue
            local = np.array(missing)[:, None] / self.parts
            seconds = np.zeros((len(self._names), *local.shape))
            for mask, axes in enumerate(self._names[1:], 1):
                collective = Collective(kind, axes, Tensor("", ()), (), user, CollectivePhase.FORWARD)
                seconds[mask] = self._price.seconds([collective], [local.reshape(-1)])[0].reshape(local.shape)
            for position, size in enumerate(missing):
                self._seconds[kind, user, size] = seconds[:, position]

    def of(self, kind: CollectiveKind, size: float, user: str = "") -> Floats:
        """Seconds by axes that take part and axes that shard a tensor of this size."""
        if (kind, user, size) not in self._seconds:
            self.prepare([size], user, [kind])
        return self._seconds[kind, user, size]

    def of_conversions(self, size: float, shares: Mapping[CollectiveKind, float], user: str = "") -> Floats:
        """The same for all kinds of conversions, each times the share that counts."""
        return np.stack([self.of(kind, size, user) * shares[kind] for kind in KINDS])
