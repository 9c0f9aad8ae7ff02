"""Files that start a launch, read by SkyPilot's own parser and checked by the schemas of Kubernetes.

Both live in an environment of their own (skypilot, kubernetes-validate); DOVETAIL_STARTING_PYTHON names its Python.
SkyPilot downloads its catalogue of accelerators once, into `home` of that environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dovetail import models
from dovetail.errors import InputError
from dovetail.launch.starting.start_file import start_file
from dovetail.launch.targets import EXPORTERS
from dovetail.plans.plan_file import task_of
from starting_launches import STARTS, cluster_of, launch_of

PYTHON = os.environ.get("DOVETAIL_STARTING_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="DOVETAIL_STARTING_PYTHON names no Python with the validators"),
]

#: Reads {file: [variables to fill in]}; says what SkyPilot makes of each, without and with the variables.
SKYPILOT = """
import json, sys
import sky, yaml
answers = {}
for path, variables in json.load(sys.stdin).items():
    try:
        sky.Task.from_yaml(path)
        unfilled = None
    except ValueError as error:
        unfilled = str(error)
    config = yaml.safe_load(open(path))
    task = sky.Task.from_yaml_config(config, env_overrides=[(name, "x") for name in variables])
    task.validate(skip_file_mounts=True, skip_workdir=True)
    (resources,) = task.resources
    answers[path] = [unfilled, task.num_nodes, resources.accelerators, task.run]
json.dump(answers, sys.stdout)
"""
#: Reads the paths of files; validates each of their documents against the newest schema.
KUBERNETES = """
import json, sys
import kubernetes_validate, yaml
answers = {}
for path in json.load(sys.stdin):
    answers[path] = []
    for document in yaml.safe_load_all(open(path)):
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
            answers[path].append([document["kind"], None])
        except kubernetes_validate.ValidationError as error:
            answers[path].append([document["kind"], str(error)])
json.dump(answers, sys.stdout)
"""


def asked(program: str, question: Any, folder: Path) -> Any:
    """What the other Python answers."""
    assert PYTHON is not None
    home = Path(PYTHON).parents[1] / "home"
    environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [PYTHON, "-c", program]
    done = subprocess.run(
        command, input=json.dumps(question), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # SkyPilot may print lines before


def write(kind: str, target: str, chips: int, chip: str, folder: Path) -> str:
    path = folder / f"{target}-{chips}-{chip}.yaml"
    path.write_text(start_file(kind, launch_of(target), target, cluster_of(chips, chip))[1])
    return str(path)


CHIPS = {"h100-sxm": {"H100": 8}, "a100-80gb": {"A100-80GB": 8}, "b200": {"B200": 8}, "h200-sxm": {"H200": 8}}


def test_skypilot_understands_every_task(tmp_path):
    expected: dict[str, tuple[str, int, dict[str, int]]] = {}
    for target in STARTS:
        expected[write("skypilot", target, 64, "h100-sxm", tmp_path)] = target, 8, {"H100": 8}
    for chip, accelerators in CHIPS.items():
        expected[write("skypilot", "torchtitan", 16, chip, tmp_path)] = "torchtitan", 2, accelerators
    expected[write("skypilot", "maxtext", 64, "tpu-v5p", tmp_path)] = "maxtext", 1, {"tpu-v5p-128": 1}
    expected[write("skypilot", "maxtext", 32, "tpu-v6e", tmp_path)] = "maxtext", 1, {"tpu-v6e-32": 1}
    question = {path: list(STARTS[target].fill_in) for path, (target, *_) in expected.items()}
    for path, (unfilled, nodes, accelerators, run) in asked(SKYPILOT, question, tmp_path).items():
        target = expected[path][0]
        assert (nodes, accelerators) == expected[path][1:]
        (variable,) = STARTS[target].fill_in
        assert f"Environment variable '{variable}' is None" in unfilled
        assert STARTS[target].program[-1] in run


def test_kubernetes_accepts_every_document(tmp_path):
    paths = [write("kubernetes", target, 64, "h100-sxm", tmp_path) for target in STARTS]
    paths += [write("kubernetes", "maxtext", 64, chip, tmp_path) for chip in ("mi300x", "tpu-v5p", "gaudi3", "ipu-mk2")]
    answers = asked(KUBERNETES, paths, tmp_path)
    assert answers == {path: [["Service", None], ["ConfigMap", None], ["Job", None]] for path in paths}


#: Target → the framework, and a plan it runs.
EXPORTED = {
    "megatron": ("megatron", {"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 1}),
    "bridge": ("megatron", {"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 1}),
    "torchtitan": ("torchtitan", {"zero_stage": 3, "recompute": "selective"}),
    "deepspeed": ("deepspeed", {"zero_stage": 3, "recompute": "full"}),
    "accelerate": ("fsdp", {"zero_stage": 3, "recompute": "full"}),
    "maxtext": ("maxtext", {"zero_stage": 3, "recompute": "full"}),
}


def test_exported_launches_are_taken(tmp_path):
    """Every target and every model of the catalogue that it takes."""
    files: dict[str, dict[str, list[str]]] = {"skypilot": {}, "kubernetes": {}}
    for target, (framework, plan) in EXPORTED.items():
        for model in models.names():
            job = {"model": model, "seq_len": min(2048, models.load(model).max_seq_len), "global_batch": 64}
            cluster = {"chip": "h100-sxm", "chips": 64, "framework": framework}
            try:
                task = task_of({"job": job, "cluster": cluster, "plan": plan}, model)
                launch = EXPORTERS[target].export(task)
            except InputError:
                continue
            assert launch.start is not None
            for kind, paths in files.items():
                path = tmp_path / f"{kind}-{target}-{model}.yaml"
                path.write_text(start_file(kind, launch, target, task.cluster, target)[1], encoding="utf-8")
                paths[str(path)] = list(launch.start.fill_in)
    assert len(files["skypilot"]) > 250
    for _, nodes, accelerators, _ in asked(SKYPILOT, files["skypilot"], tmp_path).values():
        assert (nodes, accelerators) == (8, {"H100": 8})
    answers = asked(KUBERNETES, list(files["kubernetes"]), tmp_path)
    assert all(each == [["Service", None], ["ConfigMap", None], ["Job", None]] for each in answers.values())
