"""Schedule problems as arrays: one graph of tasks, many chips; and groups of tasks for the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.compilation import compiled
from dovetail.schedule.problem import MAX_PHASES, RESOURCES, Problem


class Graph(NamedTuple):
    """Dependencies between tasks, in groups that run one after the other.

    All tasks of a group need all tasks of the groups before it, so the shortest makespans of the groups add up. Places
    are positions in `order`, which lists group by group; only direct needs within a group are listed.
    """

    #: by place: the task's position in its problem
    order: Ints
    #: by group: its first place; then the number of tasks
    first_member: Ints
    #: places × places: whether the first must end before the second starts
    before: Bools
    #: needs of place i: `needs[first_need[i] : first_need[i + 1]]`, places; and the places that need it
    first_need: Ints
    needs: Ints
    first_follower: Ints
    followers: Ints


class Arrays(NamedTuple):
    """Problems of one graph: tasks by their position in the problem, modes and phases padded with zeros."""

    graph: Graph
    #: problems × resources
    capacities: Ints
    #: problems × tasks: number of modes
    modes: Ints
    #: problems × tasks × modes × phases; 0 if there is no second phase
    cycles: Ints
    #: problems × tasks × modes × phases × resources
    uses: Ints


class TaskGroup(NamedTuple):
    """One group of one problem: its tasks in order, and the undominated modes of each, shortest first."""

    capacities: Ints
    #: tasks: number of modes
    choices: Ints
    #: tasks × modes: total cycles, and cycles of the first phase
    cycles: Ints
    first: Ints
    #: tasks × modes × phases × resources
    uses: Ints
    #: tasks × modes × resources: cycles × uses
    work: Ints
    #: tasks × modes: the mode's number in the problem
    source: Ints
    before: Bools
    first_need: Ints
    needs: Ints
    first_follower: Ints
    followers: Ints


def graph_of(after: Sequence[Sequence[int]]) -> Graph:
    """The graph of tasks, given the earlier positions each one needs."""
    n = len(after)
    before = np.zeros((n, n), np.bool_)
    for position, needs in enumerate(after):
        for need in needs:
            before[:, position] |= before[:, need]
            before[need, position] = True
    # tasks sorted by the number of tasks they depend on are in topological order
    order = np.argsort(before.sum(axis=0), kind="stable").astype(np.int64)
    before = np.ascontiguousarray(before[np.ix_(order, order)])
    starts = [k for k in range(n) if before[:k, k:].all()]
    first_member = np.array([*starts, n], np.int64)
    group = np.searchsorted(first_member, np.arange(n), side="right")
    implied = (before.astype(np.float32) @ before.astype(np.float32)) > 0
    direct = before & ~implied & (group[:, None] == group[None, :])
    return Graph(order, first_member, before, *_rows(direct.T), *_rows(direct))


def _rows(matrix: Bools) -> tuple[Ints, Ints]:
    first = np.concatenate([[0], np.cumsum(matrix.sum(axis=1))]).astype(np.int64)
    return first, np.nonzero(matrix)[1].astype(np.int64)


def arrays_of(problem: Problem) -> Arrays:
    """One problem as arrays."""
    n, most = len(problem.tasks), max((len(task.modes) for task in problem.tasks), default=1)
    cycles = np.zeros((1, n, most, MAX_PHASES), np.int64)
    uses = np.zeros((1, n, most, MAX_PHASES, len(RESOURCES)), np.int64)
    for i, task in enumerate(problem.tasks):
        for m, mode in enumerate(task.modes):
            for k, phase in enumerate(mode.phases):
                cycles[0, i, m, k] = phase.cycles
                uses[0, i, m, k] = phase.uses
    modes = np.array([[len(task.modes) for task in problem.tasks]], np.int64)
    graph = graph_of([task.after for task in problem.tasks])
    return Arrays(graph, np.array([problem.capacities], np.int64), modes, cycles, uses)


@compiled
def group_of(arrays: Arrays, problem: int, number: int) -> TaskGroup:
    """A group of a problem; a task whose modes all exceed the capacities has none left."""
    graph, most = arrays.graph, arrays.cycles.shape[2]
    low, high = graph.first_member[number], graph.first_member[number + 1]
    n = high - low
    capacities = arrays.capacities[problem]
    count, source = np.zeros(n, np.int64), np.empty((n, most), np.int64)
    cycles, first = np.empty((n, most), np.int64), np.empty((n, most), np.int64)
    uses, work = np.empty((n, most, 2, 3), np.int64), np.empty((n, most, 3), np.int64)
    for i in range(n):
        task = int(graph.order[low + i])
        count[i] = _efficient_modes(arrays, problem, task, source[i])
        for k in range(count[i]):
            m = source[i, k]
            one, two = arrays.cycles[problem, task, m, 0], arrays.cycles[problem, task, m, 1]
            cycles[i, k], first[i, k] = one + two, one
            for r in range(3):
                uses[i, k, 0, r] = arrays.uses[problem, task, m, 0, r]
                uses[i, k, 1, r] = arrays.uses[problem, task, m, 1, r]
                work[i, k, r] = one * uses[i, k, 0, r] + two * uses[i, k, 1, r]
    before = graph.before[low:high, low:high]
    first_need = graph.first_need[low : high + 1] - graph.first_need[low]
    needs = graph.needs[graph.first_need[low] : graph.first_need[high]] - low
    first_follower = graph.first_follower[low : high + 1] - graph.first_follower[low]
    followers = graph.followers[graph.first_follower[low] : graph.first_follower[high]] - low
    return TaskGroup(
        capacities, count, cycles, first, uses, work, source, before, first_need, needs, first_follower, followers
    )


@compiled
def _efficient_modes(arrays: Arrays, problem: int, task: int, numbers: Ints) -> int:
    """Lists the undominated modes of a task that fit, shortest first; returns how many there are."""
    count = 0
    cycles = arrays.cycles[problem, task]
    for m in range(arrays.modes[problem, task]):
        fits = True
        for r in range(3):
            most = max(arrays.uses[problem, task, m, 0, r], arrays.uses[problem, task, m, 1, r])
            fits = fits and most <= arrays.capacities[problem, r]
        if fits:
            at, length = count, cycles[m, 0] + cycles[m, 1]
            while at > 0 and cycles[numbers[at - 1], 0] + cycles[numbers[at - 1], 1] > length:
                numbers[at] = numbers[at - 1]
                at -= 1
            numbers[at] = m
            count += 1
    num_efficient = 0
    for k in range(count):
        beaten = False
        # the first of equal modes stays; a longer mode never beats a shorter one
        for j in range(num_efficient):
            beaten = beaten or _within(arrays, problem, task, numbers[j], numbers[k])
        for j in range(k + 1, count):
            same = cycles[numbers[j], 0] + cycles[numbers[j], 1] == cycles[numbers[k], 0] + cycles[numbers[k], 1]
            if beaten or not same:
                break
            there = _within(arrays, problem, task, numbers[j], numbers[k])
            beaten = there and not _within(arrays, problem, task, numbers[k], numbers[j])
        if not beaten:
            numbers[num_efficient] = numbers[k]
            num_efficient += 1
    return num_efficient


@compiled
def _within(arrays: Arrays, problem: int, task: int, a: int, b: int) -> bool:
    """Whether a mode can replace another one: it is no longer and never uses more of any resource."""
    cycles, uses = arrays.cycles[problem, task], arrays.uses[problem, task]
    if cycles[a, 0] + cycles[a, 1] > cycles[b, 0] + cycles[b, 1]:
        return False
    for p in range(2):
        start, end = (0, cycles[a, 0]) if p == 0 else (cycles[a, 0], cycles[a, 0] + cycles[a, 1])
        for q in range(2):
            low, high = (0, cycles[b, 0]) if q == 0 else (cycles[b, 0], cycles[b, 0] + cycles[b, 1])
            if max(start, low) < min(end, high):
                for r in range(3):
                    if uses[a, p, r] > uses[b, q, r]:
                        return False
    return True
