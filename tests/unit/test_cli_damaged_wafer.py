"""`dovetail plan`, `estimate` and `simulate` of a wafer with dead dies or links: planned around, never ignored."""

from __future__ import annotations

import json

import pytest

from dovetail.documents import read_document, to_yaml
from dovetail.plans.plan_file import load_task
from dovetail.plans.write import plan_document
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
#: The question is that of the file.
ASK = ["plan", "whole.yaml", "--strategy", "free", "--time-limit", "1"]
DEAD_DIE = "dead_dies: [[0, 1]]\n"
DEAD_LINKS = "dead_links: [[[0, 0], [0, 1]], [[1, 1], [1, 2]]]\n"


@pytest.fixture
def call(command, tmp_path, monkeypatch):
    """Runs a command beside a plan of a whole wafer and maps of defects; returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    plan = tile_plan(JOB, 2, 2, 2, tensor=2)
    (tmp_path / "whole.yaml").write_text(to_yaml(plan_document(plan, JOB, wafers(2, 4), "wafer")))
    (tmp_path / "die.yaml").write_text(DEAD_DIE)
    (tmp_path / "links.yaml").write_text(DEAD_LINKS)
    return command


@pytest.mark.parametrize(("defects", "stages"), [("die.yaml", [2, 1]), ("links.yaml", [2, 2])])
def test_a_plan_is_kept_or_made_again(call, defects, stages):
    code, out, err = call(*ASK, "--defects", defects, "--keep", "whole.yaml", "--json", "--out", "new.yaml")
    assert (code, err) == (0, "")
    found, keep = json.loads(out), json.loads(out)["keep"]
    assert keep["stages"] == stages
    assert keep["throughput_kept"] == pytest.approx(keep["whole_s"] / keep["kept_s"])
    assert keep["throughput_replanned"] == pytest.approx(keep["whole_s"] / found["step_time_s"])
    # the search starts from what is left of the plan
    assert found["step_time_s"] <= keep["kept_s"]
    code, out, err = call("simulate", "new.yaml", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["step_time_s"] == pytest.approx(found["step_time_s"], rel=0.03)
    assert load_task("new.yaml").cluster.defects


def test_the_sentence_says_what_is_kept(call):
    code, out, _ = call(*ASK, "--defects", "die.yaml", "--keep", "whole.yaml")
    assert code == 0
    assert "whole.yaml: keeps " in out
    assert "1 of 2 stages lost); " in out


def test_degrees_go_around_nothing(call, tmp_path):
    whole = read_document(tmp_path / "whole.yaml")
    (tmp_path / "named.yaml").write_text(to_yaml(whole | {"plan": {"tensor_parallel": 8}}))
    code, out, err = call(*ASK, "--defects", "links.yaml", "--keep", "named.yaml", "--time-limit", "20", "--json")
    assert (code, err) == (0, "")
    keep = json.loads(out)["keep"]
    assert (keep["kept_s"], keep["throughput_kept"], keep["stages"]) == (None, None, [1, 0])


@pytest.mark.parametrize("asked", ["estimate", "simulate"])
def test_a_plan_on_a_dead_die_is_refused(call, asked):
    code, out, err = call(asked, "whole.yaml", "--defects", "die.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "dead" in err


def test_what_cannot_be_asked_is_refused_before_the_search(call, tmp_path):
    code, _, err = call(*ASK, "--keep", "whole.yaml")
    assert (code, err) == (2, "--keep: compares with a damaged wafer; give --defects or --defect-rate.\n")
    other = plan_document(tile_plan(JOB, 2, 2, 2, tensor=2), JOB, wafers(2, 5), "wafer")
    (tmp_path / "other.yaml").write_text(to_yaml(other))
    code, _, err = call(*ASK, "--keep", "other.yaml", "--defects", "die.yaml")
    assert (code, err) == (2, "--keep: other.yaml is for another job or wafer; give a plan of the same question.\n")
    code, _, err = call("plan", "whole.yaml", "--defects", "die.yaml")
    assert code == 2
    assert "plan with --strategy free" in err
    code, _, err = call(*ASK, "--seed", "1")
    assert (code, err) == (2, "--seed: draws nothing; add a rate of dead dies or links.\n")
