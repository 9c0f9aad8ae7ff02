"""The layouts of a tensor under all options, numbered, and the conversions between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.arrays import Array, Floats, Ints
from dovetail.graph import Tensor
from dovetail.graph.size import as_array
from dovetail.layout import Collective, CollectiveKind, CollectivePhase
from dovetail.mapping.layouts.conversion_kernels import OPEN, WHOLE
from dovetail.mapping.layouts.prices import KINDS, TilePrices
from dovetail.mapping.layouts.scoped import Scoped
from dovetail.mapping.layouts.setting import LayerSetting, group_of
from dovetail.mapping.layouts.shards import LayerShards
from dovetail.mapping.layouts.versions import Conversions


class TensorLayouts:
    """Bytes of a layer's tensors and prices of their conversions on a tile."""

    def __init__(self, setting: LayerSetting, shards: LayerShards) -> None:
        self.setting = setting
        self.shards = shards
        self.prices = TilePrices(setting.price, shards.tile)
        self._base = 1 + max(shards.code.values())

    def bytes(self, tensor: Tensor) -> float:
        """Bytes of a whole tensor."""
        return float(as_array(tensor.bytes(self.setting.sizes, self.setting.widths)))

    def share(self, kind: CollectiveKind, tensor: Tensor, user: str, phase: CollectivePhase) -> float:
        """The share of a collective's seconds that counts."""
        counted = self.setting.exposure(group_of(Collective(kind, (), tensor, (), user, phase)), phase)
        return counted * self.setting.step_weight if phase is CollectivePhase.STEP else counted

    def parts(self, layouts: Ints) -> Floats:
        """The number of shards of each layout."""
        return self.prices.parts[as_bits((layouts != WHOLE) & (layouts != OPEN))]

    def conversions(
        self, tensor: Tensor, layouts: Iterable[Scoped], phases: Sequence[CollectivePhase], user: str = ""
    ) -> tuple[list[Scoped], Conversions]:
        """Layouts by number, and their conversions priced at some phases."""
        powers: Ints = self._base ** np.arange(len(self.shards.tile.names), dtype=np.int64)
        layouts = list(layouts)
        numbers: list[Ints] = [np.asarray((each.values * powers).sum(axis=-1)) for each in layouts]
        distinct, places = np.unique(np.concatenate([n.reshape(-1) for n in numbers]), return_inverse=True)
        ends = np.cumsum([n.size for n in numbers])[:-1]
        indexed = [
            Scoped(each.scope, part.reshape(n.shape))
            for each, part, n in zip(layouts, np.split(places.reshape(-1), ends), numbers, strict=True)
        ]
        size, whose = self.bytes(tensor), user if user in ("gradient", "updated") else ""
        prices = [
            self.prices.of_conversions(size, {k: self.share(k, tensor, user, phase) for k in KINDS}, whose)
            for phase in phases
        ]
        return indexed, Conversions(distinct[:, None] // powers % self._base, np.stack(prices))


def as_bits(axes: Array) -> Ints:
    """Sets of axes (the last dimension) as numbers."""
    powers: Ints = 1 << np.arange(axes.shape[-1], dtype=np.int64)
    return np.asarray((axes * powers).sum(axis=-1), np.int64)
