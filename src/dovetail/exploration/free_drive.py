"""The driver of a study of free mappings: designs bounded by physics, then refined one stage at a time, best first.

Searching one wafer takes minutes, so nothing is refined further than it must be: of all designs that may still be
better than the best by more than the study's gap, the one with the lowest bound is refined next.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.exploration.drive import PHYSICAL, Drive
from dovetail.exploration.free_plans import FreeStage, figures
from dovetail.exploration.pareto import dominated
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.replays import plans_of, simulation_document
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.scores import Scores
from dovetail.exploration.stopping import StoppedError
from dovetail.exploration.store import Part
from dovetail.exploration.tasks import FreeBatch, Leading, Replay, Task, WarmStarts
from dovetail.frozen import frozen
from dovetail.hardware import Cluster

#: Leading designs by physics that are looked at for a warm start: physics knows little of designs with a store.
LEADING, LEADING_WITH_STORE = 64, 512


@frozen
class Refined:
    """What is known of the candidates after some batches."""

    front: ParetoFront
    #: candidates × jobs: proven lower bounds
    least_s: Floats
    #: of every candidate: its next stage
    stages: Ints

    def with_part(self, part: Part, rows: Ints, study: ResolvedStudy) -> Refined:
        """The same after a batch with these candidates."""
        least_s, stages = self.least_s.copy(), self.stages.copy()
        told = np.stack([np.asarray(part.columns[f"least_s.{job.name}"]) for job in study.jobs], axis=1)
        least_s[rows] = np.maximum(least_s[rows], told)
        stages[rows] = int(part.facts["following"])
        return Refined(self.front.with_part(part, study.objectives), least_s, stages)


class FreeDrive(Drive):
    """One run of a study of free mappings."""

    _levels = ("kept", "holding", "physical", "alike", "blocks", "short")

    def _explored(self) -> tuple[ParetoFront, list[Part], Floats]:
        self._check_size()
        warm_starts: list[Part] = []
        task = self._warm_starts()
        front = self._run_level("warm_start", 1, lambda k, _: task if k == 0 else None, self._empty, warm_starts.append)
        to_beat = self.study.to_beat(front.points)
        codes, bounds_s = self._physical(front, to_beat).whole()
        if self.stopped is not None:
            return front, warm_starts, np.concatenate([self._open_points(warm_starts), self._ideal()])
        queue = _Queue(self.study, codes)
        parts: list[Part] = []
        refined = self._refine(queue, Refined(front, bounds_s, np.zeros(len(codes), np.int64)), parts)
        parts = [*warm_starts, *parts]
        self._count_searched(parts)
        of_own = ~queue.alike
        self.counts["alike"] = int(queue.alike.sum())
        if self.study.search.simulate_top is not None and self.stopped is None:
            self._simulate(codes[of_own], refined.least_s[of_own], parts, float(to_beat.min(initial=np.inf)))
        return refined.front, parts, queue.points(refined)[of_own]

    def _warm_starts(self) -> WarmStarts:
        """The leading designs by physics, of alike ones the first."""
        study = self.study
        leading = LEADING if study.usual_clusters[0].store is None else LEADING_WITH_STORE
        ranges = study.ranges(PHYSICAL)

        def task_of(k: int, _: ParetoFront) -> Task | None:
            return Leading(k, *ranges[k], leading) if k < len(ranges) else None

        survivors = self._candidates("leading", len(ranges), task_of, self._empty, lambda _: None)
        codes, bounds_s = survivors.whole()
        order = np.lexsort((codes, study.mean.of(bounds_s)))[:leading]
        distinct: dict[Cluster, int] = {}
        for row in order.tolist():
            distinct.setdefault(figures(study.cluster_of(int(codes[row]))), row)
        rows = np.array(list(distinct.values()), np.int64)
        return WarmStarts(0, codes[rows], bounds_s[rows])

    def _refine(self, queue: _Queue, refined: Refined, parts: list[Part]) -> Refined:
        """Refines candidates until none matters any more, or the study is stopped.

        A batch is made with what was known some batches before it; when nothing is left to refine by that, we wait for
        all of them and go on.
        """
        latest = refined

        def task_of(k: int, known: Refined) -> Task | None:
            rows = queue.following(known, self.study.search.batch)
            if not len(rows):
                return None
            stage = FreeStage(int(known.stages[rows[0]]))
            return FreeBatch(k, stage, queue.codes[rows], known.least_s[rows], known.front.points)

        def absorb(known: Refined, _number: int, part: Part) -> Refined:
            nonlocal latest
            parts.append(part)
            latest = known.with_part(part, queue.rows_of(part), self.study)
            self.batches += 1
            self.counts["evaluated"] += int(np.asarray(part.columns["evaluated"]).sum())
            self.bound, self.left = queue.lowest(latest), len(queue.open_rows(latest))
            self._progress.report(self, "search", latest.front, len(parts), None)
            return latest

        try:
            while self.stopped is None and len(queue.open_rows(latest)):
                before = len(parts)
                self._ordered("search", task_of, latest, absorb, before)
                if len(parts) == before:
                    break
        except (StoppedError, KeyboardInterrupt):
            self.stopped = self.stop.asked or "interrupt"
        self.pruned["search"] = int((latest.stages == FreeStage.BLOCKS).sum() - queue.alike.sum())
        return latest

    def _count_searched(self, parts: list[Part]) -> None:
        """Counts designs by what became of them, each once."""
        by_stage: dict[int, set[int]] = {}
        evaluated: set[int] = set()
        for part in parts:
            codes, done = np.asarray(part.columns["code"]), np.asarray(part.columns["evaluated"], np.bool_)
            evaluated |= set(codes[done].tolist())
            # warm starts have no stage
            by_stage.setdefault(part.facts.get("stage", -1), set()).update(codes.tolist())
        self.counts["blocks"] = len(by_stage.get(FreeStage.BLOCKS, ()))
        self.counts["short"] = len(by_stage.get(FreeStage.SHORT, ()))
        self.counts["searched"] = len(by_stage.get(FreeStage.FULL, ()))
        self.counts["evaluated"] = len(evaluated)

    def _simulate(self, codes: Ints, least_s: Floats, parts: list[Part], dropped_s: float) -> None:
        """Simulates the plans of the best designs; what physics dropped takes at least `dropped_s`."""
        study, replays = self.study, list[Part]()
        self.counts["replayed"] = 0
        found = ParetoFront.empty(1)
        best: dict[int, float] = {}
        for part in parts:
            done = np.asarray(part.columns["evaluated"], np.bool_)
            figures = np.asarray(part.columns["figure.step_time"])[done]
            for code, figure in zip(np.asarray(part.columns["code"])[done].tolist(), figures.tolist(), strict=True):
                best[code] = min(figure, best.get(code, np.inf))
        leading = sorted(best, key=lambda code: (best[code], code))[: study.search.simulate_top]
        bound_of = dict(zip(codes.tolist(), least_s.tolist(), strict=True))

        def task_of(k: int, _: ParetoFront) -> Task | None:
            if k >= len(leading):
                return None
            code = leading[k]
            # a warm start that physics dropped later has no bound of its own
            bounds = tuple(bound_of.get(code, [dropped_s] * len(study.jobs)))
            return Replay(k, code, plans_of(study, parts, code), bounds)

        self._run_level("replay", len(leading), task_of, found, replays.append)
        self.simulation = simulation_document(study, replays, codes, study.mean.of(least_s), dropped_s)


class _Queue:
    """Candidates to refine: which of them are open, and which comes next."""

    def __init__(self, study: ResolvedStudy, codes: Ints) -> None:
        self.study, self.codes = study, codes
        self._bounds: Scores = Scores.of(study, codes)
        self._row_of = {int(code): row for row, code in enumerate(codes.tolist())}
        #: stages handed out
        self._asked = np.zeros(len(codes), np.int64)
        #: candidates that plans cannot tell from one before them, which stands for them
        self.alike: Bools = np.zeros(len(codes), np.bool_)
        self._first: dict[Cluster, int] = {}

    def rows_of(self, part: Part) -> Ints:
        """The candidates of a part."""
        return np.array([self._row_of[int(code)] for code in np.asarray(part.columns["code"]).tolist()], np.int64)

    def points(self, known: Refined) -> Floats:
        """Lower bounds of the objectives."""
        return self._bounds.points(self.study.mean.of(known.least_s))

    def open_rows(self, known: Refined) -> Ints:
        """Candidates that have a stage left and may matter, the lowest bound first."""
        points = self.points(known)
        is_open = ~dominated(points, self.study.to_beat(known.front.points)) & (known.stages < FreeStage.DONE)
        (rows,) = np.nonzero(is_open & ~self.alike & np.isfinite(points).all(axis=1))
        return rows[np.lexsort((self.codes[rows], points[rows, 0]))]

    def lowest(self, known: Refined) -> float | None:
        """The lowest bound of all candidates in the first objective."""
        points = self.points(known)[~self.alike, 0]
        lowest = float(points.min(initial=np.inf))
        return lowest if np.isfinite(lowest) else None

    def following(self, known: Refined, size: int) -> Ints:
        """The next candidates to refine by the same stage: several for block bounds, one for a search.

        What was handed out and is not known yet is left out.
        """
        chosen: list[int] = []
        for row in self.open_rows(known).tolist():
            stage = int(known.stages[row])
            if self._asked[row] != stage or (chosen and stage != FreeStage.BLOCKS):
                continue
            if stage == FreeStage.BLOCKS and not self._is_complete(row):
                continue
            chosen.append(row)
            if stage != FreeStage.BLOCKS or len(chosen) == size:
                break
        rows = np.array(chosen, np.int64)
        self._asked[rows] += 1
        return rows

    def _is_complete(self, row: int) -> bool:
        """Whether no candidate before it has the same figures; if one has, it stands for both."""
        if self.study.objectives != ("step_time",):
            return True
        first = self._first.setdefault(figures(self.study.cluster_of(int(self.codes[row]))), row)
        self.alike[row] = first != row
        return first == row
