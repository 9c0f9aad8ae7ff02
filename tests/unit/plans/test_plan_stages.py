"""Plans whose parts differ: stages of embedding or head alone, recompute of a part of the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.documents import validate
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.profile.recompute import Recompute


def plan(num_layers: int, **fields: object) -> Plan:
    spec = validate(PlanSpec, fields, "plan")
    return resolve_plan(spec, chips=spec.pipeline_parallel, global_batch=8, num_layers=num_layers)


def test_embedding_and_head_may_stand_alone():
    assert plan(6, pipeline_parallel=8).layers_per_stage == (0, 1, 1, 1, 1, 1, 1, 0)
    assert plan(7, pipeline_parallel=8).layers_per_stage == (1, 1, 1, 1, 1, 1, 1, 0)
    assert plan(6, pipeline_parallel=2, virtual_stages=4).layers_per_stage == (0, 1, 1, 1, 1, 1, 1, 0)
    assert plan(4, pipeline_parallel=3, layers_per_stage=[0, 2, 2]).layers_per_stage == (0, 2, 2)


def test_no_part_in_the_middle_is_empty(refusal):
    assert "use fewer stages" in refusal(plan, 5, pipeline_parallel=8)
    assert "between" in refusal(plan, 4, pipeline_parallel=3, layers_per_stage=[2, 0, 2])
    assert "layers_per_stage" in refusal(plan, 4, pipeline_parallel=2, layers_per_stage=[5, -1])


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_the_share_of_recomputed_blocks_is_a_share(refusal, share):
    assert "recompute_share" in refusal(plan, 4, recompute="full", recompute_share=float(share))


def test_a_share_of_recomputed_blocks_costs_its_share():
    def figures(saved: float, added: float, workspace: float) -> Recompute:
        return Recompute(np.asarray(saved), np.asarray(added), np.asarray(workspace), np.asarray(workspace))

    mean = figures(10.0, 2.0, 90.0).mixed(figures(100.0, 0.0, 0.0), 0.25)
    assert (float(mean.saved_bytes), float(mean.added_s), float(mean.workspace_bytes)) == (77.5, 0.5, 90.0)
