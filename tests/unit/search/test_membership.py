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
from dovetail.plans.space import Space
from dovetail.profile.modules import MODULES
from dovetail.search import plan as search
from dovetail.search.membership import Coverage, canonical, covers
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
    return covers(resolved(job, fields), job, CLUSTER, known).reason


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
        ("megatron", {**PIPED, "recompute": "full", "recompute_share": 0.625}),
        ("deepspeed", {"zero_stage": 3, "recompute": "full"}),
        ("fsdp", {"zero_stage": 3, "zero_group": 8, "recompute": "full"}),
        ("ideal", {"zero_stage": 3, "recompute": ("mlp.up", "mixer_norm")}),
        ("torchtitan", {**PIPED, "zero_stage": 2, "recompute": "selective"}),
        ("torchtitan", {**INTERLEAVED, "layers_per_stage": (2,) * 16}),
        ("maxtext", {"zero_stage": 3, "recompute": "full"}),
        ("maxtext", {"zero_stage": 3, "recompute": "minimal"}),
    ],
)  # fmt: skip
def test_plans_of_the_space(framework, fields):
    assert lacking(framework, DENSE, fields) is None


@pytest.mark.parametrize(
    ("framework", "fields", "reason"),
    [
        ("megatron", {"recompute": "full", "recompute_share": 0.3},
         "recompute_share is 0.3 of the 32 blocks of a stage"),
        ("megatron", {**PIPED, "recompute": "full", "recompute_share": 0.4375},
         "recompute_share is 0.4375 of the 8 blocks of a stage"),
        ("megatron", {**PIPED, "layers_per_stage": (7, 9, 9, 7), "recompute": "full", "recompute_share": 0.5},
         "recompute_share is 0.5 of uneven stages"),
        ("megatron", {"recompute": "selective", "recompute_share": 0.5},
         "recompute_share is 0.5 of recompute selective"),
        ("deepspeed", {"recompute": "full", "recompute_share": 0.5}, "recompute_share is 0.5"),
        ("megatron", {"recompute": ("mlp", "mlp.activation")}, "recompute lists mlp.activation"),
        ("deepspeed", {"recompute": "selective"}, "recompute is selective"),
        ("maxtext", {"zero_stage": 3, "recompute": ("minimal", "save_qkv_proj")}, "recompute has 2 policies at once"),
        ("megatron", {"recompute_by_block": ({"blocks": 16, "recompute": "full"}, {"blocks": 16, "recompute": "none"})},
         "recompute_by_block tells blocks apart"),
        ("ideal", {**PIPED, "pipeline_schedule": "dualpipe", "layers_per_stage": (7, 9, 9, 7)},
         "layers_per_stage are uneven with dualpipe"),
        ("megatron-2022", {**PIPED, "layers_per_stage": (7, 9, 9, 7)}, "layers_per_stage are uneven"),
        ("deepspeed", {"context_parallel": 2, "context_kind": "ring"}, "context_kind is ring"),
        ("megatron-2022", {"context_parallel": 2}, "context_parallel is 2"),
        ("fsdp", {"pipeline_parallel": 2}, "pipeline_parallel is 2"),
        ("deepspeed", PIPED, "pipeline_parallel is 4"),
        ("megatron", {**PIPED, "pipeline_schedule": "gpipe"}, "pipeline_schedule is gpipe"),
        ("torchtitan", {**PIPED, "axis_order": "tp-cp-pp-dp"}, "axis_order is tp-cp-pp-dp"),
        ("megatron-2022", {"zero_stage": 3}, "zero_stage is 3"),
        ("deepspeed", {"zero_stage": 2, "zero_group": 8}, "zero_group is 8"),
        ("fsdp", {"zero_stage": 3, "zero_group": 1}, "zero_stage is 3 where no chip shares its state"),
        ("fsdp", {}, "zero_stage is 0"),
    ],
)  # fmt: skip
def test_what_does_not_run_is_in_no_space(framework, fields, reason):
    version = frameworks.load(framework).version
    assert lacking(framework, DENSE, fields) == f"{reason}, which {framework} ({version}) does not run"


