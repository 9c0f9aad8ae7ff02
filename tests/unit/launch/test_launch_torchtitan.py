"""torchtitan: recipes written and read back, plans it cannot run refused, flags read and unknown ones listed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from launch_plans import as_run, completed, random_tasks, task

from dovetail.errors import InputError
from dovetail.launch.companions import Companions
from dovetail.launch.torchtitan.read import read
from dovetail.launch.torchtitan.write import export

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
MENU = {
    "model": [
        *("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v2-lite"),
        *("qwen3-32b", "qwen3-0.6b", "gpt-oss-20b", "deepseek-v3", "mixtral-8x7b", "qwen2.5-32b", "mistral-7b"),
    ],
    "num_layers": [32, 80, 48, 27, 64, 28, 24, 61],
    "precision": ["bf16", "bf16", "fp32", "fp8"],
    "recompute": ["none", "selective", "full"],
    "pipeline_parallel": [1, 1, 2, 4, 8],
    "context_parallel": [1, 1, 2, 4],
}

DENSE = {"tensor_parallel": 4, "sequence_parallel": True, "zero_stage": 3, "micro_batch": 2, "recompute": "full"}
UNEVEN = {
    "tensor_parallel": 2, "pipeline_parallel": 4, "virtual_stages": 2, "zero_stage": 2, "expert_parallel": 16,
    "expert_tensor_parallel": 1, "sequence_parallel": True, "layers_per_stage": [5, 6, 6, 6, 7, 6, 6, 6],
}  # fmt: skip


def dense(**plan):
    return task("llama-3.1-8b", 64, DENSE | plan, framework="torchtitan")


def exported(tasks):
    for one in tasks:
        try:
            yield one, export(one)
        except InputError:
            continue


def test_two_hundred_random_plans_come_back():
    seen: dict[str, int] = dict.fromkeys(("stages", "chunks", "uneven", "experts", "context", "replicas"), 0)
    for original, launch in islice(exported(random_tasks("torchtitan", MENU, seed=1)), 200):
        reading = read(launch.text, "recipe.py")
        assert reading.unknown == ()
        back = completed(reading, original, set())
        assert as_run(back) == as_run(original)
        assert (back.job, back.cluster.chips) == (original.job, original.cluster.chips)
        assert back.framework == original.framework
        plan = original.plan
        seen["stages"] += plan.pipeline_parallel > 1
        seen["chunks"] += plan.virtual_stages > 1
        seen["uneven"] += len(set(plan.layers_per_stage)) > 1
        seen["experts"] += plan.expert_parallel > 1
        seen["context"] += plan.context_parallel > 1
        seen["replicas"] += plan.zero_group < plan.data_parallel * plan.context_parallel
    assert min(seen.values()) >= 10, seen


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("torchtitan-dense.py.txt", dense()),
        ("torchtitan-uneven.py.txt", task("qwen3-30b-a3b", 64, UNEVEN, framework="torchtitan")),
    ],
)
def test_golden_files(name, written):
    assert export(written).text == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("recompute", "word"), [("op_sac", "SelectiveAC.Config()"), ([], "None"), ("full", "FullAC.Config()")]
)
def test_what_selective_recompute_is_has_its_word(recompute, word):
    assert f"activation_checkpoint={word},\n" in export(dense(recompute=recompute)).text


def test_a_plan_for_kernels_one_by_one_is_not_compiled():
    written = task("llama-3.1-8b", 64, DENSE | {"sequence_parallel": False}, framework="fsdp")
    text = export(written).text
    assert "enable=False" in text
    assert read(text, "recipe.py").framework == "fsdp"


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"zero_stage": 1}, "plan: zero_stage: is 1"),
        ({"zero_stage": 0, "context_parallel": 2}, "plan: zero_stage: is 0 with context parallelism"),
        ({"zero_group": 2, "context_parallel": 4}, "plan: zero_group: is 2 with 4 context-parallel chips"),
        ({"context_parallel": 2, "context_kind": "ring"}, "plan: context_kind: is ring"),
        ({"tensor_parallel": 16}, "plan: tensor_parallel: is 16 over 8 key heads"),
        ({"recompute": ["mixer_norm"]}, "plan: recompute: lists mixer_norm"),
    ],
)
def test_refusals(plan, words, refusal):
    written = task("llama-3.1-8b", 64, DENSE | plan, framework="ideal")
    sentence = refusal(export, written)
    assert sentence.startswith(words)
    assert "torchtitan" in sentence


def test_refused_experts(refusal):
    plan = {"zero_stage": 3, "expert_parallel": 8, "tensor_parallel": 2, "sequence_parallel": True}
    cut = task("qwen3-30b-a3b", 64, plan, framework="ideal")
    assert "expert_tensor_parallel: is 2 where experts are spread" in refusal(export, cut)
    outside = plan | {"expert_tensor_parallel": 1, "zero_group": 2}
    written = task("qwen3-30b-a3b", 64, outside, framework="ideal")
    assert "expert_parallel: is 8 over 4 chips that share one copy" in refusal(export, written)
    whole = {"zero_stage": 3, "tensor_parallel": 2, "expert_tensor_parallel": 1}
    written = task("qwen3-30b-a3b", 64, whole, framework="ideal")
    assert "is 1 where experts are not spread" in refusal(export, written)


def test_refused_jobs(refusal):
    def job(model="llama-3.1-8b", **fields):
        plan = {"zero_stage": 3}
        return refusal(export, task(model, 8, plan, framework="ideal", **fields))

    assert "has a bias on its logits, which torchtitan 0.3.0 does not have" in job("phi-2", seq_len=2048)
    assert "squashes" in job("gemma-2-9b") or "scales" in job("gemma-2-9b")
    assert job(precision="fp4").startswith("job: precision: is fp4")
    assert job(optimizer="lion").startswith("job: optimizer: is lion")
    assert job(attention="unfused").startswith("job: attention: is unfused")
    tied = task("qwen3-0.6b", 8, {"pipeline_parallel": 2, "zero_stage": 2}, framework="ideal")
    assert "with tied embeddings" in refusal(export, tied)
    lengths = task("gpt-oss-20b", 8, {"context_parallel": 2, "zero_stage": 3}, framework="ideal")
    assert "variable lengths" in refusal(export, lengths)


SCRIPT = """#!/usr/bin/env bash
set -ex
# one node
NGPU=${NGPU:-"8"}
TP=4
EXTRA="--metrics.log-freq 10 --checkpoint.enable"
torchrun --nnodes 4 --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \\
  --local-ranks-filter 0 --role rank --tee 3 \\
  -m torchtitan.train --module llama3 --config llama3_70b \\
  --parallelism.tensor-parallel-degree $TP --training.global_batch_size=64 $EXTRA "$@"
