"""Optimizers and what hosts hold in launch files: said where a framework has words for it, else refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.errors import InputError
from dovetail.launch.deepspeed import read as read_deepspeed
from dovetail.launch.deepspeed import write as deepspeed
from dovetail.launch.megatron import bridge
from dovetail.launch.megatron import read as read_megatron
from dovetail.launch.megatron import write as megatron
from dovetail.plans.plan_file import Task, task_of


def task(framework: str, optimizer: str = "adamw", model: str = "llama-3.1-8b", **plan: Any) -> Task:
    job = {"model": model, "seq_len": 4096, "global_batch": 64, "optimizer": optimizer}
    return task_of({"job": job, "cluster": {"name": "hgx-h100", "chips": 8, "framework": framework}, "plan": plan}, "a")


@pytest.mark.parametrize(
    ("optimizer", "plan", "arguments"),
    [
        ("muon", {"zero_stage": 1}, ["--optimizer muon", "--use-distributed-optimizer"]),
        ("adamw_bf16", {"zero_stage": 1}, ["--use-precision-aware-optimizer", "--exp-avg-sq-dtype bf16"]),
        ("adamw", {"zero_stage": 1, "offload": ["optimizer"]}, ["--optimizer-cpu-offload", "--use-precision-aware"]),
        ("adamw", {"offload": ["activations"]}, ["--cpu-offloading-num-layers 31"]),
    ],
)
def test_megatron_says_it_and_reads_it(optimizer, plan, arguments):
    asked = task("megatron", optimizer, **plan)
    text = megatron.export(asked).text
    for argument in arguments:
        assert argument in text
    read = read_megatron.read(text, "launch", 8)
    assert read.job["optimizer"] == optimizer
    assert read.plan.get("offload", []) == plan.get("offload", [])
    assert not read.unknown


@pytest.mark.parametrize(
    ("plan", "more", "sentence"),
    [
        ({"zero_stage": 1, "offload": ["optimizer"]}, "--optimizer-offload-fraction 0.25", "fraction: is 0.25"),
        ({"offload": ["activations"]}, "--cpu-offloading-num-layers 2", "num-layers: is 2 of 32"),
        ({"zero_stage": 1}, "--exp-avg-dtype bf16", "moments in bf16 and fp32"),
    ],
)
def test_what_a_plan_has_no_words_for_is_refused(plan, more, sentence):
    text = megatron.export(task("megatron", **plan)).text
    with pytest.raises(InputError, match=sentence):
        read_megatron.read(f"{text.rstrip()} {more}", "launch", 8)


def test_deepspeed_says_it_and_reads_it():
    asked = task("deepspeed", zero_stage=2, recompute="full", offload=["optimizer", "activations"])
    document = json.loads(deepspeed.export(asked).text)
    assert document["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert document["activation_checkpointing"]["cpu_checkpointing"] is True
    read = read_deepspeed.read(json.dumps(document), "config")
    assert read.plan["offload"] == ["optimizer", "activations"]


@pytest.mark.parametrize(
    ("framework", "optimizer", "plan", "sentence"),
    [
        ("megatron", "adamw_8bit", {}, "is adamw_8bit, which Megatron-LM core 0.19 does not have"),
        ("megatron", "muon", {"zero_stage": 3}, "zero_stage: is 3 with muon"),
        ("megatron", "adamw_bf16", {"zero_stage": 0}, "zero_stage: is 0 with adamw_bf16"),
        ("torchtitan", "adamw_8bit", {"zero_stage": 2}, "is adamw_8bit, and torchtitan 0.3.0 has AdamW"),
        ("maxtext", "muon", {"zero_stage": 3}, "is muon, which MaxText 0.2.5 does not have"),
        ("fsdp", "adamw", {"zero_stage": 3, "offload": ["optimizer"]}, "offload: has optimizer"),
    ],
)
def test_what_a_launch_cannot_say_is_refused(framework, optimizer, plan, sentence):
    with pytest.raises(InputError, match=sentence):
        task(framework, optimizer, **plan)


def test_other_words_of_megatron_have_no_muon():
    with pytest.raises(InputError, match=r"is muon for core 0\.16"):
        megatron.export(task("megatron", "muon", zero_stage=1), "0.16")
    with pytest.raises(InputError, match="is muon, whose options are objects"):
        bridge.export(task("megatron", "muon", zero_stage=1))
