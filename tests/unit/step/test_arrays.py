"""The arithmetic of an evaluation is array code: many chips or plans at once give what single calls give."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.units import chip_units
from dovetail.frameworks import Buckets
from dovetail.models import Job
from dovetail.pipeline.step_time import step_time
from dovetail.plans.arrange import arrange
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.step.arrangements import Arrangements
from dovetail.step.evaluate import step_of
from dovetail.step.facts import Overheads, facts_of, overheads_of
from dovetail.step.profiles import pricing_of, profile_job
from dovetail.step.stages import stage_contents
from dovetail.step.times import LayerTimes, busy_parts, chunk_times

CONTENTS = tuple({"block": 2} | ({"head": 1} if place == 39 else {}) for place in range(40))


def times(values):
    values = np.asarray(values, float)
    parts = {"forward": values, "backward": 2 * values}
    return LayerTimes(values, values, values, parts)


def test_many_at_once_give_what_each_gives():
    block, head = np.array([1.0, 2.0, 0.5]), np.array([0.1, 9.0, 1.0])
    transfer = np.array([0.0, 0.3, 2.0])
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 40, 64)
    stages = stage_contents(CONTENTS, pipeline)
    many = {"block": times(block), "head": times(head)}
    steps = step_time(pipeline, chunk_times(many, CONTENTS, transfer, pipeline.num_links))
    parts = busy_parts(many, stages, 64)
    assert steps.shape == (3,)
    for i in range(3):
        one = {"block": times(block[i]), "head": times(head[i])}
        single = step_time(pipeline, chunk_times(one, CONTENTS, transfer[i], pipeline.num_links))
        assert steps[i] == pytest.approx(float(single))
        for name, seconds in busy_parts(one, stages, 64).items():
            assert parts[name][i] == pytest.approx(float(seconds))


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("llama-3.1-8b", {"tensor_parallel": 2, "pipeline_parallel": 4, "virtual_stages": 2, "recompute": "full"}),
        ("mixtral-8x7b", {"expert_parallel": 8, "zero_stage": 1, "pipeline_parallel": 2}),
        ("llama-3.1-8b", {"zero_stage": 3}),
    ],
)
def test_many_calibrations_at_once_give_what_each_gives(model, spec):
    cluster, framework = hardware.cluster("h100-sxm", chips=64), frameworks.load("ideal")
    job = Job(models.load(model), seq_len=4096, global_batch=64)
    plan = resolve_plan(PlanSpec(micro_batch=1, **spec), chips=64, global_batch=64, num_layers=job.model.num_layers)
    random = np.random.default_rng(5)
    known = calibration(cluster.chip, "bf16").efficiencies
    variants = {name: getattr(known, name) * random.uniform(0.6, 1.0, 4) for name in Efficiencies.__match_args__}
    overheads = {name: random.uniform(0.5, 1.0, 4) for name in Overheads.__match_args__} | {"host_s": np.full(4, 2e-5)}
    assert overheads_of(framework).host_s == 0

    def seconds(efficiencies, added):
        return step_of(plan, job, cluster, facts_of(framework, job, Overheads(**added)), Efficiencies(**efficiencies))

    together = seconds(variants, overheads)
    assert together.seconds.shape == (4,)
    for i in range(4):
        alone = seconds({n: v[i] for n, v in variants.items()}, {n: v[i] for n, v in overheads.items()})
        for name, part in alone.breakdown.items():
            assert np.broadcast_to(together.breakdown[name], (4,))[i] == pytest.approx(float(part), rel=1e-12), name


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_plans_along_the_same_axes_are_profiled_together(model):
    """Every field of every layer, for plans that differ in degrees and microbatch."""
    cluster = hardware.cluster("h100-sxm", chips=64)
    job = Job(models.load(model), seq_len=4096, global_batch=64)
    experts = [1, 2, 4] if model != "llama-3.1-8b" else [1]
    plans = [
        resolve_plan(
            PlanSpec(tensor_parallel=t, context_parallel=c, micro_batch=b, zero_stage=z, sequence_parallel=t > 1,
                     expert_parallel=e, expert_tensor_parallel=1 if e > 1 else None),
            chips=64, global_batch=64, num_layers=job.model.num_layers,
        )
        for t in (1, 2, 4) for c in (1, 2) for b in (1, 2) for z in (0, 1, 3) for e in experts if b <= t * c
    ]  # fmt: skip
    known = calibration(cluster.chip, "bf16").efficiencies
    chip = chip_units(cluster.chip, "bf16", known)
    arranged = [arrange(plan, job.graph(), cluster) for plan in plans]
    groups = {}
    for i, found in enumerate(arranged):
        groups.setdefault(found.strategy, []).append(i)
    assert max(len(group) for group in groups.values()) > 1

    def profiles(group):
        batches = [plans[i].micro_batch * plans[i].data_parallel for i in group]
        together = Arrangements.of([arranged[i] for i in group], batches)
        return profile_job(
            together, job, chip, pricing_of(job, cluster, known, 4, 2, Buckets()), one_copy_per_node=True
        )

    for group in groups.values():
        together = profiles(group)
        for place, i in enumerate(group):
            alone = profiles([i])
            for name, layer in alone.layers.items():
                one, many = flat(layer), flat(together.layers[name])
                assert list(one) == list(many)
                for field, value in one.items():
                    assert np.broadcast_to(many[field], len(group))[place] == pytest.approx(float(value), rel=1e-12), (
                        field
                    )


def flat(layer):
    """The numbers of a profile by where they stand."""
    found = {}

    def walk(where, value):
        if isinstance(value, np.ndarray | float | np.floating):
            found[where] = value
        elif isinstance(value, dict):
            for key, part in value.items():
                walk((*where, key), part)
        elif isinstance(value, tuple):
            for number, part in enumerate(value):
                walk((*where, number), part)
        elif is_dataclass(value):
            for field in fields(value):
                walk((*where, field.name), getattr(value, field.name))

    walk((), layer)
    return found
