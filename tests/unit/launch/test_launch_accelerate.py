"""accelerate's FSDP2 configuration: the files it writes, and the plans it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_plans import task

from dovetail.documents import parse_document
from dovetail.launch.accelerate.write import export
from dovetail.launch.yaml_lines import yaml_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
DENSE = {"zero_stage": 3, "micro_batch": 2, "recompute": "full"}
HYBRID = {"tensor_parallel": 2, "context_parallel": 2, "zero_stage": 2, "zero_group": 8, "context_kind": "ring"}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("accelerate-dense.yaml", task("llama-3.1-8b", 64, DENSE, framework="fsdp")),
        (
            "accelerate-hybrid.yaml",
            task("llama-3.1-8b", 64, HYBRID | {"context_kind": "all_gather"}, framework="torchtitan", precision="fp32"),
        ),
    ],
)
def test_golden_files(name, written):
    launch = export(written)
    assert launch.text == (GOLDEN / name).read_text(encoding="utf-8")
    assert any("gradient accumulation" in note for note in launch.notes)


def test_degrees_stand_in_the_file():
    written = task("llama-3.1-8b", 64, HYBRID, framework="ideal")
    document = parse_document(export(written).text, "accelerate.yaml")
    degrees = {name.removeprefix("parallelism_config_"): n for name, n in document["parallelism_config"].items()}
    assert degrees == {
        "dp_replicate_size": 4, "dp_shard_size": 4, "tp_size": 2, "cp_size": 2, "cp_comm_strategy": "alltoall",
    }  # fmt: skip
    assert document["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert (document["num_processes"], document["num_machines"]) == (64, 8)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"pipeline_parallel": 4}, "plan: pipeline_parallel: is 4"),
        ({"zero_stage": 0}, "plan: zero_stage: is 0"),
        ({"zero_stage": 1}, "plan: zero_stage: is 1"),
        ({"zero_group": 2, "context_parallel": 4}, "plan: zero_group: is 2 with 4 context-parallel chips"),
        ({"zero_group": 2, "context_parallel": 2}, "plan: zero_group: is 2, which leaves replicas next to"),
        ({"tensor_parallel": 2, "sequence_parallel": True}, "plan: sequence_parallel: is true"),
        ({"context_parallel": 2, "context_kind": "ulysses"}, "plan: context_kind: is ulysses"),
        ({"recompute": "selective"}, "plan: recompute: is selective"),
        ({"recompute": ["mixer_norm"]}, "plan: recompute: lists mixer_norm"),
    ],
)
def test_refusals(plan, words, refusal):
    sentence = refusal(export, task("llama-3.1-8b", 64, DENSE | plan, framework="ideal"))
    assert sentence.startswith(words)


def test_refused_experts_and_numbers(refusal):
    some = task("llama-3.1-8b", 64, DENSE | {"recompute_share": 0.5}, framework="megatron")
    assert refusal(export, some).startswith("plan: recompute_share: is 0.5")
    spread = task("mixtral-8x7b", 64, DENSE | {"expert_parallel": 4}, framework="ideal")
    assert "plan: expert_parallel: is 4" in refusal(export, spread)
    whole = task("mixtral-8x7b", 64, DENSE | {"tensor_parallel": 2, "expert_tensor_parallel": 1}, framework="ideal")
    assert "plan: expert_tensor_parallel: is 1" in refusal(export, whole)
    narrow = task("llama-3.1-8b", 64, DENSE, framework="ideal", precision="fp8")
    assert "needs a backend" in refusal(export, narrow)


def test_words_yaml_would_take_for_something_else_are_quoted():
    document = {"a": {"b": "no", "c": "bf16", "d": True, "e": 1.5}, "f": "two words", "g": "2"}
    assert parse_document("\n".join(yaml_lines(document)), "text") == document
