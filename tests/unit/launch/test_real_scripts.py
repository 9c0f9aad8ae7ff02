"""Launch scripts as people write them become plans: degrees, model, batch and chips, with no option unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.documents import parse_document, to_yaml
from dovetail.launch.targets import read_launch
from dovetail.plans.plan_file import Task, task_of
from dovetail.plans.write import plan_document

SCRIPTS = Path(__file__).parents[2] / "launch_scripts"

#: Script → model, precision, batch, sequence, chips; degrees; what else the script decides.
EXPECTED = {
    "megatron/gpt3_175b.sh": (
        ("gpt3-175b", "bf16", 1536, 2048, 1024),
        {"TP": 8, "PP": 16, "CP": 1, "EP": 1, "DP": 8, "MBS": 1, "VPP": 6},
        {"zero_stage": 1, "sequence_parallel": True, "recompute": "selective", "overlap_parameters": True},
    ),
    "megatron/llama3_70b_long_context.sh": (
        ("llama-3.1-70b", "bf16", 128, 32768, 256),
        {"TP": 8, "PP": 4, "CP": 2, "EP": 1, "DP": 4, "MBS": 1, "VPP": 5},
        {"zero_stage": 1, "context_kind": "ring", "recompute": "full", "recompute_share": 0.25},
    ),
    "megatron/mixtral_8x7b.sh": (
        ("mixtral-8x7b", "bf16", 256, 4096, 64),
        {"TP": 1, "PP": 4, "CP": 1, "EP": 8, "DP": 16, "MBS": 1, "VPP": 4},
        {"zero_stage": 1, "recompute": "none", "dispatcher": "alltoall"},
    ),
    "megatron/deepseek_v3.sh": (
        ("deepseek-v3", "fp8", 8192, 4096, 1024),
        {"TP": 1, "PP": 16, "CP": 1, "EP": 64, "DP": 64, "MBS": 1, "VPP": 2},
        {
            "zero_stage": 1, "expert_tensor_parallel": 1, "dispatcher": "deepep", "fp8_recipe": "blockwise",
            "recompute": ("mla_up_proj", "mlp", "moe_act", "layernorm"),
            "layers_per_stage": (*[2] * 30, 1, 0),
        },
    ),
    "megatron/qwen3_30b_a3b.sh": (
        ("qwen3-30b-a3b", "bf16", 512, 4096, 32),
        {"TP": 2, "PP": 2, "CP": 1, "EP": 8, "DP": 8, "MBS": 2, "VPP": 1},
        {"zero_stage": 1, "expert_tensor_parallel": 1, "sequence_parallel": True, "recompute": "selective"},
    ),
    "torchtitan/llama3_8b_fsdp.toml": (
        ("llama-3.1-8b", "bf16", 64, 8192, 8),
        {"TP": 1, "PP": 1, "CP": 1, "EP": 1, "DP": 8, "MBS": 2, "VPP": 1},
        {"zero_stage": 3, "zero_group": 8, "recompute": "selective"},
    ),
    "torchtitan/llama3_405b.sbatch": (
        ("llama-3.1-405b", "fp8", 64, 8192, 512),
        {"TP": 8, "PP": 8, "CP": 2, "EP": 1, "DP": 4, "MBS": 1, "VPP": 2},
        {
            "zero_stage": 2, "zero_group": 8, "recompute": "full", "overlap_tensor_parallel": True,
            "layers_per_stage": (7, *[8] * 14, 7),
        },
    ),
    "torchtitan/llama3_70b_run_train.sh": (
        ("llama-3.1-70b", "bf16", 256, 8192, 128),
        {"TP": 8, "PP": 1, "CP": 1, "EP": 1, "DP": 16, "MBS": 2, "VPP": 1},
        {"zero_stage": 3, "zero_group": 8, "recompute": "full", "overlap_tensor_parallel": True},
    ),
    "torchtitan/deepseek_v3_671b.sh": (
        ("deepseek-v3-without-mtp", "bf16", 1024, 4096, 512),
        {"TP": 1, "PP": 8, "CP": 1, "EP": 64, "DP": 64, "MBS": 1, "VPP": 2},
        {"zero_stage": 2, "expert_tensor_parallel": 1, "layers_per_stage": (3, *[4] * 14, 2)},
    ),
    "torchtitan/qwen3_30b_a3b.sh": (
        ("qwen3-30b-a3b", "bf16", 256, 4096, 32),
        {"TP": 1, "PP": 1, "CP": 1, "EP": 8, "DP": 32, "MBS": 4, "VPP": 1},
        {"zero_stage": 3, "zero_group": 32, "recompute": "full"},
    ),
    "deepspeed/llama70b_zero3.sh": (
        ("llama-3.1-70b", "bf16", 256, 4096, 32),
        {"TP": 1, "PP": 1, "CP": 1, "EP": 1, "DP": 32, "MBS": 2, "VPP": 1},
        {"zero_stage": 3, "recompute": "full", "overlap_gradients": True, "num_microbatches": 4},
    ),
    "deepspeed/llama8b_zero2_heredoc.sh": (
        ("llama-3.1-8b", "bf16", 256, 8192, 16),
        {"TP": 1, "PP": 1, "CP": 1, "EP": 1, "DP": 16, "MBS": 4, "VPP": 1},
        {"zero_stage": 2, "recompute": "none", "num_microbatches": 4},
    ),
    "deepspeed/llama8b_ulysses.sh": (
        ("llama-3.1-8b", "bf16", 64, 131072, 64),
        {"TP": 1, "PP": 1, "CP": 8, "EP": 1, "DP": 8, "MBS": 1, "VPP": 1},
        {"zero_stage": 3, "context_kind": "ulysses", "recompute": "full"},
    ),
    "deepspeed/qwen7b_autotp.sh": (
        ("qwen2.5-7b", "bf16", 64, 4096, 8),
        {"TP": 4, "PP": 1, "CP": 1, "EP": 1, "DP": 2, "MBS": 2, "VPP": 1},
        {"zero_stage": 1, "recompute": "none", "num_microbatches": 16},
    ),
    "deepspeed/gpt2_zero1.sh": (
        ("gpt2-1.5b", "fp16", 256, 1024, 16),
        {"TP": 1, "PP": 1, "CP": 1, "EP": 1, "DP": 16, "MBS": 4, "VPP": 1},
        {"zero_stage": 1, "recompute": "full", "overlap_gradients": False, "num_microbatches": 4},
    ),
}  # fmt: skip


def imported(name: str) -> Task:
    """What `dovetail import --out` makes of a script, read back from the file it writes."""
    path = SCRIPTS / name
    reading = read_launch(path.read_text(encoding="utf-8"), str(path), folder=path.parent)
    assert reading.unknown == ()
    assert reading.framework == name.partition("/")[0]
    cluster = {**reading.cluster, "chip": "h100-sxm", "framework": reading.framework}
    task = task_of({"job": dict(reading.job), "cluster": cluster, "plan": dict(reading.plan)}, str(path))
    written = to_yaml(plan_document(task.plan, task.job, task.cluster, task.framework.name))
    back = task_of(parse_document(written, "plan.yaml"), "plan.yaml")
    assert (back.plan, back.job) == (task.plan, task.job)
    return task


@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_becomes_a_plan(name):
    (model, precision, batch, seq_len, chips), degrees, others = EXPECTED[name]
    task = imported(name)
    job, plan = task.job, task.plan
    assert (job.model.name, job.precision, job.global_batch, job.seq_len) == (model, precision, batch, seq_len)
    assert task.cluster.chips == chips
    assert degrees == {
        "TP": plan.tensor_parallel, "PP": plan.pipeline_parallel, "CP": plan.context_parallel,
        "EP": plan.expert_parallel, "DP": plan.data_parallel, "MBS": plan.micro_batch, "VPP": plan.virtual_stages,
    }  # fmt: skip
    assert {field: getattr(plan, field) for field in others} == others


def test_every_script_is_tried():
    launches = {".sh", ".sbatch"}
    scripts = {str(p.relative_to(SCRIPTS)) for p in SCRIPTS.glob("*/*") if p.suffix in launches or "fsdp" in p.name}
    assert scripts == set(EXPECTED)
    assert all(sum(name.startswith(target) for name in EXPECTED) == 5 for target in ("mega", "torch", "deep"))
