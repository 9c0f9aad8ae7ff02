"""`dovetail simulate` of plans on wafers: the grid of dies in the view, and --picture."""

from __future__ import annotations

import json

import pytest

from dovetail import models
from dovetail.models import Job

PLAN = """job: {model: gpt3-1.3b, seq_len: 2048, global_batch: 16}
cluster: {name: temp-like}
plan: {tensor_parallel: 4, pipeline_parallel: 6}
"""


@pytest.fixture
def call(command, tmp_path, monkeypatch):
    """Runs a command beside plan.yaml; returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    return command


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


TILED = """job: {model: gpt3-1.3b, seq_len: 2048, global_batch: 4}
cluster:
  name: watos-like
  framework: wafer
  store: {bytes: 1 TB, bytes_per_s: 2 TB/s}
  defects: {dead_dies: [[0, 0]], dead_links: [[[5, 5], [5, 6]]]}
"""


@pytest.fixture
def tiled(tmp_path):
    """A plan file of four stages of 2 × 3 dies around what is dead."""
    tiles = [[0, 1, 2, 3], [0, 4, 2, 3], [2, 5, 3, 2], [5, 4, 2, 3]]
    strings = {"rows": "2 seq", "cols": "3 replicate"}
    wafer = {
        "tiles": tiles,
        "loans": [{"stage": 0, "lender": 3, "bytes": 2e9}],
        "store": ["optimizer"],
        "defects": {"dead_dies": [[0, 0]], "dead_links": [[[5, 5], [5, 6]]]},
    }
    plan = {
        "tensor_parallel": 6,
        "pipeline_parallel": 4,
        "layouts": {"tile": [2, 3], "stream": strings, "classes": classes(strings)},
        "wafer": wafer,
    }
    (tmp_path / "tiled.yaml").write_text(f"{TILED}plan: {json.dumps(plan)}\n")


def classes(strings: dict[str, str]) -> dict[str, dict[str, dict[str, str]]]:
    """Every operator sharded alike, but those that need whole sequences."""
    graph = Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=4).graph()
    other = {"attention": "kv_heads"}
    return {
        name: {
            operator.name: strings | {"rows": f"2 {other.get(operator.name, 'seq')}"} for operator in layer.operators
        }
        for name, layer in graph.layers.items()
    }


def test_a_plan_on_tiles_is_shown_with_what_is_dead_lent_and_stored(call, tiled, tmp_path):
    code, out, err = call("simulate", "tiled.yaml", "--picture", "wafer.svg")
    assert (code, err) == (0, "")
    assert "\nlink to the store " in out
    assert "  x 0 0 0 1 1 1\n  . 0 0 0 1 1 1\n  . . . . . 2 2\n" in out
    assert "stage 3 lends each die of stage 0 1.86 GiB\n" in out
    svg = (tmp_path / "wafer.svg").read_text(encoding="utf-8")
    assert svg.count(": dead</title>") == 1
    assert svg.count(": dead link</title>") == 1
    code, out, _ = call("simulate", "tiled.yaml", "--json")
    answer = json.loads(out)
    assert code == 0
    assert len(answer["stores"]) == 1
    assert 0 < answer["stores"][0] < 1
    assert {link["name"] for link in answer["links"]} <= {f"d2d axis {n} {d}" for n in (0, 1) for d in ("in", "out")}
    code, out, _ = call("simulate", "plan.yaml", "--json")
    assert "stores" not in json.loads(out)
