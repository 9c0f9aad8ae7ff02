"""Schedule problems: files that read back, schedules that are checked by the definition."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dovetail.schedule.problem import Schedule, faults, problem_document, problem_from

RIGHT: dict[str, Any] = {
    "tensor_cores": 4,
    "vector_cores": 2,
    "bandwidth": 10,
    "tasks": [
        {
            "name": "a",
            "modes": [[{"cycles": 5, "tensor_cores": 2, "bandwidth": 6}], [{"cycles": 3, "tensor_cores": 4}]],
        },
        {"name": "b", "modes": [[{"cycles": 2, "vector_cores": 2}, {"cycles": 4, "tensor_cores": 1}]], "after": ["a"]},
        {"name": "c", "modes": [[{"cycles": 6, "tensor_cores": 2, "bandwidth": 6}]]},
    ],
}


def test_a_problem_reads_back():
    problem = problem_from(RIGHT, "x.json")
    assert problem_from(problem_document(problem), "y.json") == problem
    assert problem.tasks[1].after == (0,)
    assert problem.tasks[1].modes[0].cycles == 6


@pytest.mark.parametrize(
    ("starts", "modes", "makespan", "wrong"),
    [
        ((0, 5, 5), (0, 0, 0), 11, []),
        ((0, 5, 0), (0, 0, 0), 11, ["12 of 10 bandwidth at 0"]),
        ((0, 4, 5), (0, 0, 0), 11, ["b starts before a ends"]),
        ((0, 3, 2), (1, 0, 0), 9, ["6 of 4 tensor_cores at 2"]),
        ((0, 3, 3), (1, 0, 0), 9, []),
        ((-1, 3, 3), (1, 0, 0), 9, ["a starts at -1"]),
    ],
)
def test_schedules_are_checked(starts, modes, makespan, wrong):
    problem, schedule = problem_from(RIGHT, "x.json"), Schedule(starts, modes)
    assert schedule.makespan(problem) == makespan
    assert faults(problem, schedule) == wrong


def change(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    document = copy.deepcopy(RIGHT)
    inner: Any = document
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("tasks", 1, "after"), ["c"], "tasks.1.after"),
        (("tasks", 1, "after"), ["nobody"], "tasks.1.after"),
        (("tasks", 2, "name"), "a", "tasks.2.name"),
        (("tensor_cores",), 3, "tasks.0.modes.1"),
        (("tasks", 0, "modes"), [], "tasks.0.modes"),
        (("tasks", 0, "modes"), [[]], "tasks.0.modes"),
        (("tasks", 0, "modes", 0, 0, "cycles"), 0, "cycles"),
        (("tasks", 0, "modes", 0, 0, "cycles"), 1.5, "cycles"),
        (("tasks",), [], "tasks"),
        (("colour",), "red", "colour"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(path, value, named, refusal):
    assert named in refusal(problem_from, change(path, value), "x.json")
