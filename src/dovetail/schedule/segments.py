"""A problem in parts that run one after the other: their shortest makespans add up exactly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dovetail.frozen import frozen
from dovetail.schedule.arrays import graph_of
from dovetail.schedule.problem import Mode, Problem, Schedule, ScheduleTask


@frozen
class Segment:
    """Tasks that all need every task of the segments before: a separate problem, without dominated modes."""

    problem: Problem
    positions: tuple[int, ...]
    """by task: its position in the whole problem"""
    modes: tuple[tuple[int, ...], ...]
    """by task and mode: the mode's number in the whole problem"""


def segments(problem: Problem) -> list[Segment]:
    """The finest parts of a problem, without implied needs and dominated modes."""
    graph = graph_of([task.after for task in problem.tasks])
    order: list[int] = graph.order.tolist()
    parts: list[Segment] = []
    bounds = graph.first_member.tolist()
    for low, high in pairwise(bounds):
        tasks: list[ScheduleTask] = []
        mode_numbers: list[tuple[int, ...]] = []
        for place in range(low, high):
            task: ScheduleTask = problem.tasks[order[place]]
            needs = graph.needs[graph.first_need[place] : graph.first_need[place + 1]].tolist()
            numbers = efficient(task.modes, problem.capacities)
            mode_numbers.append(numbers)
            modes = tuple(task.modes[number] for number in numbers)
            tasks.append(ScheduleTask(task.name, modes, tuple(sorted(need - low for need in needs))))
        part = Problem(tuple(tasks), *problem.capacities)
        parts.append(Segment(part, tuple(order[low:high]), tuple(mode_numbers)))
    return parts


def joined(problem: Problem, parts: Sequence[Segment], schedules: Sequence[Schedule]) -> Schedule:
    """The schedule of the whole: each part starts when the one before has ended."""
    starts, modes = [0] * len(problem.tasks), [0] * len(problem.tasks)
    begin = 0
    for part, schedule in zip(parts, schedules, strict=True):
        for place, position in enumerate(part.positions):
            starts[position] = begin + schedule.starts[place]
            modes[position] = part.modes[place][schedule.modes[place]]
        begin += schedule.makespan(part.problem)
    return Schedule(tuple(starts), tuple(modes))


def efficient(modes: Sequence[Mode], capacities: Sequence[int]) -> tuple[int, ...]:
    """Numbers of the undominated modes that fit, shortest first; the first of equal ones."""
    fitting = [number for number, mode in enumerate(modes) if _fits(mode, capacities)]
    fitting.sort(key=lambda number: (modes[number].cycles, number))
    numbers: list[int] = []
    for number in fitting:
        others = [other for other in fitting if other != number and replaces(modes[other], modes[number])]
        # modes that replace each other are equal
        if not any(other < number or not replaces(modes[number], modes[other]) for other in others):
            numbers.append(number)
    return tuple(numbers)


def replaces(mode: Mode, other: Mode) -> bool:
    """Whether a mode with the same start is no longer and never uses more of any resource."""
    if mode.cycles > other.cycles:
        return False
    starts = {0, mode.phases[0].cycles, other.phases[0].cycles}
    for cycle in starts:
        if cycle < mode.cycles:
            mine, its = _uses_at(mode, cycle), _uses_at(other, cycle)
            if any(a > b for a, b in zip(mine, its, strict=True)):
                return False
    return True


def _fits(mode: Mode, capacities: Sequence[int]) -> bool:
    return all(use <= most for phase in mode.phases for use, most in zip(phase.uses, capacities, strict=True))


def _uses_at(mode: Mode, cycle: int) -> tuple[int, int, int]:
    for phase in mode.phases:
        if cycle < phase.cycles:
            return phase.uses
        cycle -= phase.cycles
    return 0, 0, 0
