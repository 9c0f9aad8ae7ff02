"""List schedules: they keep every rule, close what is simple, and are the same every time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from made_schedules import backward_layer, forward_layer, random_chip, random_problem

from dovetail.schedule.arrays import Arrays, arrays_of, group_of
from dovetail.schedule.list_kernels import arrange, justify, list_state, serial
from dovetail.schedule.problem import Mode, ModePhase, Problem, Schedule, ScheduleTask, faults
from dovetail.schedule.quick import TRIES, quick, quick_many


def chain(*lengths: int) -> Problem:
    tasks = tuple(
        ScheduleTask(f"t{k}", (Mode((ModePhase(length * 2, 1),)), Mode((ModePhase(length, 2),))), (k - 1,) if k else ())
        for k, length in enumerate(lengths)
    )
    return Problem(tasks, 2, 0, 0)


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_random_problems_schedules_have_no_faults(first):
    for seed in range(first, first + 40):
        problem = random_problem(Random(seed))  # noqa: S311
        solution = quick(problem)
        assert faults(problem, solution.schedule) == [], seed
        assert solution.schedule.makespan(problem) == solution.makespan
        assert solution.bound <= solution.makespan
        assert solution.status == ("optimal" if solution.bound == solution.makespan else "feasible")


def stripped(problem: Problem) -> Problem:
    """One problem of one group: a task beside all others keeps them together."""
    return Problem((*problem.tasks, ScheduleTask("aside", (Mode((ModePhase(1),)),))), *problem.capacities)


@pytest.mark.parametrize("backward", [False, True])
def test_each_list_schedule_has_no_faults_in_either_direction(backward):
    """The pieces: any keys, any modes allowed, from the start or from the end."""
    for seed in range(300):
        random = Random(seed)  # noqa: S311
        problem = stripped(random_problem(random))
        arrays = arrays_of(problem)
        group = group_of(arrays, 0, 0)
        n, room = len(group.choices), list_state(group)
        keys = np.array([random.randint(0, 9) for _ in range(n)])
        low = np.array([random.randrange(c) for c in group.choices])
        high = np.array([random.randint(a, c - 1) for a, c in zip(low, group.choices, strict=True)])
        arrange(group, room, keys, np.zeros(n, np.int64))
        room.order[:] = room.order[::-1] if backward else room.order
        makespan = serial(group, room, low, high, backward)
        assert ((low <= room.modes) & (room.modes <= high)).all()
        check(problem, arrays, group, makespan, makespan - room.ends if backward else room.starts, room.modes)
        if not backward:
            shorter = justify(group, room)
            if all(len(mode.phases) == 1 for task in problem.tasks for mode in task.modes):
                assert shorter <= makespan
            check(problem, arrays, group, shorter, room.starts, room.modes)


def check(problem, arrays: Arrays, group, makespan, starts, modes) -> None:
    places = np.argsort(arrays.graph.order)
    numbers = [int(group.source[i, modes[i]]) for i in places]
    schedule = Schedule(tuple(starts[places].tolist()), tuple(numbers))
    assert faults(problem, schedule) == []
    assert schedule.makespan(problem) == makespan


@pytest.mark.parametrize("make", [forward_layer, backward_layer])
def test_layers_schedules_have_no_faults_and_most_are_near_their_bounds(make):
    near = 0
    for seed in range(60):
        random = Random(seed)  # noqa: S311
        problem = make(random, random_chip(random))
        solution = quick(problem)
        assert faults(problem, solution.schedule) == [], seed
        near += solution.gap <= 0.01
    assert near >= (54 if make is forward_layer else 36)


def test_one_task_takes_its_shortest_mode():
    problem = Problem(
        (ScheduleTask("a", (Mode((ModePhase(9, 1),)), Mode((ModePhase(2, 3), ModePhase(3, 0, 1))))),), 4, 1, 0
    )
    solution = quick(problem)
    assert (solution.makespan, solution.bound, solution.status) == (5, 5, "optimal")
    assert solution.schedule == Schedule((0,), (1,))


def test_no_task_takes_no_time():
    assert quick(Problem((), 1, 1, 1)).makespan == 0


def test_a_chain_takes_the_sum_of_its_shortest_modes():
    solution = quick(chain(3, 5, 2))
    assert (solution.makespan, solution.bound, solution.status) == (10, 10, "optimal")
    assert solution.schedule == Schedule((0, 3, 8), (1, 1, 1))


def test_without_bandwidth_cores_alone_count():
    tasks = tuple(ScheduleTask(f"t{k}", (Mode((ModePhase(4, 1),)),)) for k in range(4))
    solution = quick(Problem(tasks, 2, 0, 0))
    assert (solution.makespan, solution.bound) == (8, 8)


def test_a_second_phase_overlaps_another_tasks_first():
    # both kinds of cores are one each: the second task starts when the first leaves the tensor core
    tasks = tuple(ScheduleTask(f"t{k}", (Mode((ModePhase(3, 1, 0), ModePhase(2, 0, 1))),)) for k in range(2))
    problem = Problem(tasks, 1, 1, 0)
    solution = quick(problem)
    assert sorted(solution.schedule.starts) == [0, 3]
    assert solution.makespan == 8
    assert faults(problem, solution.schedule) == []


def test_a_first_phase_starts_while_what_the_second_needs_is_taken():
    # the vector core is free from 5 on, when the second task's first phase may just have ended
    tasks = (
        ScheduleTask("a", (Mode((ModePhase(5, 0, 1),)),)),
        ScheduleTask("b", (Mode((ModePhase(3, 1, 0), ModePhase(2, 0, 1))),)),
    )
    group = group_of(arrays_of(Problem(tasks, 1, 1, 0)), 0, 0)
    room, first = list_state(group), np.zeros(2, np.int64)
    assert serial(group, room, first, first, False) == 7
    assert room.starts.tolist() == [0, 2]


def test_two_at_half_speed_beat_two_in_turn():
    modes = (Mode((ModePhase(11, 2),)), Mode((ModePhase(6, 4),)))
    solution = quick(Problem((ScheduleTask("a", modes), ScheduleTask("b", modes)), 4, 0, 0))
    assert (solution.makespan, solution.bound, solution.status) == (11, 11, "optimal")


def test_the_same_problem_has_the_same_schedule():
    for make in (forward_layer, backward_layer):
        random = Random(7)  # noqa: S311
        problem = make(random, random_chip(random))
        assert quick(problem) == quick(problem)


def test_many_chips_are_as_each_alone():
    """One graph, several chips side by side in one array, padded to the most modes."""
    problems = [forward_layer(Random(5), random_chip(Random(seed))) for seed in range(5)]  # noqa: S311
    each = [arrays_of(problem) for problem in problems]
    most = max(arrays.cycles.shape[2] for arrays in each)

    def padded(values: np.ndarray) -> np.ndarray:
        widths = [(0, 0)] * values.ndim
        widths[2] = (0, most - values.shape[2])
        return np.pad(values, widths)

    many = Arrays(
        each[0].graph,
        np.concatenate([arrays.capacities for arrays in each]),
        np.concatenate([arrays.modes for arrays in each]),
        np.concatenate([padded(arrays.cycles) for arrays in each]),
        np.concatenate([padded(arrays.uses) for arrays in each]),
    )
    makespans, bounds, starts, modes = quick_many(many, TRIES)
    for k, problem in enumerate(problems):
        solution = quick(problem)
        assert (makespans[k], bounds[k]) == (solution.makespan, solution.bound)
        assert Schedule(tuple(starts[k].tolist()), tuple(modes[k].tolist())) == solution.schedule


def test_a_task_that_fits_nowhere_has_no_schedule():
    arrays = arrays_of(
        Problem(
            (ScheduleTask("a", (Mode((ModePhase(3, 8),)),)), ScheduleTask("b", (Mode((ModePhase(3, 1),)),))), 4, 0, 0
        )
    )
    makespans, bounds, _, _ = quick_many(arrays, TRIES)
    assert (makespans[0], bounds[0]) == (-1, -1)
