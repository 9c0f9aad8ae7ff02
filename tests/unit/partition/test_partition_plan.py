"""Plans placed: the best cut and recompute of given degrees, against what plan files can say otherwise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dovetail import hardware
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.partition.layer_chain import LayerPartition, partition_seconds, stage_bytes
from dovetail.partition.partition_plan import ChainBuilder, PartitionedPlan, partition_plan
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task, task_of
from dovetail.step.evaluate import evaluate, profiled_job
from dovetail.step.facts import plan_facts
from valid_plans import EXPERTS, Document, costed, model, with_changes

SMALL: Document = {
    "job": {"model": model(16), "seq_len": 4096, "global_batch": 32},
    "cluster": {"chip": "h100-sxm", "chips": 8, "framework": "ideal"},
    "plan": {"pipeline_parallel": 4, "data_parallel": 2, "zero_stage": 1},
}
#: Kinds of plans, and the gigabytes of a chip that make them recompute something, not all.
KINDS: dict[str, tuple[Document, float]] = {
    "1f1b": (SMALL, 3.2),
    "interleaved": (with_changes(SMALL, plan={"virtual_stages": 2}), 4.0),
    "zb_h1": (with_changes(SMALL, plan={"pipeline_schedule": "zb_h1"}), 3.2),
    "gpipe": (with_changes(SMALL, plan={"pipeline_schedule": "gpipe"}), 4.5),
    "one stage": (with_changes(SMALL, plan={"pipeline_parallel": 1, "data_parallel": 8}), 3.5),
    "tensors cut": (
        with_changes(SMALL, plan={"tensor_parallel": 2, "data_parallel": 1, "sequence_parallel": True}), 2.0,
    ),
    "mixture": (
        with_changes(SMALL, job={"model": model(16, feed_forward=EXPERTS)}, plan={"expert_parallel": 2}), 3.0,
    ),
    "sends itself": (with_changes(SMALL, cluster={"framework": "megatron"}), 4.0),
}  # fmt: skip


def task(document: Document, gigabytes: float | None = None) -> Task:
    """The task on chips of so much memory."""
    found = task_of(document, "case.yaml")
    return found if gigabytes is None else with_memory(found, gigabytes)


def with_memory(found: Task, gigabytes: float) -> Task:
    chip = replace(found.cluster.chip, hbm_bytes=gigabytes * 1e9)
    return replace(found, cluster=replace(found.cluster, chip=chip))


def placed(found: Task) -> PartitionedPlan | None:
    return partition_plan(found.plan, found.job, found.cluster, found.framework)


def others(plan: Plan) -> list[Plan]:
    """Plans of the same degrees: words for all blocks, some blocks, cuts that differ by a layer."""
    choices = ["none", "selective", "full", ("mixer_norm", "feed_forward_norm"), ("mlp.activation",)]
    plans = [replace(plan, recompute=choice, recompute_share=s) for choice in choices for s in (0.5, 1.0)]
    cut = plan.layers_per_stage
    for place in range(len(cut) - 1):
        moved = list(cut)
        moved[place] -= 1
        moved[place + 1] += 1
        plans += [replace(plan, recompute=choice, layers_per_stage=tuple(moved)) for choice in ("none", "full")]
    return plans


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_plan_that_fits_is_faster(kind):
    found = task(*KINDS[kind])
    best = placed(found)
    assert best is not None
    assert best.evaluation.fits
    times = [evaluate(plan, found.job, found.cluster, found.framework) for plan in others(found.plan)]
    fitting = [e.step_time_s for e in times if e.fits]
    assert fitting
    assert len(fitting) < len(times), "memory should bind"
    assert best.evaluation.step_time_s <= min(fitting) * (1 + 1e-9)
    assert best.lower_bound_s <= best.evaluation.step_time_s
    assert best.gap < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_it_returns_evaluates_to_the_same(kind):
    found = task(*KINDS[kind])
    best = placed(found)
    assert best is not None
    plan = best.evaluation.plan
    again = evaluate(plan, found.job, found.cluster, found.framework)
    assert again.step_time_s == pytest.approx(best.evaluation.step_time_s, rel=1e-12)
    assert again.peak_bytes <= found.cluster.chip.hbm_bytes
    assert sum(plan.layers_per_stage) == 16 == sum(blocks for blocks, _ in plan.recompute_by_block or ())
    assert any(choice != "none" for _, choice in plan.recompute_by_block or ()), "memory should bind"


@pytest.mark.parametrize("kind", ["1f1b", "tensors cut", "one stage", "zb_h1"])
def test_cuts_of_1f1b_are_proven(kind):
    best = placed(task(*KINDS[kind]))
    assert best is not None
    assert (best.status, best.gap) == ("optimal", pytest.approx(0, abs=1e-9))


def test_with_memory_to_spare_nothing_is_computed_again():
    best = placed(task(SMALL))
    assert best is not None
    assert best.evaluation.plan.recompute_by_block == ((16, "none"),)


def test_a_model_that_does_not_fit_has_no_placement():
    assert placed(task(SMALL, 0.5)) is None


def test_later_stages_recompute_less():
    found = task(*KINDS["1f1b"])
    best = placed(found)
    assert best is not None
    plan = best.evaluation.plan
    again = [choice != "none" for count, choice in plan.recompute_by_block or () for _ in range(count)]
    cut = [0, *(sum(plan.layers_per_stage[: i + 1]) for i in range(4))]
    shares = [sum(again[s:e]) / max(e - s, 1) for s, e in pairwise(cut)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1] == 0


def test_blocks_that_all_choose_the_same_are_a_plan_with_that_choice():
    for choice in ("none", "selective", "full", ["mlp.activation"]):
        one = task(with_changes(SMALL, plan={"recompute": choice}))
        same = task(with_changes(SMALL, plan={"recompute_by_block": [{"blocks": 10, "recompute": choice},
                                                                     {"blocks": 6, "recompute": choice}]}))  # fmt: skip
        first, second = (evaluate(t.plan, t.job, t.cluster, t.framework) for t in (one, same))
        assert first.step_time_s == pytest.approx(second.step_time_s, rel=1e-12)
        assert first.peak_bytes == pytest.approx(second.peak_bytes, rel=1e-12)


def test_blocks_count_where_they_stand():
    """Only the first stage recomputes: only it needs less memory."""
    runs = [{"blocks": 4, "recompute": "full"}, {"blocks": 12, "recompute": "none"}]
    some, none = (
        task(with_changes(SMALL, plan=plan)) for plan in ({"recompute_by_block": runs}, {"recompute": "none"})
    )
    first, second = (evaluate(t.plan, t.job, t.cluster, t.framework).memory_by_stage for t in (some, none))
    assert first[0]["activations"] < second[0]["activations"]
    assert [stage["activations"] for stage in first[1:]] == [stage["activations"] for stage in second[1:]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recompute_by_block": [{"blocks": 15, "recompute": "none"}]}, "plan.recompute_by_block: is for 15 blocks"),
        (
            {"recompute_by_block": [{"blocks": 16, "recompute": "full"}], "recompute": "full"},
            "cannot be combined with recompute or its share",
        ),
        ({"recompute_by_block": [{"blocks": 0, "recompute": "none"}]}, "plan.recompute_by_block.0.blocks"),
        ({"recompute_by_block": [{"blocks": 16}]}, "plan.recompute_by_block.0.recompute: is missing"),
        (
            {"recompute_by_block": [{"blocks": 16, "recompute": ["nonsense"]}]},
            "plan.recompute_by_block: 'nonsense' is no",
        ),
        ({"recompute_by_block": 5}, "plan.recompute_by_block"),
    ],
)
def test_runs_of_blocks_that_make_no_sense(changes, sentence):
    with pytest.raises(InputError) as error:
        task(with_changes(SMALL, plan=changes))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_megatron_cannot_tell_blocks_apart():
    runs = [{"blocks": 4, "recompute": "full"}, {"blocks": 12, "recompute": "none"}]
    with pytest.raises(InputError, match=r"recompute_by_block: tells blocks apart, which megatron"):
        task(with_changes(SMALL, cluster={"framework": "megatron"}, plan={"recompute_by_block": runs}))


def test_modules_are_megatrons_to_name():
    named = with_changes(SMALL, cluster={"framework": "megatron"}, plan={"recompute": ["layernorm", "mlp"]})
    found = task(named)
    none, some, full = (
        evaluate(replace(found.plan, recompute=choice), found.job, found.cluster, found.framework)
        for choice in ("none", found.plan.recompute, "full")
    )
    assert full.peak_bytes < some.peak_bytes < none.peak_bytes
    assert none.step_time_s < some.step_time_s < full.step_time_s
    with pytest.raises(InputError, match=r"recompute: lists layernorm, which deepspeed"):
        task(with_changes(named, cluster={"framework": "deepspeed"}, plan={"zero_stage": 3, "pipeline_parallel": 1,
                                                                            "data_parallel": 8}))  # fmt: skip


#: Kinds of state and of work that a chain must count as an evaluation does, whatever frameworks run.
COUNTED: dict[str, Document] = {
    "plain": SMALL,
    "interleaved": KINDS["interleaved"][0],
    "one stage, tied": with_changes(
        SMALL, job={"model": model(4) | {"head": {"tied": True}}}, plan={"pipeline_parallel": 1, "data_parallel": 8}
    ),
    "tied": with_changes(SMALL, job={"model": model(16) | {"head": {"tied": True}}}),
    "prediction modules": with_changes(
        SMALL, job={"model": model(16) | {"multi_token_prediction": {"modules": 2, "block": "block"}}}
    ),
    "fp8": with_changes(SMALL, job={"precision": "fp8"}, cluster={"framework": "megatron"}),
    "megatron": with_changes(SMALL, cluster={"framework": "megatron"}, plan={"tensor_parallel": 2, "data_parallel": 1}),
    "zero 3": with_changes(
        SMALL, cluster={"framework": "torchtitan"}, plan={"pipeline_parallel": 1, "data_parallel": 8, "zero_stage": 3}
    ),
    "deepspeed": with_changes(
        SMALL, cluster={"framework": "deepspeed"}, plan={"pipeline_parallel": 1, "data_parallel": 8, "zero_stage": 2}
    ),
    "mixture": KINDS["mixture"][0],
}


@pytest.mark.parametrize("kind", COUNTED)
def test_a_chain_counts_what_an_evaluation_counts(kind):
    """Bytes of every stage to the last, and of the step's seconds never more."""
    found = costed(COUNTED[kind])
    facts = plan_facts(found.plan, found.framework, found.job)
    known = calibration(found.cluster.chip, found.job.precision)
    profiled = profiled_job(found.plan, found.job, found.cluster, facts, known.efficiencies)
    builder = ChainBuilder(found.plan, profiled, found.cluster.chip.usable_bytes)
    chain = builder.chain(relaxed=False)
    stages = found.plan.pipeline_parallel
    # what of a layer's weights and gradients is whole differs with its neighbours
    sharded_by_layers = found.plan.zero_stage >= 2 and not facts.parameter_bytes.by_weight
    random = np.random.default_rng(7)
    for _ in range(5):
        ends = np.cumsum([1 + found.plan.layers_per_stage[0], *found.plan.layers_per_stage[1:]])
        ends[-1] += 1
        options = tuple(int(random.integers(len(chain.classes[c].saved_bytes))) for c in chain.order)
        placement = LayerPartition(tuple(int(end) for end in ends), options)
        plan = builder.placed(placement)
        answer = evaluate(plan, found.job, found.cluster, found.framework)
        for stage, parts in enumerate(answer.memory_by_stage):
            most, least = (
                stage_bytes(builder.chain(relaxed=r), stage, placement.chunks[stage::stages], options)
                * (1 + facts.allocator_overhead)
                + facts.context_bytes
                for r in (False, True)
            )
            assert least <= sum(parts.values()) * (1 + 1e-9)
            assert most >= sum(parts.values()) * (1 - 1e-9)
            if not sharded_by_layers:
                assert most == pytest.approx(sum(parts.values()))
        seconds = partition_seconds(chain, placement) + builder.constant_s(answer.breakdown)
        assert seconds <= answer.step_time_s * (1 + 1e-12)
        assert seconds >= answer.step_time_s * 0.9
        least = partition_seconds(builder.chain(relaxed=True), placement) + builder.constant_s(answer.breakdown)
        assert least <= seconds * (1 + 1e-12)


