"""What must hold whatever the calibration: bounds, conservation, and the direction every knob turns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from json_schema import keeps_to

from dovetail import frameworks, hardware
from dovetail.cost.units import OPERANDS
from dovetail.errors import InputError
from dovetail.plans.plan_file import Task, schema, task_of
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from valid_plans import EXPERTS, PLAN_FILES, Document, costed, model, with_changes

DOCS = Path(__file__).parents[3] / "docs"

#: A model whose every size divides by eight, on one chip.
ALONE: Document = {
    "job": {"model": model(8), "seq_len": 2048, "global_batch": 32},
    "cluster": {"name": "hgx-h100", "chips": 1, "framework": "ideal"},
    "plan": {},
}


def task_for(document: Document, **parts: Document) -> Task:
    return task_of(with_changes(document, **parts), "case.yaml")


def run(document: Document, **parts: Document) -> Evaluation:
    task = task_for(document, **parts)
    return evaluate(task.plan, task.job, task.cluster, task.framework)


def cost(document: Document, **parts: Document) -> Evaluation:
    task = costed(with_changes(document, **parts))
    return evaluate(task.plan, task.job, task.cluster, task.framework)


def least_seconds(task: Task) -> float:
    """Every useful operation at the published peak on every chip."""
    rates = task.cluster.chip.dense_flops.published()
    peak = rates.get(OPERANDS[task.job.precision], rates.get("bf16", rates.get("fp16", 0.0)))
    flops = 3 * float(task.job.graph().forward_flops(task.job.global_batch, task.job.seq_len, causal=True))
    return flops / (peak * task.cluster.chips)


def part(result: Evaluation, name: str) -> float:
    return max(stage[name] for stage in result.memory_by_stage)


@pytest.mark.parametrize("chip", hardware.chip_names())
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8", "fp4", "fp32"])
def test_no_chip_is_faster_than_its_peak(chip, precision):
    task = task_for(
        ALONE,
        job={"model": "llama-3-8b", "precision": precision},
        cluster={"name": None, "chip": chip, "chips": 4},
        plan={"tensor_parallel": 4},
    )
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    assert least_seconds(task) <= result.step_time_s < math.inf
    assert result.peak_bytes > 0


MODELS = {
    "dense": model(8),
    "mixture": model(8, feed_forward=EXPERTS),
    "latent": "deepseek-v2-lite",
    "hybrid": "qwen3-next-80b-a3b",
    "state": "mamba2-2.7b",
}


SCHEDULES = {1: [None], 2: [None, "gpipe", "1f1b", "interleaved", "zb_h1", "dualpipe"]}


@st.composite
def any_plan(draw: st.DrawFn) -> Document:
    """A plan file that is likely right: sensible numbers in every field."""
    name = draw(st.sampled_from(sorted(MODELS)))
    tensor, context, pipeline, data = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(4))
    schedule = draw(st.sampled_from(SCHEDULES[min(pipeline, 2)]))
    stage = tensor * context * data
    plan = {
        "tensor_parallel": tensor, "context_parallel": context, "pipeline_parallel": pipeline,
        "context_kind": draw(st.sampled_from(["all_gather", "ring", "ulysses"])),
        "virtual_stages": 2 if schedule == "interleaved" else 1, "pipeline_schedule": schedule,
        "zero_stage": draw(st.sampled_from([0, 1, 2, 3])), "micro_batch": draw(st.sampled_from([1, 2])),
        "sequence_parallel": tensor > 1 and draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
    }  # fmt: skip
    if name in ("mixture", "latent", "hybrid"):
        plan["expert_tensor_parallel"] = draw(st.sampled_from([1, tensor]))
        plan["expert_parallel"] = draw(st.sampled_from([1, stage // plan["expert_tensor_parallel"]]))
    rounds = draw(st.sampled_from([1, 2])) * (2 * pipeline if schedule == "dualpipe" else 1)
    job = {"model": MODELS[name], "seq_len": 2048, "global_batch": data * plan["micro_batch"] * rounds}
    framework = draw(st.sampled_from(["ideal", "ideal", *frameworks.names()]))
    return with_changes(
        {}, job=job, cluster={"name": "eos", "chips": stage * pipeline, "framework": framework}, plan=plan
    )


@given(document=any_plan())
def test_every_plan_is_refused_or_has_finite_figures_above_the_bound(document):
    try:
        task = task_of(document, "case.yaml")
    except InputError:
        assume(False)
    else:
        result = evaluate(task.plan, task.job, task.cluster, task.framework)
        assert least_seconds(task) <= result.step_time_s < math.inf
        assert sum(result.breakdown.values()) == pytest.approx(result.step_time_s, rel=1e-12)
        assert all(seconds >= 0 for seconds in result.breakdown.values())
        assert all(0 <= size < math.inf for stage in result.memory_by_stage for size in stage.values())


def work(result: Evaluation) -> float:
    return sum(result.breakdown[name] for name in ("forward", "backward"))


@pytest.mark.parametrize("name", PLAN_FILES)
def test_twice_the_batch_is_twice_the_work(name):
    batch = PLAN_FILES[name]["job"]["global_batch"]
    once, twice = run(PLAN_FILES[name]), run(PLAN_FILES[name], job={"global_batch": 2 * batch})
    assert work(twice) == pytest.approx(2 * work(once))
    assert once.step_time_s < twice.step_time_s <= 2 * once.step_time_s
    assert twice.breakdown["optimizer"] == once.breakdown["optimizer"]


def test_twice_the_microbatch_is_at_most_twice_the_work():
    once, twice = run(ALONE), run(ALONE, plan={"micro_batch": 2})
    assert 0.4 * work(once) < work(twice) <= work(once)
    assert part(twice, "activations") == pytest.approx(2 * part(once, "activations"))
    assert part(twice, "weights") == part(once, "weights")


def test_a_slower_network_costs_time_and_no_memory():
    def with_links(rate: str) -> Evaluation:
        tiers = [{"name": "links", "topology": "switch", "bytes_per_s": rate, "latency_s": "1 us"}]
        cluster = {"name": None, "chip": "h100-sxm", "chips": 8, "tiers": tiers}
        return run(ALONE, cluster=cluster, plan={"tensor_parallel": 4})

    fast, slow = with_links("900 GB/s"), with_links("90 GB/s")
    assert fast.step_time_s < slow.step_time_s
    assert fast.memory_by_stage == slow.memory_by_stage


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_more_tensor_parallel_chips_need_less_memory_each(sequence_parallel):
    peaks = []
    for degree in (2, 4, 8):
        plan = {"tensor_parallel": degree, "sequence_parallel": sequence_parallel}
        result = run(ALONE, cluster={"chips": degree}, plan=plan)
        peaks.append(result.peak_bytes)
        for name in ("weights", "gradients", "optimizer", "activations"):
            whole = part(run(ALONE), name)
            assert whole / degree - 1 <= part(result, name) < whole
        if sequence_parallel:
            # nothing is left whole but the statistics and tokens of a few kilobytes
            assert part(result, "activations") == pytest.approx(part(run(ALONE), "activations") / degree, rel=0.01)
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("framework", ["ideal", "megatron", "torchtitan", "deepspeed"])
def test_each_zero_stage_keeps_less_state(framework):
    stages = frameworks.load(framework).zero_stages
    cluster, states = {"framework": framework, "chips": 8}, []
    for stage in stages:
        result = cost(ALONE, cluster=cluster, plan={"zero_stage": stage})
        states.append(sum(part(result, name) for name in ("weights", "gradients", "optimizer")))
    assert states == sorted(states, reverse=True)
    assert len(set(states)) == len(states)


@pytest.mark.parametrize(("stage", "name"), [(1, "optimizer"), (2, "gradients"), (3, "weights")])
def test_zero_shards_by_exactly_its_group(stage, name):
    cluster = {"chips": 8, "framework": "megatron"}
    whole = part(run(ALONE, cluster=cluster), name)
    for group in (2, 4, 8):
        result = run(ALONE, cluster=cluster, plan={"zero_stage": stage, "zero_group": group})
        assert part(result, name) == pytest.approx(whole / group)


@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("name", ["dense", "interleaved", "context"])
def test_more_recompute_keeps_less_and_takes_longer(name, attention):
    results = [
        cost(
            PLAN_FILES[name],
            job={"attention": attention},
            cluster={"framework": "megatron"},
            plan={"recompute": choice, "recompute_share": None},
        )
        for choice in ("none", "selective", "full")
    ]
    kept = [part(result, "activations") for result in results]
    seconds = [result.step_time_s for result in results]
    assert kept[0] >= kept[1] > kept[2]
    assert seconds[0] <= seconds[1] < seconds[2]
    assert results[0].breakdown["recompute"] == 0
    # at most the whole forward runs again: a third of the work
    assert results[2].breakdown["recompute"] <= results[2].breakdown["forward"] * (1 + 1e-9)


def test_recomputing_half_of_the_blocks_is_half_way():
    task = task_for(ALONE, plan={"recompute": "full"})
    plans = (task.plan, replace(task.plan, recompute_share=0.5))
    none, (full, half) = run(ALONE), (evaluate(plan, task.job, task.cluster, task.framework) for plan in plans)
    for figure in (lambda r: r.step_time_s, lambda r: part(r, "activations")):
        assert figure(half) == pytest.approx((figure(none) + figure(full)) / 2)


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_selective_recompute_of_unfused_attention_removes_five_a_s_squared_b(degree):
    """Korthikanti et al. 2022, section 5: scores, their softmax and its dropout, 5·a·s²·b/t bytes a layer."""
    heads, seq, batch = 16, 2048, 2
    gpt = model(4, mixer={"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": 64})
    document = with_changes(
        ALONE,
        job={"model": gpt | {"dropout": True}, "attention": "unfused"},
        cluster={"chips": degree},
        plan={"tensor_parallel": degree, "micro_batch": batch},
    )
    none, selective = (run(document, plan={"recompute": choice}) for choice in ("none", "selective"))
    scores = 5 * heads * seq * seq * batch / degree
    assert part(none, "activations") - part(selective, "activations") == 4 * scores
    # those of one layer exist again while its backward runs
    at_work = [result.memory_by_phase[0]["backward of the last layer"]["layer at work"] for result in (none, selective)]
    assert at_work[1] - at_work[0] == scores


@pytest.mark.parametrize("framework", [name for name in frameworks.names() if 0 in frameworks.load(name).zero_stages])
def test_state_of_a_model_on_one_chip_is_its_parameters_times_the_frameworks_bytes(framework):
    for name in ("gpt2-1.5b", "llama-3.2-1b", "llama-3-8b"):
        job = {"model": name, "seq_len": 1024}
        task = costed(with_changes(ALONE, job=job, cluster={"framework": framework}, plan={"recompute": "full"}))
        result = evaluate(task.plan, task.job, task.cluster, task.framework)
        state = sum(part(result, part_name) for part_name in ("weights", "gradients", "optimizer"))
        expected = task.job.graph().parameters() * task.framework.bytes_per_parameter("bf16")
        assert state == pytest.approx(expected), name


def test_parts_of_memory_add_up_over_stages_to_the_whole_model():
    """Without replication nothing is lost between stages; a tied table stands on the first and the last."""
    whole = run(ALONE)
    for stages in (2, 4, 8):
        cut = run(ALONE, cluster={"chips": stages}, plan={"pipeline_parallel": stages})
        for name in ("weights", "gradients", "optimizer"):
            assert sum(stage[name] for stage in cut.memory_by_stage) == pytest.approx(part(whole, name))


def test_two_directions_hold_every_layer_twice():
    plan = {"pipeline_parallel": 4, "pipeline_schedule": "dualpipe"}
    both = run(ALONE, cluster={"chips": 4}, plan=plan)
    one = run(ALONE, cluster={"chips": 4}, plan=plan | {"pipeline_schedule": "1f1b"})
    weights = [stage["weights"] for stage in one.memory_by_stage]
    assert [stage["weights"] for stage in both.memory_by_stage] == pytest.approx(
        [a + b for a, b in zip(weights, weights[::-1], strict=True)]
    )
    # either end now shares the work of embedding and head
    assert work(both) <= work(one)


def plan_examples() -> list[Mapping[str, Any]]:
    text = (DOCS / "reference" / "plan-file.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]


def test_the_json_schema_allows_what_is_right_and_no_more():
    root = schema()
    for document in (*plan_examples(), *PLAN_FILES.values()):
        assert keeps_to(document, root, root)
    right = PLAN_FILES["dense"]
    for part_name, fields in {
        "job": {"seq_len": 0, "precision": "bf17", "model": 3, "colour": 1},
        "cluster": {"chips": -1, "framework": "", "chip_name": "x"},
        "plan": {"tensor_parallel": 1.5, "zero_stage": 4, "recompute": "some", "tensor_paralel": 8},
    }.items():
        for field, value in fields.items():
            assert not keeps_to(with_changes(right, **{part_name: {field: value}}), root, root), field
    assert not keeps_to({"cluster": right["cluster"]}, root, root)
    assert not keeps_to(with_changes(right, job={"model": model(8) | {"hidden": "wide"}}), root, root)
