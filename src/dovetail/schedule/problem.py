"""The schedule problem: operators with several ways to run, on cores and memory bandwidth that they share.

Solver-neutral. Cycles, cores and bandwidth are whole numbers, so that a schedule is right or wrong and a bound proves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec, read_document, validate
from dovetail.errors import InputError

MAX_TASKS = 1000
MAX_MODES = 1024
MAX_PHASES = 2
MAX_CYCLES = 10**12
MAX_AMOUNT = 2**20

#: optimal: no schedule is shorter; feasible: one may be, down to the bound
Status = Literal["optimal", "feasible"]

#: What schedules share, in the order in which uses and capacities are listed.
RESOURCES = ("tensor_cores", "vector_cores", "bandwidth")


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which an operator uses the same amount of everything."""

    cycles: int
    tensor_cores: int = 0
    vector_cores: int = 0
    bandwidth: int = 0
    """parts of the problem's, which all that run at once share"""

    @property
    def uses(self) -> tuple[int, int, int]:
        """In the order of `RESOURCES`."""
        return self.tensor_cores, self.vector_cores, self.bandwidth


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run an operator: on so many cores, its parts fused into one phase or one right after the other."""

    phases: tuple[Phase, ...]

    @property
    def cycles(self) -> int:
        """From its start to its end."""
        return sum(phase.cycles for phase in self.phases)


@dataclass(frozen=True, slots=True)
class Task:
    """An operator: it runs once, in one of its modes, after all those it needs."""

    name: str
    modes: tuple[Mode, ...]
    after: tuple[int, ...] = ()
    """positions of the tasks it needs; all stand before it"""


@dataclass(frozen=True, slots=True)
class Problem:
    """Tasks in an order that their needs allow, and what they share; the makespan is to be least."""

    tasks: tuple[Task, ...]
    tensor_cores: int
    vector_cores: int
    bandwidth: int

    @property
    def capacities(self) -> tuple[int, int, int]:
        """In the order of `RESOURCES`."""
        return self.tensor_cores, self.vector_cores, self.bandwidth


@dataclass(frozen=True, slots=True)
class Schedule:
    """When every task of a problem starts, and in which of its modes."""

    starts: tuple[int, ...]
    modes: tuple[int, ...]

    def ends(self, problem: Problem) -> tuple[int, ...]:
        """When every task ends."""
        chosen = zip(problem.tasks, self.starts, self.modes, strict=True)
        return tuple(start + task.modes[mode].cycles for task, start, mode in chosen)

    def makespan(self, problem: Problem) -> int:
        """Cycles until all have ended."""
        return max(self.ends(problem), default=0)


@dataclass(frozen=True, slots=True)
class Solution:
    """A schedule, and cycles that no schedule is shorter than."""

    schedule: Schedule
    makespan: int
    bound: int
    status: Status

    @property
    def gap(self) -> float:
        """How much longer than the bound, of its makespan."""
        return (self.makespan - self.bound) / self.makespan if self.makespan else 0.0


def faults(problem: Problem, schedule: Schedule) -> list[str]:
    """What is wrong with a schedule; nothing for one that keeps every rule."""
    found: list[str] = []
    ends = schedule.ends(problem)
    changes: list[tuple[int, tuple[int, int, int]]] = []
    for task, start, mode in zip(problem.tasks, schedule.starts, schedule.modes, strict=True):
        if start < 0:
            found.append(f"{task.name} starts at {start}")
        found += [f"{task.name} starts before {problem.tasks[n].name} ends" for n in task.after if start < ends[n]]
        at = start
        for phase in task.modes[mode].phases:
            tensor, vector, bandwidth = phase.uses
            changes += [(at, (tensor, vector, bandwidth)), (at + phase.cycles, (-tensor, -vector, -bandwidth))]
            at += phase.cycles
    used = [0, 0, 0]
    changes.sort()
    for position, (at, change) in enumerate(changes):
        used = [amount + more for amount, more in zip(used, change, strict=True)]
        # changes of one moment happen at once
        if position + 1 < len(changes) and changes[position + 1][0] == at:
            continue
        limits = zip(RESOURCES, used, problem.capacities, strict=True)
        found += [f"{amount} of {most} {name} at {at}" for name, amount, most in limits if amount > most]
    return found


_Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class PhaseSpec(Spec):
    """A phase as a file has it."""

    cycles: Annotated[int, Field(ge=1, le=MAX_CYCLES)]
    tensor_cores: _Amount = 0
    vector_cores: _Amount = 0
    bandwidth: _Amount = 0


class TaskSpec(Spec):
    """An operator as a file has it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    modes: Annotated[
        tuple[Annotated[tuple[PhaseSpec, ...], Field(strict=False, min_length=1, max_length=MAX_PHASES)], ...],
        Field(strict=False, min_length=1, max_length=MAX_MODES),
    ]
    """each a list of one or two phases"""
    after: Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_TASKS)] = ()
    """names of the operators it needs; they stand before it"""


