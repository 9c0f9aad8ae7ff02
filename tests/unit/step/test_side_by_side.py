"""Layer tables of several clusters that are made in one call are those that each cluster has alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.explanation.changed_hardware import knobs
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.layer_tables import LayerTable, Setting, by_structure, recompute_policies
from dovetail.step.plan_columns import LayerColumns
from dovetail.step.plan_tables import Tables
from dovetail.step.side_by_side import layer_tables

JOB = Job(models.load("mixtral-8x7b"), 4096, 64)
MEGATRON = frameworks.load("megatron")
SPACE = Space(recompute=("none", ("core_attn",), "full"), recompute_share=(0.5, 1.0))


def turned(chip: str) -> list[Setting]:
    """A cluster as it is, and with half and double of each thing."""
    cluster = hardware.cluster(chip, 16)
    others = [knob.turned(cluster, factor) for knob in knobs(cluster) for factor in (0.5, 2.0)]
    return [Setting.of(JOB, each, MEGATRON) for each in (cluster, *others)]


@pytest.mark.parametrize("chip", ["h100-sxm", "tpu-v5p", "groq-tsp1"])
@pytest.mark.parametrize("extent", ["micro-batch", "seconds"])
def test_each_cluster_has_its_own_rows(chip, extent):
    settings = turned(chip)
    space = SPACE.resolve(JOB, settings[0].cluster, MEGATRON)
    degrees, policies = stage_degrees(JOB, settings[0].cluster, MEGATRON, space), recompute_policies(space)
    different = 0
    for members in list(by_structure(degrees).values())[:3]:
        rows = np.arange(len(members))
        given = ([degrees[i] for i in members], rows, 1 + rows, rows % 2 == 0, extent)
        alone = [LayerTable(setting, *given) for setting in settings]
        for mine, theirs in zip(layer_tables(settings, *given), alone, strict=True):
            np.testing.assert_array_equal(mine.work, theirs.work)
            np.testing.assert_array_equal(mine.fastest(), theirs.fastest())
            np.testing.assert_array_equal(mine.column("parameters"), theirs.column("parameters"))
            if extent == "micro-batch":
                np.testing.assert_array_equal(under(policies, mine), under(policies, theirs))
        different += sum((each.work != alone[0].work).any() for each in alone)
    assert different


def under(policies, table: LayerTable) -> LayerColumns:
    """Rows of a table under policies."""
    return table.choice_times(policies, np.ones(len(policies), np.bool_), np.arange(table.num_profiles))


def test_operators_that_share_cores_are_scheduled_for_each_cluster():
    first = turned("h100-sxm")
    several, scheduled = (
        [Tables(replace(setting, chip=replace(setting.chip, sharing=sharing)), [], []) for setting in first]
        for sharing in ("none", "scheduled")
    )
    for tables in (several, scheduled):
        tables[0].join(tables[1:])
    assert [len(tables[-1]._together) for tables in (several, scheduled)] == [len(first), 0]
