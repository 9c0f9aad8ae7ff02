"""The exact solver against trying everything."""

from __future__ import annotations

import pytest
from random_schedules import random_problem
from schedule_brute_force import least_makespan

from dovetail.schedule.problem import Mode, ModePhase, Problem, ScheduleTask, faults
from dovetail.schedule.solve import solve

FEW, ALL = 60, 500


def check(seed: int) -> None:
    problem = random_problem(seed)
    solution = solve(problem)
    assert faults(problem, solution.schedule) == []
    assert solution.schedule.makespan(problem) == solution.makespan
    assert (solution.status, solution.bound) == ("optimal", solution.makespan)
    assert solution.makespan == least_makespan(problem), f"seed {seed}"


@pytest.mark.parametrize("seed", range(FEW))
def test_the_optimum_is_that_of_trying_everything(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, ALL))
def test_the_optimum_is_that_of_trying_everything_for_many_more(seed):
    check(seed)


def test_the_oracle_knows_answers_found_by_hand():
    one, two = Mode((ModePhase(4, tensor_cores=1),)), Mode((ModePhase(3, tensor_cores=2),))
    pair = (ScheduleTask("a", (one, two)), ScheduleTask("b", (one, two)))
    assert least_makespan(Problem(pair, 2, 0, 0)) == 4
    assert least_makespan(Problem(pair, 1, 0, 0)) == 8
    assert least_makespan(Problem((pair[0], ScheduleTask("b", (one, two), (0,))), 2, 0, 0)) == 6
    # the second phase of one beside the first phase of the other
    apart = Mode((ModePhase(2, tensor_cores=1), ModePhase(3, vector_cores=1)))
    assert least_makespan(Problem((ScheduleTask("a", (apart,)), ScheduleTask("b", (apart,))), 1, 1, 0)) == 8
