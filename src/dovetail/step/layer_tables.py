"""Layer tables: every layer class under all stage degrees, micro-batch sizes and recompute policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.graph import ModelGraph
from dovetail.hardware import Chip, Cluster
from dovetail.layout.strategy import Strategy
from dovetail.models import Job
from dovetail.plans.arrange import Arrangement
from dovetail.plans.overlaps import OverlapSwitches, Switch, overlaps_of, recompute_allows
from dovetail.plans.plan import Plan
from dovetail.plans.space import BY_BLOCK, Choice, Space
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.profile import Extent, LayerProfile, RecomputeMenu
from dovetail.profile.modules import MODULES
from dovetail.step.arrangements import Arrangements
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import is_block, units_of
from dovetail.step.facts import FrameworkFacts, facts_of
from dovetail.step.layer_rows import recompute_array, recomputed, shaped_overlaps, timed, work_array
from dovetail.step.offload import with_host
from dovetail.step.plan_columns import LayerColumns
from dovetail.step.profiles import Pricing, pricing_of, profile_job
from dovetail.step.times import Overlaps

#: Numbers of a column that are timed together: few enough for the caches of a core.
TIMED_TOGETHER = 2**16
#: Where what profiles have alike stands beside their classes, or beside policies.
_A_CLASS = np.s_[:, None]

#: What blocks recompute, and the share of the blocks it holds for.
RecomputePolicy = tuple[Choice, float]


@frozen
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
    #: whether these are figures that no simulated step falls below
    at_least: bool = False
    #: bytes of a chip that plans may take; None: as `memory_limit` has it
    memory_limit_bytes: float | None = None
    #: whether activations take no time to the host: then no policy is faster than to recompute nothing
    hides_offload: bool = False

    @staticmethod
    def of(
        job: Job,
        cluster: Cluster,
        framework: Framework,
        *,
        at_least: bool = False,
        memory_limit_bytes: float | None = None,
        offload: tuple[str, ...] = (),
        hides_offload: bool = False,
    ) -> Setting:
        """Everything looked up once; `at_least`, what no simulated step falls below (L1⁻) instead of the model's.

        `hides_offload` makes lower bounds for blocks with policies of their own.
        """
        calibrated = calibration(cluster.chip, job.precision)
        alone, staged = (_facts(framework, job, cluster, stages, offload, at_least=at_least) for stages in (1, 2))
        chip = units_of(job, cluster, alone, calibrated.efficiencies)
        graph, basis = job.graph(), str(calibrated)
        known = (graph, calibrated.efficiencies, basis, chip, alone, staged)
        return Setting(job, cluster, framework, *known, at_least, memory_limit_bytes, hides_offload)

    @staticmethod
    def of_space(
        job: Job,
        cluster: Cluster,
        framework: Framework,
        space: Space,
        *,
        at_least: bool = False,
        memory_limit_bytes: float | None = None,
    ) -> Setting:
        """The same for the plans of a resolved space, which all offload the same."""
        offload, by_block = space.offload[0], BY_BLOCK in space.recompute
        return Setting.of(
            job,
            cluster,
            framework,
            at_least=at_least,
            memory_limit_bytes=memory_limit_bytes,
            offload=offload,
            hides_offload=by_block,
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The layer classes, in the order tables have them: sorted, as memory goes through them."""
        return tuple(sorted(self.graph.layers))

    @property
    def capacity_bytes(self) -> float:
        """Memory of a chip that plans may take."""
        return self.capacity_of(self.cluster.chip)

    def capacity_of(self, chip: Chip) -> float:
        """The same of another chip."""
        return memory_limit(chip, self.framework, self.memory_limit_bytes)

    def facts(self, stages: int) -> FrameworkFacts:
        """The framework's figures for a pipeline of so many stages."""
        return self.alone if stages == 1 else self.staged

    def switches(self, plan: Plan, stages: int) -> OverlapSwitches:
        """What overlaps in plans with the degrees and switches of this one, so many stages and sharded state."""
        return overlaps_of(replace(plan, pipeline_parallel=stages, zero_stage=1), self.framework, self.job)

    def overlaps(self, stages: int, overlapped: OverlapSwitches) -> Overlaps:
        """What is hidden in a pipeline of so many stages where this overlaps."""
        offload = self.alone.offload
        facts = _facts(self.framework, self.job, self.cluster, stages, offload, overlapped, at_least=self.at_least)
        return replace(facts.overlaps, offload_s_per_byte=0.0) if self.hides_offload else facts.overlaps

    def pricing(self, stages: int, zero_stage: int) -> Pricing:
        """What collectives cost where gradients are as wide as such plans reduce them."""
        facts = self.facts(stages)
        gradient = facts.sharded_reduction_bytes if zero_stage == 3 else facts.reduction_bytes
        weights, buckets = facts.gathered_weight_bytes, facts.buckets
        return pricing_of(self.job, self.cluster, self.efficiencies, gradient, weights, buckets)


