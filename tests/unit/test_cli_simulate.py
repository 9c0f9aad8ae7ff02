"""`dovetail simulate` and the trace of `dovetail export`: facts for readers, fields for programs, files as asked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dovetail.step.evaluate import evaluate
from simulated_steps import PLANS, simulated, task_of

#: What programs may rely on.
CONTRACT = {"step_time_s", "model_step_time_s", "ratio", "events", "peak_memory_bytes"}


@pytest.fixture
def call(command, tmp_path, monkeypatch):
    """Runs a command beside plan.yaml; returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLANS["1f1b"])
    return command


def test_json_is_the_simulation(call, tmp_path):
    code, out, err = call("simulate", "plan.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    step = simulated("1f1b", tmp_path, rates=False)
    assert set(found) >= CONTRACT
    assert found["step_time_s"] == step.step_time_s
    assert found["model_step_time_s"] == step.model_step_time_s
    assert found["ratio"] == pytest.approx(found["step_time_s"] / found["model_step_time_s"])
    assert found["events"] == step.events
    assert found["peak_memory_bytes"] == max(stage["peak_memory_bytes"] for stage in found["stages"]) > 0
    assert found["fits"]
    assert found["trace"] is None
    assert len(found["stages"]) == 4
    for stage in found["stages"]:
        assert sum(stage["seconds"].values()) == pytest.approx(found["step_time_s"])
    assert found["timing"]["simulate_s"] > 0


def test_the_model_is_what_estimate_says(call, tmp_path):
    _, out, _ = call("simulate", "plan.yaml", "--json")
    task = task_of("1f1b", tmp_path)
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    assert json.loads(out)["model_step_time_s"] == pytest.approx(result.step_time_s, rel=1e-9)


def test_view_has_facts_parts_links_and_picture(call):
    code, out, err = call("simulate", "plan.yaml")
    assert (code, err) == (0, "")
    for text in (
        "job  ",
        "plan  ",
        "simulated, ",
        "(ratio ",
        "events  ",
        "memory  ",
        "waiting for messages",
        "nvlink4 out",
    ):
        assert text in out
    assert "stage 3 |" in out
    assert "3 forward and d backward of microbatch 3" in out
    assert call("simulate", "plan.yaml")[1] == out


def test_every_chip_for_itself_takes_more_events(call):
    folded, exact = (json.loads(call("simulate", "plan.yaml", "--json", *more)[1]) for more in ([], ["--exact"]))
    assert exact["exact"]
    assert exact["events"] > 2 * folded["events"]
    assert exact["step_time_s"] == pytest.approx(folded["step_time_s"], rel=0.02)
    assert "on all 16 chips" in call("simulate", "plan.yaml", "--exact")[1]


def test_trace_is_written_and_not_over_another_file(call, tmp_path):
    code, out, _ = call("simulate", "plan.yaml", "--trace", "step.json")
    assert code == 0
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    counted = sum(event["ph"] != "M" for event in events)
    assert f"wrote step.json: {counted:,} events" in out
    before = (tmp_path / "step.json").read_bytes()
    code, out, err = call("simulate", "plan.yaml", "--trace", "step.json")
    assert (code, out) == (2, "")
    assert "step.json: already exists" in err
    found = json.loads(call("simulate", "plan.yaml", "--trace", "step.json", "--force", "--json")[1])
    assert found["trace"] == {"path": "step.json", "events": counted, "operators": True}
    assert (tmp_path / "step.json").read_bytes() == before


def test_a_plan_that_does_not_fit_is_simulated_all_the_same(call, tmp_path):
    (tmp_path / "plan.yaml").write_text(PLANS["1f1b"].replace("llama-2-7b", "llama-3.1-405b"))
    code, out, err = call("simulate", "plan.yaml", "--json")
    assert code == 3
    assert not json.loads(out)["fits"]
    assert err == call("estimate", "plan.yaml")[2]
    assert "does not fit: " in err
    assert err.count("\n") == 1


def test_export_writes_the_same_trace(call, tmp_path):
    call("simulate", "plan.yaml", "--trace", "one.json")
    code, out, err = call("export", "plan.yaml", "--to", "perfetto", "--out", "other.json")
    assert (code, err) == (0, "")
    assert out.startswith("wrote other.json: ")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()
    assert call("export", "plan.yaml", "--to", "perfetto", "--out", "other.json")[0] == 2
    found = json.loads(call("export", "plan.yaml", "--to", "perfetto", "--out", "other.json", "--force", "--json")[1])
    assert found["target"] == "perfetto"
    assert found["out"] == "other.json"


def test_a_trace_needs_a_file(call):
    code, _, err = call("export", "plan.yaml", "--to", "perfetto")
    assert code == 2
    assert err == "--out: is missing; name a file for the trace.\n"


@pytest.mark.parametrize("target", ["nowhere/step.json", "."])
def test_files_that_cannot_be_written_are_refused_first(call, target):
    code, out, err = call("simulate", "plan.yaml", "--trace", target)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_help_loads_nothing_heavy():
    program = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    print(sorted({'numpy', 'numba', 'ortools', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, "simulate", "--help"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
