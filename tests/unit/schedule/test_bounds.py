"""Bounds of schedule problems: no schedule is shorter, however it is looked for."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from made_schedules import backward_layer, forward_layer, random_chip, random_problem

from dovetail.schedule.arrays import TaskGroup, arrays_of, graph_of, group_of
from dovetail.schedule.bound_kernels import refuted, simple_bound, weighed, weights_for, windows_for
from dovetail.schedule.problem import Mode, ModePhase, Problem, ScheduleTask, faults
from dovetail.schedule.quick import quick

LONG = 10**15


def ends_within(problem: Problem, makespan: int) -> bool:
    """Whether some schedule ends within a makespan: every mode and every start of every task is tried."""
    used = np.zeros((3, max(makespan, 0)), np.int64)
    ends: list[int] = []
    tails = [0] * len(problem.tasks)
    for i in reversed(range(len(problem.tasks))):
        for need in problem.tasks[i].after:
            tails[need] = max(tails[need], tails[i] + min(mode.cycles for mode in problem.tasks[i].modes))

    def take(mode: Mode, at: int, sign: int) -> bool:
        for phase in mode.phases:
            used[:, at : at + phase.cycles] += sign * np.array(phase.uses)[:, None]
            at += phase.cycles
        return bool((used <= np.array(problem.capacities)[:, None]).all())

    def rest(i: int) -> bool:
        if i == len(problem.tasks):
            return True
        ready = max((ends[need] for need in problem.tasks[i].after), default=0)
        for mode in problem.tasks[i].modes:
            for start in range(ready, makespan - tails[i] - mode.cycles + 1):
                ends.append(start + mode.cycles)
                found = take(mode, start, 1) and rest(i + 1)
                take(mode, start, -1)
                ends.pop()
                if found:
                    return True
        return False

    return rest(0)


def small(seed: int) -> Problem:
    return random_problem(Random(seed), most_tasks=4, most_modes=3)  # noqa: S311


def groups(problem: Problem) -> list[TaskGroup]:
    arrays = arrays_of(problem)
    return [group_of(arrays, 0, k) for k in range(len(arrays.graph.first_member) - 1)]


def task(name: str, *modes: tuple[int, int, int, int], after: tuple[int, ...] = ()) -> ScheduleTask:
    return ScheduleTask(name, tuple(Mode((ModePhase(*mode),)) for mode in modes), after)


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_no_schedule_is_shorter_than_the_bound(first):
    for seed in range(first, first + 20):
        problem = small(seed)
        solution = quick(problem)
        assert not ends_within(problem, solution.bound - 1), seed
        if solution.status == "feasible":
            assert solution.bound < solution.makespan


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_what_can_be_kept_is_never_refuted(first):
    """Every group's own bounds and every trial from its best schedule on, not only those `quick` asks for."""
    for seed in range(first, first + 20):
        problem = small(seed)
        makespan = quick(problem).makespan
        while makespan and ends_within(problem, makespan - 1):
            makespan -= 1
        least = 0
        for group in groups(problem):
            windows, weights = windows_for(group), weights_for(group)
            bound = max(simple_bound(group, windows), int(np.ceil(weighed(group, windows, weights, LONG, 200))))
            trials = [trial for trial in range(1, makespan + 3) if refuted(group, windows, weights, trial, 60)]
            least += max(bound, max(trials, default=0) + 1 if trials else 0)
        assert least <= makespan, seed


def test_no_schedule_is_shorter_than_the_bound_of_a_poor_one():
    """With rules alone more is left between bound and schedule, and makespans are refuted by halving."""
    left = 0
    # of the last six the bound is what the shortest schedule takes, and halving found it
    for seed in (*range(1000, 1200), 1495, 3444, 3969, 4308, 4468, 5543):
        problem = random_problem(Random(seed), most_tasks=5, most_modes=2)  # noqa: S311
        solution = quick(problem, tries=0)
        if solution.status == "feasible":
            left += 1
            assert not ends_within(problem, solution.bound - 1), seed
    assert left >= 10


@pytest.mark.parametrize("seed", range(6))
def test_layers_bounds_are_below_their_schedules(seed):
    for make in (forward_layer, backward_layer):
        random = Random(seed)  # noqa: S311
        problem = make(random, random_chip(random))
        solution = quick(problem)
        assert 0 < solution.bound <= solution.makespan
        assert solution.gap < 0.35
        assert (solution.status == "optimal") == (solution.bound == solution.makespan)
        assert faults(problem, solution.schedule) == []