@pytest.mark.parametrize("layers", [(1, 3, *[2] * 14), (4, *[2] * 14, 0), (0, *[3] * 4, *[2] * 10, 0)])
def test_interleaved_partitions_that_are_not_listed_are_in_the_space_untried(layers):
    known = frameworks.load("megatron")
    found = covers(resolved(DENSE, {**INTERLEAVED, "layers_per_stage": layers}), DENSE, CLUSTER, known)
    assert found.covered
    assert not found.partition_tried
    even = covers(resolved(DENSE, INTERLEAVED), DENSE, CLUSTER, known)
    assert even.covered
    assert even.partition_tried


def test_a_narrower_space_lacks_what_it_leaves_out():
    known, plan = frameworks.load("megatron"), resolved(DENSE, {**PIPED, "recompute": ("core_attn",)})
    space = Space(tensor_parallel=(2, 4), recompute=("selective",))
    assert covers(plan, DENSE, CLUSTER, known, space) == Coverage(None, replace(plan, recompute="selective"), True)
    wider = resolved(DENSE, {"tensor_parallel": 8, "recompute": "selective"})
    assert covers(wider, DENSE, CLUSTER, known, space).reason == "tensor_parallel 8 is none of 2, 4"
    uneven = resolved(DENSE, {**PIPED, "layers_per_stage": (7, 9, 9, 7)})
    assert covers(uneven, DENSE, CLUSTER, known, Space(partition="ends")).covered
    even = covers(uneven, DENSE, CLUSTER, known, Space(partition="even"))
    assert even.reason == "stages of 7, 2 × 9, 7 blocks are not even"


def test_what_a_framework_does_not_run_is_named_by_its_field():
    assert str(lacking("megatron", DENSE, {**PIPED, "zero_stage": 3})).startswith("zero_stage is 3 with a pipeline")
    many = {**INTERLEAVED, "micro_batch": 16}
    assert str(lacking("megatron", DENSE, many)).startswith("micro_batch makes 2 micro-batches for 4 interleaved")
    halves = replace(frameworks.load("megatron"), recompute_some_layers=False)
    half = {"recompute": "full", "recompute_share": 0.5}
    assert str(lacking(halves, DENSE, half)).startswith("recompute_share is 0.5, which megatron")


def test_stages_of_which_only_the_ends_differ():
    ends = replace(frameworks.load("megatron"), uneven_stages="ends")

    def found(fields: Mapping[str, object]) -> tuple[bool, bool]:
        coverage = covers(resolved(DENSE, fields), DENSE, CLUSTER, ends)
        return coverage.covered, coverage.partition_tried

    assert found({**PIPED, "layers_per_stage": (7, 9, 9, 7)}) == (True, True)
    assert found({"pipeline_parallel": 2, "layers_per_stage": (17, 15)}) == (True, True)
    # ends that hold more than the others are not tried
    assert found({**PIPED, "layers_per_stage": (9, 7, 7, 9)}) == (True, False)
    assert found({"pipeline_parallel": 2, "layers_per_stage": (18, 14)}) == (True, False)
    assert found({**PIPED, "layers_per_stage": (8, 9, 8, 7)}) == (False, False)


def test_a_plan_that_does_not_suit_the_model():
    unknown = lacking("fsdp", DENSE, {"zero_stage": 3, "recompute": ("nonsense",)})
    assert unknown == "recompute 'nonsense' is no operator or module of the model"


def test_other_chips_than_the_clusters():
    half = replace(resolved(DENSE, {}), data_parallel=8, zero_group=8)
    assert covers(half, DENSE, CLUSTER, frameworks.load("megatron")).reason == "8 of 16 chips are used"


