"""Schedules and bounds without a solver: list schedules, improved until a bound meets them or tries run out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Ints
from dovetail.compilation import compiled
from dovetail.schedule.arrays import Arrays, TaskGroup, arrays_of, group_of
from dovetail.schedule.bound_kernels import (
    SAMPLED,
    Weights,
    Windows,
    refuted,
    simple_bound,
    weighed,
    weights_for,
    windows_for,
)
from dovetail.schedule.list_kernels import ListState, arrange, by_tail, justify, list_state, serial
from dovetail.schedule.problem import Problem, Schedule, Solution

#: Most list schedules per group, and steps of the weights of its bounds.
TRIES = 200
ROUNDS = 40
#: Number of mode rules.
RULES = 10 + 2 * SAMPLED


class Best(NamedTuple):
    """The best schedule of a group, and its makespan and bound."""

    starts: Ints
    modes: Ints
    keys: Ints
    waiting: Ints
    #: makespan, bound, tries made
    numbers: Ints


MAKESPAN, BOUND, MADE = range(3)


def quick(problem: Problem, tries: int = TRIES) -> Solution:
    """A schedule and a bound of one problem, within about a millisecond."""
    if not problem.tasks:
        return Solution(Schedule((), ()), 0, 0, "optimal")
    makespans, bounds, starts, modes = quick_many(arrays_of(problem), tries)
    schedule = Schedule(tuple(starts[0].tolist()), tuple(modes[0].tolist()))
    makespan, bound = int(makespans[0]), int(bounds[0])
    return Solution(schedule, makespan, bound, "optimal" if makespan == bound else "feasible")


@compiled
def quick_many(arrays: Arrays, tries: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Makespans and bounds of problems, and (problems × tasks) starts and modes of the schedules.

    If no mode of some task fits, there is no schedule: both are −1.
    """
    problems, n = arrays.modes.shape
    makespans, bounds = np.zeros(problems, np.int64), np.zeros(problems, np.int64)
    starts, modes = np.zeros((problems, n), np.int64), np.zeros((problems, n), np.int64)
    graph = arrays.graph
    for p in range(problems):
        for number in range(len(graph.first_member) - 1):
            group = group_of(arrays, p, number)
            if group.choices.min() == 0:
                makespans[p], bounds[p] = -1, -1
                break
            low = graph.first_member[number]
            best = _solved(group, tries)
            for i in range(len(group.choices)):
                task = graph.order[low + i]
                starts[p, task] = makespans[p] + best.starts[i]
                modes[p, task] = group.source[i, best.modes[i]]
            makespans[p] += best.numbers[MAKESPAN]
            bounds[p] += best.numbers[BOUND]
    return makespans, bounds, starts, modes


@compiled
def _solved(group: TaskGroup, tries: int) -> Best:
    """The best schedule and bound found for a group."""
    n = len(group.choices)
    empty = np.zeros(n, np.int64)
    best = Best(empty, empty.copy(), empty.copy(), empty.copy(), np.zeros(3, np.int64))
    if n == 1:
        best.numbers[MAKESPAN] = group.cycles[0, 0]
        best.numbers[BOUND] = group.cycles[0, 0]
        return best
    windows, weights, state = windows_for(group), weights_for(group), list_state(group)
    best.numbers[MAKESPAN] = np.iinfo(np.int64).max
    best.numbers[BOUND] = simple_bound(group, windows)
    mean = weighed(group, windows, weights, np.iinfo(np.int64).max, ROUNDS)
    best.numbers[BOUND] = max(best.numbers[BOUND], int(np.ceil(mean)))
    _by_rules(group, state, windows, weights, best)
    _raise_bound(group, windows, weights, best, 0)
    if best.numbers[BOUND] < best.numbers[MAKESPAN]:
        _by_changes(group, state, best, tries)
        _raise_bound(group, windows, weights, best, 8)
    return best


@compiled
def _raise_bound(group: TaskGroup, windows: Windows, weights: Weights, best: Best, steps: int) -> None:
    """Refutes makespans: first all shorter ones, then by bisection."""
    low, high = best.numbers[BOUND], best.numbers[MAKESPAN]
    if low < high and refuted(group, windows, weights, high - 1, ROUNDS):
        best.numbers[BOUND] = high
        return
    for _ in range(steps):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        if refuted(group, windows, weights, middle, ROUNDS):
            low = middle + 1
        else:
            high = middle
    best.numbers[BOUND] = low


