"""What an explanation offers a job that does not fit is enough, and a little less is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dovetail import hardware, models
from dovetail.explanation.changed_hardware import with_chips, with_memory
from dovetail.explanation.explain import explain
from dovetail.explanation.marginal import marginals
from dovetail.explanation.neighbourhood import Neighbourhood
from dovetail.explanation.smallest_fix import smallest_fixes
from dovetail.models import Job
from dovetail.search import Space, plan

SPACE = Space(virtual_stages=(1, 2), recompute=("none", "full"), recompute_share=(1.0,), micro_batch=(1, 2))


@pytest.fixture(scope="module")
def answer():
    return plan(Job(models.load("llama-3.1-8b"), 8192, 8), hardware.cluster("h100-sxm", 1), "megatron", space=SPACE)


@pytest.fixture(scope="module")
def found(answer):
    return explain(answer, time_limit_s=math.inf)


def test_without_a_plan_there_is_nothing_else(answer, found):
    assert answer.evaluation is None
    assert (found.plan, found.step_time_s, found.bytes) == (None, None, None)
    assert not any((found.seconds, found.neighbours, found.marginal, found.stays_best))
    assert found.doubts


def test_memory_is_the_least_that_does(answer, found):
    memory = next(relief for relief in found.smallest_fix if relief.what == "memory of each chip")
    capacity = answer.limit_bytes
    assert memory.before == capacity

    def with_bytes(held: float):
        return plan(answer.job, with_memory(answer.cluster, answer.memory_factor(held)), "megatron", space=SPACE)

    enough = with_bytes(memory.after * (1 + 1e-9))
    assert enough.step_time_s <= memory.step_time_s * (1 + 1e-9)
    assert with_bytes(memory.too_little).certificate.status == "infeasible"
    assert memory.after <= memory.too_little * 1.0101
    assert f"{100 * (memory.after / capacity - 1):.1f} %" in found.bottleneck


def test_chips_are_the_fewest_in_steps_of_two(answer, found):
    chips = next(relief for relief in found.smallest_fix if relief.what == "chips")
    assert chips.plan.chips == chips.after
    clusters = [with_chips(answer.cluster, int(count)) for count in (chips.after, chips.after // 2)]
    enough, less = (plan(answer.job, cluster, "megatron", space=SPACE) for cluster in clusters if cluster is not None)
    assert enough.step_time_s == pytest.approx(chips.step_time_s)
    assert less.evaluation is None


def test_degrees_that_do_not_divide_are_told_from_memory():
    """Seven chips divide neither model nor batch; eight do."""
    job = Job(models.load("llama-3.1-8b"), 8192, 8)
    found = explain(
        plan(job, hardware.cluster("h100-sxm", 7), "megatron", space=replace(SPACE, pipeline_parallel=(1,)))
    )
    assert found.bottleneck.startswith("no degrees")
    (chips,) = found.smallest_fix
    assert (chips.what, chips.before, chips.after, chips.plan.chips) == ("chips", 7, 8, 8)


def test_degrees_that_other_chips_cannot_have_are_no_fix():
    """Seven tensor-parallel chips share no heads, and eight chips have no seven."""
    job = Job(models.load("llama-3.1-8b"), 8192, 8)
    fixed = replace(SPACE, pipeline_parallel=(1,), tensor_parallel=(7,))
    assert smallest_fixes(plan(job, hardware.cluster("h100-sxm", 7), "megatron", space=fixed)).found == ()


def test_a_node_more_is_worth_nothing_to_degrees_that_do_not_divide_it():
    """Three stages on three nodes; four nodes have no three."""
    job = Job(models.load("llama-3.1-8b"), 8192, 8)
    fixed = replace(SPACE, pipeline_parallel=(3,), tensor_parallel=(8,), context_parallel=(1,), virtual_stages=(1,))
    answer = plan(job, hardware.cluster("h100-sxm", 24), "megatron", space=fixed)
    nodes = marginals(Neighbourhood(answer))[-1]
    assert (nodes.what, nodes.plan, nodes.gain, nodes.proven) == ("nodes", None, None, True)
