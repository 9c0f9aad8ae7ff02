"""Partitions that are tried one by one are partitions that the framework runs."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from dovetail import frameworks, hardware, models
from dovetail.frameworks.framework import UnevenStages
from dovetail.models import Job
from dovetail.plans.partitions import listed_partitions, runs_partition
from dovetail.plans.space import Space
from dovetail.search import plan


@pytest.mark.parametrize("uneven", get_args(UnevenStages))
def test_every_listed_partition_runs(uneven):
    allowed = "even" if uneven == "never" else "ends"
    for blocks, stages, chunks in [(10, 4, 1), (12, 4, 1), (14, 4, 2), (7, 5, 1), (9, 2, 3)]:
        schedule = "interleaved" if chunks > 1 else "1f1b"
        listed = listed_partitions(blocks, stages, chunks, schedule, allowed, uneven)
        assert all(runs_partition(layers, uneven) and sum(layers) == blocks for layers in listed)


def test_an_even_partition_with_unlike_stages_inside_is_none_for_a_framework_whose_ends_alone_differ():
    job = Job(models.load("gemma-2-9b"), seq_len=1024, global_batch=8)
    assert job.model.num_layers == 42  # dealt evenly to 8 stages: 5, 6, 6, 5, 5, 5, 5, 5
    framework = replace(frameworks.load("megatron"), uneven_stages="ends", launch=None)
    space = Space(pipeline_parallel=(8,), pipeline_schedule=("1f1b",), partition="even")
    assert plan(job, hardware.cluster("h100-sxm", chips=8), framework, space=space).certificate.counted == 0
