"""The provably shortest schedule of a problem: quick schedules and bounds first, the exact solver if they differ."""

from __future__ import annotations

from collections import OrderedDict
from math import gcd

from dovetail.errors import require_package
from dovetail.schedule.problem import Mode, ModePhase, Problem, Schedule, ScheduleTask, Solution
from dovetail.schedule.quick import quick
from dovetail.schedule.segments import joined, segments

#: Deterministic time limit of the exact solver per segment; one unit is about five seconds of CPU time.
DETERMINISTIC_LIMIT = 2.0
#: List schedules before the exact solver: a better incumbent saves it more than they cost.
TRIES = 20000
#: Segments whose solutions are cached.
MAX_SOLUTIONS = 4096

_solutions: OrderedDict[tuple[Problem, float], Solution] = OrderedDict()


def solve(problem: Problem, deterministic_limit: float = DETERMINISTIC_LIMIT) -> Solution:
    """A shortest schedule, or the best within the limit of every segment; deterministic."""
    parts = segments(problem)
    solutions = [_solved(part.problem, deterministic_limit) for part in parts]
    schedule = joined(problem, parts, [solution.schedule for solution in solutions])
    makespan, bound = sum(s.makespan for s in solutions), sum(s.bound for s in solutions)
    return Solution(schedule, makespan, bound, "optimal" if makespan == bound else "feasible")


def forget() -> None:
    """Clears the cache of solved segments."""
    _solutions.clear()


def _solved(segment: Problem, deterministic_limit: float) -> Solution:
    """The solution of a segment, cached for segments that differ only in names or units."""
    plain, unit = canonical(segment)
    key = (plain, deterministic_limit)
    if key not in _solutions:
        _solutions[key] = _solved_anew(plain, deterministic_limit)
        if len(_solutions) > MAX_SOLUTIONS:
            _solutions.popitem(last=False)
    _solutions.move_to_end(key)
    solution = _solutions[key]
    starts = tuple(start * unit for start in solution.schedule.starts)
    schedule = Schedule(starts, solution.schedule.modes)
    return Solution(schedule, solution.makespan * unit, solution.bound * unit, solution.status)


def _solved_anew(segment: Problem, deterministic_limit: float) -> Solution:
    solution = quick(segment)
    if solution.status != "optimal":
        solution = quick(segment, TRIES)
    if solution.status == "optimal":
        return solution
    # most segments never need the solver, which is slow to import
    require_package("ortools", "dovetail schedule", "to find the shortest schedule of this problem")
    from dovetail.schedule.cp_sat import improved

    return improved(segment, solution, deterministic_limit)


def canonical(segment: Problem) -> tuple[Problem, int]:
    """A segment without names, in the largest units in which cycles and uses are integers; and the unit of cycles."""
    phases = [phase for task in segment.tasks for mode in task.modes for phase in mode.phases]
    unit = gcd(*(phase.cycles for phase in phases)) or 1
    # only whole units of a capacity can be used
    units = [gcd(*(phase.uses[resource] for phase in phases)) or 1 for resource in range(3)]
    tasks = tuple(
        ScheduleTask(
            "",
            tuple(Mode(tuple(_in_units(phase, unit, units) for phase in mode.phases)) for mode in task.modes),
            task.after,
        )
        for task in segment.tasks
    )
    tensor, vector, bandwidth = (most // part for most, part in zip(segment.capacities, units, strict=True))
    return Problem(tasks, tensor, vector, bandwidth), unit


def _in_units(phase: ModePhase, unit: int, units: list[int]) -> ModePhase:
    return ModePhase(phase.cycles // unit, *(use // part for use, part in zip(phase.uses, units, strict=True)))