@compiled
def _keep(state: ListState, best: Best, makespan: int) -> None:
    if makespan < best.numbers[MAKESPAN]:
        best.numbers[MAKESPAN] = makespan
        best.starts[:] = state.starts
        best.modes[:] = state.modes


@compiled
def _try(group: TaskGroup, state: ListState, windows: Windows, best: Best, low: Ints, high: Ints, urgency: int) -> None:
    """Schedules forward by an urgency, from long tails first (0) to early heads first (4); then both ways."""
    by_tail(group, low, best.keys)
    for i in range(len(best.keys)):
        best.keys[i] = (4 - urgency) * best.keys[i] - urgency * windows.heads[i]
    arrange(group, state, best.keys, best.waiting)
    _keep(state, best, serial(group, state, low, high, False))
    _keep(state, best, justify(group, state))
    best.numbers[MADE] += 3


@compiled
def _by_rules(group: TaskGroup, state: ListState, windows: Windows, weights: Weights, best: Best) -> None:
    """Schedules with every mode rule and three urgencies, until the bound is met."""
    n = len(group.choices)
    low, high = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for rule in range(RULES):
        _modes_by_rule(group, weights, rule, low, high)
        for urgency in range(0, 5, 2):
            if best.numbers[MAKESPAN] > best.numbers[BOUND]:
                _try(group, state, windows, best, low, high, urgency)


@compiled
def _modes_by_rule(group: TaskGroup, weights: Weights, rule: int, low: Ints, high: Ints) -> None:
    """The range of modes of every task, from which the schedule takes the first to end.

    The shortest; all within a multiple of the shortest, or only the longest of these; all; the modes chosen by the
    weights, alone or with their neighbours.
    """
    for i in range(len(group.choices)):
        last = group.choices[i] - 1
        low[i], high[i] = 0, last
        if rule == 0:
            high[i] = 0
        elif rule <= 8:
            # within 3/2, 5/2, 9/2 and 17/2 of the shortest
            times = 1 + (1 << ((rule + 1) // 2))
            while 2 * group.cycles[i, high[i]] > times * group.cycles[i, 0]:
                high[i] -= 1
            if rule % 2 == 0:
                low[i] = high[i]
        elif rule > 9:
            mode, reach = weights.sampled_modes[(rule - 10) // 2, i], rule % 2
            low[i], high[i] = max(0, mode - reach), min(last, mode + reach)


@compiled
def _by_changes(group: TaskGroup, state: ListState, best: Best, tries: int) -> None:
    """Local search: changes modes and keys of the best schedule and accepts what is not longer."""
    n = len(group.choices)
    modes, keys = best.modes.copy(), -best.starts
    changed, changed_keys = modes.copy(), keys.copy()
    current, draw = best.numbers[MAKESPAN], 1
    best.numbers[MADE] = 0
    while best.numbers[MADE] < tries and best.numbers[BOUND] < best.numbers[MAKESPAN]:
        changed[:] = modes
        changed_keys[:] = keys
        draw = _drawn(draw)
        for _ in range(1 + draw % 2):
            draw = _drawn(draw)
            i, kind = draw % n, (draw >> 12) % 4
            if kind == 0:
                changed_keys[i] = changed_keys[(draw >> 14) % n] + 1
            elif kind == 1:
                changed[i] = (draw >> 14) % group.choices[i]
            else:
                changed[i] = min(max(0, modes[i] + 2 * kind - 5), group.choices[i] - 1)
        arrange(group, state, changed_keys, best.waiting)
        makespan = serial(group, state, changed, changed, False)
        best.numbers[MADE] += 1
        if makespan < current + current // 16:
            _keep(state, best, makespan)
            makespan = justify(group, state)
            best.numbers[MADE] += 2
        if makespan <= current:
            current = makespan
            _keep(state, best, makespan)
            modes[:] = changed
            for j in range(n):
                keys[j] = -state.starts[j]


@compiled
def _drawn(last: int) -> int:
    """The next pseudo-random number below 2^32 (upper half of Knuth's MMIX generator)."""
    return ((last * 6364136223846793005 + 1442695040888963407) >> 16) & 0xFFFFFFFF
