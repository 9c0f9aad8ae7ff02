"""MaxText's YAML: golden files, degrees that make up the chips, and the plans it refuses."""

from __future__ import annotations

from itertools import islice
from math import prod
from pathlib import Path

import pytest
from launch_plans import as_run, completed, random_tasks, task

from dovetail import models
from dovetail.documents import parse_document
from dovetail.errors import InputError
from dovetail.launch.maxtext.read import SHIPPED, read
from dovetail.launch.maxtext.write import export
from dovetail.launch.targets import read_launch
from dovetail.plans.launch_models.maxtext import NAMED

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
DENSE = {"zero_stage": 3, "tensor_parallel": 4, "micro_batch": 2, "recompute": "full"}
EXPERTS = {"zero_stage": 3, "tensor_parallel": 4, "sequence_parallel": True, "expert_parallel": 8, "recompute": "full"}
STAGES = {
    "zero_stage": 3, "zero_group": 8, "tensor_parallel": 4, "pipeline_parallel": 4, "pipeline_schedule": "gpipe",
    "recompute": "minimal",
}  # fmt: skip
MENU = {
    "model": ["llama-3.1-8b", "mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b"],
    "num_layers": [32],
    "precision": ["bf16", "fp8", "fp32"],
    "recompute": ["minimal", "full"],
    "pipeline_parallel": [1, 2, 4],
    "context_parallel": [1, 1, 2],
}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("maxtext-dense.yml", task("llama-3.1-8b", 64, DENSE, framework="maxtext")),
        ("maxtext-experts.yml", task("mixtral-8x7b", 64, EXPERTS, framework="maxtext")),
        ("maxtext-stages.yml", task("llama-3.1-70b", 256, STAGES, framework="maxtext", chip="tpu-v5p")),
    ],
)
def test_golden_files(name, written):
    assert export(written).text == (GOLDEN / name).read_text(encoding="utf-8")


def exported(tasks):
    for one in tasks:
        try:
            yield one, parse_document(export(one).text, "maxtext.yml")
        except InputError:
            continue


def test_a_hundred_random_plans_come_back():
    count = 0
    for one in random_tasks("maxtext", MENU, seed=5):
        try:
            text = export(one).text
        except InputError:
            continue
        reading = read(text, "maxtext.yml")
        assert reading.unknown == ()
        back = completed(reading, one, set())
        assert as_run(back) == as_run(one)
        assert (back.job, back.cluster.chips) == (one.job, one.cluster.chips)
        count += 1
        if count == 100:
            return


def axes(document, prefix):
    return {
        key.removeprefix(prefix).removesuffix("_parallelism"): value
        for key, value in document.items()
        if key.startswith(prefix)
    }


def test_axes_make_up_slices_and_chips():
    seen = {"stages": 0, "experts": 0, "replicas": 0}
    for written, document in islice(exported(random_tasks("maxtext", MENU, seed=3)), 100):
        plan = written.plan
        inside, outside = axes(document, "ici_"), axes(document, "dcn_")
        assert prod(inside.values()) == min(8, plan.chips)
        assert prod(inside.values()) * prod(outside.values()) == plan.chips
        whole = {axis: inside[axis] * outside[axis] for axis in inside}
        assert whole.get("tensor_sequence" if plan.sequence_parallel else "tensor", 1) == plan.tensor_parallel
        assert whole.get("pipeline", 1) == plan.pipeline_parallel
        assert whole["data"] * whole["fsdp"] * whole.get("expert", 1) == plan.data_parallel
        if plan.zero_stage == 3:
            assert whole["fsdp"] * whole.get("expert", 1) * whole.get("context", 1) == plan.zero_group
        # MaxText: the batch of a step is that of a chip, times chips and accumulation
        steps = document["gradient_accumulation_steps"]
        assert document["per_device_batch_size"] * plan.chips * steps == written.job.global_batch
        assert document.get("num_pipeline_microbatches", steps) == plan.num_microbatches
        seen["stages"] += plan.pipeline_parallel > 1
        seen["experts"] += plan.expert_parallel > 1
        seen["replicas"] += whole["data"] > 1
    assert min(seen.values()) >= 5, seen


def written(model="llama-3.1-8b", chip="h100-sxm", plan=None, **job):
    plan = plan or {"zero_stage": 3, "recompute": "full"}
    return parse_document(export(task(model, 64, plan, framework="maxtext", chip=chip, **job)).text, "yml")


def test_jobs_have_keys_of_their_own():
    assert written("qwen3-30b-a3b")["rope_max_timescale"] == 1_000_000
    assert written("llama-3.1-8b")["rope_type"] == "llama3.1"
    assert written(attention="unfused")["attention"] == "dot_product"
    assert written(precision="fp8")["quantization"] == "fp8"
    assert written(precision="fp32")["dtype"] == "float32"
    assert "quantization" not in written()
    assert written(plan={"zero_stage": 1, "recompute": "full"})["shard_optimizer_over_data"] is True
    strategy = {"zero_stage": 3, "recompute": "full", "context_parallel": 2, "context_kind": "ulysses"}
    assert written(plan=strategy)["context_parallel_strategy"] == "ulysses"


