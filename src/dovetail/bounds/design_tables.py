"""Seconds that no plan of a space beats on a chip that nobody built: the bound L1⁻ of many designs at once.

What plans save, send and shard is the same on every design of one network: it is found once, for skeletons ×
recompute choices. What layers take is profiled for all designs side by side, with what no schedule of their operators
beats, and goes through the same bound of open plans as in the search for one chip. Step times grow with those of
layers, so a bound for less than they take is one for what they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Floats, Ints, numbers
from dovetail.bounds.batch import Batch
from dovetail.bounds.degree_bounds import DegreeBounds
from dovetail.bounds.end_of_step_bounds import EndOfStepBounds
from dovetail.bounds.partition_bound_kernels import BoundRows, least_seconds
from dovetail.cost.cores import lined_up
from dovetail.cost.operators import ChipUnits
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Chip, Cluster
from dovetail.models import Job
from dovetail.plans.partitions import is_free, listed_partitions
from dovetail.plans.pipeline_schedule import ZB_H1
from dovetail.plans.skeletons import NAMES, plan_skeletons
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.evaluate import units_of
from dovetail.step.exact_pipelines import exact_pipelines
from dovetail.step.layer_tables import LayerTable, RecomputePolicy, Setting, by_structure, recompute_policies
from dovetail.step.offload import update_rates
from dovetail.step.plan_columns import LayerColumns, PlanColumns
from dovetail.step.plan_tables import ProfileKey, Tables

#: Rows of layers profiled together: some hundred bytes each, in tens of arrays at a time.
ROWS = 2**14
#: Chips × plans bounded together, and plans of a chip that are refined first.
BOUNDED, FIRST = 2**22, 512
#: Plans of a chip whose pipelines are timed with every partition, at most.
TIMED = 128


class DesignTables:
    """The plans of a space on clusters that differ in their chips alone.

    `at_least`: their bounds hold for simulated steps too, not for those of the model alone.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        framework: Framework,
        space: Space | None = None,
        *,
        at_least: bool = False,
    ) -> None:
        whole = (space or Space()).resolve(job, cluster, framework)
        offload = whole.offload[0]
        setting = Setting.of(job, cluster, framework, at_least=at_least, offload=offload, hides_offload=True)
        # bytes and parameters do not depend on how operators share cores
        self._setting = replace(setting, chip=replace(setting.chip, sharing="none"))
        self._degrees = stage_degrees(job, cluster, framework, whole)
        by_block = BY_BLOCK in whole.recompute
        self._policies, fastest, leanest = _bounding_policies(whole)
        self._tables = Tables(self._setting, self._degrees, self._policies)
        selected = np.ones((len(self._degrees), len(whole.pipeline_parallel)), np.bool_)
        skeletons = plan_skeletons(job, cluster, framework, whole, self._degrees, selected)
        #: plans but for what is bounded together, and what makes their profiles
        self.skeletons = skeletons
        self._profiles: list[ProfileKey] = []
        if not len(skeletons):
            return
        batch = Batch(self._tables, skeletons)
        keys, kind = self._tables.profile_keys(skeletons)
        profiles = dict(zip(numbers(batch.profile), numbers(kind), strict=True))
        self._profiles = [keys[profiles[number]] for number in range(len(profiles))]
        self._chain = self._tables.partitions.chain(listed=not by_block)
        # stages may recompute different shares of their layers, and a simulated step is not the model's
        self._is_exact = not by_block and not at_least and len(fastest) == len(self._policies)
        self._space, self._partition_rows = whole, dict[tuple[int, ...], list[int]]()
        rows = np.repeat(np.arange(len(skeletons)), len(fastest))
        self._rows = len(fastest)
        pairs = DegreeBounds(self._setting, whole, self._degrees, self._tables)
        pairs.refine()
        state = pairs.state_bytes(skeletons)
        self._end_of_step = EndOfStepBounds(self._tables, whole, skeletons)
        # rows of profile i under policy j are numbered i · policies + j here
        first, each = batch.profile[rows] * len(self._policies), len(skeletons)
        self._all = _Plans(
            which=np.arange(len(skeletons)),
            profiles=np.arange(len(profiles)),
            columns=batch.open_plans().take(rows)._replace(layer=first + np.tile(fastest, each)),
            memory=first + np.tile(leanest, each),
            fixed_s=batch.fixed_s[rows],
            state_bytes=np.repeat(state, self._rows, axis=0),
        )
        every = self._tables.first_rows(np.arange(len(profiles)), np.ones(len(self._policies), np.bool_))
        pooled = (every[:, None] + np.arange(len(self._policies))).ravel()
        self._bytes = LayerColumns(*(column[pooled] for column in self._tables.layers))
        self._arrays = self._tables.profile_arrays()

    def least_seconds(self, chips: Sequence[Chip], limit_s: Floats | float = np.inf) -> Floats:
        """A lower bound of the best plan on each chip; once it reaches the chip's limit it is not refined further.

        Infinite where no plan fits. The chips' network is that of the cluster the tables are made for.
        """
        return self.open_seconds(chips, limit_s)[0]

    def open_seconds(
        self, chips: Sequence[Chip], limit_s: Floats | float, among: Bools | None = None
    ) -> tuple[Floats, Bools]:
        """The same, and which skeletons may have plans below the limit: chips × skeletons.

        Those not `among` are known to have none, and are left out.
        """
        limits = np.broadcast_to(np.asarray(limit_s, np.float64), len(chips)) * (1 + 2 * TOLERANCE)
        found, is_open = np.full(len(chips), np.inf), np.zeros((len(chips), len(self.skeletons)), np.bool_)
        if not self._profiles:
            return found, is_open
        plans = self._all if among is None else self._all.among(among, self._rows, len(self._policies))
        at_once = max(min(ROWS // max(len(plans.profiles), 1), BOUNDED // max(len(plans.memory), 1)), 1)
        for start in range(0, len(chips) if len(plans.which) else 0, at_once):
            some = slice(start, start + at_once)
            bounds = self._together(chips[some], limits[some], plans)
            found[some] = bounds.min(axis=1)
            below = (bounds < limits[some, None]).reshape(len(bounds), -1, self._rows).any(axis=2)
            is_open[some, plans.which] = below
        return found if among is None else np.minimum(found, limits), is_open

    def has_plans_of(self, other: DesignTables) -> bool:
        """Whether skeletons have the same numbers in both."""
        alike = (np.array_equal(a, b) for a, b in zip(astuple(self.skeletons), astuple(other.skeletons), strict=True))
        return self._degrees == other._degrees and all(alike)

    def operator_seconds(self, chips: Sequence[Chip]) -> Floats:
        """Seconds of a micro-batch's operators on each chip, whatever fits, for the plan that needs the fewest."""
        if not self._profiles:
            return np.full(len(chips), np.inf)
        at_once = max(ROWS // len(self._profiles), 1)
        parts = [chips[start : start + at_once] for start in range(0, len(chips), at_once)]
        every = self._all.profiles
        totals = [self._total(self._layer_seconds([self._units(chip) for chip in part], every)) for part in parts]
        return np.concatenate([np.zeros(0), *(total.reshape(len(total), -1).min(axis=1) for total in totals)])

    def _total(self, seconds: Sequence[Floats]) -> Floats:
        """Seconds of all layers together: chips × profiles × policies."""
        partitions = self._tables.partitions
        counts = np.asarray(partitions.block_counts + sum(partitions.end_counts), np.float64)
        return sum(seconds[1:], seconds[0]) @ counts

    def _together(self, chips: Sequence[Chip], limits: Floats, some: _Plans) -> Floats:
        """Bounds of some plans: chips × plans, refined as far as they are below the limit and near the lowest."""
        units, plans = [self._units(chip) for chip in chips], some.columns
        seconds = self._layer_seconds(units, some.profiles)
        total = self._total(seconds)
        in_all = total.reshape(len(chips), -1)[:, plans.layer]
        # some stage has its part of all micro-batches; unless weight gradients wait, one micro-batch passes all stages
        bounds = plans.microbatches / plans.stages * in_all
        bounds = np.where(plans.schedule == ZB_H1, bounds, np.maximum(bounds, in_all)) * (1 - TOLERANCE)
        facts, cluster = self._setting.alone, self._setting.cluster
        rates = [update_rates(facts, u, replace(cluster, chip=chip)) for u, chip in zip(units, chips, strict=True)]
        updates = np.array([float(each.parameter_s) for each in rates])
        end_of_step = self._end_of_step.seconds(float(limits.max()), updates)
        fixed = some.fixed_s + np.repeat(end_of_step[:, some.which], self._rows, axis=1)
        bounds += fixed
        rows = [np.ascontiguousarray(part.reshape(-1, part.shape[-1])) for part in seconds]
        layers = LayerColumns(rows[0], rows[1], rows[2], *self._bytes[3:])
        capacities = np.array([self._setting.capacity_of(chip) for chip in chips])
        # refine the lowest bounds first, then what is still below the lowest refined one
        near = (
            bounds <= np.partition(bounds, FIRST, axis=1)[:, FIRST : FIRST + 1]
            if bounds.shape[1] > FIRST
            else bounds > 0
        )
        refining = _Refining(some, layers, capacities, limits, fixed)
        self._refine(bounds, near & (bounds < limits[:, None]), refining)
        nearest = np.where(near, bounds, np.inf).min(axis=1)
        self._refine(bounds, ~near & (bounds < np.minimum(limits, nearest)[:, None]), refining)
        below = bounds < limits[:, None]
        # many of a chip are a sign that it is far from all limits
        self._time_partitions(bounds, below & (below.sum(axis=1) <= TIMED)[:, None], refining)
        return bounds

    def _refine(self, bounds: Floats, which: Bools, of: _Refining) -> None:
        """Replaces some of `bounds`, chips × plans, by the tighter bound of open plans."""
        chip, row = np.nonzero(which)
        first = chip * (len(of.layers.forward_s) // len(of.capacities))
        for capacity in np.unique(of.capacities[chip]).tolist():
            (alike,) = np.nonzero(of.capacities[chip] == capacity)
            where = (chip[alike], row[alike])
            bounds[where] = self._open_seconds(of, first[alike], chip[alike], row[alike], capacity)

    def _time_partitions(self, bounds: Floats, which: Bools, of: _Refining) -> None:
        """Raises some of `bounds`, chips × plans, to the shortest pipeline of the partitions that are tried."""
        chip, row = np.nonzero(which & (of.plans.columns.stages > 1))
        listed = [self._partitions(of.plans.columns, n) for n in numbers(row)] if self._is_exact else []
        lengths = np.array([len(rows) for rows in listed], np.int64)
        if not lengths.sum():
            return
        chip, row, lengths = chip[lengths > 0], row[lengths > 0], lengths[lengths > 0]
        plans = of.plans.columns.take(np.repeat(row, lengths))
        first = np.repeat(chip * (len(of.layers.forward_s) // len(of.capacities)), lengths)
        partition = np.array([n for rows in listed for n in rows], np.int64)
        plans = plans._replace(layer=plans.layer + first, partition=partition)
        # bytes are none of its business, and those we have are in other rows
        rows = len(of.layers.forward_s)
        bytes_ = (np.zeros((rows, *column.shape[1:]), column.dtype) for column in of.layers[3:])
        timed = exact_pipelines(plans, LayerColumns(*of.layers[:3], *bytes_), self._tables.partitions)
        least = np.minimum.reduceat(timed, np.cumsum(lengths) - lengths) * (1 - TOLERANCE) + of.fixed_s[chip, row]
        bounds[chip, row] = np.maximum(bounds[chip, row], least)

    def _partitions(self, plans: PlanColumns, row: int) -> list[int]:
        """Rows of the partitions that are tried one by one for a plan; none where any is allowed."""
        stages, chunks, schedule = int(plans.stages[row]), int(plans.chunks[row]), int(plans.schedule[row])
        key = (stages, chunks, schedule)
        if key not in self._partition_rows:
            setting, name = self._setting, NAMES[schedule]
            blocks, uneven = setting.job.model.num_layers, setting.framework.uneven_stages
            free = is_free(name, self._space.partition, stages)
            listed = [] if free else listed_partitions(blocks, stages, chunks, name, self._space.partition, uneven)
            self._partition_rows[key] = [self._tables.partitions.row(layers, stages, name) for layers in listed]
        return self._partition_rows[key]

    def _open_seconds(self, of: _Refining, first: Ints, chips: Ints, rows: Ints, capacity: float) -> Floats:
        """Plans whose layers are rows from `first` on, over all partitions."""
        plans, fixed = of.plans.columns.take(rows), of.fixed_s[chips, rows]
        seconds = least_seconds(
            plans,
            BoundRows(np.arange(len(rows)), plans.layer + first, of.plans.memory[rows]),
            of.layers,
            self._arrays,
            np.ascontiguousarray(of.plans.state_bytes[rows]),
            self._chain,
            self._tables.facts,
            capacity,
            (of.limits_s[chips] - fixed) * (1 + 2 * TOLERANCE),
        )
        return seconds * (1 - TOLERANCE) + fixed

    def _units(self, chip: Chip) -> ChipUnits:
        setting = self._setting
        cluster = replace(setting.cluster, chip=chip)
        units = units_of(setting.job, cluster, setting.alone, setting.efficiencies)
        return replace(units, sharing="least" if chip.shares_cores else "none")

    def _layer_seconds(self, units: Sequence[ChipUnits], which: Ints) -> list[Floats]:
        """Forward, input and weight gradient: chips × profiles × policies × classes."""
        keys = [self._profiles[n] for n in numbers(which)]
        shape = (len(units), len(keys), len(self._policies), len(self._setting.classes))
        columns = [np.empty(shape) for _ in range(3)]
        used = sorted({index for index, _, _ in keys})
        for members in by_structure([self._degrees[i] for i in used]).values():
            row_of = {used[member]: row for row, member in enumerate(members)}
            profiles = np.array([n for n, (index, _, _) in enumerate(keys) if index in row_of], np.int64)
            rows = np.array([row_of[keys[n][0]] for n in numbers(profiles)], np.int64)
            sizes = np.array([keys[n][1] for n in numbers(profiles)], np.int64)
            overlapping = np.array([keys[n][2] for n in numbers(profiles)], np.bool_)
            setting = replace(self._setting, chip=lined_up(units, np.repeat(np.arange(len(units)), len(profiles))))
            degrees = [self._degrees[index] for index in row_of]
            rows, sizes = (np.tile(column, len(units)) for column in (rows, sizes))
            table = LayerTable(setting, degrees, rows, sizes, np.tile(overlapping, len(units)))
            every = np.ones(len(self._policies), np.bool_)
            times = table.choice_times(self._policies, every, np.arange(table.num_profiles))
            parts = (times.forward_s, times.input_gradient_s, times.weight_gradient_s)
            for part, seconds in zip(columns, parts, strict=True):
                part[:, profiles] = seconds.reshape(len(units), len(profiles), *shape[2:])
        return columns


@frozen
class _Plans:
    """Plans with partition and state open: some skeletons with each policy that may be the fastest."""

    #: skeletons, and the profiles of their layers
    which: Ints
    profiles: Ints
    #: their layers are rows of these profiles × policies
    columns: PlanColumns
    #: rows of all profiles × policies, for the bytes of the leanest policy
    memory: Ints
    fixed_s: Floats
    #: plans × classes
    state_bytes: Floats

    def among(self, skeletons: Bools, each: int, policies: int) -> _Plans:
        """Those of some skeletons, of which each makes a number of plans."""
        rows = np.nonzero(np.repeat(skeletons, each))[0]
        profile, policy = np.divmod(self.columns.layer[rows], policies)
        used, profile = np.unique(profile, return_inverse=True)
        return _Plans(
            which=np.nonzero(skeletons)[0],
            profiles=used,
            columns=self.columns.take(rows)._replace(layer=profile.reshape(-1) * policies + policy),
            memory=self.memory[rows],
            fixed_s=self.fixed_s[rows],
            state_bytes=self.state_bytes[rows],
        )


@frozen
class _Refining:
    """What the tighter bound needs: plans, the rows of their layers on every chip, and by chip capacity and limit."""

    plans: _Plans
    layers: LayerColumns
    capacities: Floats
    limits_s: Floats
    #: chips × plans
    fixed_s: Floats


def _bounding_policies(space: Space) -> tuple[list[RecomputePolicy], Ints, Ints]:
    """Recompute policies, and pairs of them: one takes no longer, one needs no more bytes than some of the space.

    Shares of recomputed layers are taken together by eighths: more of them take longer and need less.
    """
    policies = [(choice, share) for choice, share in recompute_policies(space) if share == 1]
    alone = np.arange(len(policies))
    if BY_BLOCK in space.recompute:
        return policies, alone, np.full(len(policies), len(policies) - 1)
    if "full" not in space.recompute or set(space.recompute_share) == {1.0}:
        return policies, alone, alone
    eighths: list[RecomputePolicy] = [("none", 1.0), *(("full", part / 8) for part in range(1, 9))]
    first = len(policies) + np.arange(8)
    return [*policies, *eighths], np.concatenate([alone, first]), np.concatenate([alone, first + 1])
