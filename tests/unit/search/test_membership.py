"""Which plans the searched space holds, and what it is said to lack for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.models import Job
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.profile.modules import MODULES
from dovetail.search.membership import canonical, missing_feature
from dovetail.step.evaluate import evaluate

CLUSTER = hardware.cluster("h100-sxm", chips=16)
#: 32 blocks.
DENSE = Job(models.load("llama-3.1-8b"), seq_len=4096, global_batch=64)
#: 8 experts in every block.
EXPERTS = Job(models.load("mixtral-8x7b"), seq_len=4096, global_batch=64)
#: 27 blocks, the first without experts; keys and values from latents.
LATENT = Job(models.load("deepseek-v2-lite"), seq_len=4096, global_batch=64)

PIPED = {"tensor_parallel": 2, "pipeline_parallel": 4}
#: 16 chunks.
INTERLEAVED = {**PIPED, "virtual_stages": 4}


def resolved(job: Job, fields: Mapping[str, object]) -> Plan:
    spec = PlanSpec.model_validate(fields)
    layers = job.model.num_layers
    return resolve_plan(spec, chips=CLUSTER.chips, global_batch=job.global_batch, num_layers=layers)


def lacking(framework: str | Framework, job: Job, fields: Mapping[str, object]) -> str | None:
    known = frameworks.load(framework) if isinstance(framework, str) else framework
    return missing_feature(resolved(job, fields), job, CLUSTER, known)


@pytest.mark.parametrize(
    ("framework", "fields"),
    [
        ("megatron", {}),
        ("megatron", {**PIPED, "sequence_parallel": True, "zero_stage": 1, "micro_batch": 4}),
        ("megatron", {**PIPED, "context_parallel": 2, "context_kind": "ulysses", "zero_stage": 1}),
        ("megatron", {**PIPED, "axis_order": "tp-cp-pp-dp"}),
        ("megatron", {"zero_stage": 3, "zero_group": 4}),
        ("megatron", {**PIPED, "layers_per_stage": (1, 20, 11, 0)}),
        ("megatron", {**INTERLEAVED}),
        ("megatron", {**INTERLEAVED, "layers_per_stage": (*[2] * 15, 2)}),
        ("megatron", {**PIPED, "virtual_stages": 3, "layers_per_stage": (1, *[3] * 10, 1)}),
        ("megatron", {**PIPED, "virtual_stages": 2, "layers_per_stage": (1, *[5] * 6, 1)}),
        ("megatron", {"recompute": "selective"}),
        ("megatron", {"recompute": ("mlp", "core_attn", "layernorm")}),
        ("megatron", {"recompute": "full", "recompute_share": 0.375}),
        ("megatron-2022", {**PIPED, "virtual_stages": 8, "recompute": "full"}),
        ("deepspeed", {"zero_stage": 3, "recompute": "full", "recompute_share": 0.125}),
        ("fsdp", {"zero_stage": 3, "recompute": ("mlp.up", "mixer_norm"), "recompute_share": 0.3}),
        ("torchtitan", {**PIPED, "zero_stage": 2, "recompute": "full", "recompute_share": 0.5}),
        ("torchtitan", {**INTERLEAVED, "layers_per_stage": (2,) * 16}),
        ("maxtext", {"zero_stage": 3, "recompute": "full"}),
    ],
)  # fmt: skip
def test_plans_of_the_space(framework, fields):
    assert lacking(framework, DENSE, fields) is None


def test_stages_that_a_framework_balances_are_as_plans_have_them():
    odd = {"tensor_parallel": 2, "pipeline_parallel": 4}
    assert lacking("deepspeed", LATENT, odd) is None
    assert resolved(LATENT, odd).layers_per_stage == (7, 7, 7, 6)
    moved = lacking("deepspeed", LATENT, {**odd, "layers_per_stage": (6, 7, 7, 7)})
    assert moved == "stages of 6, 3 × 7 blocks are not even"


@pytest.mark.parametrize(
    ("framework", "fields", "feature"),
    [
        ("megatron", {"recompute": "full", "recompute_share": 0.3}, "share 0.3 is no eighth"),
        ("megatron", {"recompute": "selective", "recompute_share": 0.5}, "share 0.5 of another recompute than full"),
        ("megatron", {"recompute": ("mlp", "mlp.activation")}, "recompute of mlp.activation is not on the menu"),
        ("deepspeed", {"recompute": "selective"}, "recompute of selective is not on the menu"),
        ("megatron", {"recompute_by_block": ({"blocks": 16, "recompute": "full"}, {"blocks": 16, "recompute": "none"})},
         "blocks that recompute different things"),
        ("megatron", {**INTERLEAVED, "layers_per_stage": (1, 3, *[2] * 14)},
         "chunks of 1, 3, 14 × 2 blocks are not 2 or 3 each between ends no larger"),
        ("megatron", {**INTERLEAVED, "layers_per_stage": (4, *[2] * 14, 0)},
         "chunks of 4, 14 × 2, 0 blocks are not 2 or 3 each between ends no larger"),
        ("ideal", {**PIPED, "pipeline_schedule": "dualpipe", "layers_per_stage": (7, 9, 9, 7)},
         "stages of 7, 2 × 9, 7 blocks are not even"),
        ("torchtitan", {**INTERLEAVED, "layers_per_stage": (0, *[3] * 4, *[2] * 10, 0)},
         "chunks of 0, 4 × 3, 10 × 2, 0 blocks are not 2 or 3 each between ends no larger"),
        ("deepspeed", {"context_parallel": 2, "context_kind": "ring"}, "context_kind ring is none of ulysses"),
        ("megatron-2022", {"context_parallel": 2}, "context_parallel 2 is none of 1"),
        ("fsdp", {"pipeline_parallel": 2}, "pipeline_parallel 2 is none of 1"),
        ("deepspeed", {**PIPED, "pipeline_schedule": "gpipe"}, "pipeline_schedule gpipe is none of 1f1b"),
        ("deepspeed", {**PIPED, "axis_order": "tp-cp-pp-dp"}, "axis_order tp-cp-pp-dp is none of tp-cp-dp-pp"),
        ("megatron-2022", {"zero_stage": 3}, "zero_stage 3 is none of 0, 1"),
        ("deepspeed", {"zero_stage": 2, "zero_group": 1}, "zero_stage 2 with zero_group 1 shards over one chip"),
        ("fsdp", {"zero_stage": 3, "zero_group": 1}, "zero_stage 3 with zero_group 1 shards over one chip"),
    ],
)  # fmt: skip
def test_features_that_the_space_lacks(framework, fields, feature):
    assert lacking(framework, DENSE, fields) == feature


def test_what_a_framework_does_not_run_is_named_by_its_field():
    assert str(lacking("megatron", DENSE, {**PIPED, "zero_stage": 3})).startswith("zero_stage is 3 with a pipeline")
    many = {**INTERLEAVED, "micro_batch": 16}
    assert str(lacking("megatron", DENSE, many)).startswith("micro_batch makes 2 micro-batches for 4 interleaved")
    halves = replace(frameworks.load("megatron"), recompute_some_layers=False)
    half = {"recompute": "full", "recompute_share": 0.5}
    assert lacking(halves, DENSE, half) == "share 0.5 where blocks are recomputed all or none"


def test_stages_of_which_only_the_ends_differ():
    ends = replace(frameworks.load("megatron"), uneven_stages="ends")
    assert lacking(ends, DENSE, {**PIPED, "layers_per_stage": (7, 9, 9, 7)}) is None
    assert lacking(ends, DENSE, {**PIPED, "layers_per_stage": (9, 7, 7, 9)}) is not None
    assert lacking(ends, DENSE, {**PIPED, "layers_per_stage": (8, 9, 8, 7)}) is not None
    assert lacking(ends, DENSE, {"pipeline_parallel": 2, "layers_per_stage": (17, 15)}) is None
    assert lacking(ends, DENSE, {"pipeline_parallel": 2, "layers_per_stage": (18, 14)}) is not None


def test_a_plan_that_does_not_suit_the_model():
    unknown = lacking("fsdp", DENSE, {"zero_stage": 3, "recompute": ("nonsense",)})
    assert unknown == "recompute 'nonsense' is no operator or module of the model"


def test_other_chips_than_the_clusters():
    half = replace(resolved(DENSE, {}), data_parallel=8)
    assert missing_feature(half, DENSE, CLUSTER, frameworks.load("megatron")) == "8 of 16 chips are used"


def test_experts_are_whole_or_cut_as_the_layers_around_them():
    assert lacking("megatron", EXPERTS, {"expert_parallel": 8}) is None
    wide = {"tensor_parallel": 4, "expert_parallel": 2, "sequence_parallel": True}
    assert lacking("megatron", EXPERTS, {**wide, "expert_tensor_parallel": 1}) is None
    assert lacking("megatron", EXPERTS, {**wide, "expert_tensor_parallel": 4}) is None
    between = lacking("megatron", EXPERTS, {**wide, "expert_tensor_parallel": 2})
    assert between == "expert_tensor_parallel 2 is neither 1 nor tensor_parallel 4"
    wider = lacking("megatron", EXPERTS, {**wide, "expert_tensor_parallel": 8})
    assert wider == "expert_tensor_parallel 8 does not divide tensor_parallel 4"
    inside = {"pipeline_parallel": 2, "axis_order": "tp-cp-pp-dp", "expert_parallel": 4}
    along = {**inside, "tensor_parallel": 4, "expert_tensor_parallel": 1, "sequence_parallel": True}
    assert lacking("megatron", EXPERTS, along) is None
    assert lacking("megatron", EXPERTS, inside) == "axis_order tp-cp-pp-dp with experts spread over replicas"
    assert lacking("megatron", EXPERTS, {"expert_parallel": 16}) == "expert_parallel 16 is none of 1, 2, 4, 8"
    assert lacking("fsdp", EXPERTS, {"expert_parallel": 2}) == "expert_parallel 2 is none of 1"


@pytest.mark.parametrize(
    ("framework", "job", "written", "same"),
    [
        ("megatron", DENSE, {**PIPED, "zero_stage": 1, "zero_group": 1}, {**PIPED}),
        ("megatron", DENSE, {**PIPED, "zero_stage": 2}, {**PIPED, "zero_stage": 1}),
        ("torchtitan", DENSE, {**PIPED, "zero_stage": 1}, {**PIPED, "zero_stage": 2}),
        ("deepspeed", DENSE, {"tensor_parallel": 4, "pipeline_parallel": 4, "axis_order": "tp-cp-pp-dp"},
         {"tensor_parallel": 4, "pipeline_parallel": 4}),
        ("deepspeed", DENSE, {"axis_order": "tp-cp-pp-dp"}, {}),
        ("megatron", DENSE, {"recompute": ("core_attn",)}, {"recompute": "selective"}),
        ("megatron", DENSE, {"recompute": ()}, {}),
        ("megatron", DENSE, {"recompute_share": 0.3}, {}),
        ("megatron", DENSE, {"recompute": ("mlp", "layernorm", "mlp")}, {"recompute": ("layernorm", "mlp")}),
        ("megatron", DENSE,
         {"recompute_by_block": ({"blocks": 30, "recompute": "full"}, {"blocks": 2, "recompute": "full"})},
         {"recompute": "full"}),
        ("megatron", EXPERTS, {"recompute": ("feed_forward_norm", "expert.activation", "mixer_norm")},
         {"recompute": ("layernorm", "moe_act")}),
        ("megatron", LATENT, {"recompute": ("mixer_norm", "feed_forward_norm", "mla_up_proj")},
         {"recompute": ("layernorm", "mla_up_proj")}),
    ],
)  # fmt: skip
def test_other_words_for_the_same_plan(framework, job, written, same):
    known, plan, expected = frameworks.load(framework), resolved(job, written), resolved(job, same)
    assert canonical(plan, job, CLUSTER, known) == expected
    assert missing_feature(plan, job, CLUSTER, known) is None
    before, after = (evaluate(each, job, CLUSTER, known, energy=False) for each in (plan, expected))
    assert (before.step_time_s, before.memory_by_stage) == (after.step_time_s, after.memory_by_stage)


def test_the_order_of_axes_means_nothing_on_one_tier():
    node, known = hardware.cluster("h100-sxm", chips=8), frameworks.load("deepspeed")
    spec = PlanSpec(pipeline_parallel=2, axis_order="tp-cp-pp-dp")
    plan = resolve_plan(spec, chips=8, global_batch=DENSE.global_batch, num_layers=DENSE.model.num_layers)
    assert missing_feature(plan, DENSE, node, known) is None
    both = (evaluate(each, DENSE, node, known, energy=False) for each in (plan, canonical(plan, DENSE, node, known)))
    assert len({found.step_time_s for found in both}) == 1


def test_one_stage_keeps_the_fewest_microbatches():
    known, plan = frameworks.load("ideal"), resolved(DENSE, {"pipeline_schedule": "gpipe"})
    same = canonical(plan, DENSE, CLUSTER, known)
    assert same == resolved(DENSE, {})
    before, after = (evaluate(each, DENSE, CLUSTER, known, energy=False) for each in (plan, same))
    assert before.step_time_s == after.step_time_s
    assert before.peak_bytes > after.peak_bytes


def test_the_operators_of_a_checkpointed_function_are_not_the_function():
    attention = [o.name for o in DENSE.graph().layers["full"].operators if "key_seq" in o.dims]
    assert attention
    missing = lacking("megatron", DENSE, {"recompute": tuple(attention)})
    assert missing == f"recompute of {', '.join(sorted(attention))} is not on the menu"


def test_operators_that_other_layers_have_too_are_no_module():
    hybrid = Job(models.load("kimi-linear-48b-a3b"), seq_len=4096, global_batch=64)
    up = tuple(MODULES["mla_up_proj"].operators(hybrid.graph().layers["full_sparse"]))
    assert "query" in {o.name for o in hybrid.graph().layers["linear_sparse"].operators} & set(up)
    assert lacking("megatron", hybrid, {"recompute": ("mla_up_proj",)}) is None
    assert lacking("megatron", hybrid, {"recompute": up}) == f"recompute of {', '.join(sorted(up))} is not on the menu"


def runs(plan: Plan, framework: Framework) -> bool:
    try:
        check_runs(plan, DENSE, CLUSTER, framework)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("framework", ["megatron", "megatron-2022", "deepspeed", "fsdp", "torchtitan"])
def test_the_space_holds_what_suits_and_runs(framework):
    """Of plans in the space's own words it holds those, and only those, that suit the model and run."""
    known = frameworks.load(framework)
    kind = known.context_parallel[0] if known.context_parallel else "all_gather"
    values = product((1, 2, 16), (1, 2, 4), (1, 2), (1, 4), (0, 1, 2, 3), ("none", "full"))
    seen: set[bool] = set()
    for t, p, c, micro_batch, zero_stage, again in values:
        # of a pipeline stages 1 and 2 are one: the space holds both words where the framework has either
        if t * p * c > 16 or (zero_stage in (1, 2) and p > 1):
            continue
        fields = {"tensor_parallel": t, "pipeline_parallel": p, "context_parallel": c, "context_kind": kind}
        plan = resolved(DENSE, {**fields, "micro_batch": micro_batch, "zero_stage": zero_stage, "recompute": again})
        if zero_stage and plan.zero_group == 1:
            continue
        assert (missing_feature(plan, DENSE, CLUSTER, known) is None) == runs(plan, known)
        seen.add(runs(plan, known))
    assert seen == {True, False}
