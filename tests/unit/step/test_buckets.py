"""Weights and gradients of a layer travel together, in buckets as large as a framework makes them."""

from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.cost.calibration import calibration
from dovetail.cost.collective import tiered_seconds
from dovetail.cost.units import tier_arrays
from dovetail.layout import CollectiveKind
from dovetail.models import Job
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.step.evaluate import is_block, profiled_job
from dovetail.step.facts import plan_facts
from dovetail.step.profiles import GRADIENTS

CHIPS = 64
#: parameters of a block of Llama-3.1-8B: queries and outputs, keys and values, feed-forward, two norms
BLOCK = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096


def cluster():
    return hardware.cluster("eos", chips=CHIPS)


def block_of(framework, **spec):
    job = Job(models.load("llama-3.1-8b"), seq_len=8192, global_batch=CHIPS, precision="bf16")
    plan = resolve_plan(PlanSpec(**spec), chips=CHIPS, global_batch=CHIPS, num_layers=32)
    efficiencies = calibration(cluster().chip, "bf16").efficiencies
    profiled = profiled_job(plan, job, cluster(), plan_facts(plan, framework, job), efficiencies)
    return next(p for name, p in profiled.profiles.layers.items() if is_block(profiled.profiles.graph.layers[name]))


def seconds(kind, parameters, bytes_each):
    """One collective of so many parameters over all chips: nodes of eight, and eight of these."""
    tiers = [tier_arrays(cluster().chip, tier) for tier in cluster().tiers]
    groups = [(np.asarray(8.0), tiers[0]), (np.asarray(CHIPS / 8), tiers[-1])]
    return float(tiered_seconds(kind, groups, np.asarray(parameters * bytes_each)))


def test_a_sharded_layer_is_gathered_at_once():
    fsdp = frameworks.load("fsdp")
    profile = block_of(fsdp, data_parallel=CHIPS, zero_stage=3)
    expected = seconds(CollectiveKind.ALL_GATHER, BLOCK, 2)
    assert float(profile.forward_collective_s["weight-gather"]) == pytest.approx(expected, rel=1e-9)
    one_by_one = block_of(replace(fsdp, buckets=None), data_parallel=CHIPS, zero_stage=3)
    assert float(one_by_one.forward_collective_s["weight-gather"]) > 1.5 * expected
    # nine weights, one launch
    assert float(one_by_one.forward_kernels - profile.forward_kernels) == 8


def test_a_bucket_of_a_step_holds_several_layers():
    framework = frameworks.load("megatron")
    profile = block_of(framework, data_parallel=CHIPS, zero_stage=0)
    layer = seconds(CollectiveKind.ALL_REDUCE, BLOCK, 4)
    assert float(profile.step_collective_s[GRADIENTS]) == pytest.approx(layer, rel=1e-9)
    # as many parameters as a block has per chip would be 64 blocks: their time is shared by bytes
    larger = replace(framework, buckets=frameworks.Buckets(per_chip=BLOCK))
    shared = seconds(CollectiveKind.ALL_REDUCE, CHIPS * BLOCK, 4) / CHIPS
    found = float(block_of(larger, data_parallel=CHIPS, zero_stage=0).step_collective_s[GRADIENTS])
    assert found == pytest.approx(shared, rel=1e-9)
    assert found < layer
