"""Bytes by part and phase of a step against an allocation trace of the real PyTorch modules, at real width.

FSDP2, tensor and sequence parallelism, checkpointing, AdamW and accumulation run under fake tensors; `memory_oracle`
reads what is allocated when. One difference is left and has a name: ids, labels and the table of the rotary embedding,
some MiB, are no part of a prediction. What of a reduced gradient stands with the gradients or beside them differs at
the end of a unit, so there the two are compared together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dovetail import frameworks
from dovetail.frameworks import Framework
from dovetail.hardware import cluster
from dovetail.models import Job, Model, load
from dovetail.models.adapters import Adapters
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task
from dovetail.step.evaluate import evaluate
from memory_oracle.case import Case

pytestmark = pytest.mark.torch

TESTS = Path(__file__).parents[1]
#: Ours and the trace's words for the same bytes.
STATE = ({"weights", "optimizer"}, {"parameters", "optimizer"})
GRADIENTS = ({"gradients"}, {"gradients"})
GATHERED = ({"gathered weights"}, {"gathered weights"})
OTHERS = (
    {"activations", "layer at work", "layer gradients", "loss", "optimizer step"},
    {"activations", "recomputed", "temporary", "unsharded gradients", "logits"},
)
TOGETHER = (GRADIENTS[0] | GATHERED[0] | OTHERS[0], GRADIENTS[1] | GATHERED[1] | OTHERS[1])
#: Of what is allocated at a moment.
TOLERANCE = 0.001

LLAMA_8B = Case(layers=2, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, seq_len=8192,
                micro_batch=1, shards=8)  # fmt: skip
LLAMA_70B = replace(LLAMA_8B, hidden=8192, heads=64, ffn=28672, seq_len=4096, shards=16)
GPT2 = Case(layers=2, hidden=1600, heads=25, kv_heads=25, head_dim=64, ffn=6400, vocab=50257, seq_len=1024,
            micro_batch=8, shards=4, family="gpt2")  # fmt: skip
WITH_TENSOR = {"tensor_parallel": 8, "sequence_parallel": True}

CASES: dict[str, tuple[str, Case, list[dict[str, Any]]]] = {
    "llama-3.1-8b": (
        "llama-3.1-8b",
        LLAMA_8B,
        [
            {},
            {"recompute": "op_sac"},
            {"recompute": "full", "layers": 4, "optimizer": "fused"},
            {"recompute": "full", "micro_batches": 2},
            {"micro_batches": 2, "optimizer": "fused"},
            {"seq_len": 1024},
            {"recompute": "full", "eager_loss": False},
            {"recompute": "full", "early_stop": True, "shards": 64},
            {"recompute": "op_sac", "layers": 4, "micro_batch": 2, "seq_len": 4096},
        ],
    ),
    "llama-3.1-8b, tensor parallel": (
        "llama-3.1-8b",
        LLAMA_8B,
        [
            {"tensor_parallel": 8},
            {**WITH_TENSOR},
            {**WITH_TENSOR, "recompute": "full"},
            {**WITH_TENSOR, "recompute": "op_sac", "tensor_parallel": 2},
            {"tensor_parallel": 4, "recompute": "op_sac", "optimizer": "fused"},
            {**WITH_TENSOR, "tensor_parallel": 4, "recompute": "full", "micro_batches": 2, "layers": 4},
        ],
    ),
    "llama-3.1-70b": (
        "llama-3.1-70b",
        LLAMA_70B,
        [{}, {**WITH_TENSOR, "recompute": "full"}, {**WITH_TENSOR, "micro_batch": 2, "optimizer": "fused"}],
    ),
    "llama-3.1-8b, LoRA": (
        "llama-3.1-8b",
        LLAMA_8B,
        [
            {"lora_rank": 16},
            {"lora_rank": 16, "recompute": "full"},
            {"lora_rank": 64, "lora_all": True, "micro_batches": 2, "recompute": "full", "optimizer": "fused"},
            {"lora_rank": 64, "lora_all": True, "quantized": True, "seq_len": 4096},
            {"lora_rank": 16, "quantized": True, "recompute": "full", "seq_len": 4096},
        ],
    ),
    "gpt2": (
        "gpt2-1.5b",
        GPT2,
        [
            {},
            {"recompute": "full"},
            {"micro_batches": 2, "optimizer": "fused"},
            {"eager_loss": False, "layers": 4},
        ],
    ),
}
#: The whole depth, once.
DEEP = ("llama-3.1-8b", replace(LLAMA_8B, layers=32, recompute="full"))


def model_of(name: str, case: Case) -> Model:
    """A published model with fewer layers, embedding and head apart."""
    document = load(name).model_dump(exclude_none=True)
    document |= {"layers": [{"blocks": document["layers"][0]["blocks"], "repeat": case.layers}], "dropout": False}
    document["head"]["tied"] = False
    return Model.model_validate_json(json.dumps(document))


def framework_of(case: Case) -> Framework:
    """torchtitan without compilation, with the loss, the optimizer and the checkpointing of a case."""
    framework = frameworks.load("torchtitan")
    return replace(
        framework,
        saved_copies=(("gated", 1.0),),
        recompute_stops_early=case.early_stop,
        logits_bytes=12.0 if case.eager_loss else 4.0,
        sharded_logits_bytes=16.0 if case.eager_loss else None,
        states=tuple(
            (name, replace(state, step_copy=4.0 if case.optimizer == "foreach" else 0.0))
            for name, state in framework.states
        ),
    )


def adapters_of(case: Case) -> Adapters | None:
    """The adapters of a case in our words."""
    if not case.lora_rank:
        return None
    targets = "all" if case.lora_all else ("q", "k", "v", "o")
    return Adapters(rank=case.lora_rank, targets=targets, base="nf4" if case.quantized else "bf16")


def task_of(name: str, case: Case) -> Task:
    """The same job and plan in our words."""
    chips = case.shards * case.tensor_parallel
    batch = case.shards * case.micro_batch * case.micro_batches
    job = Job(model_of(name, case), case.seq_len, batch, adapters=adapters_of(case))
    spec = PlanSpec(
        tensor_parallel=case.tensor_parallel,
        sequence_parallel=case.sequence_parallel,
        zero_stage=3,
        micro_batch=case.micro_batch,
        recompute="selective" if case.recompute == "op_sac" else case.recompute,
    )
    plan = resolve_plan(spec, chips=chips, global_batch=job.global_batch, num_layers=case.layers)
    return Task(job, cluster("h100-sxm", chips=chips), framework_of(case), plan)


def traced(cases: list[Case]) -> list[dict[str, dict[str, int]]]:
    """Bytes by moment and category, from PyTorch."""
    given = json.dumps([asdict(case) for case in cases])
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-W", "ignore", "-m", "memory_oracle.trace_cases"]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=environment, cwd=TESTS)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def compared(case: Case, trace: dict[str, dict[str, int]], name: str) -> list[str]:
    """What differs by more than the tolerance."""
    task = task_of(name, case)
    (phases,) = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False).memory_by_phase
    parts = {when: {n: b for n, b in of.items() if n not in ("allocator", "context")} for when, of in phases.items()}
    # the loss ends when the backward of the last layer begins
    until = max((parts[when] for when in ("loss", "backward of the head")), key=lambda each: sum(each.values()))
    each = (STATE, GRADIENTS, GATHERED, OTHERS)
    pairs = {
        "loss": (until, each if until is parts["loss"] else (STATE, TOGETHER)),
        f"backward of layer {case.layers - 1}": (parts["backward of the last layer"], each),
        "backward of embedding": (parts["backward of the embedding"], (STATE, TOGETHER)),
        "optimizer": (parts["optimizer"], each),
    }
    if case.lora_rank:
        # a frozen embedding has no backward: the last layer's input and its gradient, which are left, are never most
        del pairs["backward of embedding"]
    if case.micro_batches == 1:
        pairs["backward of layer 0"] = parts["backward of the first layer"], each
    differences: list[str] = []
    for when, (ours, groups) in pairs.items():
        allocated = sum(trace[when].values())
        for mine, theirs in groups:
            predicted, read = (
                sum(found.get(n, 0) for n in names) for found, names in ((ours, mine), (trace[when], theirs))
            )
            if abs(predicted - read) > TOLERANCE * allocated:
                differences.append(f"{when}, {'+'.join(sorted(mine))}: {predicted:,.0f} instead of {read:,.0f}")
        assert trace[when]["inputs"] < (0.02 if case.lora_rank else 0.01) * allocated
    return differences


@pytest.mark.parametrize("group", CASES)
def test_bytes_by_part_and_phase_are_those_of_pytorch(group):
    name, base, changes = CASES[group]
    cases = [replace(base, **change) for change in changes]
    for change, case, trace in zip(changes, cases, traced(cases), strict=True):
        assert not (found := compared(case, trace, name)), f"{change}: {'; '.join(found)}"


def test_there_are_at_least_twenty_combinations():
    assert sum(len(changes) for _, _, changes in CASES.values()) >= 20


@pytest.mark.slow
def test_the_whole_depth():
    name, case = DEEP
    (trace,) = traced([case])
    assert not compared(case, trace, name)
