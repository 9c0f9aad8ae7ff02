"""The levels of a study: what workers do with a batch of candidates, given the front so far.

- physical: what the hardware allows at best (L0), for a range of designs as arrays;
- profile: what no plan of the space beats (L1⁻), with the layers of the jobs profiled on every design;
- search: the best plan of every job (L1), for one candidate after the other;
- replay: the leading plans of every job simulated (L2), where a study asks for it.

At each level a candidate is dropped when some point of the front beats its bound. A batch depends on its task alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dovetail.arrays import Array, Bools, Floats, Ints
from dovetail.bounds.design_bound import design_bounds
from dovetail.bounds.design_tables import DesignTables
from dovetail.exploration import wafers
from dovetail.exploration.best_plans import columns_of, limits, searched
from dovetail.exploration.floors import candidate_floors
from dovetail.exploration.pareto import dominated
from dovetail.exploration.replays import replay_columns, replayed
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.store import Part
from dovetail.hardware import Chip, Cluster, Tier
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.variable import BOUNDS
from dovetail.hardware.wafer_design import WaferDesigns

#: Candidates that are looked at before any other: drawn, bounded by physics, bounded by profiles, searched.
DRAWN, PROFILED, SEARCHED = 4096, 256, 4
#: Of wafers: few of those that keep the rules hold a large model, and each grid that is profiled takes tables.
WAFERS_DRAWN, WAFERS_PROFILED = 2**16, 64


@dataclass(frozen=True, slots=True)
class Range:
    """Designs with one number of chips, by their numbers in the space."""

    number: int
    position: int
    start: int
    stop: int
    front: Floats


@dataclass(frozen=True, slots=True)
class Some:
    """Candidates with what is known of them: least step times of jobs."""

    level: str
    number: int
    codes: Ints
    #: candidates × jobs
    least_s: Floats
    front: Floats


@dataclass(frozen=True, slots=True)
class Scouts:
    """The candidates to look at first."""

    number: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A candidate to simulate, with the best plan of every job by the model where they are known."""

    number: int
    code: int
    plans: tuple[str, ...] = ()


Task = Range | Some | Scouts | Replay


