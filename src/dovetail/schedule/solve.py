"""The shortest schedule of a problem, proven: quick schedules and bounds first, the exact solver where they differ."""

from __future__ import annotations

from collections import OrderedDict
from math import gcd

from dovetail.schedule.problem import Mode, Phase, Problem, Schedule, Solution, Task
from dovetail.schedule.quick import quick
from dovetail.schedule.segments import joined, segments

#: Steps of the exact solver per segment, as it counts them: one takes about five seconds of CPU time.
DETERMINISTIC_LIMIT = 2.0
#: List schedules before the exact solver: a shorter first schedule spares it more than they cost.
TRIES = 20000
#: Segments whose solutions are kept.
KEPT = 4096

_solutions: OrderedDict[tuple[Problem, float], Solution] = OrderedDict()


def solve(problem: Problem, deterministic_limit: float = DETERMINISTIC_LIMIT) -> Solution:
    """A shortest schedule, or the best within the limit for every segment; the same for the same input."""
    parts = segments(problem)
    solutions = [_solved(part.problem, deterministic_limit) for part in parts]
    schedule = joined(problem, parts, [solution.schedule for solution in solutions])
    makespan, bound = sum(s.makespan for s in solutions), sum(s.bound for s in solutions)
    return Solution(schedule, makespan, bound, "optimal" if makespan == bound else "feasible")


def forget() -> None:
    """Empties the memory of solved segments."""
    _solutions.clear()


def _solved(segment: Problem, deterministic_limit: float) -> Solution:
    """The solution of a segment, from memory where one that differs in names or unit alone was solved before."""
    plain, unit = canonical(segment)
    key = (plain, deterministic_limit)
    if key not in _solutions:
        _solutions[key] = _solved_anew(plain, deterministic_limit)
        if len(_solutions) > KEPT:
            _solutions.popitem(last=False)
    _solutions.move_to_end(key)
    found = _solutions[key]
    starts = tuple(start * unit for start in found.schedule.starts)
    schedule = Schedule(starts, found.schedule.modes)
    return Solution(schedule, found.makespan * unit, found.bound * unit, found.status)


def _solved_anew(segment: Problem, deterministic_limit: float) -> Solution:
    found = quick(segment)
    if found.status != "optimal":
        found = quick(segment, TRIES)
    if found.status == "optimal":
        return found
    # most segments never need the solver, which takes long to load
    from dovetail.schedule.cp_sat import improved

    return improved(segment, found, deterministic_limit)


def canonical(segment: Problem) -> tuple[Problem, int]:
    """A segment without names, in the largest units that keep cycles and uses whole; and the unit of cycles."""
    phases = [phase for task in segment.tasks for mode in task.modes for phase in mode.phases]
    unit = gcd(*(phase.cycles for phase in phases)) or 1
    # a capacity counts only in whole units of what is used of it
    units = [gcd(*(phase.uses[resource] for phase in phases)) or 1 for resource in range(3)]
    tasks = tuple(
        Task(
            "",
            tuple(Mode(tuple(_in_units(phase, unit, units) for phase in mode.phases)) for mode in task.modes),
            task.after,
        )
        for task in segment.tasks
    )
    tensor, vector, bandwidth = (most // part for most, part in zip(segment.capacities, units, strict=True))
    return Problem(tasks, tensor, vector, bandwidth), unit


def _in_units(phase: Phase, unit: int, units: list[int]) -> Phase:
    return Phase(phase.cycles // unit, *(use // part for use, part in zip(phase.uses, units, strict=True)))
