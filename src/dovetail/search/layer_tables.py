"""Layer tables: what every layer class takes under every split and microbatch, and under every recompute choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.cost.shapes import Array
from dovetail.evaluation.evaluate import is_block, units_of
from dovetail.evaluation.facts import FrameworkFacts, facts_of
from dovetail.evaluation.profiles import Arrangements, Pricing, pricing_of, profile_job
from dovetail.evaluation.times import layer_times
from dovetail.frameworks import Framework
from dovetail.graph import LayerGraph, ModelGraph
from dovetail.hardware import Cluster
from dovetail.layout.strategy import Strategy
from dovetail.models import Job
from dovetail.profile import LayerProfile, Recompute, recompute
from dovetail.profile.modules import MODULES
from dovetail.search.space import Choice
from dovetail.search.splits import Split

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


#: A recompute choice and the share of the blocks it holds for.
Option = tuple[Choice, float]


@dataclass(frozen=True, slots=True)
class Setting:
    """A job on a cluster under a framework, and what all its plans share."""

    job: Job
    cluster: Cluster
    framework: Framework
    graph: ModelGraph
    efficiencies: Efficiencies
    #: what the efficiencies rest on
    basis: str
    chip: ChipUnits
    #: with one stage, and with several
    alone: FrameworkFacts
    staged: FrameworkFacts

    @staticmethod
    def of(job: Job, cluster: Cluster, framework: Framework) -> Setting:
        """Everything looked up once."""
        known = calibration(cluster.chip, job.precision)
        alone, staged = (facts_of(framework, job, stages=stages) for stages in (1, 2))
        chip = units_of(job, cluster, alone, known.efficiencies)
        return Setting(job, cluster, framework, job.graph(), known.efficiencies, str(known), chip, alone, staged)

    @property
    def classes(self) -> tuple[str, ...]:
        """The layer classes, in the order tables have them: sorted, as memory goes through them."""
        return tuple(sorted(self.graph.layers))

    @property
    def capacity_bytes(self) -> float:
        """Memory of a chip."""
        return self.cluster.chip.hbm_bytes or self.cluster.chip.sram_bytes

    def facts(self, stages: int) -> FrameworkFacts:
        """The framework's figures for a pipeline of so many stages."""
        return self.alone if stages == 1 else self.staged

    def pricing(self, stages: int, zero_stage: int) -> Pricing:
        """What collectives cost where gradients are as wide as such plans reduce them."""
        facts = self.facts(stages)
        gradient = facts.sharded_reduction_bytes if zero_stage == 3 else facts.reduction_bytes
        return pricing_of(self.job, self.cluster, self.efficiencies, gradient, facts.gathered_weight_bytes)


@dataclass(frozen=True, slots=True)
class ChoiceTimes:
    """Layers under every recompute choice: arrays of cells × choices × classes."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    kept_bytes: Floats
    workspace_bytes: Floats

    def arrays(self) -> tuple[Floats, ...]:
        """The columns in order."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Work:
    """What one class adds to every microbatch under one state."""

    forward_s: Mapping[str, float]
    backward_s: Mapping[str, float]
    forward_kernels: int
    backward_kernels: int


