"""The front over numbers of chips: each point the best plan there, marked by definition."""

from __future__ import annotations

import pytest

import dovetail as dt
from dovetail.errors import InputError
from dovetail.search import Space
from dovetail.search.pareto_front import FrontPoint, Training, best_of, pareto_front

TOKENS = 1e9
SPACE = Space(pipeline_parallel=(1,), context_parallel=(1,), tensor_parallel=(1, 2))


@pytest.fixture(scope="module")
def job() -> dt.Job:
    return dt.Job(dt.models.load("llama-3.1-8b"), seq_len=2048, global_batch=48)


@pytest.fixture(scope="module")
def points(job) -> tuple[FrontPoint, ...]:
    def cluster_of(chips: int) -> dt.hardware.Cluster:
        return dt.hardware.cluster("h100-sxm", chips)

    return pareto_front(job, cluster_of, "megatron", (1, 8, 16, 20, 24, 64), TOKENS, space=SPACE)


def test_every_point_is_the_best_plan_there(job, points):
    for point in points:
        if point.training is None:
            continue
        alone = dt.plan(job, dt.hardware.cluster("h100-sxm", point.chips), space=SPACE, tie_margin=0.0)
        assert point.answer is not None
        assert point.answer.plan == alone.plan
        steps = -(-int(TOKENS) // job.tokens_per_step)
        assert point.training.steps == steps
        assert point.training.train_s == pytest.approx(steps * alone.step_time_s)
        assert point.training.energy_j == pytest.approx(steps * (alone.best.energy_j or 0.0))
        assert point.training.cost_usd == pytest.approx(3 * point.training.chip_hours)


def test_what_does_not_work_stays_with_its_reason(points):
    reasons = {point.chips: point.reason for point in points}
    assert [point.chips for point in points] == [1, 8, 16, 20, 24, 64]
    assert "fits the chips' memory" in reasons[1]
    assert "do not fill groups" in reasons[20]
    assert reasons[64] == "no degrees divide the chips, the batch and the model at once"
    assert reasons[8] == reasons[16] == reasons[24] == ""
    assert not any(point.on_front for point in points if point.reason)


def test_values_that_a_number_of_chips_lacks_are_left_out_there(points):
    assert points[0].answer is not None
    assert points[0].answer.space.tensor_parallel == (1,)
    assert points[1].answer is not None
    assert points[1].answer.space.tensor_parallel == (1, 2)


def test_marks_are_those_of_the_definition(points):
    trained = [point for point in points if point.training]
    for point in trained:
        assert point.training
        smaller = [o for o in trained if o.training and o.chips < point.chips]
        assert point.on_front == all(o.training.train_s > point.training.train_s for o in smaller if o.training)
        cheaper = [
            o for o in trained
            if o.training and o is not point and o.training.chip_hours <= point.training.chip_hours
            and o.training.train_s <= point.training.train_s
        ]  # fmt: skip
        assert point.on_cost_front == (not cheaper)


def test_a_point_that_others_beat_is_on_no_front():
    from dovetail.search.pareto_front import _marked

    def at(chips: int, train_s: float) -> FrontPoint:
        hours = train_s * chips / 3600
        return FrontPoint(chips, None, Training(1.0, 1, train_s, hours, 2 * hours, None))

    marked = _marked([at(8, 100.0), at(16, 40.0), at(24, 41.0), at(32, 30.0), FrontPoint(64, None, None, "why")])
    assert [point.on_front for point in marked] == [True, True, False, True, False]
    # 16 chips are cheaper than 8, and faster
    assert [point.on_cost_front for point in marked] == [False, True, False, True, False]
    best = best_of(marked, "time")
    assert best is not None
    assert best.chips == 32
    cheapest = best_of(marked, "cost")
    assert cheapest is not None
    assert cheapest.chips == 16
    assert best_of(marked, "energy") is None


def test_a_price_of_ones_own_goes_before_the_chips(job):
    dear = pareto_front(
        job, lambda chips: dt.hardware.cluster("h100-sxm", chips), "megatron", [16], TOKENS,
        space=SPACE, price_per_chip_hour=10.0,
    )  # fmt: skip
    assert dear[0].training is not None
    assert dear[0].training.cost_usd == pytest.approx(10 * dear[0].training.chip_hours)


@pytest.mark.parametrize("tokens", [0.0, -1.0, float("nan"), float("inf")])
def test_tokens_are_a_number(job, tokens):
    with pytest.raises(InputError):
        pareto_front(job, lambda chips: dt.hardware.cluster("h100-sxm", chips), "megatron", [8], tokens)
