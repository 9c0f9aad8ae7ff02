"""The driver of a study: one fidelity level after another, in fixed batches on any executor, saved as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration.drive_progress import DriveProgress
from dovetail.exploration.events import Listener
from dovetail.exploration.executor import Executor
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.first_designs import profiles_pay
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.open_candidates import OpenCandidates, network_of
from dovetail.exploration.ordered import run_ordered
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.part_of_store import PartOfStore
from dovetail.exploration.replays import codes_of, plans_of, simulation_document, weighted
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.result import open_points, result_document
from dovetail.exploration.scores import Scores
from dovetail.exploration.stopping import Reason, Stop, StoppableExecutor, StoppedError
from dovetail.exploration.store import Part, RunStore
from dovetail.exploration.survivors import WINDOW_ROWS, Survivors
from dovetail.exploration.tasks import CandidateBatch, NextStart, Range, Replay, Task, WarmStarts

S = TypeVar("S")

#: Candidates per batch of each fidelity level: about a second of work.
PHYSICAL, PROFILED = 2**20, 512
#: Candidates per batch of profiles where physics leaves more than a window: one driver then feeds a thousand cores.
PROFILED_OF_MANY = 2**13
#: The same where similar designs are bounded together: the more of them, the less each takes.
PROFILED_TOGETHER = 2**16
#: Largest space we enumerate.
MAX_ENUMERATED = 10**10


class Drive:
    """One run of a study."""

    #: counts before those of the search
    _levels: tuple[str, ...] = ("kept", "holding", "unbeaten", "physical", "profile")

    def __init__(
        self,
        study: ResolvedStudy,
        store: RunStore | InMemoryStore | PartOfStore,
        executor: Executor,
        listener: Listener | None,
        stop: Stop | None = None,
    ) -> None:
        self.study = study
        self.store = store
        self.stop = stop or Stop(study.search.time_limit_s)
        self.executor = StoppableExecutor(executor, self.stop)
        applies = {"holding": study.of_wafers, "unbeaten": study.compares_designs}
        through = [name for name in self._levels if applies.get(name, True)]
        self.counts = {"designs": study.size, **dict.fromkeys((*through, "searched", "evaluated"), 0)}
        self.counted = 0
        self.batches = 0
        self.pruned: dict[str, int] = {}
        #: limit → designs that meet all limits before it and break this one, if designs are wafers
        self.left_out: dict[str, int] = {}
        self.bound: float | None = None
        #: designs that may still matter, where a level knows better than what is pruned and searched
        self.left: int | None = None
        #: the lowest figure of designs that were dropped within the gap of the study
        self.dropped = float("inf")
        #: what ended the study early
        self.stopped: Reason | None = None
        #: results of simulated designs, if the study asks for them
        self.simulation: dict[str, Any] | None = None
        #: results of the chips to compare with
        self.references = list[Part]()
        self._progress = DriveProgress(listener)

    def result(self, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs the study and saves its result, with what else there is to tell."""
        front, searched, unproven = self._explored()
        if np.isfinite(self.dropped):
            unproven = np.concatenate([unproven, [[self.dropped]]])
        document = result_document(self.study, front, searched, self.counts, unproven, self.references)
        document |= told or {}
        if self.study.of_wafers:
            document["left_out"] = self.left_out
        if self.simulation is not None:
            document["simulation"] = self.simulation
        self.store.note_time("study", 0, self._progress.elapsed_s)
        if self.stopped is None:
            self.store.finish(document)
        else:
            self.store.pause(document, self.stopped)
        return document

    def _check_size(self) -> None:
        """Raises an error if there are too many designs to look at each."""
        if self.study.size > MAX_ENUMERATED:
            what = f"has {self.study.size:,} designs, too many to enumerate"
            raise InputError("hardware", what, "narrow it, or set search.method to evolutionary")

    def _explored(self) -> tuple[ParetoFront, list[Part], Floats]:
        """The front, the parts of searched designs, and the lower bounds of what is not proven."""
        self._check_size()
        front, warm_starts = self.compared(), [part for part in self.references if self._eligible(part)]
        front = self._started(front, warm_starts)
        top, replays = self.study.search.simulate_top, list[Part]()
        to_beat, simulated = front.points, self._empty
        if top is not None:
            self.counts["replayed"] = 0
            simulated = self._replay_best(0, front, warm_starts, simulated, replays)
            # what we drop must be slower in simulated time too, which we only know if something was simulated
            to_beat = np.maximum(front.points, simulated.points) if len(simulated) else simulated.points
        to_beat = self.study.to_beat(to_beat)
        survivors = self._physical(front, to_beat)
        if self.stopped is not None:
            return front, warm_starts, np.concatenate([self._open_points(warm_starts), self._ideal()])
        unprofiled = self._empty.points
        if profiles_pay(self.study):
            survivors, unprofiled = self._profile(survivors, front, to_beat)
        else:
            del self.counts["profile"]
        codes, bounds_s = survivors.whole()
        is_warm_start = np.isin(codes, codes_of(warm_starts))
        front, searched, rest = self._search(codes[~is_warm_start], bounds_s[~is_warm_start], front)
        rest = np.concatenate([rest, unprofiled])
        if top is not None and self.stopped is None:
            weighted_s, self.bound = self.study.mean.of(bounds_s), None
            simulated = self._replay_best(1, front, [*warm_starts, *searched], simulated, replays)
            self._replay(top, codes, weighted_s, [*warm_starts, *searched], simulated, replays)
            self.simulation = simulation_document(self.study, replays, codes, weighted_s, self.dropped)
        return front, [*warm_starts, *searched], np.concatenate([self._open_points([*warm_starts, *searched]), rest])

    def _started(self, front: ParetoFront, warm_starts: list[Part]) -> ParetoFront:
        """The front after warm starts: designs that suit the plans of the best, as long as they beat it."""
        front = self._run_level(
            "warm_start", None, lambda k, _: WarmStarts(k) if k == 0 else None, front, warm_starts.append
        )
        number, code = 1, -1
        while self.study.compares_designs and self.stopped is None and len(front) and front.codes[0] != code:
            code = int(front.codes[0])
            front = self._next_start(number, code, front, warm_starts)
            number += 1
        return front

    def _next_start(self, number: int, code: int, front: ParetoFront, warm_starts: list[Part]) -> ParetoFront:
        """The front after a search for the design that suits the plans found for another."""
        plans = plans_of(self.study, warm_starts, code)
        if not plans:
            return front

        def task_of(k: int, known: ParetoFront) -> Task | None:
            return NextStart(k, code, plans, known.points) if k == number else None

        return self._run_level("warm_start", None, task_of, front, warm_starts.append, number)

    def _open_points(self, searched: list[Part]) -> Floats:
        """Lower bounds of what was searched and is not proven."""
        nothing = np.zeros((0, len(self.study.objectives)))
        return np.concatenate([nothing, *(open_points(self.study, part) for part in searched)])

    def _ideal(self) -> Floats:
        """Points no worse than any design, for a study that ends before all designs are bounded."""
        return Worker(self.study).ideal_points()

    def compared(self) -> ParetoFront:
        """The front of the chips to compare with that keep the limits; each is planned, whatever is better."""
        study, codes = self.study, self.study.references
        unknown, nothing = np.zeros((1, len(study.jobs))), self._empty.points

        def task_of(k: int, _: ParetoFront) -> Task | None:
            one = slice(k, k + 1)
            return CandidateBatch("reference", k, codes[one], unknown, nothing) if k < len(codes) else None

        return self._run_level("reference", len(codes), task_of, self._empty, self.references.append)

    def _eligible(self, part: Part) -> bool:
        """Whether the chip of a part may win."""
        return all(self.study.keeps(np.asarray(part.columns["code"], np.int64)))

    def _replay_best(
        self, number: int, front: ParetoFront, searched: list[Part], simulated: ParetoFront, replays: list[Part]
    ) -> ParetoFront:
        """Simulates the model's best design, unless there is none or it was simulated; returns the best simulated."""
        seen = codes_of(replays)
        if not len(front) or int(front.codes[0]) in seen:
            return simulated
        code = int(front.codes[0])

        def task_of(k: int, _: ParetoFront) -> Task | None:
            return Replay(k, code, plans_of(self.study, searched, code)) if k == number else None

        return self._run_level("replay", None, task_of, simulated, replays.append, number)

    def _replay(
        self,
        top: int,
        codes: Ints,
        weighted_s: Floats,
        searched: list[Part],
        simulated: ParetoFront,
        replays: list[Part],
    ) -> None:
        """Simulates up to `top` candidates in the order of their lower bounds, until the best simulated beats them.

        The warm start that was simulated first does not count, unless it is also the model's best.
        """
        order = np.lexsort((codes, weighted_s))
        order = order[~np.isin(codes[order], np.array(codes_of(replays), np.int64))]
        # if the model's search found nothing that fits, nothing does
        candidates, given = OpenCandidates(weighted_s[order, None]), 1 if len(simulated) else top

        def task_of(k: int, current: ParetoFront) -> Task | None:
            nonlocal given
            rows = order[candidates.following(1, current.points)] if given < top else order[:0]
            if not len(rows):
                return None
            given += 1
            code = int(codes[rows[0]])
            return Replay(k, code, plans_of(self.study, searched, code))

        self._run_level("replay", None, task_of, simulated, replays.append, 2)

    def _physical(self, front: ParetoFront, to_beat: Floats) -> Survivors:
        ranges = self.study.ranges(PHYSICAL)

        def task_of(k: int, _: ParetoFront) -> Task | None:
            return Range(k, *ranges[k], to_beat) if k < len(ranges) else None

        def absorb(part: Part) -> None:
            self.counts["kept"] += part.facts["kept"]
            self.counts["physical"] += part.facts["left"]
            if "unbeaten" in self.counts:
                self.counts["unbeaten"] += part.facts["unbeaten"]
            self.dropped = min(self.dropped, part.facts.get("dropped", np.inf))
            self.counted += part.facts["counted"]
            if self.study.of_wafers:
                self.counts["holding"] += part.facts["holding"]
                for text, number in part.facts["left_out"].items():
                    self.left_out[text] = self.left_out.get(text, 0) + number
            self.pruned["limits"] = self.counted - self.counts["kept"]
            self.pruned["physical"] = self.counts["kept"] - self.counts["physical"]

        return self._candidates("physical", len(ranges), task_of, front, absorb)

    def _profile(self, survivors: Survivors, front: ParetoFront, to_beat: Floats) -> tuple[Survivors, Floats]:
        """The candidates that profiles leave, and where the study ends early, lower bounds of those not profiled."""
        size = PROFILED_OF_MANY if len(survivors) > WINDOW_ROWS else PROFILED
        size = PROFILED_TOGETHER if self.study.compares_designs else size
        batches, under_way = self._profiled_batches(survivors, size), dict[int, tuple[Ints, Floats]]()

        def task_of(k: int, _: ParetoFront) -> Task | None:
            batch = next(batches, None)
            if batch is None:
                return None
            under_way[k] = batch
            return CandidateBatch("profile", k, *batch, to_beat)

        def absorb(part: Part) -> None:
            del under_way[part.number]
            self.counts["profile"] += part.facts["left"]
            self.dropped = min(self.dropped, part.facts.get("dropped", np.inf))
            self.pruned["profile"] = self.pruned.get("profile", 0) + part.facts["counted"] - part.facts["left"]

        if len(survivors) <= WINDOW_ROWS:
            self.bound = min(self._least_points(*survivors.whole())[:, 0].tolist(), default=None)
        left = self._candidates("profile", -(-len(survivors) // size), task_of, front, absorb)
        rest = [] if self.stopped is None else [*under_way.values(), *batches]
        nothing = np.zeros((0, len(self.study.objectives)))
        return left, np.concatenate([nothing, *(self._least_points(codes, bounds_s) for codes, bounds_s in rest)])

    def _least_points(self, codes: Ints, bounds_s: Floats) -> Floats:
        """Lower bounds of the objectives of candidates."""
        return Scores.of(self.study, codes).points(self.study.mean.of(bounds_s))

    def _profiled_batches(self, survivors: Survivors, size: int) -> Iterator[tuple[Ints, Floats]]:
        """Candidates to profile, those with the lowest bounds of each window first."""
        for codes, bounds_s in survivors.windows():
            # tables are built once per grid, so its designs are profiled one after the other
            network = network_of(self.study, codes) if self.study.of_wafers else ()
            best_first = () if self.study.compares_designs else (self.study.mean.of(bounds_s),)
            # similar designs are bounded together
            order = np.lexsort((codes, *best_first, *network))
            for first in range(0, len(order), size):
                rows = order[first : first + size]
                yield codes[rows], bounds_s[rows]

    def _search(self, codes: Ints, bounds_s: Floats, front: ParetoFront) -> tuple[ParetoFront, list[Part], Floats]:
        """Searches candidates in the order of their bounds, as long as the front does not beat them.

        Also returns the lower bounds of those that were not searched.
        """
        study, size = self.study, self.study.search.batch
        points = self._least_points(codes, bounds_s)
        order = np.lexsort((codes, points[:, 0]))
        candidates = OpenCandidates(points[order])
        searched: list[Part] = []

        def task_of(k: int, current: ParetoFront) -> Task | None:
            rows = order[candidates.following(size, study.to_beat(current.points))]
            self.bound = None if candidates.lowest is None else float(candidates.lowest)
            self.left = candidates.left(study.to_beat(current.points))
            return CandidateBatch("search", k, codes[rows], bounds_s[rows], current.points) if len(rows) else None

        final = self._run_level("search", None, task_of, front, searched.append)
        self.pruned["search"] = len(codes) - sum(len(part.columns["code"]) for part in searched)
        return final, searched, points[~np.isin(codes, codes_of(searched))]

    @property
    def late(self) -> bool:
        """Whether the study has to end early."""
        self.stopped = self.stopped or self.stop.asked
        return self.stopped is not None

    @property
    def _empty(self) -> ParetoFront:
        return ParetoFront.empty(len(self.study.objectives))

    def _candidates(
        self,
        level: str,
        total: int,
        task_of: Callable[[int, ParetoFront], Task | None],
        front: ParetoFront,
        absorb: Callable[[Part], None],
    ) -> Survivors:
        """The candidates a fidelity level leaves, with their lower bounds in seconds."""
        survivors = Survivors(self.store, level, [job.name for job in self.study.jobs])

        def collect(part: Part) -> None:
            absorb(part)
            survivors.add(part)

        self._run_level(level, total, task_of, front, collect)
        return survivors

    def _run_level(
        self,
        level: str,
        total: int | None,
        task_of: Callable[[int, ParetoFront], Task | None],
        front: ParetoFront,
        collect: Callable[[Part], None],
        first: int = 0,
    ) -> ParetoFront:
        """Runs all batches of a fidelity level, or reads those already finished; returns the front after them.

        What stops the study ends a level with the batches that are absorbed by then, and those after it at once.
        """
        done, latest = 0, front

        def absorb(current: ParetoFront, _number: int, part: Part) -> ParetoFront:
            nonlocal done, latest
            done += 1
            self.batches += 1
            collect(part)
            if level == "reference":
                current = current.with_part(part, self.study.objectives) if self._eligible(part) else current
            elif "evaluated" in part.columns:
                evaluated = np.asarray(part.columns["evaluated"])
                self.counts["searched"] += len(evaluated)
                self.counts["evaluated"] += int(evaluated.sum())
                current = current.with_part(part, self.study.objectives)
            elif level == "replay":
                self.counts["replayed"] += 1
                seconds = weighted(self.study, part, "step_s")
                current = current.joined(seconds[:, None], np.asarray(part.columns["code"]))
            latest = current
            self._progress.report(self, level, current, done, total)
            return current

        try:
            return self._ordered(level, task_of, front, absorb, first)
        except (StoppedError, KeyboardInterrupt):
            self.stopped = self.stop.asked or "interrupt"
            return latest

    def _ordered(
        self,
        level: str,
        task_of: Callable[[int, S], Task | None],
        state: S,
        absorb: Callable[[S, int, Part], S],
        first: int = 0,
    ) -> S:
        """The state after all batches of a level, each run or read."""
        return run_ordered(
            self.executor,
            lambda number, known: None if self.late else task_of(number, known),
            state,
            absorb,
            self.study.window,
            finished=lambda number: self.store.read(level, number),
            first=first,
            on_result=lambda _number, part: self.store.write(part),
        )