def test_experts_are_sharded_over_any_part_of_the_chips_around_them():
    assert lacking("megatron", EXPERTS, {"expert_parallel": 8}) is None
    wide = {"tensor_parallel": 4, "expert_parallel": 2, "sequence_parallel": True}
    for inner in (1, 2, 4):
        assert lacking("megatron", EXPERTS, {**wide, "expert_tensor_parallel": inner}) is None
    wider = str(lacking("megatron", EXPERTS, {**wide, "expert_tensor_parallel": 8}))
    assert wider.startswith("expert_tensor_parallel is 8 with tensor_parallel 4")
    deepspeed = str(lacking("deepspeed", EXPERTS, {"tensor_parallel": 4, "expert_tensor_parallel": 2}))
    assert deepspeed.startswith("expert_tensor_parallel is 2, which deepspeed")
    inside = {"pipeline_parallel": 2, "axis_order": "tp-cp-pp-dp", "expert_parallel": 4}
    along = {**inside, "tensor_parallel": 4, "expert_tensor_parallel": 1, "sequence_parallel": True}
    assert lacking("megatron", EXPERTS, along) is None
    assert lacking("megatron", EXPERTS, inside) == "axis_order is tp-cp-pp-dp with experts spread over replicas"
    many = lacking("megatron", EXPERTS, {"expert_parallel": 16})
    assert many == "expert_parallel leaves 16 chips to share 8 experts (full)"
    spread = str(lacking("fsdp", EXPERTS, {"zero_stage": 3, "expert_parallel": 2}))
    assert spread.startswith("expert_parallel is 2, which fsdp")


@pytest.mark.parametrize(
    ("framework", "written", "same"),
    [
        ("megatron", {**PIPED, "zero_stage": 1, "zero_group": 1}, {**PIPED}),
        ("megatron", {"tensor_parallel": 4, "pipeline_parallel": 4, "axis_order": "tp-cp-pp-dp"},
         {"tensor_parallel": 4, "pipeline_parallel": 4}),
        ("megatron", {"axis_order": "tp-cp-pp-dp"}, {}),
        ("megatron", {"recompute": ("core_attn",)}, {"recompute": "selective"}),
        ("torchtitan", {"recompute": ("op_sac",)}, {"recompute": "selective"}),
        ("megatron", {"recompute": ()}, {}),
        ("megatron", {"recompute": ("mlp", "layernorm", "mlp")}, {"recompute": ("layernorm", "mlp")}),
    ],
)  # fmt: skip
def test_other_words_for_the_same_plan(framework, written, same):
    known, plan, expected = frameworks.load(framework), resolved(DENSE, written), resolved(DENSE, same)
    assert covers(plan, DENSE, CLUSTER, known) == Coverage(None, expected, partition_tried=True)
    check_same(plan, expected, DENSE, known)


def check_same(plan: Plan, expected: Plan, job: Job, known: Framework) -> None:
    assert canonical(plan, job, CLUSTER, known) == expected
    before, after = (evaluate(each, job, CLUSTER, known, energy=False) for each in (plan, expected))
    assert (before.step_time_s, before.memory_by_stage) == (after.step_time_s, after.memory_by_stage)


