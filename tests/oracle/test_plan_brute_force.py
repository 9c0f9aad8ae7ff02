"""The enumeration that the plan search is compared with: small spaces counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_brute_force import best, count, cuts_alike_inside, even_cut, every_cut, every_plan, keeps_risk
from random_plan_jobs import random_plan_job

from dovetail import frameworks, hardware
from dovetail.documents import validate
from dovetail.models import Job, Model
from dovetail.plans.space import Space
from dovetail.step.evaluate import evaluate


def small_job(feed_forward: dict[str, Any], *, layers: int, global_batch: int) -> Job:
    mixer = {"kind": "attention", "heads": 16, "kv_heads": 8, "head_dim": 64}
    document = {
        "name": "small", "hidden": 1024, "vocab": 32000,
        "blocks": {"block": {"mixer": mixer, "feed_forward": feed_forward}},
        "layers": [{"blocks": ["block"], "repeat": layers}],
    }  # fmt: skip
    return Job(validate(Model, document, "small"), seq_len=1024, global_batch=global_batch)


def test_plans_of_a_dense_model_are_as_many_as_by_hand():
    job = small_job({"kind": "dense", "size": 4096}, layers=4, global_batch=4)
    space = Space(recompute=("none",), micro_batch=(1,))
    by_hand = [
        2,  # 4 copies: with and without sharded state
        2 * 2,  # 2 stages, 2 copies: one chunk or two a stage (three are uneven), sharded or not
        1,  # 4 stages: two chunks a stage would be more than the blocks, embedding and head
        2 * 2,  # 2 tensor-parallel chips, 2 copies: sequence-parallel or not, sharded or not
        2 * 2,  # 2 tensor-parallel chips, 2 stages: sequence-parallel or not, one chunk or two
        2,  # 4 tensor-parallel chips: sequence-parallel or not
    ]
    where = (hardware.cluster("h100-sxm", chips=4), frameworks.load("megatron-2022"), space)
    assert count(job, *where) == len(list(every_plan(job, *where))) == sum(by_hand)


def test_plans_of_a_mixture_are_as_many_as_by_hand():
    job = small_job({"kind": "mixture", "experts": 4, "top_k": 2, "size": 512}, layers=8, global_batch=8)
    space = Space(
        tensor_parallel=(2,), context_parallel=(1,), pipeline_parallel=(2,), pipeline_schedule=("1f1b",),
        micro_batch=(1,), sequence_parallel=(True,), expert_parallel=(1, 2, 4), expert_tensor_parallel=(1, 2, 4),
        zero_stage=(0, 1, 2), zero_group=(1, 2, 4, 16), recompute=("none", "full"), recompute_share=(0.5, 1.0),
    )  # fmt: skip
    framework = replace(frameworks.load("ideal"), recompute_some_layers=True)
    where = (hardware.cluster("h100-sxm", chips=16), framework)
    # an expert on one or two chips; state whole or sharded over two or four; none, half or all computed again
    # and stages inside copies or outside them where experts lie on one copy
    choices = (3 * 2 + 3) * 3 * 3
    assert count(job, *where, space) == choices
    # each end of the two stages holds from none to all of eight blocks; half of the blocks is of equal stages
    assert len(list(every_plan(job, *where, space))) == (9 + 1 + 9) * choices // 3


def test_cuts_are_as_many_as_by_hand():
    assert len(set(every_cut(3, 4))) == len(every_cut(3, 4)) == 4 + 3 + 2 + 1
    assert set(every_cut(2, 2)) == {(0, 2), (1, 1), (2, 0)}
    assert every_cut(5, 3) == ((0, 1, 1, 1, 0),)
    assert even_cut(4, 1, 9) == (2, 3, 2, 2)
    alike = {(0, 3, 3, 3), (1, 3, 3, 2), (2, 3, 3, 1), (3, 3, 3, 0), (0, 4, 4, 1), (1, 4, 4, 0)}
    assert set(cuts_alike_inside(4, 1, 9)) == {(2, 3, 2, 2)} | alike
    assert set(cuts_alike_inside(2, 1, 5)) == {(1, 4), (2, 3), (3, 2), (4, 1)}
    assert cuts_alike_inside(2, 2, 2) == ((0, 1, 1, 0),)


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_comes_twice_and_the_best_one_fits(seed):
    asked = random_plan_job(seed, 50)
    where = (asked.job, asked.cluster, asked.framework)
    plans = list(every_plan(*where, asked.space))
    assert 1 <= len(set(plans)) == len(plans) <= 50
    assert 1 <= count(*where, asked.space) <= len(plans)
    tried = [evaluate(p, *where, energy=False) for p in plans]
    seconds = [e.step_time_s for e in tried if keeps_risk(e, asked.cluster, asked.framework)]
    found = best(*where, asked.space)
    assert (found is None) == (not seconds)
    assert found is None or (found.fits and found.step_time_s == min(seconds))
