"""Launch files read by the frameworks' own parsers: they understand the degrees of the plan that was written.

The parsers live in an environment of their own (constraints-launch.txt); DOVETAIL_LAUNCH_PYTHON names its Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dovetail import models
from dovetail.launch.deepspeed.keys import SECTIONS, TOP_LEVEL
from dovetail.launch.targets import EXPORTERS
from dovetail.plans.launch_limits import TORCHTITAN_SCHEDULES
from dovetail.plans.launch_models.torchtitan import DEFAULTS, RECIPES
from dovetail.plans.plan_file import Task, task_of

PYTHON = os.environ.get("DOVETAIL_LAUNCH_PYTHON")
PARSERS = Path(__file__).with_name("launch_parsers.py")

needs_parsers = pytest.mark.skipif(PYTHON is None, reason="DOVETAIL_LAUNCH_PYTHON names no Python with the parsers")

Document = dict[str, Any]

DENSE: Document = {"tensor_parallel": 4, "zero_stage": 3, "micro_batch": 2, "recompute": "full"}
EXPERTS: Document = {"expert_parallel": 8, "micro_batch": 2}
UNEVEN: Document = {
    "tensor_parallel": 4, "sequence_parallel": True, "pipeline_parallel": 4, "virtual_stages": 2, "zero_stage": 1,
    "layers_per_stage": [3, 4, 5, 4, 4, 4, 5, 3],
}  # fmt: skip

#: Target, model and plan of what is run.
RUN = {
    ("torchtitan", "dense"): (
        "llama-3.1-8b", DENSE | {"sequence_parallel": True, "context_parallel": 2, "zero_group": 4},
    ),
    ("torchtitan", "experts"): (
        "qwen3-30b-a3b",
        EXPERTS | {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 1, "zero_stage": 3},
    ),
    ("torchtitan", "uneven"): ("llama-3.1-8b", UNEVEN | {"zero_stage": 2}),
    ("deepspeed", "dense"): ("llama-3.1-8b", DENSE),
    ("deepspeed", "sequences"): (
        "llama-3.1-8b", {"context_parallel": 4, "context_kind": "ulysses", "zero_stage": 3, "micro_batch": 2},
    ),
    ("deepspeed", "experts"): (
        "mixtral-8x7b", EXPERTS | {"tensor_parallel": 2, "expert_tensor_parallel": 1, "zero_stage": 2},
    ),
    ("accelerate", "dense"): ("llama-3.1-8b", DENSE | {"context_parallel": 2, "zero_group": 4}),
    ("accelerate", "experts"): ("mixtral-8x7b", {"zero_stage": 2, "micro_batch": 2}),
    ("megatron", "dense"): ("llama-3.1-8b", DENSE | {"sequence_parallel": True, "zero_stage": 1}),
    ("megatron", "experts"): (
        "mixtral-8x7b",
        EXPERTS | {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 1, "zero_stage": 1},
    ),
    ("megatron", "uneven"): ("llama-3.1-8b", UNEVEN),
    ("megatron", "overlapped"): (
        "qwen3-30b-a3b",
        EXPERTS | {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 1, "zero_stage": 1,
         "pipeline_parallel": 2, "virtual_stages": 2, "layers_per_stage": [11, 12, 12, 13], "cuda_graphs": True},
    ),
}  # fmt: skip

#: Target, model, plan and what is said of it.
REFUSED = {
    ("deepspeed", "uneven"): ("llama-3.1-8b", UNEVEN, "plan: pipeline_parallel: is 4"),
    ("accelerate", "uneven"): ("llama-3.1-8b", UNEVEN, "plan: pipeline_parallel: is 4"),
    ("accelerate", "spread experts"): ("mixtral-8x7b", EXPERTS | {"zero_stage": 3}, "plan: expert_parallel: is 8"),
}


def task(model: str, plan: Document) -> Task:
    job = {"model": model, "seq_len": 4096, "global_batch": 256}
    cluster = {"chip": "h100-sxm", "chips": 64, "framework": "ideal"}
    return task_of({"job": job, "cluster": cluster, "plan": plan}, "plan.yaml")


def parsed(target: str, text: str, world_size: int, folder: Path) -> Document:
    """What a parser of the other environment makes of a launch file."""
    suffix = {"accelerate": ".yaml", "deepspeed": ".json", "torchtitan": ".py"}.get(target, ".txt")
    path = folder / f"written{suffix}"
    path.write_text(text, encoding="utf-8")
    command = [str(PYTHON), str(PARSERS), target, str(path), str(world_size)]
    # compiled once, and kept: the frameworks are large
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_parsers
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case[1] == "uneven" else []) for case in RUN], ids=" ".join
)
def test_parsers_understand_the_degrees(case, tmp_path):
    written = task(*RUN[case])
    plan = written.plan
    expected: Document = {
        "data_parallel": plan.data_parallel,
        "tensor_parallel": plan.tensor_parallel,
        "pipeline_parallel": plan.pipeline_parallel,
        "virtual_stages": plan.virtual_stages,
        "context_parallel": plan.context_parallel,
        "expert_parallel": plan.expert_parallel,
        "expert_tensor_parallel": plan.expert_tensor_parallel,
        "zero_stage": plan.zero_stage,
        "zero_group": plan.zero_group,
        "sequence_parallel": plan.sequence_parallel,
        "micro_batch": plan.micro_batch,
        "num_microbatches": plan.num_microbatches,
        "global_batch": written.job.global_batch,
        "seq_len": written.job.seq_len,
        "num_layers": written.job.model.num_layers,
        "layers_per_stage": list(plan.layers_per_stage),
        "schedule": TORCHTITAN_SCHEDULES[plan.pipeline_schedule],
        "recompute": plan.recompute,
        "precision": written.job.precision,
        "policy": {2: "never", 3: "always"}.get(plan.zero_stage, "default"),
    }
    launch = EXPORTERS[case[0]].export(written, "0.16" if case[0] == "megatron" else None)
    found = parsed(case[0], launch.text, plan.chips, tmp_path)
    assert {"data_parallel", "tensor_parallel", "context_parallel"} <= set(found)
    assert found == {name: expected[name] for name in found}


@pytest.mark.parametrize("case", REFUSED, ids=" ".join)
def test_plans_a_target_cannot_run_are_refused(case, refusal):
    model, plan, words = REFUSED[case]
    assert words in refusal(EXPORTERS[case[0]].export, task(model, plan))


@needs_parsers
def test_recipes_set_what_torchtitan_says(tmp_path):
    """Those that multiply in fp8 refuse to load without such a chip."""
    recipes = [recipe for recipe in RECIPES if recipe.precision == "bf16"]
    text = "\n".join(f"{recipe.module} {recipe.config}" for recipe in recipes)
    found = parsed("torchtitan-recipes", text, 1, tmp_path)
    kinds = {"SelectiveAC.Config": "selective", "FullAC.Config": "full", "NoneType": "none"}
    for recipe in recipes:
        theirs = found[recipe.config]
        options = theirs["options"]
        options["activation_checkpoint"] = kinds[options["activation_checkpoint"]]
        options["compile.components"] = tuple(options["compile.components"])
        assert {name: options[name] for name in DEFAULTS} == {**DEFAULTS, **recipe.sets}, recipe.config
        assert theirs["num_layers"] == models.load(recipe.model).num_layers
        assert theirs["max_seq_len"] == recipe.max_seq_len


@needs_parsers
def test_deepspeed_asks_for_the_keys_that_are_known(tmp_path):
    found = parsed("deepspeed-keys", '{"train_micro_batch_size_per_gpu": 1}', 8, tmp_path)
    # a key of deepspeed.initialize, not of its parser
    assert {*found["asked"], "data_parallel_size"} == TOP_LEVEL
    assert set(found["zero"]) == SECTIONS["zero_optimization"]
