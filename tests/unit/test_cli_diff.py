"""`dovetail diff`: what each single change gains, as JSON and for reading."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

MINE = {
    "job": {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 256},
    "cluster": {"chip": "h100-sxm", "chips": 64, "framework": "megatron"},
    "plan": {"tensor_parallel": 8, "pipeline_parallel": 2, "zero_stage": 1, "recompute": "full"},
}


@pytest.fixture
def files(tmp_path):
    """Our plan, a better one, and one for another job."""
    documents = {
        "mine": MINE,
        "other": MINE | {"plan": MINE["plan"] | {"recompute": "selective", "micro_batch": 2}},
        "elsewhere": MINE | {"job": MINE["job"] | {"seq_len": 4096}},
    }
    for name, document in documents.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return tmp_path


def diff(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dovetail", "diff", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_json_lists_changes_by_their_gain(files):
    done = diff(files, "mine.yaml", "other.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"step_time_s", "other_step_time_s", "gain", "differences"} <= found.keys()
    assert found["gain"] == pytest.approx(1 - found["other_step_time_s"] / found["step_time_s"])
    assert {name for each in found["differences"] for name in each["fields"]} >= {"recompute", "micro_batch"}


def test_the_table_says_what_all_changes_gain(files):
    done = diff(files, "mine.yaml", "other.yaml")
    assert done.returncode == 0
    assert "recompute" in done.stdout
    assert "all changes together gain" in done.stdout
    assert diff(files, "mine.yaml", "mine.yaml").stdout == "the plans are identical\n"


def test_plans_of_different_jobs_are_refused_in_a_sentence(files):
    done = diff(files, "mine.yaml", "elsewhere.yaml")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "job" in done.stderr
