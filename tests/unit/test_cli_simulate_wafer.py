"""`dovetail simulate` of plans on wafers: the grid of dies in the view, and --picture."""

from __future__ import annotations

import json

import pytest

from dovetail.cli import main

PLAN = """job: {model: gpt3-1.3b, seq_len: 2048, global_batch: 16}
cluster: {name: temp-like}
plan: {tensor_parallel: 4, pipeline_parallel: 6}
"""


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs a command beside plan.yaml; returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_dies_stand_below_the_pipeline(call):
    code, out, err = call("simulate", "plan.yaml")
    assert (code, err) == (0, "")
    pipeline, dies = (
        out.index("\nstage 5 |"),
        out.index("8 × 6 dies of temp-like, the stage of each\n  0 0 | 3 3 | 4 4"),
    )
    assert pipeline < dies


def test_a_picture_is_written_once(call, tmp_path):
    code, out, _ = call("simulate", "plan.yaml", "--picture", "wafer.svg")
    assert code == 0
    assert out.endswith("\nwrote wafer.svg\n")
    svg = (tmp_path / "wafer.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg ")
    assert "8 × 6 dies of temp-like" in svg
    code, _, err = call("simulate", "plan.yaml", "--picture", "wafer.svg")
    assert code == 2
    assert "wafer.svg: already exists" in err
    code, out, _ = call("simulate", "plan.yaml", "--picture", "wafer.svg", "--force", "--json")
    assert code == 0
    assert json.loads(out)["picture"] == "wafer.svg"
    assert (tmp_path / "wafer.svg").read_text(encoding="utf-8") == svg


def test_other_clusters_have_no_dies_to_draw(call, tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN.replace("name: temp-like", "chip: h100-sxm, chips: 48"))
    code, out, _ = call("simulate", "plan.yaml")
    assert code == 0
    assert "dies" not in out
    code, out, err = call("simulate", "plan.yaml", "--picture", "wafer.svg")
    assert (code, out) == (2, "")
    assert "is no wafer; take one with rows and columns of dies" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "wafer.svg").exists()
