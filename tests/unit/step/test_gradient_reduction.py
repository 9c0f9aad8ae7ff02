"""Gradients and updated weights: how often they travel, how wide, and what a framework hides of it."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import yaml

from dovetail import frameworks, models
from dovetail.frameworks import Framework
from dovetail.models import Job
from dovetail.models.job import Precision
from dovetail.plans.plan_file import task_of
from dovetail.step.evaluate import evaluate
from dovetail.step.facts import facts_of
from valid_plans import Document, model, with_changes

SMALL: Document = {
    "job": {"model": model(8), "seq_len": 1024, "global_batch": 128},
    "cluster": {"name": "hgx-h100", "chips": 64, "framework": "ideal"},
    "plan": {"micro_batch": 1},
}


def exposing(framework: Framework) -> Framework:
    """The framework, if it hid nothing of its reductions and gathers."""
    off: dict[str, Any] = dict.fromkeys(("gradient_reduction", "gradient_reduction_with_pipeline"), "never")
    off |= dict.fromkeys(("weight_gather", "weight_prefetch"), "never")
    return replace(framework, overlaps=replace(framework.overlaps, **off))


def breakdown(framework: Framework | None = None, **parts: Document) -> dict[str, float]:
    task = task_of(with_changes(SMALL, **parts), "case.yaml")
    return dict(evaluate(task.plan, task.job, task.cluster, exposing(framework or task.framework)).breakdown)


@pytest.mark.parametrize("batch", [64, 128, 512])
def test_sharded_gradients_are_reduced_every_microbatch(batch):
    """A shard has no room for the whole gradient, so ZeRO 2 reduces each microbatch's before the next."""
    one, many = (breakdown(job={"global_batch": b}, plan={"zero_stage": 2}) for b in (64, batch))
    assert many["data-parallel"] == pytest.approx(batch / 64 * one["data-parallel"])
    assert many["data-parallel"] > 0
    assert many["gradient reduction"] == 0


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_reduces_once_a_step_with_zero_2(stages):
    plan = {"pipeline_parallel": stages, "zero_stage": 2}
    few, many = (breakdown(job={"global_batch": b}, plan=plan) for b in (128, 512))
    assert few["gradient reduction"] > 0
    assert many["gradient reduction"] == pytest.approx(few["gradient reduction"])
    assert few.get("data-parallel", 0.0) == many.get("data-parallel", 0.0) == 0.0
    # as with sharded optimizer state alone
    once = breakdown(plan=plan | {"zero_stage": 1})
    assert once["gradient reduction"] == pytest.approx(few["gradient reduction"])
    assert once["updated weights"] == pytest.approx(few["updated weights"])


@pytest.mark.parametrize("stages", [1, 2])
def test_sharded_weights_are_reduced_every_microbatch_with_or_without_a_pipeline(stages):
    found = breakdown(plan={"pipeline_parallel": stages, "zero_stage": 3})
    assert found["data-parallel"] > 0
    assert found["gradient reduction"] == 0


@pytest.mark.parametrize("stage", [0, 1])
def test_whole_gradients_are_reduced_once_a_step(stage):
    found = breakdown(plan={"zero_stage": stage})
    assert found["gradient reduction"] > 0
    assert found.get("data-parallel", 0.0) == 0


def reduction_and_gather(framework: Framework, stage: int, precision: Precision = "bf16") -> tuple[float, float]:
    # weights so large that launches and latencies hardly count
    job = {"model": "llama-3.1-405b", "precision": precision, "global_batch": 8}
    found = breakdown(framework, job=job, cluster={"chips": 8}, plan={"zero_stage": stage})
    reduced = found.get("data-parallel", 0.0) + found["gradient reduction"]
    return reduced, found["updated weights"] + found.get("weight-gather", 0.0)


def with_reduction(framework: Framework, width: float) -> Framework:
    states = tuple((name, replace(state, sharded_reduction=width)) for name, state in framework.states)
    return replace(framework, states=states)


def test_gradients_of_sharded_weights_are_reduced_in_their_own_width():
    ideal = frameworks.load("ideal")  # accumulates in 2 bytes
    for stage, factor in ((0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0)):
        plain, wide = (reduction_and_gather(with_reduction(ideal, width), stage)[0] for width in (0.0, 4.0))
        assert wide == pytest.approx(factor * plain, rel=0.1 if factor > 1 else 1e-12), stage


def facts(name: str, precision: Precision = "bf16", **options: Any) -> Any:
    return facts_of(frameworks.load(name), Job(models.load("llama-3-8b"), 8192, 64, precision), **options)


def test_megatrons_sharded_gradients_travel_in_bf16_and_accumulate_in_float32():
    found = facts("megatron")
    assert (found.sharded_reduction_bytes, found.stored_bytes.gradient) == (2, 4)
    # where nothing else is said they travel as they are accumulated
    for name in ("torchtitan", "deepspeed", "maxtext"):
        assert facts(name).sharded_reduction_bytes == facts(name).stored_bytes.gradient


