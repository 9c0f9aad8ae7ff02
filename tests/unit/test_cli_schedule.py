"""`dovetail schedule`: problem files and layers in, charts, traces and proofs out."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dovetail.cli import app

PROBLEM = {
    "tensor_cores": 2,
    "vector_cores": 1,
    "tasks": [
        {"name": "a", "modes": [[{"cycles": 4, "tensor_cores": 1}], [{"cycles": 3, "tensor_cores": 2}]]},
        {"name": "b", "modes": [[{"cycles": 4, "tensor_cores": 1}], [{"cycles": 3, "tensor_cores": 2}]]},
        {"name": "c", "modes": [[{"cycles": 2, "vector_cores": 1}]], "after": ["a", "b"]},
    ],
}


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["schedule", *arguments])
    return found.exit_code, found.output


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    return path


def test_a_problem_file_is_solved(file):
    code, output = run(str(file), "--json")
    answer = json.loads(output)
    assert code == 0
    assert answer["makespan_cycles"] == 6
    assert answer["serial_cycles"] is None
    assert answer["certificate"] == {"status": "optimal", "lower_bound_cycles": 6, "gap": 0.0}
    assert {task["name"]: task["start"] for task in answer["schedule"]} == {"a": 0, "b": 0, "c": 4}


def test_a_chart_a_trace_and_the_problem_of_a_layer(tmp_path):
    trace, out = tmp_path / "trace.json", tmp_path / "problem.json"
    asked = ("--model", "llama-2-7b", "--chip", "tpu-v4", "--trace", str(trace), "--out", str(out))
    code, output = run(*asked)
    assert code == 0
    assert "mlp.down" in output
    assert "proven: no schedule is shorter" in output
    assert "sequential" in output
    assert {event["name"] for event in json.loads(trace.read_text())["traceEvents"]} >= {"attention", "tensor_cores"}
    again = json.loads(run(str(out), "--json")[1])
    assert f"{again['makespan_cycles']:,} cycles" in output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "give a problem file"),
        (("--model", "llama-2-7b"), "give a problem file"),
        (("--model", "llama-2-7b", "--chip", "h100-sxm"), "gpu"),
        (("--model", "llama-2-7b", "--chip", "tpu-v4", "--layer", "none"), "layer class"),
        (("--model", "llama-2-7b", "--chip", "tpu-v4", "--tensor-parallel", "7"), "does not divide"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_a_sentence(arguments, named, refusal):
    from dovetail.cli.schedule import schedule

    given = {name[2:].replace("-", "_"): value for name, value in zip(arguments[::2], arguments[1::2], strict=True)}
    if "tensor_parallel" in given:
        given["tensor_parallel"] = int(given["tensor_parallel"])
    assert named in refusal(schedule, **given)


def test_files_are_not_replaced_unasked(file, refusal):
    from dovetail.cli.schedule import schedule

    assert "already exists" in refusal(schedule, file=file, out=file)
