"""Real `estimate` commands with wrong files: exit code 2, one line on standard error, nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from valid_plans import PLAN_FILES, TIERS, model, with_changes

DENSE, SHARDED, MIXTURE = PLAN_FILES["dense"], PLAN_FILES["sharded"], PLAN_FILES["mixture"]

#: File, what it holds (None: there is none), and what the sentence must hold.
FILES = [
    ("absent.yaml", None, "absent.yaml: cannot be read"),
    ("empty.yaml", "", "empty.yaml: contains nothing"),
    ("list.yaml", "- job\n- plan\n", "list.yaml: contains a list"),
    ("tab.yaml", "job:\n\tmodel: x\n", "tab.yaml, line 2: is not YAML"),
    ("twice.yaml", "plan: {}\nplan: {}\n", "twice.yaml, line 2: is not YAML (the field 'plan' is given twice)"),
    ("infinite.yaml", "job: {seq_len: .inf}\n", "infinite.yaml: job.seq_len: is inf"),
    ("broken.json", '{"job": ', "broken.json, line 1: is not JSON"),
    ("model.yaml", model(8), "model.yaml: "),
    ("misspelt.yaml", {"jobs": DENSE["job"], "cluster": {}}, "jobs: is not a field here; did you mean 'job'"),
    ("degree.yaml", with_changes(DENSE, plan={"tensor_parallel": 3}), "plan.tensor_parallel × pipeline_parallel"),
    ("type.yaml", with_changes(DENSE, plan={"tensor_parallel": "four"}), "type.yaml: plan.tensor_parallel: is 'four'"),
    ("data.yaml", with_changes(DENSE, plan={"data_parallel": 3}), "data.yaml: plan.data_parallel"),
    ("stages.yaml", with_changes(DENSE, plan={"layers_per_stage": [9, 9]}), "stages.yaml: plan.layers_per_stage"),
    ("heads.yaml", with_changes(DENSE, cluster={"chips": 32}, plan={"tensor_parallel": 32, "pipeline_parallel": 1,
     "data_parallel": 1}), "heads.yaml: plan.tensor_parallel: leaves"),
    ("experts.yaml", with_changes(MIXTURE, plan={"expert_parallel": 32}), "experts.yaml: plan.expert_parallel"),
    ("chip.yaml", with_changes(DENSE, cluster={"chip": "h100sxm"}), "cluster.chip: 'h100sxm' is not in the catalogue"),
    ("tiers.yaml", with_changes(DENSE, cluster={"tiers": TIERS[::-1]}), "tiers.yaml: cluster.tiers"),
    ("framework.yaml", with_changes(SHARDED, cluster={"framework": "jax"}), "cluster.framework: 'jax'"),
    ("schedule.yaml", with_changes(DENSE, plan={"pipeline_schedule": "gpipe"}), "which megatron"),
    ("model-name.yaml", with_changes(SHARDED, job={"model": "lama-3-8b"}), "job.model: 'lama-3-8b' is not in the cat"),
    ("model-file.yaml", with_changes(SHARDED, job={"model": "gone.yaml"}), "gone.yaml: cannot be read"),
    ("a\nb.yaml", with_changes(DENSE, job={"seq_len": 0}), "a b.yaml: job.seq_len: is 0"),
]  # fmt: skip

ARGUMENTS = [([], "plan"), (["--jsn"], "--jsn"), (["one.yaml", "two.yaml"], "two.yaml")]


def refused(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "estimate", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith(".\n")
    assert done.stderr.removesuffix("\n").isprintable()
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(("name", "content", "named"), FILES, ids=[repr(name) for name, _, _ in FILES])
def test_a_wrong_plan_file_ends_with_one_sentence(name, content, named, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    options = ["--json"] if len(name) % 2 else []
    assert named in refused(tmp_path, name, *options)


@pytest.mark.parametrize(("arguments", "named"), ARGUMENTS)
def test_wrong_arguments_end_with_one_sentence(arguments, named, tmp_path):
    assert named in refused(tmp_path, *arguments)
