"""L1⁻ of designs: below every plan of a space on every design, and below what one design's own search proves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.bounds.design_tables import DesignTables
from dovetail.cost.cores import lined_up
from dovetail.cost.operators import operator_seconds
from dovetail.hardware import Chip, Cluster, Tier
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.schedule.least_share import least_share
from dovetail.schedule.model_layer import commonest_layer, model_layer_work
from dovetail.schedule.side_by_side import side_by_side_share
from dovetail.search.plan import plan
from dovetail.step.evaluate import units_of
from dovetail.step.facts import facts_of

SPACE = hardware.space("phaze-wide")
PLAIN = Space(
    tensor_parallel=(1, 2, 4),
    context_parallel=(1,),
    micro_batch=(1, 2),
    zero_stage=(0,),
    recompute=("none", "full"),
    recompute_share=(1.0,),
    sequence_parallel=(False,),
    pipeline_schedule=("1f1b",),
    virtual_stages=(1,),
    partition="ends",
)
QUESTIONS = {
    "slow network": ("llama-2-7b", 32, 128, "ideal", PLAIN, 4 * 2**30),
    "fast network": ("gpt3-13b", 32, 64, "ideal", replace(PLAIN, partition="any"), 300e9),
    "interleaved": ("gpt3-6.7b", 16, 64, "megatron", replace(PLAIN, pipeline_schedule=None, virtual_stages=None), 50e9),
    "sharded": ("gpt3-6.7b", 16, 32, "megatron", replace(PLAIN, zero_stage=None, sequence_parallel=None), 50e9),
    "experts": ("mixtral-8x7b", 32, 64, "ideal", replace(PLAIN, zero_stage=(0, 1), expert_parallel=(1, 8)), 100e9),
}


def designs(number: int, seed: int, *, memory: float = 0.0) -> list[Chip]:
    """Random ones that are worth a look: a hundred TFLOP/s or more."""
    found = [c for c in SPACE.chips(SPACE.sample(40 * number, seed).index) if (c.dense_flops.bf16 or 0) > 1e14]
    assert len(found) >= number
    return [replace(c, hbm_bytes=memory) if memory else c for c in found[:number]]


def cluster_of(chip: Chip, chips: int, bytes_per_s: float) -> Cluster:
    return Cluster("flat", chip, chips, (Tier("flat", chips, "switch", bytes_per_s, 1e-6),))


def bounds_and_answers(name: str, number: int, seed: int):
    """Of designs: the bound without a limit, the bound just above the best, and the best plan's seconds."""
    model, count, batch, framework, space, rate = QUESTIONS[name]
    job, runs = Job(models.load(model), 2048, batch), frameworks.load(framework)
    chips = designs(number, seed, memory=80e9 if seed % 2 else 40e9)
    tables = DesignTables(job, cluster_of(chips[0], count, rate), runs, space)
    bounds = tables.least_seconds(chips)
    for chip, bound in zip(chips, bounds.tolist(), strict=True):
        answer = plan(job, cluster_of(chip, count, rate), runs, space=space)
        if answer.evaluation is None:
            yield bound, bound, math.inf
            continue
        limited = tables.least_seconds([chip], answer.step_time_s * (1 + 1e-6))
        yield bound, float(limited[0]), answer.step_time_s


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_plan_of_the_space_is_faster(name):
    found = [entry for seed in (0, 1) for entry in bounds_and_answers(name, 4, seed)]
    assert all(bound <= best and limited <= best for bound, limited, best in found)
    assert any(math.isfinite(best) for *_, best in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_no_plan_of_the_space_is_faster_on_many_designs(name):
    for seed in range(2, 12):
        found = bounds_and_answers(name, 10, seed)
        assert all(bound <= best and limited <= best for bound, limited, best in found)


def test_designs_are_bounded_alike_alone_and_together():
    model, count, batch, framework, space, rate = QUESTIONS["slow network"]
    chips = designs(6, 3)
    job = Job(models.load(model), 2048, batch)
    tables = DesignTables(job, cluster_of(chips[0], count, rate), frameworks.load(framework), space)
    together = tables.least_seconds(chips)
    assert [float(tables.least_seconds([chip])[0]) for chip in chips] == pytest.approx(together.tolist(), rel=1e-12)
    # a limit makes bounds tighter below it, and says no more of what is above
    limit = float(np.median(together))
    assert np.all(tables.least_seconds(chips, limit) >= np.minimum(together, limit) * (1 - 1e-3))


@pytest.mark.parametrize("name", ["slow network", "experts"])
def test_plans_that_are_known_not_to_be_below_a_limit_need_not_be_bounded_again(name):
    model, count, batch, framework, space, rate = QUESTIONS[name]
    chips, job = designs(6, 3), Job(models.load(model), 2048, batch)
    tables = DesignTables(job, cluster_of(chips[0], count, rate), frameworks.load(framework), space)
    every = tables.least_seconds(chips)
    first, among = tables.open_seconds(chips, float(np.median(every)) * 1.1)
    assert ((first < np.median(every) * 1.1) == among.any(axis=1)).all()
    assert among.any()
    assert not among.all()
    limit = float(np.median(every)) * 1.02
    for chip, left in zip(chips, among, strict=True):
        bound, whole = tables.open_seconds([chip], limit)
        again, narrowed = tables.open_seconds([chip], limit, left)
        assert (narrowed == whole).all()
        assert min(float(again[0]), limit) == pytest.approx(min(float(bound[0]), limit), rel=1e-8)
        assert again[0] <= limit * (1 + 1e-8)
    none, _ = tables.open_seconds(chips, limit, np.zeros(len(tables.skeletons), np.bool_))
    assert none == pytest.approx(limit, rel=1e-8)


def test_a_space_without_plans_takes_forever():
    model, count, batch, framework, space, rate = QUESTIONS["slow network"]
    chips, job = designs(2, 4), Job(models.load(model), 2048, batch)
    narrow = replace(space, micro_batch=(3,))
    tables = DesignTables(job, cluster_of(chips[0], count, rate), frameworks.load(framework), narrow)
    assert tables.least_seconds(chips).tolist() == [math.inf, math.inf]
    full = replace(space, zero_stage=(1,), tensor_parallel=(4,), pipeline_parallel=(8,))
    tables = DesignTables(job, cluster_of(chips[0], count, rate), frameworks.load(framework), full)
    assert tables.least_seconds(chips).tolist() == [math.inf, math.inf], "one copy shards nothing"


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("model", ["llama-2-7b", "bert-large", "mixtral-8x7b"])
def test_no_list_schedule_is_shorter_than_the_least_share(model, direction):
    job = Job(models.load(model), 512, 64)
    chips = designs(25, 5)
    ideal = frameworks.load("ideal")
    facts = facts_of(ideal, job, stages=1)
    for tensor_parallel in (1, 4):
        work = model_layer_work(job, commonest_layer(job), direction, tensor_parallel, 2)
        units = [units_of(job, cluster_of(chip, 8, 1e11), facts, _efficiencies(chip, job)) for chip in chips]
        many = replace(lined_up(units, np.arange(len(units))), sharing="least")
        together = np.broadcast_to(least_share(work, many, operator_seconds(work, many)), len(units))
        for unit, share in zip(units, together.tolist(), strict=True):
            assert 0 < share <= float(side_by_side_share(work, unit)) <= 1
        endless = replace(many, sharing="asymptotic")
        assert np.all(least_share(work, endless, operator_seconds(work, many)) == pytest.approx(together, rel=1e-12))


def _efficiencies(chip: Chip, job: Job):
    from dovetail.cost.calibration import calibration

    return calibration(chip, job.precision).efficiencies