class Worker:
    """Runs tasks of a study; tables are made once in every process."""

    def __init__(self, study: ResolvedStudy) -> None:
        self.study = study
        # wafers come grid by grid, and each grid has tables of its own, large ones
        self._tables = lru_cache(maxsize=len(study.jobs) if study.of_wafers else 256)(self._new_tables)

    def __getstate__(self) -> ResolvedStudy:
        return self.study

    def __setstate__(self, study: ResolvedStudy) -> None:
        self.__init__(study)

    def __call__(self, task: Task) -> Part:
        """What a batch finds."""
        match task:
            case Range():
                return self._physical(task)
            case Scouts():
                return self._scouts(task)
            case Replay():
                columns = replay_columns(self.study, replayed(self.study, task.code, task.plans))
                return Part("replay", task.number, columns, {"replayed": 1})
            case Some(level="profile"):
                return self._profile(task)
            case Some(level="sample"):
                least = self._profiled(task.codes, task.least_s, task.front)
                return self._searched(replace(task, least_s=least))
            case Some():
                return self._searched(task)

    def _searched(self, task: Some) -> Part:
        rows = searched(self.study, task.codes, task.least_s, task.front)
        return Part(task.level, task.number, columns_of(self.study, rows), {"searched": len(rows)})

    def _physical(self, task: Range) -> Part:
        study, space = self.study, self.study.spaces[task.position]
        found: list[tuple[Ints, Floats]] = []
        kept, holding, left_out = 0, 0, dict[str, int]()
        for batch in space.batches(start=task.start, stop=task.stop, left_out=left_out):
            kept += len(batch)
            codes = study.codes(task.position, batch.index)
            least = self._physical_s(task.position, batch.designs)
            holding += int(np.isfinite(least).all(axis=1).sum())
            left = self._left(codes, least, task.front)
            found.append((codes[left], least[left]))
        codes = np.concatenate([np.zeros(0, np.int64), *(codes for codes, _ in found)])
        least = np.concatenate([np.zeros((0, len(study.jobs))), *(least for _, least in found)])
        facts: dict[str, Any] = {"counted": task.stop - task.start, "kept": kept, "left": len(codes)}
        if study.of_wafers:
            facts |= {"left_out": left_out, "holding": holding}
        return Part("physical", task.number, self._columns(codes, least), facts)

    def physical_of(self, position: int, designs: Ints) -> Floats:
        """Least seconds of designs by their numbers: candidates × jobs."""
        return self._physical_s(position, self.study.spaces[position].designs(designs))

    def ideal_points(self) -> Floats:
        """A point no worse than any design, whether in its limits or not: the best of every variable at once."""
        space = self.study.space
        most = {name: np.asarray(values.max()) for axis in space.axes for name, values in axis.values.items()}
        most |= {name: np.asarray(BOUNDS[name].high, np.float64) for name, _ in space.formulas.derived}
        if "narrowest_bits" in most:
            most["narrowest_bits"] = np.asarray(4.0)
        stacks = [axis.values["hbm_stacks"].min() for axis in space.axes if "hbm_stacks" in axis.values]
        stacks += [0.0] if "hbm_stacks" in dict(space.formulas.derived) else []
        # a design without stacks streams from its own memory, which may be faster than any stack
        both = np.array([float(most.get("hbm_stacks", space.fixed.hbm_stacks)), *stacks])
        ideal = space.fixed.varied({**most, "hbm_stacks": both})
        weighted = (self._physical_s(0, ideal) @ self.study.weights).min(keepdims=True)
        # what a design costs at least is not bounded: nothing is cheaper than nothing
        lines = [1.0 if name == "step_time" else 0.0 for name in self.study.objectives]
        return np.array(lines)[None] * weighted[:, None]

    def _physical_s(self, position: int, designs: Designs) -> Floats:
        """Least seconds of every job: candidates × jobs."""
        study, count = self.study, self.study.counts[position]
        cluster = study.usual_clusters[0]
        sizes = [study.plans.resolve(job.job, cluster, study.framework).micro_batch for job in study.jobs]
        if isinstance(designs, WaferDesigns):
            return wafers.least_seconds([job.job for job in study.jobs], study.framework, designs, count, sizes)
        cluster = study.cluster(study.space.base, count)
        if study.tiers is not None and cluster.tiers:
            # the network is the cluster's, whatever links a design has
            rate = np.asarray(cluster.tiers[0].bytes_per_s)
            designs = designs.varied({"link_ports": np.ones(()), "link_port_bytes_per_s": rate})
        parts: list[Floats] = []
        for job, micro_batches in zip(study.jobs, sizes, strict=True):
            parts.append(design_bounds([job.job], cluster, designs, micro_batches)[..., 0, :].min(axis=-1))
        return np.stack(parts, axis=-1)

    def _points(self, codes: Ints, least: Floats) -> Floats:
        return candidate_floors(self.study, codes).points(least @ self.study.weights)

    def _left(self, codes: Ints, least: Floats, front: Floats) -> Bools:
        """Which candidates may still add to a front."""
        return ~dominated(self._points(codes, least), front) & np.isfinite(least).all(axis=1)

    def _columns(self, codes: Ints, least: Floats) -> dict[str, Array]:
        names = [f"least_s.{job.name}" for job in self.study.jobs]
        return {"code": codes, **{name: np.ascontiguousarray(least[:, n]) for n, name in enumerate(names)}}

    def _profile(self, task: Some) -> Part:
        least = self._profiled(task.codes, task.least_s, task.front)
        left = self._left(task.codes, least, task.front)
        facts = {"counted": len(task.codes), "left": int(left.sum())}
        return Part("profile", task.number, self._columns(task.codes[left], least[left]), facts)

    def _profiled(self, codes: Ints, least_s: Floats, front: Floats) -> Floats:
        """Least seconds by profiles; those of jobs that no longer matter stay as they are."""
        study, least = self.study, least_s.copy()
        latest = candidate_floors(study, codes).latest(front)
        for position, rows, designs in study.candidates(codes):
            clusters = study.clusters(position, designs)
            for number in range(len(study.jobs)):
                most_s = limits(latest[rows], least[rows], study.weights, number)
                (open_rows,) = np.nonzero(least[rows, number] < most_s)
                alike = self._tables_for(number, position, [clusters[i] for i in open_rows.tolist()])
                for tables, members in alike:
                    some = open_rows[members]
                    chosen: list[Chip] = [clusters[int(i)].chip for i in some]
                    seconds = tables.least_seconds(chosen, most_s[some])
                    least[rows[some], number] = np.maximum(least[rows[some], number], seconds)
        return least

    def _tables_for(
        self, number: int, position: int, clusters: Sequence[Cluster]
    ) -> Iterator[tuple[DesignTables, Ints]]:
        """Tables for clusters, and which of them each is for: those with the same network and formats."""
        alike: dict[_Alike, list[int]] = {}
        for row, cluster in enumerate(clusters):
            key = _Alike(number, position, cluster.tiers, tuple(cluster.chip.dense_flops.published()), cluster)
            alike.setdefault(key, []).append(row)
        for key, rows in alike.items():
            yield self._tables(key), np.array(rows, np.int64)

    def _new_tables(self, key: _Alike) -> DesignTables:
        study = self.study
        # a study that simulates must not drop a design that only the model finds slow
        at_least = study.search.simulate_top is not None
        return DesignTables(study.jobs[key.job].job, key.cluster, study.framework, study.plans, at_least=at_least)

    def _scouts(self, task: Scouts) -> Part:
        """Candidates with good bounds out of a sample, for each objective: a front to beat."""
        study = self.study
        codes: list[Ints] = []
        least: list[Floats] = []
        drawn_at_most, profiled = (WAFERS_DRAWN, WAFERS_PROFILED) if study.of_wafers else (DRAWN, PROFILED)
        for position, space in enumerate(study.spaces):
            sample = space.sample(max(drawn_at_most // len(study.counts), 1), study.seed)
            codes.append(study.codes(position, sample.index))
            least.append(self._physical_s(position, sample.designs))
        drawn, bounds = np.concatenate(codes), np.concatenate(least)
        nothing = np.zeros((0, len(study.objectives)))
        chosen = self._best(drawn, bounds, profiled)
        drawn, bounds = drawn[chosen], self._profiled(drawn[chosen], bounds[chosen], nothing)
        chosen = self._best(drawn, bounds, SEARCHED)
        rows = searched(study, drawn[chosen], bounds[chosen], nothing)
        return Part("scout", task.number, columns_of(study, rows), {"searched": len(rows)})

    def _best(self, codes: Ints, least: Floats, number: int) -> Ints:
        """Those with the least bound of each objective."""
        points = self._points(codes, least)
        orders = [np.lexsort((codes, points[:, n])) for n in range(points.shape[1])]
        some = [order[np.isfinite(points[order, n])][:number] for n, order in enumerate(orders)]
        return np.unique(np.concatenate(some))


@dataclass(frozen=True, slots=True)
class _Alike:
    """What tables depend on: a job, a number of chips, their network and the formats they multiply in."""

    job: int
    position: int
    tiers: tuple[Tier, ...]
    formats: tuple[str, ...]
    #: one of them
    cluster: Cluster = field(compare=False)
