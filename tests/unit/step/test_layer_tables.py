"""Layer tables that know less, and sizes that layer classes share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.graph.tensor import HALF_PRECISION
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.profile import sizes_of_layers
from dovetail.step.layer_tables import LayerTable, Setting, by_structure

JOB = Job(models.load("mixtral-8x7b"), 4096, 64)
CLUSTER = hardware.cluster("h100-sxm", 16)


@pytest.mark.parametrize("framework", ["megatron", "maxtext"])
def test_a_table_of_seconds_has_those_of_a_whole_one(framework):
    setting = Setting.of(JOB, CLUSTER, frameworks.load(framework))
    degrees = stage_degrees(JOB, CLUSTER, setting.framework, Space().resolve(JOB, CLUSTER, setting.framework))
    for members in list(by_structure(degrees).values())[:12]:
        rows = np.arange(len(members))
        given = (setting, [degrees[i] for i in members], rows, 1 + rows, np.ones(len(rows), np.bool_))
        whole, micro_batch, seconds = (LayerTable(*given, each) for each in ("step", "micro-batch", "seconds"))
        np.testing.assert_array_equal(whole.work, seconds.work)
        np.testing.assert_array_equal(whole.lower_bound(), micro_batch.lower_bound())
        for mine, theirs in zip(whole.fastest()[:3], seconds.fastest()[:3], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_classes_share_sizes_where_their_dims_agree():
    layers = dict(JOB.graph().layers)
    (block,) = (layer for layer in layers.values() if "experts" in layer.sizes)
    layers["wider"] = replace(block, name="wider", sizes={**block.sizes, "expert_ffn": 7})
    sizes = sizes_of_layers(layers, {}, HALF_PRECISION, batch=3, seq=5)
    for name, layer in layers.items():
        expected = layer.resolve(batch=3, seq=5)
        assert {dim: sizes[name].dims[dim] for dim in expected} == expected
    assert sizes[block.name] is sizes["embedding"]
    assert sizes[block.name] is not sizes["wider"]
