"""The driver of a study: level after level in fixed batches, on any executor, kept in a run directory as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration.events import Listener, Progress
from dovetail.exploration.executor import Executor
from dovetail.exploration.fidelity import Range, Replay, Some, Task, WarmStarts, Worker
from dovetail.exploration.lower_bounds import candidate_lower_bounds
from dovetail.exploration.memory import Memory
from dovetail.exploration.objective import OBJECTIVES
from dovetail.exploration.ordered import run_ordered
from dovetail.exploration.pareto import dominated
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.replays import codes_of, plans_of, simulation_document, weighted
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.result import result_document
from dovetail.exploration.samplers import SAMPLERS
from dovetail.exploration.store import Part, Store
from dovetail.exploration.wafers import network_key, wafer_designs

#: Candidates of a batch, by level: about a second of work.
PHYSICAL, PROFILED = 2**20, 512
#: Candidates that a space may have to look at all of them.
MAX_ENUMERATED = 10**10
#: Candidates of a generation where they are sampled.
GENERATION = 64


class Drive:
    """One run of a study."""

    def __init__(
        self, study: ResolvedStudy, store: Store | Memory, executor: Executor, listener: Listener | None
    ) -> None:
        self.study = study
        self.store = store
        self.executor = executor
        self.listener = listener
        holding = ("holding",) if study.of_wafers else ()
        through = ("kept", *holding, "physical", "profile") if study.search.method == "exact" else ("sampled",)
        self.counts = {"designs": study.size, **dict.fromkeys((*through, "searched", "evaluated"), 0)}
        self.counted = 0
        self.batches = 0
        self.pruned: dict[str, int] = {}
        #: limit → designs that keep all limits above it and break this one, where designs are wafers
        self.left_out: dict[str, int] = {}
        self.bound: float | None = None
        #: what replayed designs say, where the study asks for it
        self.simulation: dict[str, Any] | None = None
        self.start = time.monotonic()

    def result(self) -> dict[str, Any]:
        """The result of the whole study, kept."""
        search = self.study.search
        if search.method == "exact":
            front, searched, rest = self._exact()
        else:
            front, searched, rest = self._sampled()
        document = result_document(self.study, front, searched, self.counts, rest)
        if self.study.of_wafers:
            document["left_out"] = self.left_out
        if self.simulation is not None:
            document["simulation"] = self.simulation
        self.store.note_time("study", 0, time.monotonic() - self.start)
        self.store.finish(document)
        return document

    def _exact(self) -> tuple[ParetoFront, list[Part], Floats | None]:
        if self.study.size > MAX_ENUMERATED:
            what = f"has {self.study.size:,} designs, too many to look at all"
            raise InputError("hardware", what, "narrow it, or set search.method to evolutionary")
        scouts: list[Part] = []
        front = self._level("scout", 1, lambda k, _: WarmStarts(k) if k == 0 else None, self._empty, scouts.append)
        top, replays = self.study.search.simulate_top, list[Part]()
        to_beat, simulated = front.points, self._empty
        if top is not None:
            self.counts["replayed"] = 0
            simulated = self._replay_best(0, front, scouts, simulated, replays)
            # what is dropped must be slower in simulated time too; only where something was simulated is that known
            to_beat = np.maximum(front.points, simulated.points) if len(simulated) else simulated.points
        codes, least = self._physical(front, to_beat)
        codes, least = self._profile(codes, least, front, to_beat)
        known = np.isin(codes, np.concatenate([np.asarray(part.columns["code"]) for part in scouts]))
        front, searched = self._search(codes[~known], least[~known], front)
        if top is not None:
            floors_s, self.bound = least @ self.study.weights, None
            simulated = self._replay_best(1, front, [*scouts, *searched], simulated, replays)
            self._replay(top, codes, floors_s, [*scouts, *searched], simulated, replays)
            self.simulation = simulation_document(self.study, replays, codes, floors_s)
        return front, [*scouts, *searched], None

    def _replay_best(
        self, number: int, front: ParetoFront, searched: list[Part], simulated: ParetoFront, replays: list[Part]
    ) -> ParetoFront:
        """The best design by the model replayed, unless there is none or it is known; the best simulated after it."""
        seen = codes_of(replays)
        if not len(front) or int(front.codes[0]) in seen:
            return simulated
        code = int(front.codes[0])

        def task_of(k: int, _: ParetoFront) -> Task | None:
            return Replay(k, code, plans_of(self.study, searched, code)) if k == number else None

        return self._level("replay", None, task_of, simulated, replays.append, number)

    def _replay(
        self, top: int, codes: Ints, floors_s: Floats, searched: list[Part], simulated: ParetoFront, replays: list[Part]
    ) -> None:
        """Candidates in the order of their floors, as long as the best simulated does not beat them: `top` in all.

        The scout that was replayed to have something to beat is not counted, unless the model takes it for the best.
        """
        order = np.lexsort((codes, floors_s))
        order = order[~np.isin(codes[order], np.array(codes_of(replays), np.int64))]
        # where the model's search found nothing that fits, nothing does
        left, given = _Left(floors_s[order, None]), 1 if len(simulated) else top

        def task_of(k: int, known: ParetoFront) -> Task | None:
            nonlocal given
            rows = order[left.following(1, known.points)] if given < top else order[:0]
            if not len(rows):
                return None
            given += 1
            code = int(codes[rows[0]])
            return Replay(k, code, plans_of(self.study, searched, code))

        self._level("replay", None, task_of, simulated, replays.append, 2)

    def _physical(self, front: ParetoFront, to_beat: Floats) -> tuple[Ints, Floats]:
        size = self.study.space.size
        starts = [(p, first) for p in range(len(self.study.counts)) for first in range(0, size, PHYSICAL)]

        def task_of(k: int, _: ParetoFront) -> Task | None:
            if k >= len(starts):
                return None
            position, first = starts[k]
            return Range(k, position, first, min(first + PHYSICAL, size), to_beat)

        def absorb(part: Part) -> None:
            self.counts["kept"] += part.facts["kept"]
            self.counts["physical"] += part.facts["left"]
            self.counted += part.facts["counted"]
            if self.study.of_wafers:
                self.counts["holding"] += part.facts["holding"]
                for text, number in part.facts["left_out"].items():
                    self.left_out[text] = self.left_out.get(text, 0) + number
            self.pruned["limits"] = self.counted - self.counts["kept"]
            self.pruned["physical"] = self.counts["kept"] - self.counts["physical"]

        return self._candidates("physical", len(starts), task_of, front, absorb)

    def _profile(self, codes: Ints, least: Floats, front: ParetoFront, to_beat: Floats) -> tuple[Ints, Floats]:
        # tables are made once for each grid, so its designs are profiled one after the other
        network = network_of(self.study, codes) if self.study.of_wafers else ()
        order = np.lexsort((codes, least @ self.study.weights, *network))
        total = -(-len(order) // PROFILED)

        def task_of(k: int, _: ParetoFront) -> Task | None:
            rows = order[k * PROFILED : (k + 1) * PROFILED]
            return Some("profile", k, codes[rows], least[rows], to_beat) if len(rows) else None

        def absorb(part: Part) -> None:
            self.counts["profile"] += part.facts["left"]
            self.pruned["profile"] = self.pruned.get("profile", 0) + part.facts["counted"] - part.facts["left"]

        return self._candidates("profile", total, task_of, front, absorb)

    def _search(self, codes: Ints, least: Floats, front: ParetoFront) -> tuple[ParetoFront, list[Part]]:
        """Candidates in the order of their bounds, as long as nothing on the front beats them."""
        study, size = self.study, self.study.search.batch
        points = candidate_lower_bounds(study, codes).points(least @ study.weights)
        order = np.lexsort((codes, points[:, 0]))
        left = _Left(points[order])
        searched: list[Part] = []

        def task_of(k: int, known: ParetoFront) -> Task | None:
            rows = order[left.following(size, known.points)]
            self.bound = None if left.least is None else float(left.least)
            return Some("search", k, codes[rows], least[rows], known.points) if len(rows) else None

        final = self._level("search", None, task_of, front, searched.append)
        self.pruned["search"] = len(codes) - sum(len(part.columns["code"]) for part in searched)
        return final, searched

    def _sampled(self) -> tuple[ParetoFront, list[Part], Floats | None]:
        """Generations of a sampler, each told before the next is asked."""
        study = self.study
        if len(study.counts) > 1:
            raise InputError("cluster.chips", "has several numbers", "give one where designs are sampled")
        worker = Worker(study)
        space, budget = study.spaces[0], study.search.evaluations
        sampler = SAMPLERS[study.search.method](space, len(study.objectives), study.seed)
        front, searched, asked, first = self._empty, list[Part](), 0, 0
        while asked < budget:
            designs = sampler.ask(min(GENERATION, budget - asked))
            if not len(designs):
                break
            asked += len(designs)
            codes, least = np.asarray(designs, np.int64), worker.physical_of(0, designs)
            found: list[Part] = []
            front = self._generation(codes, least, front, first, found)
            first += -(-len(codes) // study.search.batch)
            sampler.tell(designs, self._told(codes, least, found))
            searched += found
            self.counted = self.counts["sampled"] = asked
        return front, searched, worker.ideal_points()

    def _generation(self, codes: Ints, least: Floats, front: ParetoFront, first: int, found: list[Part]) -> ParetoFront:
        size, before = self.study.search.batch, front.points

        def task_of(k: int, _: ParetoFront) -> Task | None:
            rows = slice((k - first) * size, (k - first + 1) * size)
            return Some("sample", k, codes[rows], least[rows], before) if len(codes[rows]) else None

        return self._level("sample", None, task_of, front, found.append, first)

    def _told(self, codes: Ints, least: Floats, found: list[Part]) -> Floats:
        """What a sampler is told: figures, or where a candidate was given up what they are at least."""
        study = self.study
        told = candidate_lower_bounds(study, codes).points(least @ study.weights)
        row_of = {int(code): row for row, code in enumerate(codes.tolist())}
        for part in found:
            done = np.asarray(part.columns["evaluated"], np.bool_)
            figures = np.stack([np.asarray(part.columns[f"figure.{name}"]) for name in study.objectives], axis=1)
            rows = [row_of[int(code)] for code in np.asarray(part.columns["code"])[done].tolist()]
            told[rows] = figures[done]
        return told

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
    ) -> tuple[Ints, Floats]:
        """Candidates that a level leaves, with their least seconds."""
        left: list[tuple[Ints, Floats]] = []

        def keep(part: Part) -> None:
            absorb(part)
            bounds = [np.asarray(part.columns[f"least_s.{job.name}"]) for job in self.study.jobs]
            left.append((np.asarray(part.columns["code"]), np.stack(bounds, axis=1)))

        self._level(level, total, task_of, front, keep)
        codes = np.concatenate([np.zeros(0, np.int64), *(codes for codes, _ in left)])
        return codes, np.concatenate([np.zeros((0, len(self.study.jobs))), *(least for _, least in left)])

    def _level(
        self,
        level: str,
        total: int | None,
        task_of: Callable[[int, ParetoFront], Task | None],
        front: ParetoFront,
        keep: Callable[[Part], None],
        first: int = 0,
    ) -> ParetoFront:
        """All batches of a level: known ones are read, the others run and kept; the front after them."""
        done = 0

        def absorb(known: ParetoFront, _number: int, part: Part) -> ParetoFront:
            nonlocal done
            done += 1
            self.batches += 1
            keep(part)
            if "evaluated" in part.columns:
                evaluated = np.asarray(part.columns["evaluated"])
                self.counts["searched"] += len(evaluated)
                self.counts["evaluated"] += int(evaluated.sum())
                known = known.with_part(part, self.study.objectives)
            elif level == "replay":
                self.counts["replayed"] += 1
                found = weighted(self.study, part, "step_s")
                known = known.joined(found[:, None], np.asarray(part.columns["code"]))
            self._say(level, known, done, total)
            return known

        return run_ordered(
            self.executor,
            task_of,
            front,
            absorb,
            self.study.search.window,
            known=lambda number: self.store.read(level, number),
            first=first,
            on_result=lambda _number, part: self.store.write(part),
        )

    def _say(self, level: str, front: ParetoFront, done: int, total: int | None) -> None:
        if self.listener is None:
            return
        name = self.study.objectives[0]
        single = len(self.study.objectives) == 1
        best = float(front.points.min()) if single and len(front) else None
        bound = None if best is None or self.bound is None else min(self.bound, best)
        elapsed = time.monotonic() - self.start
        shown = OBJECTIVES[name].shown
        self.listener(
            Progress(
                level=level,
                counted=self.counted,
                total=self.study.size,
                pruned=dict(self.pruned),
                evaluated=self.counts["evaluated"],
                incumbent=None if best is None else shown(best),
                objective=OBJECTIVES[name].title,
                unit=OBJECTIVES[name].unit,
                bound=None if bound is None else shown(bound),
                gap=None if bound is None or best is None else 1 - bound / best,
                front=len(front),
                batches=done,
                batches_total=total,
                workers=self.executor.workers,
                elapsed_s=elapsed,
                eta_s=elapsed / done * (total - done) if total else None,
            )
        )


def network_of(study: ResolvedStudy, codes: Ints) -> tuple[Floats, ...]:
    """What the networks of wafers follow from, an array of each, and the number of wafers."""
    positions, designs = np.divmod(codes, study.space.size)
    return (*network_key(wafer_designs(study.space, designs)), positions.astype(np.float64))


class _Left:
    """Candidates in the order of their bounds, given out once each, those that a front beats never."""

    AHEAD = 4096

    def __init__(self, points: Floats) -> None:
        self._points = points
        self._next = 0

    @property
    def least(self) -> float | None:
        """The least bound, in the first objective, of what was not given out."""
        return float(self._points[self._next, 0]) if self._next < len(self._points) else None

    def following(self, number: int, front: Floats) -> Ints:
        """The next ones that the front does not beat."""
        found: list[int] = []
        while len(found) < number and self._next < len(self._points):
            ahead = self._points[self._next : self._next + self.AHEAD]
            (rows,) = np.nonzero(~dominated(ahead, front))
            taken = rows[: number - len(found)]
            found += (self._next + taken).tolist()
            self._next += int(taken[-1]) + 1 if len(found) == number else len(ahead)
        return np.array(found, np.int64)
