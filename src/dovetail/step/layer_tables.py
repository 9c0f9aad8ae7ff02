"""Layer tables: every layer class under all stage degrees, micro-batch sizes and recompute policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.frameworks import Framework
from dovetail.graph import LayerGraph, ModelGraph
from dovetail.hardware import Chip, Cluster
from dovetail.layout.strategy import Strategy
from dovetail.models import Job
from dovetail.plans.overlaps import OverlapSwitches, Switch, overlaps_of, recompute_allows
from dovetail.plans.plan import Plan
from dovetail.plans.space import BY_BLOCK, Choice, Space
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.profile import LayerProfile, Recompute, Saving, recompute
from dovetail.profile.modules import MODULES
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import is_block, units_of
from dovetail.step.facts import FrameworkFacts, facts_of
from dovetail.step.offload import with_host
from dovetail.step.profiles import Arrangements, Pricing, pricing_of, profile_job
from dovetail.step.times import Overlaps, layer_times

#: What blocks recompute, and the share of the blocks it holds for.
RecomputePolicy = tuple[Choice, float]


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


@dataclass(frozen=True, slots=True)
class ChoiceTimes:
    """Layers under every recompute policy: arrays of profiles × policies × classes."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    saved_bytes: Floats
    working_bytes: Floats
    offloaded_bytes: Floats

    def arrays(self) -> tuple[Floats, ...]:
        """The columns in order."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class ShardingWork:
    """What states add to every micro-batch, by kind of group: states × classes; and the kernels launched for it."""

    forward_s: Mapping[str, Floats]
    backward_s: Mapping[str, Floats]
    forward_kernels: Floats
    backward_kernels: Floats


class LayerTable:
    """Profiles of stage degrees along the same axes with their micro-batches, made together.

    `experts_overlap` says of which profiles tokens to experts overlap, where what is recomputed lets them.
    """

    def __init__(
        self,
        setting: Setting,
        degrees: Sequence[StageDegrees],
        rows: Ints,
        micro_batches: Ints,
        experts_overlap: Bools,
    ) -> None:
        self.setting = setting
        #: of one stage and of several; tensor and expert parallelism differ between profiles
        self._switches = {stages: setting.switches(degrees[0].plan, stages) for stages in (1, 2)}
        self._tensor_overlaps = np.array(
            [setting.switches(each.plan, 1).tensor_parallel for each in degrees], np.bool_
        )[rows]
        self._experts_overlap = experts_overlap
        self._hidden: dict[bool, Overlaps] = {}
        replicas = [each.min_replicas for each in degrees]
        arranged = Arrangements.of([each.arranged for each in degrees], replicas).taken(rows, micro_batches)
        self.profiles = profile_job(
            arranged,
            setting.job,
            setting.chip,
            setting.pricing(1, 0),
            one_copy_per_node=self._switches[1].dispatcher == "deepep",
        )
        self.num_profiles = len(rows)
        self._cache: dict[tuple[str, Choice, Saving], Recompute] = {}
        self._times: dict[tuple[str, Choice, float, bool], tuple[Floats, ...]] = {}

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

    @property
    def _layers(self) -> list[LayerProfile]:
        return [self.profiles.layers[name] for name in self.setting.classes]

    def _recompute_of(self, name: str, choice: Choice, share: float, *, sharded: bool = False) -> Recompute:
        """What a class saves where a share of its blocks makes a choice; embedding and head recompute nothing."""
        layer, facts = self.setting.graph.layers[name], self.setting.alone
        if not is_block(layer):
            return self._policy_recompute(name, "none", facts.saves(sharded=sharded, narrow=False))
        saving = facts.saves(sharded=sharded)
        recomputed = self._policy_recompute(name, _effect(layer, choice), saving)
        return recomputed if share == 1 else recomputed.mixed(self._policy_recompute(name, "none", saving), share)

    def _policy_recompute(self, name: str, choice: Choice, saving: Saving) -> Recompute:
        key = (name, choice, saving)
        if key not in self._cache:
            layer, named = self.setting.graph.layers[name], self.setting.alone.recomputed(choice)
            self._cache[key] = recompute(layer, self.profiles.layers[name], named, saving)
        return self._cache[key]

    def fastest(self) -> ChoiceTimes:
        """Seconds and bytes of blocks that recompute nothing, had activations no way to go: no policy is faster."""
        if "activations" not in self.setting.alone.offload:
            return self.choice_times([("none", 1.0)])
        hidden = replace(self._overlaps(recompute_allows(self.setting.framework, "none")), offload_s_per_byte=0.0)
        columns = [self._timed(name, "none", 1.0, hidden) for name in self.setting.classes]
        return ChoiceTimes(*(np.stack(parts, axis=1)[:, None] for parts in zip(*columns, strict=True)))

    def choice_times(self, policies: Sequence[RecomputePolicy]) -> ChoiceTimes:
        """Seconds and bytes under every policy."""
        by_policy = [self._policy_times(choice, share) for choice, share in policies]
        return ChoiceTimes(*(np.stack(parts, axis=1) for parts in zip(*by_policy, strict=True)))

    def _policy_times(self, choice: Choice, share: float) -> list[Floats]:
        columns: list[tuple[Floats, ...]] = []
        allowed = recompute_allows(self.setting.framework, choice)
        for name in self.setting.classes:
            layer = self.setting.graph.layers[name]
            # several choices are the same to a class without the modules they differ in
            seen, part = (_effect(layer, choice), share) if is_block(layer) else ("none", 1.0)
            key = (name, seen, part, allowed)
            if key not in self._times:
                self._times[key] = self._class_times(*key)
            columns.append(self._times[key])
        return [np.stack(parts, axis=1) for parts in zip(*columns, strict=True)]

    def _class_times(self, name: str, choice: Choice, share: float, allowed: bool) -> tuple[Floats, ...]:
        return self._timed(name, choice, share, self._overlaps(allowed))

    def _timed(self, name: str, choice: Choice, share: float, overlaps: Overlaps) -> tuple[Floats, ...]:
        recomputed = self._recompute_of(name, choice, share)
        times = layer_times(self.profiles.layers[name], recomputed, overlaps, self.setting.alone.overheads.host_s)
        parts = (times.forward_s, times.input_gradient_s, times.weight_gradient_s)
        return tuple(self._wide(part) for part in (*parts, *recomputed.bytes()))

    def sharded_policy(
        self, choice: Choice, share: float, rows: Ints, work: ShardingWork, states: Ints, stages: int
    ) -> list[Floats]:
        """The same for some profiles, each under a state whose collectives run in every micro-batch."""
        allowed = recompute_allows(self.setting.framework, choice)
        facts, overlaps = self.setting.facts(stages), self._overlaps_of(allowed, stages, rows)
        columns: list[list[Floats]] = []
        for number, (name, profile) in enumerate(zip(self.setting.classes, self._layers, strict=True)):
            recomputed = self._recompute_of(name, choice, share, sharded=True)
            recomputed = _taken_recompute(recomputed, rows, self.num_profiles)
            if choice == "full" and not facts.saving.stops_early and is_block(self.setting.graph.layers[name]):
                # a full recompute launches the gathering of its weights too
                launches = share * work.forward_kernels[states, number]
                recomputed = replace(recomputed, added_kernels=recomputed.added_kernels + launches)
            taken = _taken_profile(profile, rows, self.num_profiles, work, states, number)
            times = layer_times(taken, recomputed, overlaps, facts.overheads.host_s)
            parts = (times.forward_s, times.input_gradient_s, times.weight_gradient_s)
            columns.append([np.broadcast_to(part, len(rows)) for part in (*parts, *recomputed.bytes())])
        return [np.stack(parts, axis=1) for parts in zip(*columns, strict=True)]

    def _overlaps(self, allowed: bool) -> Overlaps:
        """What is hidden in every profile of one stage, where tokens to experts may overlap or not."""
        if allowed not in self._hidden:
            self._hidden[allowed] = self._overlaps_of(allowed, 1, np.arange(self.num_profiles))
        return self._hidden[allowed]

    def _overlaps_of(self, allowed: bool, stages: int, rows: Ints) -> Overlaps:
        """The same for some profiles and so many stages."""
        tensor = _one_or_all(self._tensor_overlaps[rows])
        experts = _one_or_all(self._experts_overlap[rows] & allowed)
        on = replace(self._switches[min(stages, 2)], tensor_parallel=tensor, expert_parallel=experts)
        return self.setting.overlaps(stages, on)

    def _wide(self, values: Floats | float) -> Floats:
        return np.broadcast_to(np.asarray(values, np.float64), (self.num_profiles,))


def _one_or_all(values: Bools) -> Switch:
    """A number where all are alike."""
    return bool(values[0]) if len(values) and (values == values[0]).all() else values


def _effect(layer: LayerGraph, choice: Choice) -> Choice:
    """A choice as one layer sees it: modules it does not have do nothing."""
    if isinstance(choice, str):
        return choice
    present = tuple(name for name in choice if name not in MODULES or any(MODULES[name].operators(layer)))
    return present or "none"


def by_structure(degrees: Sequence[StageDegrees]) -> Mapping[Strategy, list[int]]:
    """Stage degrees along the same axes, by number."""
    groups: dict[Strategy, list[int]] = {}
    for number, each in enumerate(degrees):
        groups.setdefault(each.arranged.strategy, []).append(number)
    return groups


def _taken(values: Floats | float, rows: Ints, num_profiles: int) -> Floats:
    return np.broadcast_to(np.asarray(values, np.float64), (num_profiles,))[rows]


def _taken_profile(
    profile: LayerProfile, rows: Ints, num_profiles: int, work: ShardingWork, states: Ints, number: int
) -> LayerProfile:
    """What `layer_times` reads of some profiles, with what their states add to every micro-batch."""

    def joined(profiled: Mapping[str, Floats], more: Mapping[str, Floats]) -> dict[str, Floats]:
        sums: dict[str, Floats] = {name: _taken(seconds, rows, num_profiles) for name, seconds in profiled.items()}
        for name, seconds in more.items():
            sums[name] = sums.get(name, np.zeros(())) + seconds[states, number]
        return sums

    return replace(
        profile,
        forward_s=_taken(profile.forward_s, rows, num_profiles),
        input_gradient_s=_taken(profile.input_gradient_s, rows, num_profiles),
        weight_gradient_s=_taken(profile.weight_gradient_s, rows, num_profiles),
        forward_kernels=_taken(profile.forward_kernels, rows, num_profiles) + work.forward_kernels[states, number],
        backward_kernels=_taken(profile.backward_kernels, rows, num_profiles) + work.backward_kernels[states, number],
        forward_collective_s=joined(profile.forward_collective_s, work.forward_s),
        backward_collective_s=joined(profile.backward_collective_s, work.backward_s),
    )


def _taken_recompute(recomputed: Recompute, rows: Ints, num_profiles: int) -> Recompute:
    return Recompute(
        saved_bytes=_taken(recomputed.saved_bytes, rows, num_profiles),
        added_s=_taken(recomputed.added_s, rows, num_profiles),
        workspace_bytes=_taken(recomputed.workspace_bytes, rows, num_profiles),
        working_bytes=_taken(recomputed.working_bytes, rows, num_profiles),
        added_kernels=_taken(recomputed.added_kernels, rows, num_profiles),
        added_collective_s={name: _taken(s, rows, num_profiles) for name, s in recomputed.added_collective_s.items()},
        offloaded_bytes=_taken(recomputed.offloaded_bytes, rows, num_profiles),
    )


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
