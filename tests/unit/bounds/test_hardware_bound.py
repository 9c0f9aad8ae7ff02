"""L0: a lower bound of every evaluation, whatever the plan, chip, framework and precision."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import frameworks, hardware
from dovetail.bounds.hardware_bound import Pipelines, crossing, hardware_bound
from dovetail.cost.calibration import calibration
from dovetail.cost.collective import tiered_seconds
from dovetail.cost.tier import TierArrays
from dovetail.errors import InputError
from dovetail.hardware import Chip, Cluster, Rates, Tier
from dovetail.hardware.chip import EFFICIENCY_NAMES, ChipCalibration
from dovetail.layout import CollectiveKind
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.plan_file import Task, task_of
from dovetail.step.evaluate import evaluate
from timing import least_cpu_seconds

#: Dense, mixtures, latent, sliding, sparse and linear attention, state spaces, tied tables, parallel blocks.
MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "falcon-40b", "gemma-2-9b",
    "qwen3-next-80b-a3b", "deepseek-v2-lite", "deepseek-v3.2", "gpt-oss-20b", "llama-3.2-1b", "mamba2-2.7b",
    "minimax-text-01", "palm-540b", "nemotron-3-nano-30b-a3b", "llama-4-scout", "gpt-j-6b",
)  # fmt: skip
CHIPS = (
    "h100-sxm", "a100-80gb", "tpu-v5p", "b200", "gb200", "mi300x", "gaudi3", "trainium2", "h800-sxm", "tpu-v5e",
    "dojo-d1", "wse-3", "mi250x", "ipu-mk2", "h100-96gb-hbm2e-500w",
)  # fmt: skip
SCHEDULES = ("1f1b", "1f1b", "gpipe", "interleaved", "interleaved", "zb_h1", "dualpipe")


def random_document(draw: random.Random, models: tuple[str, ...]) -> dict[str, Any]:
    tensor, context, data = (draw.choice((1, 1, 2, 4, 8)) for _ in range(3))
    tensor *= draw.choice((1, 1, 1, 4))
    stages = draw.choice((1, 1, 2, 4, 8, 16))
    schedule = draw.choice(SCHEDULES) if stages > 1 else None
    plan: dict[str, Any] = {
        "tensor_parallel": tensor, "context_parallel": context, "pipeline_parallel": stages,
        "context_kind": draw.choice(("all_gather", "ring", "ulysses")), "pipeline_schedule": schedule,
        "virtual_stages": draw.choice((2, 3)) if schedule == "interleaved" else 1,
        "zero_stage": draw.choice((0, 1, 2, 3)), "micro_batch": draw.choice((1, 1, 2, 4)),
        "sequence_parallel": tensor > 1 and draw.random() < 0.5,
        "recompute": draw.choice(("none", "none", "selective", "full")),
        "axis_order": draw.choice(("tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp")),
    }  # fmt: skip
    if plan["zero_stage"] and draw.random() < 0.3:
        plan["zero_group"] = draw.choice((1, 2, 4))
    if draw.random() < 0.7:
        plan |= {"expert_tensor_parallel": draw.choice((1, tensor)), "expert_parallel": draw.choice((1, 2, 4, 8))}
    rounds = draw.choice((1, 2, 3, 4, 8, 32)) * (2 * stages if schedule == "dualpipe" else draw.choice((1, stages)))
    job = {
        "model": draw.choice(models), "seq_len": draw.choice((256, 1024, 2048, 8192)),
        "global_batch": data * plan["micro_batch"] * rounds,
        "precision": draw.choice(("bf16", "bf16", "bf16", "fp16", "fp8", "fp8", "fp4", "fp32")),
        "optimizer": draw.choice(("adamw", "sgd")), "attention": draw.choice(("fused", "fused", "unfused")),
    }  # fmt: skip
    chips = tensor * context * data * stages
    framework = draw.choice(("ideal", "ideal", "ideal", *frameworks.names()))
    return {"job": job, "cluster": {"chip": draw.choice(CHIPS), "chips": chips, "framework": framework}, "plan": plan}


def random_tasks(seed: int, count: int, models: tuple[str, ...] = MODELS, network: str | None = None) -> Iterator[Task]:
    """Tasks whose plans suit model, cluster and framework; half of the pipelines are cut at random."""
    draw = random.Random(seed)  # noqa: S311
    while count:
        try:
            document = random_document(draw, models)
            document["cluster"] |= {} if network is None else {"network": network}
            task = task_of(document, "random")
        except InputError:
            continue
        count -= 1
        if task.framework.uneven_stages == "any" and draw.random() < 0.5:
            task = replace(task, plan=replace(task.plan, layers_per_stage=random_cut(draw, task)))
        yield task


def random_cut(draw: random.Random, task: Task) -> tuple[int, ...]:
    blocks, parts = task.job.model.num_layers, len(task.plan.layers_per_stage)
    cuts = sorted(draw.sample(range(1, blocks), parts - 1)) if parts <= blocks else []
    return tuple(np.diff([0, *cuts, blocks]).tolist()) if cuts else task.plan.layers_per_stage


def step_seconds(task: Task) -> float:
    return evaluate(task.plan, task.job, task.cluster, task.framework, energy=False).step_time_s


def bound(task: Task, **options: Any) -> float:
    return float(hardware_bound(task.job, task.cluster, PlanBatch.of([task.plan]), **options)[0])


def state_width(task: Task) -> float:
    """The least a framework moves per parameter to reduce gradients or to gather weights."""
    state = task.framework.state_bytes(task.job.precision)
    accumulated = state.gradients if state.pipeline_gradients is None else state.pipeline_gradients - state.gradients
    return min(state.weights, state.gradients, accumulated, state.sharded_reduction or state.gradients)


def tight_bound(task: Task) -> float:
    """The bound with all that may be known of a chip and a framework."""
    sustained = calibration(task.cluster.chip, task.job.precision).efficiencies
    return bound(task, efficiencies=sustained, state_bytes=state_width(task))


def check_bounds(tasks: Iterator[Task]) -> None:
    for task in tasks:
        assert 0 < bound(task) <= tight_bound(task) <= step_seconds(task), task


def test_no_plan_is_faster():
    check_bounds(random_tasks(1, 300, MODELS[:6]))


def test_no_plan_on_a_tapered_tree_is_faster():
    check_bounds(random_tasks(3, 10, MODELS[:6], "fat-tree-2to1"))


@pytest.mark.slow
@pytest.mark.parametrize("network", hardware.network_names())
def test_no_plan_on_a_network_of_the_catalogue_is_faster(network):
    check_bounds(random_tasks(3, 200, MODELS[:6], network))


@pytest.mark.slow
def test_no_plan_of_thousands_is_faster():
    check_bounds(random_tasks(2, 10_000))


def without_losses(cluster: Cluster, slow: str) -> Cluster:
    """The same chips at their peaks and without delays, but for one part that is far slower than the others."""
    factor = {name: 1e-4 if name == slow else 1.0 for name in ("matrix", "vector", "memory", "network")}

    def links(tier: Tier) -> Tier:
        return replace(tier, latency_s=0.0, bytes_per_s=tier.bytes_per_s * factor["network"])

    chip = cluster.chip
    rates = {name: rate * factor["matrix"] for name, rate in chip.dense_flops.published().items()}
    slower: Chip = replace(
        chip,
        dense_flops=Rates(**rates),
        # lanes alone are counted by it
        clock_hz=chip.clock_hz * factor["vector"],
        hbm_bytes_per_s=chip.hbm_bytes_per_s * factor["memory"],
        shared_sram_bytes_per_s=(chip.shared_sram_bytes_per_s or 0.0) * factor["memory"],
        core_sram_bytes_per_s=(chip.core_sram_bytes_per_s or 0.0) * factor["memory"],
        tiers=tuple(map(links, chip.tiers)),
        calibration=ChipCalibration(tuple((name, 1e-15 if name[-2:] == "_s" else 1.0) for name in EFFICIENCY_NAMES)),
    )
    return replace(cluster, chip=slower, tiers=tuple(map(links, cluster.tiers)))


@pytest.mark.parametrize(("slow", "reached"), [("matrix", 0.9), ("vector", 0.9), ("memory", 0.6), ("network", 0.6)])
def test_each_part_holds_where_nothing_else_takes_time(slow, reached):
    ratios = []
    for task in random_tasks(3, 60, MODELS[:6]):
        lossless = replace(task, cluster=without_losses(task.cluster, slow))
        ratios.append(bound(lossless, state_bytes=state_width(task)) / step_seconds(lossless))
    assert max(ratios) <= 1
    assert max(ratios) > reached, "some plan comes near its bound"


def first(plans: PlanBatch) -> PlanBatch:
    return PlanBatch(**{name: column[0] for name, column in plans.columns().items()})


def test_arrays_equal_numbers():
    tasks = [task for task in random_tasks(4, 400, MODELS[:1]) if task.job.precision == "bf16"]
    job, cluster = replace(tasks[0].job, global_batch=1024), tasks[0].cluster
    plans = [task.plan for task in tasks]
    together = hardware_bound(job, cluster, PlanBatch.of(plans))
    apart = [hardware_bound(job, cluster, first(PlanBatch.of([plan]))) for plan in plans]
    assert together.tolist() == [float(one) for one in apart]
    assert len(set(together.tolist())) > 20


def test_numbers_broadcast():
    (task,) = random_tasks(5, 1)
    plans = PlanBatch.of([task.plan])
    several = replace(plans, micro_batch=[[1], [2]], pipeline_schedule=["1f1b", "gpipe", "zb_h1"])
    table = hardware_bound(task.job, task.cluster, several)
    assert table.shape == (2, 3)
    one = hardware_bound(task.job, task.cluster, replace(plans, micro_batch=2, pipeline_schedule="gpipe"))
    assert one.tolist() == [table[1, 1]]


def published(model: str, chip: str, chips: int, **plan: Any) -> Task:
    job = {"model": model, "seq_len": 8192, "global_batch": 2 * chips}
    return task_of({"job": job, "cluster": {"chip": chip, "chips": chips, "framework": "ideal"}, "plan": plan}, "here")


@pytest.mark.parametrize(
    "task",
    [
        published("llama-3.1-70b", "h100-sxm", 256, zero_stage=3),
        published("llama-3.1-70b", "tpu-v5p", 512, zero_stage=3),
        published("llama-3.1-8b", "h100-sxm", 8, zero_stage=1),
        published("llama-3.1-70b", "a100-80gb", 256, tensor_parallel=8, pipeline_parallel=4, sequence_parallel=True),
    ],
    ids=["h100", "tpu-v5p", "one node", "pipeline"],
)
def test_compute_bound_plans_come_near_it(task):
    step = step_seconds(task)
    assert bound(task) > 0.5 * step
    assert tight_bound(task) > 0.75 * step


def test_wide_tensor_parallelism_is_bound_by_its_network():
    degrees = [published("llama-3.1-70b", "h100-sxm", 64, tensor_parallel=t) for t in (8, 64)]
    assert bound(degrees[1]) > 1.5 * bound(degrees[0])


def test_wider_state_lifts_the_bound_of_a_small_batch():
    task = published("llama-3.1-70b", "h100-sxm", 64, tensor_parallel=8)
    plans = PlanBatch.of([task.plan])
    small = replace(task.job, global_batch=8, seq_len=128)
    narrow, wide = (hardware_bound(small, task.cluster, plans, state_bytes=n)[0] for n in (1.0, 4.0))
    assert wide == pytest.approx(4 * narrow)


def pipeline_of(schedule: str, draw: random.Random) -> Pipeline:
    stages, chunks = draw.choice((2, 3, 4, 8)), draw.choice((2, 3)) if schedule == "interleaved" else 1
    if schedule == "dualpipe":
        stages += stages % 2
        return Pipeline(PipelineSchedule(schedule), stages, 2 * stages + 2 * draw.randrange(8))
    return Pipeline(PipelineSchedule(schedule), stages, draw.randrange(1, 4 * stages), chunks)


def pipelines(pipeline: Pipeline) -> Pipelines:
    m, p = float(pipeline.num_microbatches), float(pipeline.num_stages)
    return Pipelines(np.array(m), np.array(p), np.array(pipeline.schedule.value))


@pytest.mark.parametrize("schedule", [s.value for s in PipelineSchedule])
def test_no_cut_of_a_pipeline_is_faster(schedule):
    """Exact step times of random cuts, their forwards' shares between the two given."""
    draw, rng = random.Random(6), np.random.default_rng(6)  # noqa: S311
    for _ in range(100):
        pipeline = pipeline_of(schedule, draw)
        work = rng.exponential(size=(50, pipeline.num_places)) ** draw.choice((0.1, 1.0, 2.0))
        work /= work.sum(axis=1, keepdims=True)
        low, high = sorted(rng.uniform(0.05, 0.95, 2))
        forward = work * rng.uniform(low, high, work.shape)
        of_input = (work - forward) * rng.uniform(0, 1, work.shape)
        exact = step_time(pipeline, ChunkTimes(forward, of_input, work - forward - of_input))
        parts = [part.sum(axis=1) for part in (forward, of_input, work - forward - of_input)]
        assert np.all(pipelines(pipeline).lower_bound(parts, (low, high)) <= exact * (1 + 1e-9))


