"""What of a plan overlaps: the fastest that runs where it does not say, what it says where it does, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dovetail import frameworks, hardware, models
from dovetail.explanation.differences import compare
from dovetail.models import Job
from dovetail.plans.narrowed_space import narrowed, within
from dovetail.plans.overlaps import overlaps_of, settled
from dovetail.plans.plan_file import Task, task_of
from dovetail.plans.space import Space
from dovetail.plans.words import plan_lines
from dovetail.search.plan import plan as best_plan
from dovetail.step.evaluate import evaluate

MOE = {
    "tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 8, "expert_tensor_parallel": 1, "zero_stage": 1,
}  # fmt: skip


def task(model: str = "llama-3.1-8b", framework: str = "megatron", precision: str = "bf16", **plan: Any) -> Task:
    document = {
        "job": {"model": model, "seq_len": 4096, "global_batch": 64, "precision": precision},
        "cluster": {"chip": "h100-sxm", "chips": 32, "framework": framework},
        "plan": plan,
    }
    return task_of(document, "plan.yaml")


def switches(*names: str, **fields: Any) -> tuple[Any, ...]:
    made = task(**fields)
    on = overlaps_of(made.plan, made.framework, made.job)
    return tuple(getattr(on, name) for name in names)


def moe(**fields: Any) -> bool:
    return switches("expert_parallel", **{"model": "mixtral-8x7b", **MOE, **fields})[0]


def seconds(made: Task) -> float:
    return evaluate(made.plan, made.job, made.cluster, made.framework, energy=False).step_time_s


def test_tensor_parallelism_overlaps_along_the_sequence():
    assert switches("tensor_parallel", tensor_parallel=4, sequence_parallel=True) == (True,)
    assert switches("tensor_parallel", tensor_parallel=4) == (False,)
    assert switches("tensor_parallel") == (False,)
    # never and always are the framework's
    assert switches("tensor_parallel", framework="deepspeed", tensor_parallel=4) == (False,)
    assert switches("tensor_parallel", framework="ideal", tensor_parallel=4) == (True,)


def test_the_state_overlaps_where_it_is_sharded():
    assert switches("gradients", "parameters", zero_stage=1) == (True, True)
    assert switches("gradients", "parameters") == (True, False)
    assert switches("gradients", "parameters", zero_stage=1, overlap_gradients=False) == (False, False)


def test_experts_overlap_with_another_micro_batch():
    assert moe()
    assert moe(pipeline_parallel=2, virtual_stages=2)
    assert moe(recompute=["moe_act"])
    assert moe(precision="fp8")
    assert not moe(pipeline_parallel=2)
    assert not moe(micro_batch=4)
    assert not moe(recompute="full")
    assert not moe(recompute=["moe", "layernorm"])
    assert not moe(expert_parallel=1)
    assert not moe(overlap_expert_parallel=False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"overlap_tensor_parallel": True, "tensor_parallel": 4}, "overlap_tensor_parallel: is true without sequence"),
        ({"overlap_tensor_parallel": True, "framework": "deepspeed"}, "overlap_tensor_parallel: is true, which deep"),
        ({"overlap_tensor_parallel": False, "framework": "ideal"}, "overlap_tensor_parallel: is false, which ideal"),
        ({"overlap_parameters": True}, "overlap_parameters: is true with zero_stage 0"),
        ({"overlap_parameters": True, "overlap_gradients": False, "zero_stage": 1}, "where overlap_gradients is false"),
        ({"overlap_gradients": False, "zero_stage": 3}, "overlap_gradients: is false with zero_stage 3"),
        ({"overlap_expert_parallel": True}, "overlap_expert_parallel: is true with expert_parallel 1"),
        ({**MOE, "overlap_expert_parallel": True, "pipeline_parallel": 2}, "is true with 2 stages that hold one part"),
        ({**MOE, "overlap_expert_parallel": True, "micro_batch": 4}, "is true with one micro-batch"),
        ({**MOE, "overlap_expert_parallel": True, "recompute": "full"}, "is true with recompute of full"),
        ({**MOE, "overlap_expert_parallel": True, "recompute": ["moe"]}, "is true with recompute of moe"),
        ({**MOE, "overlap_expert_parallel": True, "precision": "fp32"}, "is true in fp32"),
        ({"dispatcher": "deepep", "framework": "deepspeed"}, "dispatcher: is deepep"),
    ],
)
def test_what_cannot_run_is_refused(fields, words, refusal):
    model = "mixtral-8x7b" if "expert_parallel" in fields else "llama-3.1-8b"
    assert words in refusal(lambda: task(**{"model": model, **fields})).replace("plan.", "")


@pytest.mark.parametrize(
    ("field", "plan"),
    [
        ("overlap_tensor_parallel", {"tensor_parallel": 4, "sequence_parallel": True}),
        ("overlap_expert_parallel", {"model": "mixtral-8x7b", **MOE}),
        ("overlap_gradients", {"zero_stage": 0}),
        ("overlap_parameters", {"zero_stage": 1}),
    ],
)
def test_a_switch_is_priced(field: str, plan: dict[str, Any]):
    left, on, off = (task(**{**plan, **said}) for said in ({}, {field: True}, {field: False}))
    assert seconds(left) == seconds(on) < seconds(off)
    assert settled(left.plan, left.framework, left.job) == settled(on.plan, on.framework, on.job)
    assert getattr(settled(off.plan, off.framework, off.job), field) is False


def test_messages_for_every_expert_of_a_node_take_longer():
    spread = {"model": "qwen3-30b-a3b", "expert_parallel": 32, "expert_tensor_parallel": 1, "micro_batch": 2}
    once, each = (task(**spread, dispatcher=name) for name in ("deepep", "alltoall"))
    assert seconds(task(**spread)) == seconds(once) < seconds(each)


JOB = Job(models.load("qwen3-30b-a3b"), 4096, 32)
CLUSTER = hardware.cluster("h100-sxm", 16)
FEW = {
    "tensor_parallel": (1, 2), "context_parallel": (1,), "pipeline_parallel": (1, 2, 4), "expert_parallel": (1, 8),
    "micro_batch": (1, 2), "virtual_stages": (1, 2, 3), "recompute": ("none", "full", ("moe",), ("moe_act",)),
}  # fmt: skip


def fastest(framework: str = "megatron", **fields: Any) -> Any:
    return best_plan(JOB, CLUSTER, framework, space=Space(**{**FEW, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"overlap_expert_parallel": (True,)},
        {"overlap_expert_parallel": (True,), "recompute": ("full", ("moe_act",)), "pipeline_parallel": (2, 4)},
        {"overlap_expert_parallel": (False,), "overlap_tensor_parallel": (False,)},
        {"overlap_gradients": (False,)},
        {"overlap_parameters": (True,), "overlap_tensor_parallel": (True,), "tensor_parallel": (1, 2, 4)},
        {"dispatcher": ("alltoall",), "expert_parallel": (8,)},
    ],
)
def test_a_search_has_what_it_is_fixed_to_and_agrees_with_the_model(fields):
    """`plan` itself checks that its tables say what an evaluation does, and that the answer runs."""
    answer = fastest(**fields)
    found = answer.evaluation.plan
    for name, (value, *_) in fields.items():
        if name.startswith("overlap") or name == "dispatcher":
            assert getattr(settled(found, frameworks.load("megatron"), JOB), name) == value
    assert answer.evaluation.step_time_s >= fastest().evaluation.step_time_s * (1 - 1e-9)


def test_no_plan_is_left_where_none_runs_what_it_is_fixed_to():
    assert fastest(overlap_expert_parallel=(True,), recompute=("full",)).evaluation is None
    assert fastest(overlap_tensor_parallel=(True,), sequence_parallel=(False,)).evaluation is None
    assert (
        fastest("deepspeed", overlap_gradients=(True,), pipeline_parallel=(2,), recompute=("full",)).evaluation is None
    )


def test_a_space_has_one_value_of_a_switch(refusal):
    megatron, deepspeed = frameworks.load("megatron"), frameworks.load("deepspeed")
    fixed = narrowed(["overlap_tensor_parallel=false", "dispatcher=alltoall"])
    assert within(fixed, JOB, CLUSTER, megatron).overlap_tensor_parallel == (False,)
    assert "overlap_tensor_parallel" in refusal(
        lambda: within(narrowed(["overlap_tensor_parallel=true"]), JOB, CLUSTER, deepspeed)
    )
    several = Space(overlap_gradients=(True, False))
    assert "has 2 values" in refusal(lambda: within(several, JOB, CLUSTER, megatron))


@pytest.mark.parametrize(
    ("framework", "fixed", "right"),
    [
        ("deepspeed", "cuda_graphs=true", "leave it out"),
        ("torchtitan", "fp8_recipe=delayed", "leave it out"),
        ("megatron", "fp8_recipe=delayed", "leave it out"),  # in bf16
        ("megatron", "overlap_expert_parallel=true", "it should be false"),  # without experts
    ],
)
def test_options_that_no_plan_has_are_refused_before_the_search(framework, fixed, right, refusal):
    dense = Job(models.load("llama-3.1-8b"), 4096, 32)
    assert right in refusal(lambda: within(narrowed([fixed]), dense, CLUSTER, frameworks.load(framework)))


def test_a_plan_is_printed_with_what_it_says():
    said = task(tensor_parallel=4, sequence_parallel=True, overlap_gradients=False, cuda_graphs=True)
    assert plan_lines(said.plan)[-1] == "gradient overlap off, CUDA graphs on"


def test_plans_that_say_what_the_framework_does_anyway_are_the_same_to_a_comparison():
    left = task(tensor_parallel=4, sequence_parallel=True)
    said = replace(left, plan=settled(left.plan, left.framework, left.job))
    assert compare(left, said).differences == ()
    off = replace(left, plan=replace(left.plan, overlap_tensor_parallel=False))
    (difference,) = compare(off, left).differences
    assert difference.fields == ("overlap_tensor_parallel",)
    assert difference.gain is not None
    assert difference.gain > 0
