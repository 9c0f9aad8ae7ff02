"""A study, resolved: candidates are designs × numbers of chips or wafers × networks, with fixed numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration import wafers
from dovetail.exploration.free_mapping import FreeMapping
from dovetail.exploration.job_mean import JobMean
from dovetail.exploration.objective import OBJECTIVES, Objective
from dovetail.exploration.position import Position
from dovetail.exploration.study_file import ExecutorPart, PricesPart, SearchPart
from dovetail.exploration.unbeaten import faster_with_more
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.search.simulated import MOST

#: Batches that go ahead of what is known, by default: named strategies, and free mappings.
_WINDOW, _FREE_WINDOW = 16, 2


@frozen
class StudyJob:
    """A job and its normalised weight."""

    name: str
    job: Job
    weight: float


@frozen
class Scenario:
    """A study under other technology, prices or calibration."""

    name: str
    study: ResolvedStudy


@dataclass(frozen=True)
class ResolvedStudy:
    """A study with all names looked up."""

    name: str
    jobs: tuple[StudyJob, ...]
    #: what jobs are together
    mean: JobMean
    #: what step times are relative to: a chip, or each job's `own` optimum; None: nothing
    relative_to: str | None
    #: designs in each number with each network, and last the chips to compare with
    positions: tuple[Position, ...]
    framework: Framework
    plans: Space
    #: None: named strategies
    mapping: FreeMapping | None
    scored: tuple[Objective, ...]
    prices: PricesPart
    search: SearchPart
    executor: ExecutorPart
    seed: int
    output: str | None
    #: everything above that determines the answer, as JSON
    document: Mapping[str, Any]
    #: the study as given first, where the least worst regret over several is asked for
    scenarios: tuple[Scenario, ...] = ()

    @cached_property
    def explored(self) -> tuple[Position, ...]:
        """Positions of designs."""
        return tuple(position for position in self.positions if not position.reference)

    @cached_property
    def firsts(self) -> Ints:
        """The number of each position's first candidate, and of all."""
        return np.cumsum([0, *(position.size for position in self.positions)])

    @property
    def size(self) -> int:
        """Candidates before any limit, without chips to compare with."""
        return int(self.firsts[len(self.explored)])

    @cached_property
    def references(self) -> Ints:
        """Candidates that are chips to compare with."""
        return np.arange(self.size, int(self.firsts[-1]), dtype=np.int64)

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return tuple(each.name for each in self.scored)

    def objective(self, name: str) -> Objective:
        """An objective by its name."""
        return next(each for each in self.scored if each.name == name)

    @property
    def tokens(self) -> float:
        """Tokens of a step, a mean over jobs as step times."""
        return float(self.mean.of(np.array([float(job.job.tokens_per_step) for job in self.jobs])))

    @property
    def window(self) -> int:
        """How many batches go ahead of what is known."""
        return self.search.window or (_WINDOW if self.mapping is None else _FREE_WINDOW)

    @cached_property
    def compares_designs(self) -> bool:
        """Whether some designs are certainly no better than others: only time counts, and more of something is faster.

        What simulated steps take is not certain.
        """
        timed = all(set(each.expression.names) == {"step_s"} for each in self.scored)
        if not timed or self.search.simulate_top is not None:
            return False
        return any(faster_with_more(position.space) for position in self.explored)

    def to_beat(self, front: Floats) -> Floats:
        """The points that a design must beat to matter: those of a front, less the gap the study leaves."""
        return front / (1 + self.search.gap)

    @property
    def of_wafers(self) -> bool:
        """Whether designs are wafers; then all are of one space."""
        return self.positions[0].of_wafers

    @property
    def space(self) -> DesignSpace:
        """The space of the first designs; of wafers it is that of all."""
        return self.positions[0].space

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Numbers of chips or wafers."""
        return tuple(dict.fromkeys(position.count for position in self.explored))

    @cached_property
    def design_words(self) -> str:
        """How many designs of which spaces, for a sentence."""
        sizes = dict.fromkeys((position.name, position.size) for position in self.explored)
        return " and ".join(f"{size:,} designs of {name}" for name, size in sizes)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """What designs differ in, over all spaces."""
        return tuple(dict.fromkeys(name for position in self.explored for name in position.space.variables))

    def located(self, code: int) -> tuple[Position, int]:
        """The position and design of a candidate."""
        number = int(np.searchsorted(self.firsts, code, side="right")) - 1
        return self.positions[number], code - int(self.firsts[number])

    def candidates(self, codes: Ints) -> list[tuple[int, Ints, Ints]]:
        """Candidates grouped by position: its number, the rows that have it, and their designs."""
        codes = np.asarray(codes, np.int64)
        numbers = np.searchsorted(self.firsts, codes, side="right") - 1
        by_position = [(p, np.nonzero(numbers == p)[0]) for p in np.unique(numbers).tolist()]
        return [(p, rows, codes[rows] - self.firsts[p]) for p, rows in by_position]

    def codes(self, position: int, designs: Ints) -> Ints:
        """Candidates of one position."""
        return self.firsts[position] + designs

    def ranges(self, most: int) -> list[tuple[int, int, int]]:
        """Ranges of at most so many designs: the number of their position, the first, and the one after the last."""
        return [
            (p, first, min(first + most, position.size))
            for p, position in enumerate(self.explored)
            for first in range(0, position.size, most)
        ]

    def clusters(self, position: int, designs: Sequence[int] | Ints) -> list[Cluster]:
        """The clusters of designs of one position."""
        return self.positions[position].clusters(designs)

    def cluster_of(self, code: int) -> Cluster:
        """The cluster of a candidate."""
        position, design = self.located(code)
        return position.clusters([design])[0]

    def keeps(self, codes: Ints) -> list[bool]:
        """Whether candidates keep every limit."""
        located = [self.located(int(code)) for code in codes.tolist()]
        return [position.limited and bool(position.space.keeps([design])[0]) for position, design in located]

    def code_of(self, point: Mapping[str, Any]) -> int:
        """The candidate of a point of a result."""
        told = self._distinguishing
        for number, position in enumerate(self.positions):
            named = self._named(position)
            if position.count == point["wafers" if self.of_wafers else "chips"] and all(
                point.get(name) == named.get(name) for name in told
            ):
                return int(self.firsts[number]) + int(point["design"])
        raise AssertionError("a point is of the study")

    def numbers_of(self, code: int) -> dict[str, Any]:
        """A candidate as named in points of results; the chips of wafers are the dies that plans use."""
        position, design = self.located(code)
        named = {name: value for name, value in self._named(position).items() if name in self._distinguishing and value}
        if not position.of_wafers:
            return {"design": design, "chips": position.count, **named}
        dies = int(wafers.wafer_designs(position.space, [design]).planned_dies[0])
        return {"design": design, "chips": position.count * dies, "wafers": position.count}

    @staticmethod
    def _named(position: Position) -> dict[str, str | None]:
        hardware = {"chip": position.name} if position.reference else {"space": position.name}
        return {**hardware, "network": position.network.name if position.network else None}

    @cached_property
    def _distinguishing(self) -> tuple[str, ...]:
        """What points name besides the design and its number: what differs between positions."""
        names = ("space", "chip", "network")
        several = {name: {self._named(p).get(name) for p in self.positions} for name in names}
        return tuple(name for name, values in several.items() if len(values) > 1)

    @cached_property
    def usual_clusters(self) -> tuple[Cluster, ...]:
        """Each base design in every number, or on every grid: used to check and describe the plan space."""
        if self.of_wafers:
            return tuple(
                cluster for place in self.positions for cluster in wafers.grid_clusters(place.space, place.count)
            )
        return tuple(position.cluster(position.space.base) for position in self.explored)

    def in_units(self, units_s: tuple[float, ...]) -> Self:
        """The same study with step times as multiples of one for each job."""
        return replace(self, mean=JobMean(self.mean.kind, self.mean.weights, units_s))

    def of_job(self, number: int) -> Self:
        """The step time of one job, on the same designs."""
        job = replace(self.jobs[number], weight=1.0)
        search = self.search.model_copy(update={"simulate_top": None})
        mean, scored = JobMean("arithmetic", (1.0,), (1.0,)), (OBJECTIVES["step_time"],)
        return replace(self, jobs=(job,), mean=mean, scored=scored, search=search, relative_to=None)

    def simulating(self, top: int) -> Self:
        """The same study with a number of leading designs simulated."""
        if not 1 <= top <= MOST:
            raise InputError("simulate_top", f"is {top}", f"it should be from 1 to {MOST}")
        check_simulated(self.objectives, self.search.method)
        search = self.search.model_copy(update={"simulate_top": top})
        document = {**self.document, "search": {**self.document["search"], "simulate_top": top}}
        return replace(self, search=search, document=document)


def check_simulated(objectives: Sequence[str], method: str) -> None:
    """Raises an error if simulation cannot decide or bound anything in this study."""
    if tuple(objectives) != ("step_time",):
        what = f"cannot be combined with the objectives {', '.join(objectives)}"
        raise InputError("search.simulate_top", what, "set objectives to [step_time], or leave it out")
    if method != "exact":
        what = f"cannot be combined with the method {method}"
        raise InputError("search.simulate_top", what, "set search.method to exact, or leave it out")