@pytest.mark.parametrize("kind", COUNTED)
def test_no_choice_of_operators_for_all_blocks_is_below_the_bound(kind):
    whole = costed(COUNTED[kind])
    peak = evaluate(whole.plan, whole.job, whole.cluster, whole.framework).peak_bytes
    found = with_memory(whole, 0.9 * peak / 1e9)
    best = placed(found)
    graph = found.job.graph()
    names = sorted({o.name for layer in graph.layers.values() for o in layer.operators})
    random, fitting = np.random.default_rng(3), 0
    for _ in range(60):
        share = random.uniform(0.2, 1.0)
        again = tuple(name for name in names if random.uniform() < share) or "none"
        answer = evaluate(replace(found.plan, recompute=again), found.job, found.cluster, found.framework, energy=False)
        if answer.fits:
            fitting += 1
            assert best is not None
            assert best.lower_bound_s <= answer.step_time_s * (1 + 1e-9)
    assert fitting


def test_plans_of_two_directions_are_refused():
    found = task(with_changes(SMALL, plan={"pipeline_schedule": "dualpipe"}))
    with pytest.raises(InputError, match=r"plan: pipeline_schedule: is dualpipe"):
        placed(found)


def test_hardware_is_left_as_it_was():
    before = hardware.cluster("h100-sxm", chips=8)
    placed(task(SMALL, 3.2))
    assert hardware.cluster("h100-sxm", chips=8) == before
