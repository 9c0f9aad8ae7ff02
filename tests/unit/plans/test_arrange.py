"""Where the chips of a stage lie on network tiers, with a pipeline's stages outside its copies or inside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.layout.axes import joined_by_tier
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs

JOB = Job(models.load("llama-3.1-8b"), seq_len=4096, global_batch=64)
CLUSTER = hardware.cluster("h100-sxm", chips=64)


def by_tier(**fields):
    plan = resolve_plan(PlanSpec(**fields), chips=64, global_batch=64, num_layers=32)
    axes = arrange(plan, JOB.graph(), CLUSTER).axes
    return {axis.split("+")[0]: axes.by_tier[axis] for axis in axes.sizes}


def test_copies_fill_a_node_where_stages_lie_outside():
    assert by_tier(tensor_parallel=2, pipeline_parallel=4) == {"heads": (2, 1), "data": (4, 2)}


def test_stages_fill_a_node_first_where_they_lie_inside():
    inside = by_tier(tensor_parallel=2, pipeline_parallel=4, axis_order="tp-cp-pp-dp")
    assert inside == {"heads": (2, 1), "data": (1, 8)}
    # two stages leave room for two copies in a node
    assert by_tier(tensor_parallel=2, pipeline_parallel=2, axis_order="tp-cp-pp-dp")["data"] == (2, 8)


@pytest.mark.parametrize(
    ("low", "high", "joined"),
    [(1, 8, (8, 1)), (2, 16, (4, 2)), (8, 64, (1, 8)), (3, 12, (1, 4)), (1, 6, (6, 1)), (6, 24, (1, 4))],
)
def test_groups_are_cut_at_a_node_where_numbers_nest(low, high, joined):
    assert joined_by_tier(low, high, [8, 64]) == joined


def test_an_order_the_framework_lacks_is_refused():
    plan = resolve_plan(PlanSpec(axis_order="tp-cp-pp-dp"), chips=64, global_batch=64, num_layers=32)
    check_runs(plan, JOB, CLUSTER, frameworks.load("megatron"))
    with pytest.raises(InputError, match="axis_order"):
        check_runs(plan, JOB, CLUSTER, frameworks.load("deepspeed"))


def test_megatron_spreads_experts_beside_tensor_parallelism_along_the_sequence_alone():
    spec = PlanSpec(tensor_parallel=2, expert_parallel=2, expert_tensor_parallel=1, sequence_parallel=True)
    plan = resolve_plan(spec, chips=64, global_batch=64, num_layers=32)
    where = (Job(models.load("mixtral-8x7b"), seq_len=4096, global_batch=64), CLUSTER)
    check_runs(plan, *where, frameworks.load("megatron"))
    with pytest.raises(InputError, match="sequence_parallel"):
        check_runs(replace(plan, sequence_parallel=False), *where, frameworks.load("megatron"))
    check_runs(replace(plan, sequence_parallel=False), *where, frameworks.load("ideal"))
