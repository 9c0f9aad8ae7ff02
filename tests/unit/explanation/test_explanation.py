"""The text has every section, JSON takes the fields, and the interval is the scoreboard's."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import dovetail as dt
from dovetail.cost.calibration import calibration, shipped
from dovetail.cost.recorded_score import scoreboard_record
from dovetail.cost.step_errors import errors_of_class, shipped_errors
from dovetail.explanation.explain import explain
from dovetail.explanation.interval import prediction_interval
from dovetail.plans.words import plan_words
from dovetail.search.plan import plan as search
from dovetail.units import percent_text

SPACE = dt.Space(
    tensor_parallel=(1, 2),
    context_parallel=(1,),
    pipeline_parallel=(1, 2),
    virtual_stages=(1, 2),
    recompute=("none", "full"),
    recompute_share=(1.0,),
    micro_batch=(1, 2),
)


def planned(chip: str, chips: int):
    job = dt.Job(dt.models.load("llama-3.1-8b"), 8192, 32)
    return dt.plan(job, dt.hardware.cluster(chip, chips), "megatron", space=SPACE, tie_margin=0.0)


@pytest.fixture(scope="module")
def answer():
    return planned("h100-sxm", 8)


@pytest.fixture(scope="module")
def found(answer):
    return explain(answer)


def test_the_text_has_every_section(answer, found):
    text = str(found)
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles[1].startswith(f"the fastest plan, {plan_words(answer.plan)}: ")
    starts = ("bottleneck", "seconds of", "bytes of", "neighbouring", "what more", "stays best", "doubts")
    assert [title.startswith(start) for title, start in zip(titles[2:], starts, strict=True)] == [True] * len(starts)
    assert max(map(len, text.splitlines())) < 160
    for part in (*found.seconds, *found.bytes.parts):
        assert part in text


def test_json_takes_it(answer, found):
    fields = json.loads(json.dumps(found.fields()))
    assert fields["step_time_s"] == answer.step_time_s
    assert fields["plan"]["tensor_parallel"] == answer.plan.tensor_parallel
    assert len(fields["neighbours"]) == len(found.neighbours)
    assert fields["interval"]["date"] == scoreboard_record().date.isoformat()


def test_the_interval_is_that_of_runs_alike(answer, found):
    scale = "node" if answer.cluster.chips <= 8 else "cluster"
    alike = errors_of_class(("fitted", answer.framework.name, False, scale))
    assert found.interval.runs == alike.rows
    ends = (found.interval.low_s / answer.step_time_s, found.interval.high_s / answer.step_time_s)
    assert ends == pytest.approx((alike.low, alike.high))
    assert alike.words in str(found).replace("\n    ", " ")


def test_a_chip_without_runs_is_predicted_less_surely():
    answer = planned("h100-sxm", 8)
    chip = replace(answer.cluster.chip, name="unheard-of", year=2030)
    found = explain(replace(answer, cluster=replace(answer.cluster, chip=chip)), time_limit_s=0)
    assert found.interval is not None
    spread = shipped().defaults["gpu"].matrix["half"].spread
    assert spread is not None
    assert found.interval.spread == pytest.approx(1.645 * spread)
    assert "assumed" in found.doubts[0]
    assert f"is assumed, ± {percent_text(found.interval.spread)}" in " ".join(str(found).split())


def test_intervals_are_wider_the_less_is_known_of_a_chip():
    job = dt.Job(dt.models.load("llama-2-7b"), 2048, 64)
    widths = []
    for name, basis in (("h100-sxm", "fitted"), ("gh200-96gb", "transfer"), ("gaudi3", "assumed")):
        cluster = dt.hardware.cluster(name, 8)
        assert calibration(cluster.chip, "bf16").basis == basis
        found = prediction_interval(1.0, job, cluster, "megatron")
        widths.append(math.log(found.high_s / found.low_s))
        assert found.low_s <= 1 <= found.high_s
    assert widths == sorted(widths)
    # the spread of what is assumed adds to the errors of chips that no other source has
    (seen,) = [e for e in shipped_errors().classes if e.key == ("transfer", "megatron", False, None)]
    spread = 2 * 1.645 * calibration(dt.hardware.chip("gaudi3"), "bf16").spread
    assert widths[-1] == pytest.approx(math.hypot(math.log(seen.high / seen.low), spread))


def test_a_job_that_does_not_fit_is_told_what_would_do():
    job = dt.Job(dt.models.load("llama-3.1-8b"), 8192, 32)
    text = str(explain(search(job, dt.hardware.cluster("h100-sxm", 1), "megatron", space=SPACE)))
    for words in ("no plan fits", "what is missing", "smallest fixes", "memory of each chip", "chips 1 -> "):
        assert words in text


def test_words_of_a_plan(answer):
    plan = replace(
        answer.plan,
        tensor_parallel=4, context_parallel=2, pipeline_parallel=8, virtual_stages=5, data_parallel=16,
        expert_parallel=1, micro_batch=2, zero_stage=1, zero_group=8, sequence_parallel=True, context_kind="ring",
        pipeline_schedule="interleaved", recompute=("mlp", "layernorm"), axis_order="tp-cp-pp-dp",
    )  # fmt: skip
    assert plan_words(plan) == (
        "TP4 CP2 PP8 VPP5 DP16 MBS2 ZeRO-1 over 8, ring, SP, rank order TP-CP-PP-DP, recompute mlp + layernorm"
    )
    assert plan_words(replace(plan, recompute="full", recompute_share=0.5)).endswith("recompute full of 0.5")
    assert plan_words(replace(plan, recompute="none")).endswith("rank order TP-CP-PP-DP")