"""


def test_a_script_leaves_what_the_recipe_sets():
    reading = read(SCRIPT, "train.sh")
    assert reading.job == {
        "model": "llama-3.1-70b", "seq_len": 8192, "precision": "bf16", "global_batch": 64,
    }  # fmt: skip
    assert reading.cluster == {"chips": 32}
    assert reading.plan["tensor_parallel"] == 4
    assert reading.plan["data_parallel"] == 8
    assert reading.plan["micro_batch"] == 8
    assert reading.plan["recompute"] == "full"
    assert (reading.plan["zero_stage"], reading.plan["zero_group"]) == (3, 8)
    assert reading.framework == "torchtitan"  # fsdp of the catalogue has no sequence parallelism
    assert reading.unknown == ()
    assert "--metrics.log_freq" in reading.passed_over


def flags(*words):
    return "\n".join(("--module llama3", "--config llama3_8b", *words))


def test_a_batch_that_no_flag_gives_is_one_microbatch_of_every_copy():
    words = ("--parallelism.data_parallel_shard_degree 4", "--parallelism.data_parallel_replicate_degree 2")
    reading = read(flags(*words, "--training.local_batch_size 3"), "flags")
    assert reading.job["global_batch"] == 24
    assert "global_batch" not in read(flags("--training.local_batch_size 3"), "flags").job


def test_unknown_flags_are_listed():
    text = flags("--parallelism.rotate 3", "--no.such", "--training.steps 5", "--parallelism.no_tensor_parallel_degree")
    reading = read(text, "flags")
    assert reading.unknown == ("--parallelism.rotate", "--no.such", "--parallelism.no_tensor_parallel_degree")
    assert reading.passed_over == ("--training.steps",)


def test_an_unknown_recipe_is_listed_and_leaves_the_model_open():
    text = "--module mine --config mine_1b --parallelism.data_parallel_shard_degree 8"
    reading = read(text, "flags")
    assert reading.unknown == ("--module mine --config mine_1b (we do not know what else it sets)",)
    assert "model" not in reading.job
    assert "seq_len" not in reading.job


def test_stages_that_no_flag_lists_are_dealt_as_torchtitan_does():
    words = ("--parallelism.pipeline_parallel_degree 4", "--parallelism.data_parallel_shard_degree 1")
    plan = read(flags(*words, "--training.local_batch_size 8"), "flags").plan
    assert plan["layers_per_stage"] == [8, 9, 8, 7]
    assert plan["zero_stage"] == 0
    more = (*words, "--parallelism.pipeline_parallel_first_stage_less_layers 0")
    plan = read(flags(*more, "--training.local_batch_size 8"), "flags").plan
    assert plan["layers_per_stage"] == [9, 8, 8, 7]
    words = (*words, "--parallelism.pipeline_parallel_schedule interleaved1f1b")
    plan = read(flags(*words, "--training.local_batch_size 8"), "flags").plan
    assert (plan["virtual_stages"], sum(plan["layers_per_stage"])) == (2, 32)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no flags"),
        ("hello world", "has no flags"),
        ("torchrun --nproc_per_node 8 -m torchtitan.train", "has no flags"),
        ("torchrun -m torchtitan.train --module a\ntorchrun -m torchtitan.train --module b", "more than once"),
        (flags("--parallelism.tensor_parallel_degree two"), "--parallelism.tensor_parallel_degree: is 'two'"),
        (flags("--parallelism.tensor_parallel_degree $TP"), "is '$TP'"),
        (flags("--parallelism.tensor_parallel_degree 0"), "is '0'"),
        (flags("--parallelism.tensor_parallel_degree 2 4"), "has 2 values"),
        (flags("--training.seq_len 1", "--training.seq_len 2"), "--training.seq_len: is given twice"),
        (flags("--training.enable_cpu_offload"), "which plans cannot express"),
        (flags("--training.dtype bfloat16"), "is 'bfloat16', which plans cannot express"),
        (flags("--optimizer.implementation fused_opt_states_bf16"), "which plans cannot express"),
        (flags("activation-checkpoint:memory-budget"), "leaves recompute to the compiler"),
        (flags("--compile.enable yes"), "it takes none"),
        (flags("--parallelism.fsdp_reshard_after_forward maybe"), "it should be default, always or never"),
        (flags("--parallelism.data_parallel_replicate_degree 2"), "write the degree"),
        (flags("--parallelism.pipeline_parallel_degree 2", "--parallelism.pipeline_parallel_schedule ZBVZeroBubble"),
         "is 'ZBVZeroBubble', which plans cannot express"),
        (flags("--parallelism.pipeline_parallel_degree 2",
               "--parallelism.module_fqns_per_model_part layers.1 layers.0"), "lists layers out of order"),
        (flags("--parallelism.pipeline_parallel_degree 2",
               "--parallelism.module_fqns_per_model_part layers.0 layers.1 layers.2"), "makes 3 parts for 2 stages"),
        ("--module mine --config m --parallelism.pipeline_parallel_degree 2", "layers of this recipe are not known"),
        (flags("--parallelism.pipeline_parallel_degree 2", "--parallelism.data_parallel_shard_degree 2",
               "--training.local_batch_size 4", "--training.global_batch_size 16"), "2 rounds through the pipeline"),
        ("torchrun --nproc_per_node 6 -m torchtitan.train --module llama3 --config llama3_70b", "starts 6 processes"),
        ("--module 'llama3", "quote"),
    ],
)  # fmt: skip
def test_wrong_files_take_one_sentence(text, words, refusal):
    sentence = refusal(read, text, "flags.txt")
    assert sentence.startswith("flags.txt")
    assert words in sentence


def recipe(**changes):
    """A recipe of ours with some texts replaced."""
    text = export(dense()).text
    for old, new in changes.items():
        before, _, after = text.partition(f'"{old}": ')
        text = f'{before}"{old}": {new},{after.partition(",")[2]}'
    return text


TWO = "def small():\n    return Trainer.Config(training=TrainingConfig(seq_len=64))\n"
BIG = """def big():
    config = Trainer.Config(training=TrainingConfig(seq_len=128, local_batch_size=4))
    config.parallelism.tensor_parallel_degree = 2
    return config
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (recipe(n_heads=0), "do not describe a model"),
        (recipe(theta='"abc"'), "do not describe a model"),
        (recipe(theta="1" + "0" * 400), "it should be one that a model can have"),
        (recipe(hidden_dim="10**9"), "the model (it is built by code)"),
        (TWO + BIG, "has 2 functions that make a configuration"),
        ("Trainer.Config(", "is no Python"),
        ("def f():\n    return Trainer.Config(a=x" + ".Config" * 1500 + "())\n", "the model (it is built by code)"),
    ],
)
def test_wrong_recipes_take_one_sentence(text, words, refusal):
    try:
        assert any(words in each for each in read(text, "recipe.py").unknown)
    except InputError as error:
        assert words in str(error)  # noqa: PT017


def test_a_script_names_one_function_of_a_recipe(tmp_path):
    (tmp_path / "mine.py").write_text(TWO + BIG, encoding="utf-8")
    words = "torchrun --nproc_per_node 8 -m torchtitan.train --module mine --config big"
    reading = read(words, "train.sh", companions=Companions(tmp_path))
    assert reading.job["seq_len"] == 128
    assert reading.plan["micro_batch"] == 4
    assert "mine.py: config.parallelism.tensor_parallel_degree (it is assigned)" in reading.unknown