def test_groups_run_one_after_the_other():
    # 0 → {1, 2 → 3} → 4, and 5 and 6 both need 4 alone
    graph = graph_of([[], [0], [0], [2], [1, 3], [4], [4]])
    members = [graph.order[a:b].tolist() for a, b in pairwise(graph.first_member.tolist())]
    assert members == [[0], [1, 2, 3], [4], [5, 6]]
    # only what a group's members need of each other
    assert graph.needs.tolist() == [2]
    assert graph.followers.tolist() == [3]


def test_groups_need_no_single_task_between_them():
    graph = graph_of([[], [], [0, 1], [0, 1]])
    assert graph.first_member.tolist() == [0, 2, 4]


def test_implied_needs_are_left_out():
    # 1 needs 0, and 2 both; 3 needs none and keeps them in one group
    graph = graph_of([[], [0], [0, 1], []])
    places = {int(task): place for place, task in enumerate(graph.order)}
    place = places[2]
    assert graph.needs[graph.first_need[place] : graph.first_need[place + 1]].tolist() == [places[1]]


def test_a_mode_that_another_beats_is_left_out():
    modes = ((5, 2, 0, 1), (5, 4, 0, 1), (9, 1, 0, 1), (9, 1, 0, 1), (4, 4, 0, 4))
    (group,) = groups(Problem((task("a", *modes),), 4, 0, 4))
    assert group.source[0, : group.choices[0]].tolist() == [4, 0, 2]
    assert group.cycles[0, : group.choices[0]].tolist() == [4, 5, 9]


def test_a_mode_of_two_phases_is_beaten_moment_by_moment():
    def modes(*phases: tuple[ModePhase, ...]) -> Problem:
        return Problem((ScheduleTask("a", tuple(Mode(p) for p in phases)),), 4, 4, 4)

    fused, split = (ModePhase(6, 2, 2, 0),), (ModePhase(3, 2, 0, 0), ModePhase(3, 0, 2, 0))
    (group,) = groups(modes(fused, split))
    assert group.source[0, : group.choices[0]].tolist() == [1]
    (group,) = groups(modes(fused, (ModePhase(3, 2, 0, 0), ModePhase(3, 0, 3, 0))))
    assert group.choices[0] == 2


def test_a_mode_that_does_not_fit_is_left_out():
    (group,) = groups(Problem((task("a", (5, 2, 0, 0), (2, 8, 0, 0)),), 4, 0, 0))
    assert group.source[0, : group.choices[0]].tolist() == [0]


def test_what_leaves_too_little_bandwidth_runs_alone():
    # no resource is used more than 30 cycles, no path is longer than 10
    problem = Problem(
        (*(task(f"t{k}", (10, 1, 0, 4)) for k in range(3)), *(task(f"v{k}", (10, 0, 1, 7)) for k in range(2))), 1, 4, 10
    )
    (group,) = groups(problem)
    windows = windows_for(group)
    assert simple_bound(group, windows) == 30
    assert int(np.ceil(weighed(group, windows, weights_for(group), LONG, 40))) == 50
    solution = quick(problem)
    assert (solution.makespan, solution.bound, solution.status) == (50, 50, "optimal")


def test_three_halves_take_two_turns():
    # on all cores none is faster: work alone would allow 15 cycles
    tasks = tuple(task(f"t{k}", (10, 2, 0, 0), (10, 4, 0, 0)) for k in range(3))
    solution = quick(Problem(tasks, 4, 0, 0))
    assert (solution.makespan, solution.bound) == (20, 20)


def test_a_path_and_its_companions_share_the_cores():
    """Path alone: 20 on all cores. Work alone: 4 × 10 of 4 cores. Together no less than 30."""
    chain = (task("a", (10, 4, 0, 0), (20, 1, 0, 0)), task("b", (10, 4, 0, 0), (20, 1, 0, 0), after=(0,)))
    problem = Problem((*chain, task("c", (10, 4, 0, 0))), 4, 0, 0)
    solution = quick(problem)
    assert solution.makespan == solution.bound == 30