def _facts(
    framework: Framework,
    job: Job,
    cluster: Cluster,
    stages: int,
    offload: tuple[str, ...],
    overlapped: OverlapSwitches | None = None,
    *,
    at_least: bool,
) -> FrameworkFacts:
    facts = with_host(facts_of(framework, job, stages=stages, overlapped=overlapped, offload=offload), cluster)
    if not at_least:
        return facts
    # tables are shared by all schedules a framework has
    schedule = "dualpipe" if "dualpipe" in framework.pipeline_schedules else ""
    return facts.at_least(schedule=schedule, stages=stages)


class LayerTable:
    """Profiles of stage degrees along the same axes (`Arrangements.of`) with their micro-batches, made together.

    `experts_overlap` says of which profiles tokens to experts overlap, where what is recomputed lets them. A table of
    `seconds` alone knows no bytes.
    """

    def __init__(
        self,
        setting: Setting,
        degrees: Sequence[StageDegrees],
        rows: Ints,
        micro_batches: Ints,
        experts_overlap: Bools,
        extent: Extent = "micro-batch",
        along: Arrangement | None = None,
    ) -> None:
        self.setting = setting
        #: of one stage and of several; tensor and expert parallelism differ between profiles
        self._switches = {stages: setting.switches(degrees[0].plan, stages) for stages in (1, 2)}
        self._tensor_overlaps = np.array(
            [setting.switches(each.plan, 1).tensor_parallel for each in degrees], np.bool_
        )[rows]
        self._experts_overlap = experts_overlap
        self._hidden: dict[tuple[int, bool], Overlaps] = {}
        replicas = [each.min_replicas for each in degrees]
        arranged = Arrangements.of([each.arranged for each in degrees], replicas, along).taken(rows, micro_batches)
        self.profiles = profile_job(
            arranged,
            setting.job,
            setting.chip,
            setting.pricing(1, 0),
            one_copy_per_node=self._switches[1].dispatcher == "deepep",
            extent=extent,
        )
        self.num_profiles = len(rows)
        self._menus: dict[tuple[str, bool], RecomputeMenu] = {}
        self._stacked: dict[tuple[Choice, bool], Floats] = {}

    def column(self, field: str) -> Floats:
        """A field of the profiles: profiles × classes."""
        return np.stack([self._wide(getattr(p, field)) for p in self._layers], axis=1)

    def tied(self, weights: Sequence[str], field: str) -> Floats:
        """Parameters of weights that several classes share: profiles × classes × weights."""
        rows = [
            [getattr(p.tied_parameters[w], field) if w in p.tied_parameters else np.zeros(()) for w in weights]
            for p in self._layers
        ]
        flat = [np.stack([self._wide(value) for value in row], axis=1) for row in rows if weights]
        return np.stack(flat, axis=1) if flat else np.zeros((self.num_profiles, len(self._layers), 0))

    def untied(self, weights: Sequence[str], field: str) -> Floats:
        """Parameters of all other weights: profiles × classes."""
        return self.column(field) - self.tied(weights, field).sum(axis=2)

    @property
    def _layers(self) -> list[LayerProfile]:
        return [self.profiles.layers[name] for name in self.setting.classes]

    @cached_property
    def work(self) -> Floats:
        """What layers do in every micro-batch (`work_array`)."""
        return work_array(self._layers, self.num_profiles)

    def recompute(self, choice: Choice, *, sharded: bool = False) -> Floats:
        """What layers save and recompute where all blocks make a choice (`recompute_array`); others recompute nothing.

        Several choices are the same to a class without the modules they differ in.
        """
        key = (choice, sharded)
        if key not in self._stacked:
            parts = [
                self._menu(name, sharded=sharded).cost(
                    self.setting.alone.recomputed(self._effect(name, (choice, 1.0))[0])
                )
                for name in self.setting.classes
            ]
            self._stacked[key] = recompute_array(parts, self.num_profiles)
        return self._stacked[key]

    def _menu(self, name: str, *, sharded: bool) -> RecomputeMenu:
        if (name, sharded) not in self._menus:
            layer, facts = self.setting.graph.layers[name], self.setting.alone
            saving = facts.saves(sharded=sharded, narrow=self._offered[name] is not None)
            self._menus[name, sharded] = RecomputeMenu(layer, self.profiles.layers[name], saving)
        return self._menus[name, sharded]

    def fastest(self) -> LayerColumns:
        """Seconds and bytes of blocks that recompute nothing, had activations no way to go: no policy is faster."""
        overlaps = self.overlaps(1, allowed=recompute_allows(self.setting.framework, "none"))
        hidden = replace(shaped_overlaps(overlaps, _A_CLASS), offload_s_per_byte=0.0)
        return timed(self.work, recomputed(self.recompute("none")), hidden, self.setting.alone.overheads.host_s)

    def lower_bound(self) -> LayerColumns:
        """Seconds of blocks that recompute nothing, bytes of blocks that save only their input."""
        none, full = self.fastest(), recomputed(self.recompute("full"))
        return LayerColumns(*none[:3], *(np.minimum(*pair) for pair in zip(full.bytes(), none[3:], strict=True)))

    def choice_times(self, policies: Sequence[RecomputePolicy], wanted: Bools, rows: Ints) -> LayerColumns:
        """Seconds and bytes of some profiles under the policies that are wanted: profiles × these × classes.

        A class is timed once for all policies that are the same to it.
        """
        numbers: list[int] = np.nonzero(wanted)[0].tolist()
        allowed = np.array([recompute_allows(self.setting.framework, policies[i][0]) for i in numbers], np.bool_)
        shape = len(rows), len(numbers), len(self.setting.classes)
        columns = LayerColumns(*(np.empty(shape) for _ in LayerColumns._fields))
        for permitted in (False, True):
            places: list[int] = np.nonzero(allowed == permitted)[0].tolist()
            for position, name in enumerate(self.setting.classes if places else ()):
                effects: dict[RecomputePolicy, int] = {}
                of = [effects.setdefault(self._effect(name, policies[numbers[i]]), len(effects)) for i in places]
                times = self._effect_times(position, rows, list(effects), allowed=permitted)
                for column, values in zip(columns, times, strict=True):
                    column[:, places, position] = values[:, of]
        return columns

    def _effect(self, name: str, policy: RecomputePolicy) -> RecomputePolicy:
        """A policy as one class sees it: what is no block recomputes nothing, and modules it has not do nothing."""
        choice, offered = policy[0], self._offered[name]
        if offered is None:
            return "none", 1.0
        if isinstance(choice, str):
            return policy
        return tuple(module for module in choice if module in offered or module not in MODULES) or "none", policy[1]

    @cached_property
    def _offered(self) -> dict[str, frozenset[str] | None]:
        """The modules that each class has, of those that frameworks recompute by name; None: it is no block."""
        layers = self.setting.graph.layers
        return {
            name: frozenset(module for module, each in MODULES.items() if any(each.operators(layers[name])))
            if is_block(layers[name])
            else None
            for name in self.setting.classes
        }

    def _effect_times(
        self, position: int, rows: Ints, effects: Sequence[RecomputePolicy], *, allowed: bool
    ) -> LayerColumns:
        """Seconds and bytes of one class: profiles × effects."""
        size = max(1, TIMED_TOGETHER // len(rows))
        overlaps = shaped_overlaps(self.overlaps(1, allowed=allowed), (rows, None))
        none, work = recomputed(self.recompute("none")[:, rows, position, None]), self.work[:, rows, position, None]
        parts: list[LayerColumns] = []
        for start in range(0, len(effects), size):
            some = effects[start : start + size]
            made = np.stack([self.recompute(choice)[:, rows, position] for choice, _ in some], axis=2)
            mixed = recomputed(made).mixed(none, np.array([share for _, share in some]))
            parts.append(timed(work, mixed, overlaps, self.setting.alone.overheads.host_s))
        return LayerColumns(*(np.concatenate(part, axis=1) for part in zip(*parts, strict=True)))

    @property
    def blocks(self) -> Bools:
        """Which classes are blocks."""
        return np.array([self._offered[name] is not None for name in self.setting.classes], np.bool_)

    def overlaps(self, stages: int, *, allowed: bool) -> Overlaps:
        """What is hidden in every profile with one stage or several, where tokens to experts may overlap or not."""
        key = (stages, allowed)
        if key not in self._hidden:
            tensor, experts = _one_or_all(self._tensor_overlaps), _one_or_all(self._experts_overlap & allowed)
            on = replace(self._switches[stages], tensor_parallel=tensor, expert_parallel=experts)
            self._hidden[key] = self.setting.overlaps(stages, on)
        return self._hidden[key]

    def _wide(self, values: Floats | float) -> Floats:
        return np.broadcast_to(np.asarray(values, np.float64), (self.num_profiles,))


def _one_or_all(values: Bools) -> Switch:
    """A number where all are alike."""
    return bool(values[0]) if len(values) and (values == values[0]).all() else values


def by_structure(degrees: Sequence[StageDegrees]) -> Mapping[Strategy, list[int]]:
    """Stage degrees along the same axes, by number."""
    groups: dict[Strategy, list[int]] = {}
    for number, each in enumerate(degrees):
        groups.setdefault(each.arranged.strategy, []).append(number)
    return groups


def block_shares(shares: Floats, blocks: Bools) -> Floats:
    """Shares of blocks that make a choice, along a last axis of classes; what is no block has one choice."""
    return np.where(blocks, shares[..., None], 1.0)


def recompute_policies(space: Space) -> list[RecomputePolicy]:
    """The recompute policies of a space; where blocks choose, none and full bound them."""
    if BY_BLOCK in space.recompute:
        return [("none", 1.0), ("full", 1.0)]
    policies: list[RecomputePolicy] = []
    for choice in space.recompute:
        shares = sorted(set(space.recompute_share)) if choice == "full" else [1.0]
        policies += [(choice, share) for share in shares]
    return policies


def whole_layers(num_layers: int, parts: Ints, shares: Floats) -> Bools:
    """Whether a share of the layers is a whole number in each of so many equal parts: parts × shares."""
    recomputed = np.rint(shares * num_layers).astype(np.int64)
    even = (num_layers % parts == 0)[:, None]
    return (shares == 1) | (even & (recomputed % parts[:, None] == 0))
