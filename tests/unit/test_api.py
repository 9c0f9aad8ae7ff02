"""The public names: what `import dovetail as dt` offers, and that plans, answers and files are taken alike."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dovetail as dt
from dovetail.errors import InputError
from dovetail.plans.plan_file import load_task

PUBLIC = {
    *("models", "hardware", "frameworks"),
    *("Job", "Plan", "Space", "Cluster", "Study"),
    *("evaluate", "plan", "simulate", "explain", "diff", "export", "explore", "plot", "fitting_changes", "reasons"),
}

PLAN = """\
job: {{model: gpt3-1.3b, seq_len: 2048, global_batch: 32}}
cluster: {{chip: a100-80gb, chips: 8, framework: {framework}}}
plan: {{tensor_parallel: {tensor}, pipeline_parallel: 2, zero_stage: 1}}
"""

STUDY = """\
name: tiny
jobs: [{model: gpt3-1.3b, seq_len: 2048, global_batch: 64}]
hardware:
  base: tpu-v4
  vary: {tensor_cores: [4, 8], hbm_stacks: [2, 4]}
cluster: {chips: 16, framework: ideal}
plans: {context_parallel: [1], pipeline_schedule: [1f1b], micro_batch: [1], zero_stage: [0], partition: ends,
        recompute: [full], recompute_share: [1.0], sequence_parallel: [false], pipeline_parallel: [1, 2]}
"""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "plan.yaml"
    path.write_text(PLAN.format(framework="ideal", tensor=2))
    return path


@pytest.fixture(scope="module")
def task(plan_file):
    return load_task(plan_file)


def test_public_names_are_these():
    assert set(dir(dt)) == PUBLIC | {"__version__"}
    for name in PUBLIC:
        assert getattr(dt, name).__doc__, name


def test_the_reference_has_each_public_name():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"heading: dt\.(\w+)", page))
    assert headings == PUBLIC
    for name, place in dict(dt._PUBLIC).items():
        if ":" in place:
            assert f"::: {place.replace(':', '.')}\n" in page, name


def test_packages_of_the_engine_are_not_public():
    code = "import dovetail as dt\nfor name in ('search', 'evaluation', 'step'): print(hasattr(dt, name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3


def test_importing_loads_nothing():
    code = "import dovetail, sys; print([m for m in sys.modules if m in ('numpy', 'numba', 'pydantic', 'ortools')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plan_and_its_file_are_evaluated_alike(plan_file, task):
    by_plan = dt.evaluate(task.plan, task.job, task.cluster, "ideal")
    assert dt.evaluate(plan_file) == dt.evaluate(str(plan_file)) == by_plan
    # the framework is the file's: the default would cost something else
    assert dt.evaluate(task.plan, task.job, task.cluster).step_time_s != by_plan.step_time_s


def test_energy_can_be_left_out(plan_file):
    assert dt.evaluate(plan_file).energy_j is not None
    assert dt.evaluate(plan_file, energy=False).energy_j is None


def test_a_plan_alone_names_what_is_missing(task):
    with pytest.raises(InputError, match=r"^job: is missing"):
        dt.evaluate(task.plan)
    with pytest.raises(InputError, match=r"^cluster: is missing"):
        dt.simulate(task.plan, task.job)


def test_a_file_cannot_be_combined_with_what_it_names(plan_file, task):
    with pytest.raises(InputError, match=r"^job: cannot be combined with a plan file"):
        dt.evaluate(plan_file, task.job)
    with pytest.raises(InputError, match=r"^framework: cannot be combined with a plan file"):
        dt.export(plan_file, "megatron", framework="megatron")


def test_an_answer_is_taken_for_its_plan(task):
    space = dt.Space(tensor_parallel=(2,), pipeline_parallel=(2,), context_parallel=(1,), micro_batch=(1,))
    answer = dt.plan(task.job, task.cluster, "megatron", space=space)
    assert isinstance(answer.plan, dt.Plan)
    assert dt.evaluate(answer) == answer.best
    assert dt.diff(answer, answer).gain == 0
    with pytest.raises(InputError, match="cannot be combined with an answer"):
        dt.evaluate(answer, task.job)


def test_a_step_is_simulated_from_its_file(plan_file, task):
    step = dt.simulate(plan_file)
    assert step.step_time_s == dt.simulate(task.plan, task.job, task.cluster, task.framework).step_time_s
    assert step.model_step_time_s == dt.evaluate(plan_file).step_time_s


def test_diff_names_each_change(plan_file, task, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(PLAN.format(framework="ideal", tensor=4))
    comparison = dt.diff(plan_file, other)
    assert "tensor_parallel" in {name for each in comparison.differences for name in each.fields}
    assert comparison == dt.diff(task.plan, other, task.job, task.cluster, task.framework)


def test_export_writes_what_it_returns(plan_file, tmp_path):
    path, out = tmp_path / "plan.yaml", tmp_path / "launch.args"
    path.write_text(PLAN.format(framework="megatron", tensor=2).replace("zero_stage: 2", "zero_stage: 1"))
    launch = dt.export(path, "megatron", out)
    assert out.read_text() == launch.text
    assert re.search(r"--tensor-model-parallel-size[ =]2\b", launch.text)
    with pytest.raises(InputError, match=r"^to: is 'megatorn'"):
        dt.export(plan_file, "megatorn")


def test_export_to_perfetto_is_a_trace(plan_file, tmp_path):
    trace = json.loads(dt.export(plan_file, "perfetto").text)
    assert {event["ph"] for event in trace["traceEvents"]} >= {"X", "M"}


def test_a_plot_has_a_row_for_each_stage_and_a_bar_for_each_item(plan_file, tmp_path):
    out = tmp_path / "step.svg"
    step = dt.simulate(plan_file)
    text = dt.plot(plan_file, out=out)
    assert out.read_text() == text == dt.plot(step)
    root = ElementTree.fromstring(text)  # noqa: S314
    space = "{http://www.w3.org/2000/svg}"
    labels = [element.text or "" for element in root.iter(f"{space}text")]
    assert sum(label.startswith("stage ") for label in labels) == 2
    hinted = [bar for bar in root.iter(f"{space}rect") if bar.find(f"{space}title") is not None]
    assert len(hinted) == len(step.tasks.order.kind)
    assert all(float(bar.get("x") or 0) + float(bar.get("width") or 0) <= 700.3 for bar in hinted)


def test_a_study_is_explored_from_its_file(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    result = dt.explore(path, tmp_path / "run")
    assert result.certificate["status"] == "optimal"
    assert result.document["best"] == dt.explore(dt.Study.load(path)).document["best"]
    assert (tmp_path / "run").is_dir()