def test_every_model_it_names_is_in_the_catalogue():
    assert set(NAMED) | set(SHIPPED.values()) <= set(models.names())


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"recompute": "none"}, "plan: recompute: is none"),
        ({"recompute": ["mixer_norm"]}, "plan: recompute: lists mixer_norm"),
        ({"zero_stage": 2}, "plan: zero_stage: is 2"),
        ({"zero_stage": 1, "context_parallel": 2}, "plan: zero_stage: is 1 with context parallelism"),
        ({"zero_stage": 1, "zero_group": 2}, "plan: zero_group: is 2 with zero_stage 1"),
        ({"zero_group": 2, "context_parallel": 4}, "plan: zero_group: is 2 with 4 chips"),
        ({"pipeline_parallel": 2}, "plan: pipeline_schedule: is 1f1b"),
        ({"pipeline_parallel": 3, "pipeline_schedule": "gpipe"}, "plan: layers_per_stage: are uneven"),
        (
            {"pipeline_parallel": 4, "pipeline_schedule": "gpipe", "micro_batch": 64},
            "plan: micro_batch: makes 1 micro-batches for 4 stages",
        ),
    ],
)
def test_refusals(plan, words, refusal):
    chips = 48 if plan.get("pipeline_parallel") == 3 else 64
    written = task("llama-3.1-8b", chips, DENSE | plan, framework="ideal")
    sentence = refusal(export, written)
    assert sentence.startswith(words)
    assert "axText" in sentence or "maxtext" in sentence


def test_refused_jobs_and_experts(refusal):
    other = task("phi-2", 8, {"zero_stage": 3, "recompute": "full"}, framework="ideal", seq_len=1024)
    assert "has a bias on its logits, which MaxText 0.2.5 has no keys for" in refusal(export, other)
    lion = task("llama-3.1-8b", 8, {"zero_stage": 3, "recompute": "full"}, framework="ideal", optimizer="lion")
    assert refusal(export, lion).startswith("job: optimizer: is lion")
    whole = task("mixtral-8x7b", 64, EXPERTS | {"expert_tensor_parallel": 1}, framework="ideal")
    assert "spreads experts over tensor-parallel chips" in refusal(export, whole)
    cut = task("mixtral-8x7b", 64, DENSE | {"expert_tensor_parallel": 2}, framework="ideal")
    assert "expert_tensor_parallel: is 2" in refusal(export, cut)


SHIPPED_ALONE = "base_config: base.yml\nmodel_name: llama3.1-8b\nmax_target_length: 8192\nper_device_batch_size: 2\n"
AXES = "ici_fsdp_parallelism: 8\ndcn_data_parallelism: 1\n"


def test_what_base_yml_leaves_to_the_chips_is_filled():
    reading = read(SHIPPED_ALONE + "dcn_data_parallelism: 1\n", "maxtext.yml", 64)
    assert (reading.plan["data_parallel"], reading.plan["zero_group"]) == (64, 64)
    assert reading.job["global_batch"] == 128


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SHIPPED_ALONE, "is left to the number of chips"),
        (SHIPPED_ALONE + AXES + "base_num_decoder_layers: 16\n", "whose own file goes before it"),
        (SHIPPED_ALONE + AXES + "quantization: int8\n", "which plans cannot express"),
        (SHIPPED_ALONE + AXES + "dtype: float16\n", "which plans cannot express"),
        (SHIPPED_ALONE.replace("llama3.1-8b", "[a]") + AXES, "model_name: is ['a']"),
    ],
)
def test_yaml_that_says_something_else_is_refused(text, words, refusal):
    assert words in refusal(read, text, "maxtext.yml")


def test_keys_of_a_model_have_to_agree(refusal):
    text = export(task("llama-3.1-8b", 64, DENSE, framework="maxtext")).text
    changed = text.replace('["silu", "linear"]', '["gelu", "linear"]')
    assert "mlp_activations: is ['gelu', 'linear']" in refusal(read, changed, "maxtext.yml")
    changed = text.replace("1.0e-05", "tiny")
    assert "normalization_layer_epsilon: is 'tiny'; it should be a number" in refusal(read, changed, "maxtext.yml")


def test_a_script_overrides_its_yaml():
    text = export(task("llama-3.1-8b", 64, DENSE, framework="maxtext")).text
    script = f"#!/bin/bash\ncat > m.yml <<'EOF'\n{text}EOF\npython -m maxtext.train m.yml max_target_length=1024\n"
    assert read_launch(script, "train.sh").job["seq_len"] == 1024
