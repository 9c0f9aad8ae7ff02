"""The fidelity levels of a study: what workers do with a batch of candidates, given the front so far.

- physical: lower bounds from the hardware (L0), for a range of designs as arrays;
- profile: lower bounds of all plans (L1⁻), with the jobs' layers profiled on every design;
- search: the best plan of every job (L1), for one candidate after the other;
- replay: the leading plans of every job simulated (L2), if a study asks for it.

Free mappings have their own: the leading designs by physics first, then the stages of `free_plans` for the search.

At each level we drop a candidate if a point of the front beats its bound. A batch depends only on its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dovetail.arrays import Array, Bools, Floats, Ints, numbers
from dovetail.bounds.design_bound import DesignBound
from dovetail.bounds.design_tables import DesignTables
from dovetail.cost.calibration import calibration
from dovetail.digests import package_digests
from dovetail.errors import InputError
from dovetail.exploration import wafers
from dovetail.exploration.best_plans import columns_of, searched
from dovetail.exploration.corners import corner_bounds
from dovetail.exploration.first_designs import first_rows, next_rows
from dovetail.exploration.free_bounds import StepWork, least_free_seconds
from dovetail.exploration.free_plans import STAGE_WORDS, FreeStage, free_rows, warm_start_rows
from dovetail.exploration.pareto import dominated
from dovetail.exploration.replays import replay_columns, replayed
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.scores import Scores
from dovetail.exploration.store import Part
from dovetail.exploration.tasks import (
    CandidateBatch,
    FreeBatch,
    Leading,
    NextStart,
    Range,
    Replay,
    Task,
    WarmStarts,
)
from dovetail.exploration.unbeaten import unbeaten
from dovetail.frozen import frozen
from dovetail.hardware import Cluster, Tier
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.variable import BOUNDS
from dovetail.hardware.wafer_design import WaferDesigns

#: Warm starts: candidates drawn and bounded by physics, then bounded by profiles, then searched.
DRAWN, PROFILED, SEARCHED = 4096, 256, 4
#: Candidates profiled at once: their arrays stay small however large a batch is.
AT_ONCE = 512
#: For wafers: few valid ones fit a large model, and each profiled grid needs its own tables.
WAFERS_DRAWN, WAFERS_PROFILED = 2**16, 64


class Worker:
    """Runs tasks of a study; tables are built once per process."""

    def __init__(self, study: ResolvedStudy, computed_by: Mapping[str, str] | None = None) -> None:
        self.study = study
        #: digests of where the study was started
        self._computed_by = dict(computed_by or package_digests())
        # wafers come grid by grid, and each grid has its own large tables
        self._design_bound = lru_cache(maxsize=None)(self._new_design_bound)
        #: of each job at each position, to compare the plans of others with
        self._first_tables: dict[tuple[int, int], DesignTables] = {}
        self._tables = lru_cache(maxsize=len(study.jobs) if study.of_wafers else 256)(self._new_tables)

    @property
    def computed_by(self) -> Mapping[str, str]:
        """Digests of where the study was started."""
        return self._computed_by

    def __getstate__(self) -> tuple[ResolvedStudy, dict[str, str]]:
        return self.study, self._computed_by

    def __setstate__(self, state: tuple[ResolvedStudy, dict[str, str]]) -> None:
        self.__init__(*state)

    def __call__(self, task: Task) -> Part:
        """Runs a batch; raises an error on a machine whose code, calibration, data or versions are others."""
        here, there = package_digests(), self._computed_by
        if here != there:
            others = ", ".join(f"{name} {there[name]} → {here[name]}" for name in here if here[name] != there[name])
            fix = "install the same Dovetail, Python and packages on all machines of the cluster"
            raise InputError("worker", f"would compute with something else ({others})", fix)
        match task:
            case Range():
                return self._physical(task)
            case WarmStarts():
                return self._warm_starts(task)
            case NextStart():
                return self._next_start(task)
            case Leading():
                return self._leading(task)
            case FreeBatch():
                return self._free(task)
            case Replay():
                columns = replay_columns(self.study, replayed(self.study, task.code, task.plans, task.least_s))
                return Part("replay", task.number, columns, {"replayed": 1})
            case CandidateBatch(level="profile"):
                return self._profile(task)
            case CandidateBatch(level="sample"):
                bounds_s = self._profiled(task.codes, task.least_s, task.front)
                return self._searched(replace(task, least_s=bounds_s))
            case CandidateBatch():
                return self._searched(task)

    def _searched(self, task: CandidateBatch) -> Part:
        rows = searched(self.study, task.codes, task.least_s, task.front)
        return Part(task.level, task.number, columns_of(self.study, rows), {"searched": len(rows)})

    def _physical(self, task: Range) -> Part:
        study, space = self.study, self.study.positions[task.position].space
        remaining: list[tuple[Ints, Floats]] = []
        dropped = float("inf")
        num_kept, num_unbeaten, holding, left_out = 0, 0, 0, dict[str, int]()
        for batch in space.batches(start=task.start, stop=task.stop, left_out=left_out):
            num_kept += len(batch)
            index, designs = batch.index, batch.designs
            if study.compares_designs:
                index = index[unbeaten(space, index)]
                designs = space.designs(index)
            num_unbeaten += len(index)
            codes = study.codes(task.position, index)
            bounds_s = self.by_physics(task.position, designs)
            holding += int(np.isfinite(bounds_s).all(axis=1).sum())
            left = self._still_open(codes, bounds_s, task.front)
            dropped = min(dropped, self._lowest(codes[~left], bounds_s[~left]))
            remaining.append((codes[left], bounds_s[left]))
        codes = np.concatenate([np.zeros(0, np.int64), *(codes for codes, _ in remaining)])
        bounds_s = np.concatenate([np.zeros((0, len(study.jobs))), *(bounds_s for _, bounds_s in remaining)])
        facts: dict[str, Any] = {"counted": task.stop - task.start, "kept": num_kept, "left": len(codes)}
        facts |= self._dropped(dropped)
        if study.compares_designs:
            facts["unbeaten"] = num_unbeaten
        if study.of_wafers:
            facts |= {"left_out": left_out, "holding": holding}
        return Part("physical", task.number, self._columns(codes, bounds_s), facts)

    def physical_of(self, position: int, designs: Ints) -> Floats:
        """Lower bounds of designs by their numbers: candidates × jobs, in seconds."""
        return self.by_physics(position, self.study.positions[position].space.designs(designs))

    def ideal_points(self) -> Floats:
        """A point no worse than any design, within limits or not: the best value of every variable at once."""
        if self.study.of_wafers:
            # the best grid of each job is another one: we know of no wafer that none beats
            return np.zeros((1, len(self.study.objectives)))
        points = [self._ideal_point(number) for number in range(len(self.study.explored))]
        return np.min(points, axis=0)[None]

    def _ideal_point(self, position: int) -> Floats:
        """That of the designs of one space."""
        space = self.study.positions[position].space
        most = {name: np.asarray(values.max()) for axis in space.axes for name, values in axis.values.items()}
        most |= {name: np.asarray(BOUNDS[name].high, np.float64) for name, _ in space.formulas.derived}
        if "narrowest_bits" in most:
            most["narrowest_bits"] = np.asarray(4.0)
        stacks = [axis.values["hbm_stacks"].min() for axis in space.axes if "hbm_stacks" in axis.values]
        stacks += [0.0] if "hbm_stacks" in dict(space.formulas.derived) else []
        # a design without HBM stacks streams from its SRAM, which may be faster than any stack
        both = np.array([float(most.get("hbm_stacks", space.fixed.hbm_stacks)), *stacks])
        ideal = space.fixed.varied({**most, "hbm_stacks": both})
        least_s = self.study.mean.of(self.by_physics(position, ideal)).min()
        # costs have no useful lower bound here: 0 is the only safe one
        return np.array([1.0 if name == "step_time" else 0.0 for name in self.study.objectives]) * least_s

    @cached_property
    def _step_works(self) -> list[StepWork]:
        """The least work of every job; what dies sustain of their peaks is that of all designs."""
        study = self.study
        return [StepWork.of(job.job, study.usual_clusters[0], study.framework) for job in study.jobs]

    def by_physics(self, position: int, designs: Designs) -> Floats:
        """Lower bounds of every job in seconds: candidates × jobs."""
        study, place = self.study, self.study.positions[position]
        if study.mapping is not None:
            jobs = [job.job for job in study.jobs]
            return least_free_seconds(jobs, study.framework, wafers.as_wafers(designs), place.count, self._step_works)
        if isinstance(designs, WaferDesigns):
            cluster = study.usual_clusters[0]
            sizes = [study.plans.resolve(job.job, cluster, study.framework).micro_batch for job in study.jobs]
            return wafers.least_seconds([job.job for job in study.jobs], study.framework, designs, place.count, sizes)
        designs = place.linked(designs)
        parts = [self._design_bound(number, position).least_s(designs) for number in range(len(study.jobs))]
        return np.stack(parts, axis=-1)

    def _new_design_bound(self, number: int, position: int) -> DesignBound:
        study, job = self.study, self.study.jobs[number].job
        cluster = study.positions[position].bounding_cluster
        micro_batches = study.plans.resolve(job, cluster, study.framework).micro_batch
        return DesignBound(job, cluster, micro_batches, calibration(cluster.chip, job.precision).efficiencies)

    def _lowest(self, codes: Ints, bounds_s: Floats) -> float:
        """The lowest figure of dropped candidates, if the study has a gap: they may be better than the best by less."""
        if not self.study.search.gap or not len(codes):
            return float("inf")
        return float(self._points(codes, bounds_s)[:, 0].min())

    def _dropped(self, lowest: float) -> dict[str, float]:
        """The same as a fact of a part."""
        return {"dropped": lowest} if np.isfinite(lowest) else {}

    def _points(self, codes: Ints, bounds_s: Floats) -> Floats:
        return Scores.of(self.study, codes).points(self.study.mean.of(bounds_s))

    def _still_open(self, codes: Ints, bounds_s: Floats, front: Floats) -> Bools:
        """Which candidates may still improve a front."""
        return ~dominated(self._points(codes, bounds_s), front) & np.isfinite(bounds_s).all(axis=1)

    def _columns(self, codes: Ints, bounds_s: Floats) -> dict[str, Array]:
        names = [f"least_s.{job.name}" for job in self.study.jobs]
        return {"code": codes, **{name: np.ascontiguousarray(bounds_s[:, n]) for n, name in enumerate(names)}}

    def _profile(self, task: CandidateBatch) -> Part:
        if self.study.compares_designs and len(task.front):
            bounds_s = corner_bounds(self.study, task.codes, task.least_s, float(task.front.min()), self)
        else:
            some = [slice(first, first + AT_ONCE) for first in range(0, len(task.codes), AT_ONCE)]
            parts = [self._profiled(task.codes[rows], task.least_s[rows], task.front) for rows in some]
            bounds_s = np.concatenate([np.zeros((0, len(self.study.jobs))), *parts])
        is_open = self._still_open(task.codes, bounds_s, task.front)
        facts: dict[str, Any] = {"counted": len(task.codes), "left": int(is_open.sum())}
        facts |= self._dropped(self._lowest(task.codes[~is_open], bounds_s[~is_open]))
        return Part("profile", task.number, self._columns(task.codes[is_open], bounds_s[is_open]), facts)

    def _profiled(self, codes: Ints, least_s: Floats, front: Floats) -> Floats:
        """Lower bounds from profiles; bounds of jobs that no longer matter stay as they are."""
        study, bounds_s = self.study, least_s.copy()
        latest = Scores.of(study, codes).latest_s(front)
        for position, rows, designs in study.candidates(codes):
            clusters = study.clusters(position, designs)
            for number in range(len(study.jobs)):
                most_s = study.mean.left(latest[rows], bounds_s[rows], number)
                (open_rows,) = np.nonzero(bounds_s[rows, number] < most_s)
                seconds = self._profiles(number, position, [clusters[i] for i in open_rows], most_s[open_rows])
                bounds_s[rows[open_rows], number] = np.maximum(bounds_s[rows[open_rows], number], seconds)
        return bounds_s

    def _profiles(self, number: int, position: int, clusters: Sequence[Cluster], most_s: Floats) -> Floats:
        """Lower bounds of a job on clusters, each refined until it reaches its limit."""
        return self.by_profiles(number, position, clusters, most_s, [None] * len(clusters))[0]

    def by_profiles(
        self, number: int, position: int, clusters: Sequence[Cluster], most_s: Floats, among: Sequence[Bools | None]
    ) -> tuple[Floats, list[Bools | None]]:
        """The same, and which plans may be below the limits; those not among some are known not to be."""
        seconds, left = np.zeros(len(clusters)), list[Bools | None](among)
        for tables, members in self._tables_for(number, position, clusters):
            first = self._first_tables.setdefault((number, position), tables)
            same = tables is first or tables.has_plans_of(first)
            chips, known = [clusters[i].chip for i in numbers(members)], [among[i] for i in numbers(members)]
            every = [plans for plans in known if plans is not None]
            some = np.logical_or.reduce(every) if same and len(every) == len(known) else None
            seconds[members], below = tables.open_seconds(chips, most_s[members], some)
            for i, own, plans in zip(numbers(members), known, below, strict=True):
                if same:
                    left[i] = plans if own is None else plans & own
        return seconds, left

    def _tables_for(
        self, number: int, position: int, clusters: Sequence[Cluster]
    ) -> Iterator[tuple[DesignTables, Ints]]:
        """Tables for clusters, each with the clusters that share its network and formats."""
        alike: dict[_Alike, list[int]] = {}
        for row, cluster in enumerate(clusters):
            key = _Alike(number, position, cluster.tiers, tuple(cluster.chip.dense_flops.published()), cluster)
            alike.setdefault(key, []).append(row)
        for key, rows in alike.items():
            yield self._tables(key), np.array(rows, np.int64)

    def _new_tables(self, key: _Alike) -> DesignTables:
        study = self.study
        # a study that simulates must not drop a design that is slow only in the model
        at_least = study.search.simulate_top is not None
        return DesignTables(study.jobs[key.job].job, key.cluster, study.framework, study.plans, at_least=at_least)

    def _warm_starts(self, task: WarmStarts) -> Part:
        """Searches candidates of a sample with good bounds in each objective: a front to beat."""
        study = self.study
        if task.codes is not None and task.least_s is not None:
            rows = warm_start_rows(study, task.codes, task.least_s)
            return Part("warm_start", task.number, columns_of(study, rows), {"searched": len(rows)})
        nothing = np.zeros((0, len(study.objectives)))
        if study.compares_designs:
            rows = first_rows(study, self._sampled(DRAWN)[0])
            return Part("warm_start", task.number, columns_of(study, rows), {"searched": len(rows)})
        drawn_at_most, profiled = (WAFERS_DRAWN, WAFERS_PROFILED) if study.of_wafers else (DRAWN, PROFILED)
        drawn, bounds = self._sampled(drawn_at_most)
        best = self._best(drawn, bounds, profiled)
        drawn, bounds = drawn[best], self._profiled(drawn[best], bounds[best], nothing)
        best = self._best(drawn, bounds, SEARCHED)
        rows = searched(study, drawn[best], bounds[best], nothing)
        return Part("warm_start", task.number, columns_of(study, rows), {"searched": len(rows)})

    def _next_start(self, task: NextStart) -> Part:
        """Searches the candidate of a sample on which known plans take least."""
        rows = next_rows(self.study, self._sampled(DRAWN)[0], task.code, task.plans, task.front)
        return Part("warm_start", task.number, columns_of(self.study, rows), {"searched": len(rows)})

    def _sampled(self, most: int) -> tuple[Ints, Floats]:
        """A seeded sample of candidates that physics lets run, and its bounds."""
        study, codes, bounds_s = self.study, list[Ints](), list[Floats]()
        for position, place in enumerate(study.explored):
            sample = place.space.sample(max(most // len(study.explored), 1), study.seed)
            codes.append(study.codes(position, sample.index))
            bounds_s.append(self.by_physics(position, sample.designs))
        drawn, bounds = np.concatenate(codes), np.concatenate(bounds_s)
        can = np.isfinite(bounds).all(axis=1)
        return drawn[can], bounds[can]

    def _leading(self, task: Leading) -> Part:
        """The designs with the lowest bounds by physics, over all objectives."""
        study, space = self.study, self.study.positions[task.position].space
        codes, bounds_s = np.zeros(0, np.int64), np.zeros((0, len(study.jobs)))
        for batch in space.batches(start=task.start, stop=task.stop):
            codes = np.concatenate([codes, study.codes(task.position, batch.index)])
            bounds_s = np.concatenate([bounds_s, self.by_physics(task.position, batch.designs)])
            best = self._best(codes, bounds_s, task.most)
            codes, bounds_s = codes[best], bounds_s[best]
        return Part("leading", task.number, self._columns(codes, bounds_s), {"counted": task.stop - task.start})

    def _free(self, task: FreeBatch) -> Part:
        rows = free_rows(self.study, task.codes, task.least_s, task.front, task.stage)
        columns = {**columns_of(self.study, rows), "stage": [STAGE_WORDS[task.stage]] * len(rows)}
        following = FreeStage.DONE if all(row.ended for row in rows) else FreeStage(task.stage + 1)
        facts = {"stage": int(task.stage), "following": int(following), "searched": len(rows)}
        return Part("search", task.number, columns, facts)

    def _best(self, codes: Ints, bounds_s: Floats, number: int) -> Ints:
        """The candidates with the lowest bounds in each objective."""
        points = self._points(codes, bounds_s)
        orders = [np.lexsort((codes, points[:, n])) for n in range(points.shape[1])]
        leading = [order[np.isfinite(points[order, n])][:number] for n, order in enumerate(orders)]
        return np.unique(np.concatenate(leading))


@frozen
class _Alike:
    """What tables depend on: a job, a number of chips, their network and the formats of their products."""

    job: int
    position: int
    tiers: tuple[Tier, ...]
    formats: tuple[str, ...]
    #: one of these clusters
    cluster: Cluster = field(compare=False)
