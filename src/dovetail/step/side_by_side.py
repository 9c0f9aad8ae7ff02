"""Layer tables of the same plans on clusters that differ in their rates alone: profiled in one call.

A call costs mostly what it costs for one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.cost.cores import lined_up
from dovetail.cost.tier import TierArrays
from dovetail.cost.units import way_arrays
from dovetail.frozen import frozen
from dovetail.plans.arrange import Arrangement
from dovetail.plans.space import Choice
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.profile import Extent
from dovetail.step.layer_tables import LayerTable, Setting
from dovetail.step.profiles import Pricing


def layer_tables(
    settings: Sequence[Setting],
    degrees: Sequence[StageDegrees],
    rows: Ints,
    micro_batches: Ints,
    experts_overlap: Bools,
    extent: Extent = "micro-batch",
    along: Arrangement | None = None,
) -> list[LayerTable]:
    """The table of every setting (`LayerTable`)."""
    if len(settings) == 1:
        return [LayerTable(settings[0], degrees, rows, micro_batches, experts_overlap, extent, along)]
    times, count = len(settings), len(rows)
    together = _together(settings, np.repeat(np.arange(times), count))
    tiled = np.tile(rows, times), np.tile(micro_batches, times), np.tile(experts_overlap, times)
    whole = LayerTable(together, degrees, *tiled, extent, along)
    return [_Part(whole, each, slice(n * count, (n + 1) * count)) for n, each in enumerate(settings)]


@frozen
class _Together(Setting):
    """Several settings, one for each row of a table."""

    ways: tuple[TierArrays, ...] = ()

    def pricing(self, stages: int, zero_stage: int) -> Pricing:
        return replace(Setting.pricing(self, stages, zero_stage), ways=self.ways)


def _together(settings: Sequence[Setting], rows: Ints) -> _Together:
    first: dict[str, Any] = {field.name: getattr(settings[0], field.name) for field in fields(Setting)}
    first["chip"] = lined_up([each.chip for each in settings], rows)
    networks = [way_arrays(each.cluster, each.efficiencies) for each in settings]
    ways: list[TierArrays] = []
    for of_way in zip(*networks, strict=True):
        rates = np.array([float(way.bytes_per_s) for way in of_way])
        assert all(replace(way, bytes_per_s=of_way[0].bytes_per_s) == of_way[0] for way in of_way), "rates differ alone"
        ways.append(replace(of_way[0], bytes_per_s=rates[rows]))
    return _Together(**first, ways=tuple(ways))


class _Part(LayerTable):
    """The rows of one setting in a table of several."""

    def __init__(self, whole: LayerTable, setting: Setting, part: slice) -> None:
        self.setting = setting
        self._whole, self._part = whole, part
        self._switches = whole._switches
        self._tensor_overlaps = whole._tensor_overlaps[part]
        self._experts_overlap = whole._experts_overlap[part]
        self._hidden = {}
        self.num_profiles = part.stop - part.start

    def column(self, field: str) -> Floats:
        return self._whole.column(field)[self._part]

    def tied(self, weights: Sequence[str], field: str) -> Floats:
        return self._whole.tied(weights, field)[self._part]

    @cached_property
    def work(self) -> Floats:
        return self._whole.work[:, self._part]

    def recompute(self, choice: Choice, *, sharded: bool = False) -> Floats:
        return self._whole.recompute(choice, sharded=sharded)[:, self._part]