@pytest.mark.parametrize(("schedule", "reached"), [("gpipe", 0.99), ("1f1b", 0.88), ("zb_h1", 0.8)])
def test_the_best_of_many_cuts_is_near_the_bound(schedule, reached):
    rng = np.random.default_rng(7)
    for stages, microbatches in ((2, 2), (2, 8), (3, 4), (3, 12)):
        pipeline = Pipeline(PipelineSchedule(schedule), stages, microbatches)
        work = rng.dirichlet(np.full(stages, 20.0), 20_000)
        best = step_time(pipeline, ChunkTimes(work / 3, work / 3, work / 3)).min()
        parts = [np.array(1 / 3)] * 3
        assert reached < pipelines(pipeline).lower_bound(parts, (1 / 3, 1 / 3)) / best <= 1


@pytest.mark.parametrize("adding", [False, True])
def test_no_collective_crosses_a_network_faster(adding):
    rng, one, none = np.random.default_rng(8), np.ones(()), np.zeros(())
    for _ in range(300):
        joined = rng.choice([1, 2, 3, 4, 8], 3)
        rates = 10.0 ** rng.uniform(-2, 2, 3)
        spacing = float(rng.choice([1, 2, 4]))
        tiers = [TierArrays(np.array(r), none, none, one, adding and j == 0) for j, r in enumerate(rates)]
        groups = [(np.array(float(n)), tier) for n, tier in zip(joined, tiers, strict=True)]
        blocks = [1.0, *(spacing * np.cumprod(joined)[:-1]).tolist()]
        group = np.array(float(np.prod(joined)))
        for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            twice = kind is CollectiveKind.ALL_REDUCE
            least = max(
                crossing(block, group, spacing, times=2.0 if twice and not (adding and j == 0) else 1.0)
                / rates[j:].sum()
                for j, block in enumerate(blocks)
            )
            assert least <= tiered_seconds(kind, groups, one) * (1 + 1e-12)


def test_a_plan_costs_less_than_a_microsecond():
    task = published("deepseek-v3", "h800-sxm", 2048, expert_parallel=64)
    rng, count = np.random.default_rng(9), 20_000
    columns = {name: np.repeat(column, count) for name, column in PlanBatch.of([task.plan]).columns().items()}
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        columns[name] = rng.choice([1, 2, 4, 8], count)
    columns["pipeline_schedule"] = rng.choice(["1f1b", "interleaved", "zb_h1"], count)
    plans = PlanBatch(**columns)
    most = 1e-6 * count
    assert least_cpu_seconds(lambda: hardware_bound(task.job, task.cluster, plans), most) < most
