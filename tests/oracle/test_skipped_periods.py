"""Steps whose steady state is skipped are those in which every task is played."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from kernel_steps import kernel_step
from pipeline_graph import Times, plan_times, random_times
from random_step_plans import random_tasks

from dovetail import frameworks, hardware, models
from dovetail.models import Job
from dovetail.pipeline import Pipeline, PipelineSchedule
from dovetail.pipeline.repeating_order import stretches
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task
from dovetail.report.step_breakdown import link_utilisation, stage_breakdowns
from dovetail.report.step_items import busy_shares
from dovetail.simulation.long_steps import played
from dovetail.simulation.simulate import Simulation, simulate
from dovetail.simulation.steady_state import steady_state
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import Timeline, run

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, DUAL_PIPE = PipelineSchedule
#: What a sum of so many times rounds to.
NEAR = 1e-11

PIPELINES = [
    Pipeline(ONE_F_ONE_B, 1, 30),
    Pipeline(ONE_F_ONE_B, 5, 71),
    Pipeline(INTERLEAVED, 4, 64, 2),
    Pipeline(INTERLEAVED, 3, 47, 3),
    Pipeline(INTERLEAVED, 3, 59, 2, 5),
    Pipeline(ZB_H1, 4, 80),
    Pipeline(DUAL_PIPE, 4, 70),
]


def both(pipeline: Pipeline, seed: int) -> list[tuple[StepTasks, Timeline]]:
    """Every task of random kernels played, and periods skipped."""
    times = plan_times(random_times(pipeline, seed, plans=1, transfers=False), 0)
    times.pairs = None
    draw = np.random.default_rng(seed)
    delays_s = tuple((draw.random(2) * draw.choice([0.0, 0.1, 1.0])).tolist())
    write = partial(kernel_step, times=times, delays_s=delays_s, sending=bool(seed % 2))
    return [played(write, pipeline, few=0, fewest=2, skip=skip) for skip in (False, True)]


def items_of(tasks: StepTasks, timeline: Timeline) -> dict[tuple[int, ...], tuple[float, float]]:
    """When every item begins and ends on the first chip of its stage, by what it is."""
    order = tasks.order
    keys = zip(*(c.tolist() for c in (order.stage, order.kind, order.chunk, order.microbatch)), strict=True)
    times = (timeline.start_s[tasks.begin[:, 0]].tolist(), timeline.end_s[tasks.end[:, 0]].tolist())
    return dict(zip(keys, zip(*times, strict=True), strict=True))


def check_same(full: tuple[StepTasks, Timeline], skipped: tuple[StepTasks, Timeline]) -> None:
    (tasks, timeline), (fewer, shorter) = full, skipped
    assert shorter.seconds == pytest.approx(timeline.seconds, rel=NEAR)
    assert fewer.num_tasks == len(tasks.graph)
    everything, shown = items_of(*full), items_of(*skipped)
    assert set(shown) <= set(everything)
    played_s, shown_s = [everything[key] for key in shown], list(shown.values())
    np.testing.assert_allclose(shown_s, played_s, rtol=0, atol=NEAR * timeline.seconds)
    # as many of each kind of item as there are
    counts = np.bincount(fewer.order.kind, weights=fewer.runs)
    np.testing.assert_array_equal(counts, np.bincount(tasks.order.kind))


def is_skipped(step: tuple[StepTasks, Timeline]) -> bool:
    return len(step[1].skipped) > 0


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda p: f"{p.schedule.value}-{p.num_stages}-{p.num_microbatches}")
def test_kernels_of_skipped_periods_are_those_played(pipeline):
    steps = [both(pipeline, seed) for seed in range(3)]
    for full, skipped in steps:
        check_same(full, skipped)
    # of stages that are nearly alike some come into step late
    assert sum(is_skipped(skipped) for _, skipped in steps) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_kernels_of_skipped_periods_are_those_played_in_random_pipelines(schedule):
    draw, skips = np.random.default_rng(28), 0
    for seed in range(30):
        stages, microbatches, chunks = 2 * int(draw.integers(1, 5)), 2 * int(draw.integers(20, 90)), 1
        if schedule is INTERLEAVED:
            microbatches, chunks = microbatches + int(draw.integers(0, 2)), int(draw.integers(2, 4))
        full, skipped = both(Pipeline(schedule, stages, microbatches, chunks), seed)
        skips += is_skipped(skipped)
        check_same(full, skipped)
    # stages of GPipe forward at rates of their own; some interleaved ones come into step late and are played in full
    assert skips > {GPIPE: 0, INTERLEAVED: 20}.get(schedule, 25)


# -- real plans: messages share links

#: model, framework, chips of a cluster, tokens, microbatches, plan
CASES = {
    "one stage, sharded weights": ("llama-3.1-8b", "fsdp", 8, 2048, 24, {"zero_stage": 3}),
    "tensor and sequence": (
        "llama-3.1-8b", "megatron", 16, 2048, 40,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "zero_stage": 1, "sequence_parallel": True},
    ),
    "interleaved, a group left over": (
        "llama-3.1-8b", "megatron", 16, 2048, 61,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "virtual_stages": 2, "zero_stage": 1},
    ),
    "contexts and experts": (
        "mixtral-8x7b", "megatron", 32, 4096, 40,
        {"context_parallel": 2, "pipeline_parallel": 4, "expert_parallel": 4, "zero_stage": 1},
    ),
    "weight gradients later": (
        "gpt3-13b", "ideal", 16, 2048, 60,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "pipeline_schedule": "zb_h1", "zero_stage": 1},
    ),
    "both directions": (
        "gpt3-13b", "ideal", 16, 2048, 48,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "pipeline_schedule": "dualpipe", "zero_stage": 1},
    ),
}  # fmt: skip


def task_of(case: str) -> Task:
    model, framework, chips, seq_len, microbatches, spec = CASES[case]
    job = Job(models.load(model), seq_len=seq_len, global_batch=1)
    inside = spec.get("tensor_parallel", 1) * spec.get("context_parallel", 1) * spec.get("pipeline_parallel", 1)
    job = replace(job, global_batch=microbatches * chips // inside)
    plan = resolve_plan(PlanSpec(**spec), chips=chips, global_batch=job.global_batch, num_layers=job.model.num_layers)
    return Task(job, hardware.cluster("hgx-h100", chips=chips), frameworks.load(framework), plan)


def simulated(task: Task, *, skip: bool, exact: bool = False) -> Simulation:
    with pytest.MonkeyPatch.context() as patched:
        # small steps too
        patched.setattr(sys.modules["dovetail.simulation.simulate"], "played", partial(played, few=0, fewest=8))
        return simulate(task.plan, task.job, task.cluster, task.framework, skip=skip, exact=exact)


def check_simulations(full: Simulation, skipped: Simulation) -> None:
    check_same((full.tasks, full.timeline), (skipped.tasks, skipped.timeline))
    assert skipped.step_time_s == pytest.approx(full.step_time_s, rel=NEAR)
    # rounding may bring about a change of a rate, or merge two
    assert skipped.events == pytest.approx(full.events, rel=1e-3)
    assert skipped.played_events < skipped.events or not skipped.timeline.skipped
    for one, every in zip(skipped.memory, full.memory, strict=True):
        assert one.peak_bytes == every.peak_bytes
    near = NEAR * full.step_time_s
    for one, every in zip(stage_breakdowns(skipped), stage_breakdowns(full), strict=True):
        assert one == pytest.approx(every, rel=NEAR, abs=10 * near)
    # shares of the step
    np.testing.assert_allclose(busy_shares(skipped), busy_shares(full), rtol=NEAR, atol=NEAR)
    np.testing.assert_allclose(link_utilisation(skipped), link_utilisation(full), rtol=NEAR, atol=NEAR)


#: The others take longer, and their orders are those of kernels above.
QUICK = ("one stage, sharded weights", "interleaved, a group left over", "contexts and experts")


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_plans_with_skipped_periods_are_those_played(case):
    task = task_of(case)
    skipped = simulated(task, skip=True)
    assert skipped.timeline.skipped
    check_simulations(simulated(task, skip=False), skipped)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_chip_of_plans_with_skipped_periods_is_as_played(case):
    task = task_of(case)
    check_simulations(simulated(task, skip=False, exact=True), simulated(task, skip=True, exact=True))


@pytest.mark.slow
def test_random_plans_with_skipped_periods_are_those_played():
    draw, skips, count = np.random.default_rng(28), 0, 0
    for task in random_tasks(seed=28, count=100):
        microbatches = 2 * int(draw.integers(20, 60))
        batch = microbatches * task.plan.micro_batch * task.plan.data_parallel
        plan = replace(task.plan, num_microbatches=microbatches)
        longer = replace(task, plan=plan, job=replace(task.job, global_batch=batch))
        full, skipped = simulated(longer, skip=False), simulated(longer, skip=True)
        check_simulations(full, skipped)
        count, skips = count + 1, skips + bool(skipped.timeline.skipped)
    assert skips > 0.85 * count


def test_a_state_that_differs_does_not_come_back():
    write = partial(kernel_step, times=Times([1.0, 1.1], [1.0, 1.2], [1.0] * 2, [0.0], None), delays_s=(0.0, 0.3))
    tasks = write(Pipeline(ONE_F_ONE_B, 2, 24))
    timeline, (stretch,) = run(tasks.graph), stretches(tasks.order)
    state = steady_state(tasks, timeline, stretch)
    assert state is not None
    # one task that is under way would end a little later next time
    at_s = state.begin_s - state.period_s
    under_way = np.nonzero((timeline.start_s < at_s) & (timeline.end_s > at_s))[0]
    assert len(under_way)
    later = timeline.end_s.copy()
    later[under_way[0]] *= 1 + 1e-9
    other = steady_state(tasks, replace(timeline, end_s=later), stretch)
    assert other is None or abs(other.begin_s - state.begin_s) > state.period_s / 2


def test_forwards_of_gpipe_are_skipped_apart_from_its_backwards():
    times = plan_times(random_times(Pipeline(GPIPE, 3, 40), 3, plans=1, transfers=False), 0)
    times.forward[:], times.of_input[:], times.of_weight[:], times.pairs = [1.0] * 3, [2.0] * 3, [1.0] * 3, None
    steps = [
        played(partial(kernel_step, times=times), Pipeline(GPIPE, 3, 40), few=0, fewest=2, skip=s)
        for s in (False, True)
    ]
    assert len(steps[1][1].skipped) == 2
    check_same(*steps)