class LayerTable:
    """The cells of one structure: splits along the same axes with their microbatches, profiled together."""

    def __init__(self, setting: Setting, splits: Sequence[Split], rows: Ints, micro_batches: Ints) -> None:
        self.setting = setting
        copies = [split.least_copies for split in splits]
        arranged = Arrangements.of([split.arranged for split in splits], copies).taken(rows, micro_batches)
        self.profiles = profile_job(
            arranged,
            setting.job,
            setting.chip,
            setting.pricing(1, 0),
            one_copy_per_node=setting.alone.one_copy_per_node,
        )
        self.cells = len(rows)

    def column(self, field: str) -> Floats:
        """A field of the profiles: cells × classes."""
        return np.stack([self._wide(getattr(p, field)) for p in self._layers], axis=1)

    def tied(self, weights: Sequence[str], field: str) -> Floats:
        """Parameters of weights that several classes share: cells × classes × weights."""
        rows = [
            [getattr(p.tied_parameters[w], field) if w in p.tied_parameters else np.zeros(()) for w in weights]
            for p in self._layers
        ]
        flat = [np.stack([self._wide(value) for value in row], axis=1) for row in rows if weights]
        return np.stack(flat, axis=1) if flat else np.zeros((self.cells, len(self._layers), 0))

    @property
    def _layers(self) -> list[LayerProfile]:
        return [self.profiles.layers[name] for name in self.setting.classes]

    def recomputes(self, choice: Choice) -> dict[str, Recompute]:
        """What each class keeps under a choice; embedding and head compute nothing again."""
        graph, facts = self.setting.graph, self.setting.alone
        found: dict[str, Recompute] = {}
        for name, layer in graph.layers.items():
            profile = self.profiles.layers[name]
            if is_block(layer):
                key = (name, _effect(layer, choice))
                if key not in self._cache:
                    self._cache[key] = recompute(
                        layer, profile, key[1], facts.operand_share, stops_early=facts.stops_early
                    )
                found[name] = self._cache[key]
            else:
                found[name] = recompute(layer, profile, "none")
        return found

    @cached_property
    def _cache(self) -> dict[tuple[str, Choice], Recompute]:
        return {}

    def choice_times(self, options: Sequence[Option]) -> ChoiceTimes:
        """Seconds and bytes under every choice and the share of blocks it holds for."""
        every = [self._option(choice, share) for choice, share in options]
        return ChoiceTimes(*(np.stack([part[i] for part in every], axis=1) for i in range(5)))

    def _option(self, choice: Choice, share: float) -> list[Floats]:
        kept, none = self.recomputes(choice), self.recomputes("none")
        overlaps, host_s = self.setting.alone.overlaps, self.setting.alone.overheads.host_s
        graph = self.setting.graph
        columns: list[list[Floats]] = []
        for name, profile in zip(self.setting.classes, self._layers, strict=True):
            again = kept[name].mixed(none[name], share) if is_block(graph.layers[name]) else kept[name]
            times = layer_times(profile, again, overlaps, host_s)
            parts = (times.forward_s, times.input_gradient_s, times.weight_gradient_s)
            columns.append([self._wide(part) for part in (*parts, again.saved_bytes, again.workspace_bytes)])
        return [np.stack([column[i] for column in columns], axis=1) for i in range(5)]

    def sharded_option(
        self, choice: Choice, share: float, row: int, work: Mapping[str, Work], stages: int
    ) -> list[Floats]:
        """The same of one cell where its state gathers weights or reduces gradients with every microbatch."""
        facts, graph = self.setting.facts(stages), self.setting.graph
        kept, none = self.recomputes(choice), self.recomputes("none")
        columns: list[list[float]] = []
        for name, profile in zip(self.setting.classes, self._layers, strict=True):
            again = kept[name].mixed(none[name], share) if is_block(graph.layers[name]) else kept[name]
            cell, again = _cell_of(profile, row, self.cells, work[name]), _recompute_of(again, row, self.cells)
            if choice == "full" and not facts.stops_early and is_block(graph.layers[name]):
                # a forward that runs again as a whole launches what gathers its weights too
                again = replace(again, added_kernels=again.added_kernels + share * work[name].forward_kernels)
            times = layer_times(cell, again, facts.overlaps, facts.overheads.host_s)
            parts = (times.forward_s, times.input_gradient_s, times.weight_gradient_s)
            columns.append([float(part) for part in (*parts, again.saved_bytes, again.workspace_bytes)])
        return [np.array(part) for part in zip(*columns, strict=True)]

    def _wide(self, values: Array | float) -> Floats:
        return np.broadcast_to(np.asarray(values, np.float64), (self.cells,))


def _effect(layer: LayerGraph, choice: Choice) -> Choice:
    """A choice as one layer sees it: modules it lacks do nothing."""
    if isinstance(choice, str):
        return choice
    held = tuple(name for name in choice if name not in MODULES or any(MODULES[name].operators(layer)))
    return held or "none"


def by_structure(splits: Sequence[Split]) -> Mapping[Strategy, list[int]]:
    """Numbers of the splits along the same axes."""
    groups: dict[Strategy, list[int]] = {}
    for number, split in enumerate(splits):
        groups.setdefault(split.arranged.strategy, []).append(number)
    return groups


def _at(values: Array | float, row: int, cells: int) -> Array:
    return np.broadcast_to(np.asarray(values, np.float64), (cells,))[row]


def _cell_of(profile: LayerProfile, row: int, cells: int, work: Work) -> LayerProfile:
    """What `layer_times` reads of one cell's profile, with what the state adds to every microbatch."""

    def joined(own: Mapping[str, Array], more: Mapping[str, float]) -> dict[str, Array]:
        sums = {name: _at(seconds, row, cells) for name, seconds in own.items()}
        for name, seconds in more.items():
            sums[name] = sums.get(name, np.zeros(())) + seconds
        return sums

    return replace(
        profile,
        forward_s=_at(profile.forward_s, row, cells),
        input_gradient_s=_at(profile.input_gradient_s, row, cells),
        weight_gradient_s=_at(profile.weight_gradient_s, row, cells),
        forward_kernels=_at(profile.forward_kernels, row, cells) + work.forward_kernels,
        backward_kernels=_at(profile.backward_kernels, row, cells) + work.backward_kernels,
        forward_collective_s=joined(profile.forward_collective_s, work.forward_s),
        backward_collective_s=joined(profile.backward_collective_s, work.backward_s),
    )


def _recompute_of(again: Recompute, row: int, cells: int) -> Recompute:
    return Recompute(
        saved_bytes=_at(again.saved_bytes, row, cells),
        added_s=_at(again.added_s, row, cells),
        workspace_bytes=_at(again.workspace_bytes, row, cells),
        added_kernels=_at(again.added_kernels, row, cells),
        added_collective_s={name: _at(s, row, cells) for name, s in again.added_collective_s.items()},
    )
