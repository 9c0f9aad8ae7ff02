"""States of many plans, derived and priced together, against layers profiled plan by plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import frameworks, hardware, models
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.arrangements import Arrangements
from dovetail.step.layer_tables import Setting
from dovetail.step.profiles import UPDATED_WEIGHTS, profile_job
from dovetail.step.state_tables import StateSharding, StateTable

JOB = Job(models.load("mixtral-8x7b"), 4096, 64)
CLUSTER = hardware.cluster("h100-sxm", 16)
#: ZeRO stage and group, stages
STATES = [(0, 0, 1), (1, 4, 1), (1, 4, 2), (2, 4, 1), (3, 4, 1), (3, 2, 2)]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_rows_of_states_are_those_of_their_plans(framework):
    """With buckets and without: homes, and what moves once a step and in every micro-batch."""
    setting = Setting.of(JOB, CLUSTER, frameworks.load(framework))
    space = Space().resolve(JOB, CLUSTER, setting.framework)
    degrees = stage_degrees(JOB, CLUSTER, setting.framework, space)
    keys = [
        StateSharding(
            number, 8 // each.replica_chips, stages, "tp-cp-dp-pp", zero, group or 8 // each.plan.tensor_parallel
        )
        for number, each in enumerate(degrees)
        for zero, group, stages in STATES
        if each.replica_chips <= 2 and 8 // each.replica_chips % each.min_replicas == 0
    ]
    table = StateTable(setting, degrees)
    rows, seen = table.rows(keys), set[int]()
    for key, row in zip(keys, rows.tolist(), strict=True):
        plan = replace(
            degrees[key.degrees].plan,
            data_parallel=key.replicas,
            pipeline_parallel=key.stages,
            zero_stage=key.zero_stage,
            zero_group=key.zero_group,
        )
        together = Arrangements.of([arrange(plan, setting.graph, CLUSTER, setting.framework.tensor_rule)], [1])
        pricing = setting.pricing(key.stages, key.zero_stage)
        layers = profile_job(together, JOB, setting.chip, pricing, one_copy_per_node=False).layers
        for column, name in enumerate(setting.classes):
            layer = layers[name]
            assert table.home[row, column] == layer.home_parameters
            step = dict(layer.step_collective_s)
            assert table.gathering_s[row, column] == pytest.approx(float(step.pop(UPDATED_WEIGHTS, 0.0)), rel=1e-12)
            assert table.reduction_s[row, column] == pytest.approx(float(sum(step.values())), rel=1e-12)
        seen.add(row)
    assert len(seen) > 20
