"""The schedule problem: operators with several modes that share cores and memory bandwidth.

Solver-neutral. Cycles, cores and bandwidth are integers, so that schedules and bounds are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec, read_document, validate
from dovetail.errors import InputError
from dovetail.frozen import frozen

MAX_TASKS = 1000
MAX_MODES = 1024
MAX_PHASES = 2
MAX_CYCLES = 10**12
MAX_AMOUNT = 2**20

#: optimal: no schedule is shorter; feasible: one may be, down to the bound
Status = Literal["optimal", "feasible"]

#: Shared resources, in the order of uses and capacities.
RESOURCES = ("tensor_cores", "vector_cores", "bandwidth")


@frozen
class ModePhase:
    """A time in which an operator's use of resources is constant."""

    cycles: int
    tensor_cores: int = 0
    vector_cores: int = 0
    bandwidth: int = 0
    """parts of the problem's bandwidth, which concurrent operators share"""

    @property
    def uses(self) -> tuple[int, int, int]:
        """In the order of `RESOURCES`."""
        return self.tensor_cores, self.vector_cores, self.bandwidth


@frozen
class Mode:
    """A way to run an operator: on a number of cores, in one fused phase or two consecutive ones."""

    phases: tuple[ModePhase, ...]

    @property
    def cycles(self) -> int:
        """Cycles from its start to its end."""
        return sum(phase.cycles for phase in self.phases)


@frozen
class ScheduleTask:
    """An operator: it runs once, in one of its modes, after the tasks it needs."""

    name: str
    modes: tuple[Mode, ...]
    after: tuple[int, ...] = ()
    """positions of the tasks it needs, all before its own"""


@frozen
class Problem:
    """Tasks in topological order and the resources they share; the makespan is minimised."""

    tasks: tuple[ScheduleTask, ...]
    tensor_cores: int
    vector_cores: int
    bandwidth: int

    @property
    def capacities(self) -> tuple[int, int, int]:
        """In the order of `RESOURCES`."""
        return self.tensor_cores, self.vector_cores, self.bandwidth


@frozen
class Schedule:
    """When every task of a problem starts, and in which of its modes."""

    starts: tuple[int, ...]
    modes: tuple[int, ...]

    def ends(self, problem: Problem) -> tuple[int, ...]:
        """When every task ends."""
        runs = zip(problem.tasks, self.starts, self.modes, strict=True)
        return tuple(start + task.modes[mode].cycles for task, start, mode in runs)

    def makespan(self, problem: Problem) -> int:
        """Cycles until all have ended."""
        return max(self.ends(problem), default=0)


@frozen
class Solution:
    """A schedule and a lower bound of the makespan."""

    schedule: Schedule
    makespan: int
    bound: int
    status: Status

    @property
    def gap(self) -> float:
        """The gap between makespan and bound, as a share of the makespan."""
        return (self.makespan - self.bound) / self.makespan if self.makespan else 0.0


def faults(problem: Problem, schedule: Schedule) -> list[str]:
    """What is wrong with a schedule; empty if it is valid."""
    messages: list[str] = []
    ends = schedule.ends(problem)
    changes: list[tuple[int, tuple[int, int, int]]] = []
    for task, start, mode in zip(problem.tasks, schedule.starts, schedule.modes, strict=True):
        if start < 0:
            messages.append(f"{task.name} starts at {start}")
        messages += [f"{task.name} starts before {problem.tasks[n].name} ends" for n in task.after if start < ends[n]]
        at = start
        for phase in task.modes[mode].phases:
            tensor, vector, bandwidth = phase.uses
            changes += [(at, (tensor, vector, bandwidth)), (at + phase.cycles, (-tensor, -vector, -bandwidth))]
            at += phase.cycles
    used = [0, 0, 0]
    changes.sort()
    for position, (at, change) in enumerate(changes):
        used = [amount + more for amount, more in zip(used, change, strict=True)]
        # apply all changes of one cycle together
        if position + 1 < len(changes) and changes[position + 1][0] == at:
            continue
        limits = zip(RESOURCES, used, problem.capacities, strict=True)
        messages += [f"{amount} of {most} {name} at {at}" for name, amount, most in limits if amount > most]
    return messages


_Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class PhaseSpec(Spec):
    """A phase in a file."""

    cycles: Annotated[int, Field(ge=1, le=MAX_CYCLES)]
    tensor_cores: _Amount = 0
    vector_cores: _Amount = 0
    bandwidth: _Amount = 0


class TaskSpec(Spec):
    """An operator in a file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    modes: Annotated[
        tuple[Annotated[tuple[PhaseSpec, ...], Field(strict=False, min_length=1, max_length=MAX_PHASES)], ...],
        Field(strict=False, min_length=1, max_length=MAX_MODES),
    ]
    """each a list of one or two phases"""
    after: Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_TASKS)] = ()
    """names of the operators it needs, listed before it"""


class ProblemSpec(Spec):
    """A schedule problem in a file."""

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
                    fix = "name a task listed before this one"
                    raise InputError(f"tasks.{position}.after", f"names {need!r:.60}", fix)
            if task.name in seen:
                raise InputError(f"tasks.{position}.name", f"{task.name!r:.60} appears twice", "name each task once")
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
            ScheduleTask(
                task.name,
                tuple(Mode(tuple(ModePhase(**phase.model_dump()) for phase in mode)) for mode in task.modes),
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
    """The document of a problem, which `problem_from` reads back."""
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


def _phase_document(phase: ModePhase) -> dict[str, int]:
    uses = zip(RESOURCES, phase.uses, strict=True)
    return {"cycles": phase.cycles, **{name: amount for name, amount in uses if amount}}