class ProblemSpec(Spec):
    """A schedule problem as a file has it."""

    tensor_cores: _Amount
    vector_cores: _Amount
    bandwidth: _Amount = 0
    tasks: Annotated[tuple[TaskSpec, ...], Field(strict=False, min_length=1, max_length=MAX_TASKS)]

    @model_validator(mode="after")
    def _consistent(self) -> ProblemSpec:
        seen: set[str] = set()
        for position, task in enumerate(self.tasks):
            for need in task.after:
                if need not in seen:
                    fix = "name a task that stands before this one"
                    raise InputError(f"tasks.{position}.after", f"names {need!r:.60}", fix)
            if task.name in seen:
                raise InputError(f"tasks.{position}.name", f"{task.name!r:.60} stands twice", "name each task once")
            seen.add(task.name)
            self._check_uses(task, position)
        return self

    def _check_uses(self, task: TaskSpec, position: int) -> None:
        for number, mode in enumerate(task.modes):
            for phase in mode:
                for name in RESOURCES:
                    used, most = getattr(phase, name), getattr(self, name)
                    if used > most:
                        where = f"tasks.{position}.modes.{number}"
                        raise InputError(where, f"uses {used} {name}", f"there are {most}")

    def problem(self) -> Problem:
        """The problem a file describes."""
        positions = {task.name: position for position, task in enumerate(self.tasks)}
        tasks = tuple(
            Task(
                task.name,
                tuple(Mode(tuple(Phase(**phase.model_dump()) for phase in mode)) for mode in task.modes),
                tuple(sorted({positions[need] for need in task.after})),
            )
            for task in self.tasks
        )
        return Problem(tasks, self.tensor_cores, self.vector_cores, self.bandwidth)


def read_problem(path: Path | str) -> Problem:
    """The problem of a JSON (or YAML) file."""
    return problem_from(read_document(str(path)), str(path))


def problem_from(document: Mapping[str, Any], where: str) -> Problem:
    """The problem a document describes."""
    return validate(ProblemSpec, document, where).problem()


def problem_document(problem: Problem) -> dict[str, Any]:
    """The document of a problem: what `problem_from` reads gives the same again."""
    return {
        "tensor_cores": problem.tensor_cores,
        "vector_cores": problem.vector_cores,
        "bandwidth": problem.bandwidth,
        "tasks": [
            {
                "name": task.name,
                "modes": [[_phase_document(phase) for phase in mode.phases] for mode in task.modes],
                "after": [problem.tasks[n].name for n in task.after],
            }
            for task in problem.tasks
        ],
    }


def _phase_document(phase: Phase) -> dict[str, int]:
    uses = zip(RESOURCES, phase.uses, strict=True)
    return {"cycles": phase.cycles, **{name: amount for name, amount in uses if amount}}
