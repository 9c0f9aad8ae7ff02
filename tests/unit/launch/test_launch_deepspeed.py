"""DeepSpeed's JSON: written and read back, refused where no key says a plan, unknown keys listed."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from launch_plans import as_run, completed, random_tasks, task

from dovetail.errors import InputError
from dovetail.launch.deepspeed.read import read as read_launch
from dovetail.launch.deepspeed.write import export

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
MENU = {
    "model": ["llama-3.1-8b", "mixtral-8x7b", "gpt3-13b", "qwen3-30b-a3b", "deepseek-v2-lite"],
    "precision": ["bf16", "fp16", "fp32"],
    "recompute": ["none", "full"],
    "context_parallel": [1, 1, 2, 4],
    "context_kind": "ulysses",
    "sequence_parallel": 0.1,
    "zero_group": 0.1,
}
EXPERTS = {"zero_stage": 2, "expert_parallel": 8, "micro_batch": 2, "recompute": "full"}
ULYSSES = {"zero_stage": 3, "context_parallel": 2, "context_kind": "ulysses"}


def exported(tasks):
    for one in tasks:
        try:
            yield one, export(one)
        except InputError:
            continue


def test_two_hundred_random_plans_come_back():
    seen: dict[str, int] = dict.fromkeys(("tensor", "context", "experts", "unsharded", "full"), 0)
    for original, launch in islice(exported(random_tasks("deepspeed", MENU, seed=2)), 200):
        plan = original.plan
        reading = read_launch(launch.text, "ds_config.json")
        assert (reading.unknown, reading.passed_over) == ((), ())
        # with AutoTP a batch may count each sequence several times, so it is not written
        missing = {"model", "seq_len", "chips"} | ({"global_batch"} if plan.tensor_parallel > 1 else set())
        back = completed(reading, original, missing)
        assert (as_run(back), back.job) == (as_run(original), original.job)
        seen["tensor"] += plan.tensor_parallel > 1
        seen["context"] += plan.context_parallel > 1
        seen["experts"] += plan.expert_parallel > 1
        seen["unsharded"] += plan.zero_stage == 0
        seen["full"] += plan.recompute == "full"
    assert min(seen.values()) >= 10, seen


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("deepspeed-experts.json", task("mixtral-8x7b", 64, EXPERTS, framework="deepspeed")),
        ("deepspeed-ulysses.json", task("llama-3.1-8b", 32, ULYSSES, framework="deepspeed")),
        ("deepspeed-tensor.json", task("llama-3.1-8b", 32, {"tensor_parallel": 4}, framework="deepspeed")),
    ],
)
def test_golden_files(name, written):
    assert export(written).text == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"pipeline_parallel": 4}, "plan: pipeline_parallel: is 4"),
        ({"tensor_parallel": 2, "sequence_parallel": True}, "plan: sequence_parallel: is true"),
        (ULYSSES | {"tensor_parallel": 2}, "plan: context_parallel: is 2 with tensor_parallel 2"),
        ({"context_parallel": 2}, "plan: context_kind: is all_gather"),
        ({"zero_stage": 3, "zero_group": 8}, "plan: zero_group: is 8"),
        ({"recompute": "selective"}, "plan: recompute: is selective"),
    ],
)
def test_refusals(plan, words, refusal):
    sentence = refusal(export, task("llama-3.1-8b", 64, plan, framework="ideal"))
    assert sentence.startswith(words)
    assert "DeepSpeed" in sentence or "deepspeed" in sentence


def test_refused_shares_of_layers(refusal):
    some = task("llama-3.1-8b", 64, {"recompute": "full", "recompute_share": 0.5}, framework="megatron")
    assert refusal(export, some).startswith("plan: recompute_share: is 0.5")


def test_refused_experts(refusal):
    spread = {"tensor_parallel": 2, "expert_parallel": 4, "zero_stage": 1}
    assert "is 2 where experts are spread" in refusal(export, task("mixtral-8x7b", 64, spread, framework="ideal"))
    whole = {"tensor_parallel": 2, "expert_tensor_parallel": 1}
    assert "is 1 where experts are not spread" in refusal(export, task("mixtral-8x7b", 64, whole, framework="ideal"))


EXAMPLE = {
    "train_batch_size": 512, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True}, "gradient_clipping": 1.0, "wandb": {"enabled": False},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 500000000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}  # fmt: skip


def read(**changes):
    document = {key: value for key, value in (EXAMPLE | changes).items() if value != "left out"}
    return read_launch(json.dumps(document), "ds.json")


def test_a_configuration_says_its_copies():
    reading = read()
    plan = {"zero_stage": 3, "tensor_parallel": 1, "micro_batch": 2, "data_parallel": 64, "overlap_gradients": True}
    assert reading.plan == plan
    assert reading.job == {"precision": "bf16", "optimizer": "adamw", "global_batch": 512}
    assert reading.cluster == {}
    assert reading.passed_over == ("gradient_clipping", "wandb")


def test_what_a_configuration_leaves_open_is_absent():
    reading = read(train_batch_size="auto", bf16={"enabled": "auto"})
    assert "data_parallel" not in reading.plan
    assert reading.job == {"optimizer": "adamw"}
    assert "precision" not in reading.job
    # AutoTP: the batch may count a sequence once per chip of its group
    assert "global_batch" not in read(tensor_parallel={"autotp_size": 4}).job
    assert read(bf16="left out").job["precision"] == "fp32"


def test_keys_that_change_nothing_are_taken():
    zero = {"stage": 3, "offload_param": {"device": "none"}, "offload_optimizer": {"pin_memory": True}}
    assert read(zero_optimization=zero).plan["zero_stage"] == 3
    assert read(zero_optimization=True).plan["zero_stage"] == 1
    copies = read(data_parallel_size=16, tensor_parallel={"autotp_size": 4}, train_batch_size="left out")
    assert copies.job["global_batch"] == 2 * 4 * 16
    assert copies.plan["data_parallel"] == 16
    assert read(data_parallel_size=64, train_micro_batch_size_per_gpu="auto").plan["micro_batch"] == 2
    assert read(pipeline={"stages": 4}).plan["pipeline_parallel"] == 4
    assert read(optimizer={"type": "SGD", "params": {"momentum": 0.9}}).job["optimizer"] == "momentum"


def test_unknown_keys_are_listed():
    reading = read(
        elasticity={"enabled": True},
        zero_optimisation={"stage": 1},
        zero_optimization={"stage": 2, "bucket": 3},
        activation_checkpointing={"partition_activations": True},
        optimizer={"type": "Muon"},
    )
    assert reading.unknown == (
        "elasticity",
        "zero_optimisation",
        "zero_optimization.bucket",
        "activation_checkpointing.partition_activations (plans cannot express it)",
        "optimizer.type 'Muon'",
    )
    assert reading.plan["recompute"] == "full"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_batch_size": 511}, "ds.json: train_batch_size: is 511"),
        ({"train_micro_batch_size_per_gpu": 0}, "is 0; it should be a whole number"),
        ({"train_micro_batch_size_per_gpu": True}, "is True"),
        ({"train_micro_batch_size_per_gpu": "auto"}, "is missing or auto; add it"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization: stage: is 4"),
        ({"zero_optimization": 3}, "it should be a mapping"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "offload_optimizer.device: is"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "which plans cannot express"),
        ({"fp16": {"enabled": True}}, "cannot be combined with bf16"),
        ({"bf16": {"enabled": 1.5}}, "it should be true or false"),
        ({"torch_autocast": {"enabled": True}}, "which plans cannot express"),
        ({"pipeline": {"seed_layers": True}}, "is missing the number of stages"),
        ({"sequence_parallel_size": -2}, "sequence_parallel_size: is -2"),
    ],
)
def test_wrong_values_take_one_sentence(changes, words, refusal):
    assert words in refusal(read, **changes)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"bf16": {}, "bf16": {}}', "--module llama3", "[" * 9999])
def test_wrong_files_take_one_sentence(text, refusal):
    assert refusal(read_launch, text, "ds.json").startswith("ds.json")
