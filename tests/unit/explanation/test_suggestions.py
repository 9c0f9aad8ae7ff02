"""Questions that divide badly get a suggestion that was searched; others get none."""

from __future__ import annotations

from dataclasses import replace

import dovetail as dt
from dovetail.explanation.suggestions import suggestions
from dovetail.plans.space import Space
from dovetail.search.plan import plan

MODEL = dt.models.load("llama-3.2-1b")
SPACE = Space(context_parallel=(1,), recompute=("none", "full"), recompute_share=(1.0,), zero_stage=(0, 1))


def suggested(chips: int, batch: int) -> dict[tuple[str, int], float]:
    answer = plan(dt.Job(MODEL, 2048, batch), dt.hardware.cluster("h100-sxm", chips), "megatron", space=SPACE)
    return {(each.field, each.value): each.gain for each in suggestions(answer, 20)}


def test_a_batch_nearby_that_more_chips_divide():
    found = suggested(64, 250)
    assert found[("global_batch", 256)] > 0.03


def test_numbers_of_chips_that_fill_their_nodes():
    found = suggested(60, 448)
    assert {value for field, value in found if field == "chips"} & {56, 64}


def test_nothing_where_the_question_divides_well():
    assert suggested(64, 256) == {}


def test_nothing_where_a_time_limit_left_the_answer_unproven():
    where = (dt.Job(MODEL, 2048, 250), dt.hardware.cluster("h100-sxm", 64), "megatron")
    answer = plan(*where, space=SPACE)
    unproven = replace(answer, certificate=replace(answer.certificate, status="feasible"))
    assert suggestions(answer, 20)
    assert suggestions(unproven, 20) == ()
