"""What others run, on a wafer and in our cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from baselines.accpar import accpar, accpar_as_published, may_partition
from baselines.named_strategies import BASELINES, as_published

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.mapping.tiles.free_plan import free_plan
from dovetail.models import Job
from dovetail.step.evaluate import evaluate

WATOS = hardware.wafer("watos-like")
SMALL = replace(WATOS, rows=2, cols=2, name="small").cluster()
WHOLE = WATOS.cluster()
WAFER = frameworks.load("wafer")


def job(name: str, batch: int) -> Job:
    return Job(models.load(name), seq_len=1024, global_batch=batch)


def test_megatron_fills_a_node_with_tensor_parallelism_and_the_rest_with_stages():
    full, selective, sharded = (as_published(name, job("gpt3-175b", 112), WHOLE) for name in BASELINES)
    assert (full.tensor_parallel, full.pipeline_parallel, full.data_parallel) == (8, 7, 1)
    assert (full.recompute, full.sequence_parallel) == ("full", False)
    assert (selective.recompute, selective.sequence_parallel) == ("selective", True)
    assert (sharded.data_parallel, sharded.zero_stage, sharded.recompute) == (56, 3, "full")


def test_what_heads_do_not_allow_is_smaller():
    # 52 heads: neither 8 nor 7 divides them
    found = as_published("Megatron, full recompute", job("llama-30b", 112), WHOLE)
    assert (found.tensor_parallel, found.pipeline_parallel) == (4, 14)


def test_groups_that_do_not_nest_in_the_grid_are_smaller():
    # 2 × 25 dies of two wafers of 5 × 5: 2 divides neither side
    dojo = hardware.wafer("dojo-buildable").cluster(2)
    found = as_published("Megatron, full recompute", job("llama-3.1-70b", 100), dojo)
    assert (found.tensor_parallel, found.pipeline_parallel) == (1, 50)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="it should be one of Megatron"):
        as_published("Alpa", job("gpt3-1.3b", 8), SMALL)


def test_accpar_cuts_no_positions_keeps_everything_and_is_no_faster_than_free_layouts():
    small = job("gpt3-1.3b", 8)
    block = next(layer for layer in small.graph().layers.values() if layer.operators)
    assert not any(may_partition(operator, "seq") for operator in block.operators)
    found = accpar(small, SMALL, WAFER)
    assert found is not None
    assert found.plan.layouts is not None
    cut = {factor.dim for strings in found.plan.layouts.strings() for factor in strings}
    assert "seq" not in cut
    assert found.plan.pipeline_parallel == 1
    assert found.plan.recompute_choices == ("none",)
    free = free_plan(small, SMALL, WAFER)
    assert free.step_time_s <= found.step_time_s * (1 + 1e-9)


def test_accpar_as_published_holds_whole_state_where_weights_are_copied():
    small = job("gpt3-1.3b", 8)
    found = accpar_as_published(small, SMALL, WAFER)
    assert found.plan.zero_stage == 0
    sharded = evaluate(replace(found.plan, zero_stage=1), small, SMALL, WAFER)
    assert found.peak_bytes > sharded.peak_bytes
