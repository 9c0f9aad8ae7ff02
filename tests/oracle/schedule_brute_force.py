"""The least makespan by trying everything: cycle by cycle, any set of tasks may start in any modes, or none.

Written from the definition alone: no rule says when a task starts, so modes of several phases need no argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.schedule.problem import Problem

#: By task: -1 if it has not started, else its mode and the cycles it has run; those that ended have run them all.
State = tuple[tuple[int, int], ...]
WAITING = (-1, 0)


def least_makespan(problem: Problem) -> int:
    """Cycles until all tasks can have ended."""
    states: set[State] = {tuple(WAITING for _ in problem.tasks)}
    time = 0
    while not any(all(_ended(problem, state, i) for i in range(len(state))) for state in states):
        states = {_later(problem, started) for state in states for started in _starts(problem, state, 0)}
        time += 1
    return time


def _ended(problem: Problem, state: State, task: int) -> bool:
    mode, ran = state[task]
    return mode >= 0 and ran == problem.tasks[task].modes[mode].cycles


def _starts(problem: Problem, state: State, first: int) -> Iterator[State]:
    """All ways to start tasks from this position on, now."""
    if not _fits(problem, state):
        return
    if first == len(state):
        yield state
        return
    yield from _starts(problem, state, first + 1)
    task = problem.tasks[first]
    if state[first] == WAITING and all(_ended(problem, state, need) for need in task.after):
        for mode in range(len(task.modes)):
            yield from _starts(problem, (*state[:first], (mode, 0), *state[first + 1 :]), first + 1)


def _fits(problem: Problem, state: State) -> bool:
    used = [0, 0, 0]
    for task, (mode, ran) in zip(problem.tasks, state, strict=True):
        if mode < 0:
            continue
        for phase in task.modes[mode].phases:
            if 0 <= ran < phase.cycles:
                used = [a + b for a, b in zip(used, phase.uses, strict=True)]
            ran -= phase.cycles
    return all(a <= b for a, b in zip(used, problem.capacities, strict=True))


def _later(problem: Problem, state: State) -> State:
    """One cycle later."""
    return tuple(
        (mode, ran + 1) if mode >= 0 and not _ended(problem, state, i) else (mode, ran)
        for i, (mode, ran) in enumerate(state)
    )