@pytest.mark.parametrize(
    ("framework", "job", "written", "same"),
    [
        ("megatron", DENSE, {**PIPED, "zero_stage": 2}, {**PIPED, "zero_stage": 1}),
        ("torchtitan", DENSE, {**PIPED, "zero_stage": 1}, {**PIPED, "zero_stage": 2}),
        ("deepspeed", DENSE, {"axis_order": "tp-cp-pp-dp"}, {}),
        ("megatron", DENSE, {"recompute_share": 0.3}, {}),
        ("megatron", DENSE,
         {"recompute_by_block": ({"blocks": 30, "recompute": "full"}, {"blocks": 2, "recompute": "full"})},
         {"recompute": "full"}),
        ("megatron", EXPERTS, {"recompute": ("feed_forward_norm", "expert.activation", "mixer_norm")},
         {"recompute": ("layernorm", "moe_act")}),
        ("megatron", LATENT, {"recompute": ("mixer_norm", "feed_forward_norm", "mla_up_proj")},
         {"recompute": ("layernorm", "mla_up_proj")}),
    ],
)  # fmt: skip
def test_words_a_framework_does_not_have_are_not_covered_though_another_plan_is_the_same(framework, job, written, same):
    known, plan, expected = frameworks.load(framework), resolved(job, written), resolved(job, same)
    assert "does not run" in str(covers(plan, job, CLUSTER, known).reason)
    assert covers(expected, job, CLUSTER, known).covered
    check_same(plan, expected, job, known)


def test_the_order_of_axes_means_nothing_on_one_tier():
    node, known = hardware.cluster("h100-sxm", chips=8), frameworks.load("megatron")
    spec = PlanSpec(pipeline_parallel=2, axis_order="tp-cp-pp-dp")
    plan = resolve_plan(spec, chips=8, global_batch=DENSE.global_batch, num_layers=DENSE.model.num_layers)
    same = covers(plan, DENSE, node, known).plan
    assert same == replace(plan, axis_order="tp-cp-dp-pp")
    both = (evaluate(each, DENSE, node, known, energy=False) for each in (plan, same))
    assert len({found.step_time_s for found in both}) == 1


def test_a_rank_order_that_is_asked_for_is_kept_where_it_means_something():
    known, space = frameworks.load("megatron"), Space(axis_order=("tp-cp-pp-dp",))
    assert covers(resolved(EXPERTS, {}), EXPERTS, CLUSTER, known, space).covered
    spread = {"pipeline_parallel": 2, "expert_parallel": 8}
    other = covers(resolved(EXPERTS, spread), EXPERTS, CLUSTER, known, space)
    assert other.reason == "axis_order tp-cp-dp-pp is none of tp-cp-pp-dp"
    values = {name: (value,) for name, value in spread.items()} | {"axis_order": space.axis_order}
    found = search(EXPERTS, CLUSTER, known, space=Space(**values, tensor_parallel=(1,), context_parallel=(1,)))
    # experts are spread over replicas, so stages are not inside these
    assert found.certificate.counted == 0
    node = hardware.cluster("h100-sxm", chips=8)
    plan = resolve_plan(PlanSpec(pipeline_parallel=2), chips=8, global_batch=64, num_layers=32)
    assert covers(plan, DENSE, node, known, space).covered


def test_one_stage_keeps_the_fewest_microbatches():
    known, plan = frameworks.load("ideal"), resolved(DENSE, {"pipeline_schedule": "gpipe"})
    same = canonical(plan, DENSE, CLUSTER, known)
    assert same == resolved(DENSE, {})
    before, after = (evaluate(each, DENSE, CLUSTER, known, energy=False) for each in (plan, same))
    assert before.step_time_s == after.step_time_s
    assert before.peak_bytes > after.peak_bytes


def test_operators_that_other_layers_have_too_are_no_module():
    hybrid = Job(models.load("kimi-linear-48b-a3b"), seq_len=4096, global_batch=64)
    up = tuple(MODULES["mla_up_proj"].operators(hybrid.graph().layers["full_sparse"]))
    assert "query" in {o.name for o in hybrid.graph().layers["linear_sparse"].operators} & set(up)
    known = replace(frameworks.load("megatron"), launch=None)
    assert lacking(known, hybrid, {"recompute": ("mla_up_proj",)}) is None
    plan = resolved(hybrid, {"recompute": up})
    assert set(canonical(plan, hybrid, CLUSTER, known).recompute) == set(up)


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
        assert (covers(plan, DENSE, CLUSTER, known).reason is None) == runs(plan, known)
        seen.add(runs(plan, known))
    assert seen == {True, False}