def test_deepspeeds_pipeline_reduces_what_it_accumulates_in_float32():
    assert facts("deepspeed").reduction_bytes == facts("deepspeed", "fp32").reduction_bytes / 2 == 2
    assert facts("deepspeed", stages=2).reduction_bytes == 4
    for name in ("megatron", "torchtitan", "maxtext", "ideal"):
        alone, pipelined = (facts(name, stages=stages) for stages in (1, 4))
        assert alone.reduction_bytes == pipelined.reduction_bytes == alone.stored_bytes.gradient


def test_fp8_weights_are_gathered_as_they_are_kept():
    assert facts("megatron", "fp8").gathered_weight_bytes == 1
    wide: list[tuple[str, Precision]] = [("megatron", "bf16"), ("megatron", "fp4"), ("torchtitan", "fp8")]
    assert [facts(name, precision).gathered_weight_bytes for name, precision in wide] == [2, 2, 2]
    megatron = frameworks.load("megatron")
    fp8, bf16 = (reduction_and_gather(megatron, 1, precision)[1] for precision in ("fp8", "bf16"))
    assert fp8 == pytest.approx(bf16 / 2, rel=0.1)


def test_a_pipeline_hides_reductions_as_other_plans_do_unless_its_framework_says_otherwise():
    for name in frameworks.names():
        entry = files("dovetail.frameworks") / "data" / f"{name}.yaml"
        stated = yaml.safe_load(entry.read_text(encoding="utf-8"))["overlaps"]
        overlaps = frameworks.load(name).overlaps
        expected = stated.get("gradient_reduction_with_pipeline", stated["gradient_reduction"])
        assert overlaps.gradient_reduction_with_pipeline == expected
        assert overlaps.gradient_reduction == stated["gradient_reduction"]
        alone, pipelined = (facts(name, stages=stages).overlaps.gradient_reduction for stages in (1, 4))
        assert (alone == pipelined) == (name != "deepspeed")


def test_deepspeeds_pipeline_reduces_after_the_last_backward():
    alone, pipelined = (facts("deepspeed", stages=stages).overlaps.gradient_reduction for stages in (1, 2))
    assert alone == pytest.approx(1 - frameworks.load("deepspeed").exposed.value)
    assert alone > 0
    assert pipelined == 0


@pytest.mark.parametrize(
    ("name", "schedule", "stages", "hidden"),
    [
        ("megatron", "1f1b", 1, True),  # there are none
        ("megatron", "1f1b", 4, False),
        ("megatron", "interleaved", 4, True),
        ("megatron-2022", "interleaved", 4, False),
        ("deepspeed", "1f1b", 4, False),
        ("torchtitan", "1f1b", 4, True),
        ("ideal", "zb_h1", 4, True),
    ],
)
def test_transfers_are_hidden_in_the_schedules_a_framework_names(name, schedule, stages, hidden):
    assert facts(name, schedule=schedule, stages=stages).overlaps.transfers is hidden


def test_only_the_backward_hides_tensor_parallel_collectives_by_itself():
    megatron = frameworks.load("megatron")
    job = Job(models.load("llama-3-8b"), 8192, 64)
    hidden = 1 - megatron.exposed.value
    own = facts_of(megatron, job).overlaps
    assert own.tensor_forward == 0
    assert own.tensor_backward == pytest.approx(hidden * 0.667)
    tuned = facts_of(replace(megatron, overlaps=replace(megatron.overlaps, tensor_parallel="always")), job).overlaps
    assert (tuned.tensor_forward, tuned.tensor_backward) == pytest.approx((hidden, hidden))


def test_what_costs_time_all_the_same_is_taken_off_every_overlap():
    ideal, job = frameworks.load("ideal"), Job(models.load("llama-3-8b"), 8192, 64)
    names = (
        "tensor_forward", "tensor_backward", "context", "expert", "weight_gather", "updated_weights",
        "gradient_reduction",
    )  # fmt: skip
    for exposed in (0.0, 0.25, 1.0):
        made = replace(ideal, exposed=replace(ideal.exposed, value=exposed))
        overlaps = facts_of(made, job).overlaps
        assert [getattr(overlaps, name) for name in names] == pytest.approx([1 - exposed] * len(names))


def test_a_loss_moves_what_its_framework_says():
    task = task_of(with_changes(SMALL, cluster={"chips": 1}, job={"global_batch": 2}), "case.yaml")
    parts = [
        evaluate(task.plan, task.job, task.cluster, replace(task.framework, loss_traffic=traffic)).breakdown
        for traffic in (0.0, 60.0)
    ]
    grown = {name: parts[1][name] - parts[0][name] for name in parts[0]}
    chip = task.cluster.chip
    # two sequences of 1024 tokens over a vocabulary of 32,000, at what an H100 streams
    least = 2 * 1024 * 32000 * 30 / chip.hbm_bytes_per_s
    for name in ("forward", "backward"):
        assert least < grown.pop(name) < 1.4 * least
    assert all(abs(seconds) < 1e-12 for seconds in grown.values())
