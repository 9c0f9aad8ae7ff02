"""Layers are profiled along the axes of other stage degrees only where that is the same to the last bit."""

from __future__ import annotations

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.layer_tables import LayerTable, Setting, by_structure
from dovetail.step.structures import Structures

JOB = Job(models.load("mixtral-8x7b"), 4096, 64)
CLUSTER = hardware.cluster("h100-sxm", 16)


def test_profiles_along_more_axes_are_those_along_fewer():
    setting = Setting.of(JOB, CLUSTER, frameworks.load("megatron"))
    degrees = stage_degrees(JOB, CLUSTER, setting.framework, Space().resolve(JOB, CLUSTER, setting.framework))
    groups = by_structure(degrees)
    structures = Structures(setting.graph, (each.arranged for each in degrees))
    served = {s: structures.along(degrees[members[0]].arranged) for s, members in groups.items()}
    merged = {strategy: along for strategy, along in served.items() if along.strategy != strategy}
    assert len(merged) > 5
    for strategy, along in merged.items():
        members = groups[strategy][:6]
        rows = np.arange(len(members))
        given = (setting, [degrees[i] for i in members], rows, 1 + rows, np.ones(len(rows), np.bool_))
        own, others = LayerTable(*given), LayerTable(*given, along=along)
        np.testing.assert_array_equal(own.work, others.work)
        for choice in ("none", "full", "selective", ("moe_act", "layernorm")):
            np.testing.assert_array_equal(own.recompute(choice), others.recompute(choice))
        for field in ("parameters", "gathered_parameters", "largest_weight", "logits", "stream_bytes"):
            np.testing.assert_array_equal(own.column(field), others.column(field))


def test_spread_experts_do_not_serve_whole_ones():
    setting = Setting.of(JOB, CLUSTER, frameworks.load("megatron"))
    degrees = stage_degrees(JOB, CLUSTER, setting.framework, Space().resolve(JOB, CLUSTER, setting.framework))
    groups = by_structure(degrees)
    structures = Structures(setting.graph, (each.arranged for each in degrees))
    for strategy, members in groups.items():
        along = structures.along(degrees[members[0]].arranged).strategy
        assert bool(along.mesh.expert) == bool(strategy.mesh.expert)
        assert bool(along.mesh.context) == bool(strategy.mesh.context)
