"""Solutions repeat, are remembered whatever tasks are called, and say what is not proven."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from dovetail.schedule import solve as solving
from dovetail.schedule.problem import Mode, ModePhase, Problem, ScheduleTask, faults, problem_document
from dovetail.schedule.solve import canonical, forget, solve


def hard(n: int, seed: int = 3) -> Problem:
    """A layered graph that list schedules and bounds do not settle."""
    draw = random.Random(seed)  # noqa: S311 - a graph is no secret
    tasks: list[ScheduleTask] = []
    for position in range(n):
        layer = position // 4
        near = range(max(0, 4 * (layer - 1)), 4 * layer)
        after = tuple(other for other in near if draw.random() < 0.4)
        work, kind = draw.randint(10, 80), position % 2
        parts = ((part, -(-work * (5 + part) // (6 * part))) for part in (1, 2, 4))
        modes = tuple(Mode((ModePhase(length, *((part, 0) if kind else (0, part))),)) for part, length in parts)
        tasks.append(ScheduleTask(f"task {position}", modes, after))
    return Problem(tuple(tasks), 4, 4, 0)


@pytest.fixture(autouse=True)
def _fresh_memory():
    forget()


def test_the_same_problem_has_the_same_schedule_in_a_fresh_process():
    problem = hard(14)
    first = solve(problem)
    forget()
    assert solve(problem) == first
    script = (
        "import sys, json\n"
        "from dovetail.schedule.problem import problem_from\n"
        "from dovetail.schedule.solve import solve\n"
        "print(solve(problem_from(json.load(sys.stdin), 'stdin')))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(problem_document(problem)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(first)


def test_names_and_units_do_not_matter(monkeypatch):
    problem = hard(12)
    first = solve(problem)

    def solved_twice(*_: object) -> None:
        raise AssertionError("solved again")

    monkeypatch.setattr(solving, "_solved_anew", solved_twice)
    renamed = replace(problem, tasks=tuple(replace(task, name=f"other {task.name}") for task in problem.tasks))
    assert solve(renamed) == first
    slower = _times(problem, 1000, 1)
    assert solve(slower).makespan == 1000 * first.makespan
    assert faults(slower, solve(slower).schedule) == []
    assert solve(_times(problem, 1, 3)).makespan == first.makespan
    with pytest.raises(AssertionError, match="solved again"):
        solve(hard(12, seed=4))


def _times(problem: Problem, cycles: int, cores: int) -> Problem:
    def mode_of(mode: Mode) -> Mode:
        phases = (
            ModePhase(p.cycles * cycles, p.tensor_cores * cores, p.vector_cores * cores, p.bandwidth)
            for p in mode.phases
        )
        return Mode(tuple(phases))

    tasks = tuple(replace(task, modes=tuple(map(mode_of, task.modes))) for task in problem.tasks)
    # a capacity that no use divides counts in whole uses
    return Problem(tasks, problem.tensor_cores * cores + cores - 1, problem.vector_cores * cores, problem.bandwidth)


def test_units_are_the_largest_that_keep_all_whole():
    modes = (Mode((ModePhase(6, tensor_cores=2, bandwidth=10), ModePhase(9, vector_cores=3))),)
    found, unit = canonical(Problem((ScheduleTask("a", modes),), 5, 7, 25))
    assert unit == 3
    assert found == Problem((ScheduleTask("", (Mode((ModePhase(2, 1, 0, 1), ModePhase(3, 0, 1, 0))),)),), 2, 2, 2)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(solving, "MAX_SOLUTIONS", 2)
    for cycles in (2, 3, 5):
        phases = (ModePhase(cycles, tensor_cores=1), ModePhase(7, vector_cores=1))
        solve(Problem((ScheduleTask("a", (Mode(phases),)),), 1, 1, 0))
    assert len(solving._solutions) == 2


# before the solver has any schedule of its own, and after
@pytest.mark.parametrize("limit", [1e-6, 0.01])
def test_a_limit_leaves_a_schedule_and_an_honest_bound(limit):
    problem = hard(32)
    little, enough = solve(problem, limit), solve(problem)
    assert little.status == "feasible"
    assert faults(problem, little.schedule) == []
    assert little.schedule.makespan(problem) == little.makespan
    assert enough.status == "optimal"
    assert little.bound <= enough.makespan <= little.makespan
    assert little.bound < little.makespan


def test_nothing_takes_no_time():
    solution = solve(Problem((), 1, 1, 1))
    assert (solution.makespan, solution.bound, solution.status) == (0, 0, "optimal")
