"""L0 of designs: the least over all plans, below every evaluation, and never higher for a chip that has more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import frameworks, hardware, models
from dovetail.bounds.design_bound import CHUNK, DesignBound, enumerated_plans, least_terms
from dovetail.bounds.hardware_bound import PEAKS, hardware_bound
from dovetail.cost.calibration import calibration
from dovetail.hardware import Cluster
from dovetail.hardware.design import Designs, design_of
from dovetail.models import Job
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.skeletons import NAMES, plan_skeletons, shardings
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.evaluate import evaluate
from random_plans import QUESTIONS, random_plans

#: Least and most of what designs may have; drawn evenly over orders of magnitude.
WHOLE = {
    "tensor_cores": (1, 4096), "rows": (2, 512), "cols": (2, 512), "vector_cores": (1, 1024), "vector_lanes": (1, 4096),
    "hbm_stacks": (1, 16), "link_ports": (1, 64), "dies": (1, 8),
}  # fmt: skip
REAL = {
    "clock_hz": (0.2e9, 4e9), "core_sram_bytes": (2.0**10, 2.0**28), "core_sram_bytes_per_s": (1e10, 1e14),
    "shared_sram_bytes": (2.0**16, 2.0**32), "shared_sram_bytes_per_s": (1e11, 1e16), "hbm_stack_bytes": (1e9, 1e11),
    "hbm_stack_bytes_per_s": (1e10, 2e12), "link_port_bytes_per_s": (1e9, 2e11),
}  # fmt: skip
#: What a larger chip has more of.
RESOURCES = sorted({*WHOLE, *REAL} - {"dies"})

TPUS = hardware.cluster("tpu-v4", chips=64)
GPUS = hardware.cluster("h100-sxm", chips=16)
#: Pairs with a slow network between them, and more of them than a pipeline of the small model can have stages.
_LINK, _NETWORK = hardware.cluster("h100-sxm", chips=64).tiers
PAIRS = replace(GPUS, chips=64, tiers=(replace(_LINK, size=2), replace(_NETWORK, bytes_per_s=1e7)))
SMALL, MIXTURE = models.load("llama-3.2-1b"), models.load("mixtral-8x7b")


def random_designs(cluster: Cluster, count: int, seed: int) -> Designs:
    """Designs of any size, with both dataflows and all widths of numbers."""
    draw = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for name, (low, high) in (WHOLE | REAL).items():
        drawn = np.exp(draw.uniform(np.log(low), np.log(high), count))
        values[name] = np.rint(drawn) if name in WHOLE else drawn
    values["output_stationary"] = draw.integers(2, size=count)
    values["narrowest_bits"] = draw.choice([4, 8, 16], count)
    return design_of(cluster.chip).varied(values)


def cluster_of(designs: Designs, position: int, cluster: Cluster) -> Cluster:
    """The cluster with one of the designs in the place of its chip."""
    chip = designs.chip(position, f"design-{position}")
    tiers = (replace(cluster.tiers[0], bytes_per_s=chip.link_bytes_per_s), *cluster.tiers[1:])
    return replace(cluster, chip=chip, tiers=tiers)


#: What the bound depends on.
FIELDS = (
    "tensor_parallel", "context_parallel", "data_parallel", "pipeline_parallel", "pipeline_schedule", "micro_batch",
    "expert_parallel", "expert_tensor_parallel", "sequence_parallel", "zero_stage", "zero_group",
)  # fmt: skip


def every_plan(job: Job, cluster: Cluster) -> PlanBatch:
    """All plans of the search under a framework that runs everything, listed by the search itself."""
    ideal = frameworks.load("ideal")
    space = Space().resolve(job, cluster, ideal)
    every = stage_degrees(job, cluster, ideal, space)
    found = plan_skeletons(
        job, cluster, ideal, space, every, np.ones((len(every), len(space.pipeline_parallel)), np.bool_)
    )
    tiers = [tier.size for tier in cluster.tiers]
    rows: list[tuple[Any, ...]] = []
    for i, split in enumerate(found.degrees.tolist()):
        plan, d, p = every[split].plan, int(found.replicas[i]), int(found.stages[i])
        for stage, group in shardings(job, ideal, space, every[split], d, p, tiers):
            rows.append(
                (
                    plan.tensor_parallel, plan.context_parallel, d, p, NAMES[int(found.schedule[i])],
                    int(found.micro_batch[i]), plan.expert_parallel, plan.expert_tensor_parallel,
                    plan.sequence_parallel, stage, group,
                )
            )  # fmt: skip
    return PlanBatch(**dict(zip(FIELDS, zip(*rows, strict=True), strict=True)))


def design_bounds(jobs, cluster, designs, sizes, *, sustained=False):
    """Designs × jobs × micro-batches; at published peaks, or at what the base sustains of them."""

    def of(job, size):
        efficiencies = calibration(cluster.chip, job.precision).efficiencies if sustained else PEAKS
        return DesignBound(job, cluster, [size], efficiencies).least_s(designs)

    of_jobs = [[of(job, size) for size in sizes] for job in jobs]
    return np.moveaxis(np.array(of_jobs), (0, 1), (-2, -1))


@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp32"])
@pytest.mark.parametrize("cluster", [TPUS, GPUS, PAIRS], ids=["tpu-v4", "h100-sxm", "pairs"])
def test_no_other_plan_of_the_search_bounds_a_design(cluster, precision):
    """Plans listed one by one by the search, with every sharding, against the few that are looked at."""
    job = Job(SMALL, seq_len=512, global_batch=32, precision=precision)
    designs, sizes = random_designs(cluster, 20, seed=1), [1, 2, 4]
    bounds = design_bounds([job], cluster, designs, sizes)
    plans = every_plan(job, cluster)
    for i in range(20):
        least = hardware_bound(job, cluster_of(designs, i, cluster), plans)
        for j, size in enumerate(sizes):
            assert bounds[i, 0, j] == pytest.approx(least[plans.micro_batch == size].min(), rel=1e-12)
    together = DesignBound(job, cluster, sizes).least_s(designs)
    assert together.tolist() == bounds[:, 0].min(axis=-1).tolist()


def test_the_least_of_all_plans_of_a_mixture_bounds_a_design():
    job, cluster, sizes = Job(MIXTURE, seq_len=1024, global_batch=64), GPUS, [1, 2]
    designs = random_designs(cluster, 20, seed=2)
    bounds = design_bounds([job], cluster, designs, sizes)
    plans = enumerated_plans(job, cluster, sizes)
    every = every_plan(job, cluster)
    for i in range(20):
        here = cluster_of(designs, i, cluster)
        listed = hardware_bound(job, here, plans)
        searched = hardware_bound(job, here, every)
        for j, size in enumerate(sizes):
            assert bounds[i, 0, j] == pytest.approx(listed[plans.micro_batch == size].min(), rel=1e-12)
            assert bounds[i, 0, j] <= searched[every.micro_batch == size].min() * (1 + 1e-12)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q[0]}-{q[4]}")
def test_every_plan_of_every_framework_is_listed(question):
    found = random_plans(question, 60, seed=3)
    fields = PlanBatch.of(found.plans).columns()
    listed = enumerated_plans(found.job, found.cluster, sorted({plan.micro_batch for plan in found.plans}))
    named = [name for name in FIELDS if name not in ("zero_stage", "zero_group", "expert_tensor_parallel")]
    fields["expert_parallel"] = fields["expert_parallel"] * fields["expert_tensor_parallel"]
    known = set(zip(*(getattr(listed, name).tolist() for name in named), strict=True))
    assert set(zip(*(fields[name].tolist() for name in named), strict=True)) <= known


def ratios(number: int, seed: int) -> Iterator[float]:
    """Bounds over evaluations, of random plans on random designs."""
    for question in (
        ("llama-3.1-8b", 64, 256, 4096, "ideal", "tpu-v4"),
        ("mixtral-8x7b", 64, 256, 4096, "maxtext", "tpu-v4"),
        ("llama-3.1-8b", 24, 48, 4096, "ideal", "h100-sxm"),
        ("deepseek-v3", 256, 512, 4096, "ideal", "h100-sxm"),
        ("gpt3-175b", 96, 192, 2048, "megatron", "h100-sxm"),
    ):
        found = random_plans(question, number // 5, seed)
        designs = random_designs(found.cluster, len(found.plans), seed)
        jobs = [found.job, replace(found.job, precision="fp8")]
        sizes = sorted({plan.micro_batch for plan in found.plans})
        bounds = design_bounds(jobs, found.cluster, designs, sizes, sustained=True)
        peaks = design_bounds(jobs, found.cluster, designs, sizes)
        assert np.all(peaks <= bounds)
        for i, plan in enumerate(found.plans):
            narrow = i % 2 if found.framework.name in ("ideal", "megatron") else 0
            here = cluster_of(designs, i, found.cluster)
            # every third systolic chip runs operators side by side
            here = replace(here, chip=replace(here.chip, shares_cores=here.chip.kind == "systolic" and i % 3 == 0))
            taken = evaluate(plan, jobs[narrow], here, found.framework, energy=False).step_time_s
            yield float(bounds[i, narrow, sizes.index(plan.micro_batch)]) / taken


def test_no_plan_on_a_design_is_faster():
    found = list(ratios(200, seed=4))
    assert len(found) >= 190
    assert min(found) > 0
    assert max(found) <= 1


@pytest.mark.slow
def test_no_plan_of_thousands_on_a_design_is_faster():
    assert max(ratio for seed in range(5, 15) for ratio in ratios(500, seed)) <= 1


@given(st.integers(0, 2**32), st.sampled_from(RESOURCES), st.integers(2, 16), st.sampled_from([TPUS, GPUS]))
def test_more_of_anything_is_never_slower(seed, name, times, cluster):
    one = random_designs(cluster, 1, seed)
    larger = one.varied({name: np.array([1, times]) * one.value(name)})
    jobs = [Job(SMALL, seq_len=512, global_batch=32, precision=precision) for precision in ("bf16", "fp8")]
    less, more = design_bounds(jobs, cluster, larger, [1, 8])
    assert np.all(np.isfinite(less))
    assert np.all(more <= less)


def test_every_rate_decides_somewhere():
    """Raising each of the rates speeds up some design."""
    job, designs = Job(SMALL, seq_len=512, global_batch=32), random_designs(TPUS, 200, seed=7)
    before = design_bounds([job], TPUS, designs, [1])
    for name in ("tensor_cores", "vector_lanes", "hbm_stack_bytes_per_s", "link_ports"):
        after = design_bounds([job], TPUS, designs.varied({name: 2 * designs.value(name)}), [1])
        assert np.any(after < 0.6 * before), name


def test_a_design_without_memory_beside_it_streams_from_its_own():
    job, own = Job(SMALL, seq_len=8, global_batch=1), {"hbm_stacks": np.array(0.0)}
    slow = design_of(GPUS.chip).varied(own | {"shared_sram_bytes_per_s": np.array(1e6)})
    assert design_bounds([job], GPUS, slow, [1]).item() == pytest.approx(
        hardware_bound(job, cluster_of(slow, 0, GPUS), every_plan(job, GPUS)).min(), rel=1e-12
    )


def test_micro_batches_that_no_plan_has_take_forever():
    jobs = [Job(SMALL, seq_len=512, global_batch=batch) for batch in (32, 48)]
    bounds = design_bounds(jobs, TPUS, design_of(TPUS.chip), [1, 3, 16, 64])
    assert np.isfinite(bounds).tolist() == [[True, False, True, False], [True, True, True, False]]


def test_designs_of_several_axes_and_chunks_are_what_single_ones_are():
    job, clocks = Job(SMALL, seq_len=512, global_batch=32), np.linspace(1e9, 2e9, CHUNK + 1)
    grid = design_of(GPUS.chip).varied({"clock_hz": clocks, "hbm_stacks": np.array([[1.0], [4.0]])})
    bounds = design_bounds([job], GPUS, grid, [1, 2])
    assert bounds.shape == (2, CHUNK + 1, 1, 2)
    for stacks, clock in ((0, 0), (1, 5), (1, CHUNK)):
        row = {"clock_hz": clocks[clock], "hbm_stacks": np.array([1.0, 4.0])[stacks]}
        one = design_bounds([job], GPUS, design_of(GPUS.chip).varied(row), [1, 2])
        assert bounds[stacks, clock].tolist() == one.tolist()


def test_what_is_left_of_terms_decides_like_all_of_them():
    draw = np.random.default_rng(9)
    terms = draw.integers(0, 6, (4, 3000)).astype(np.float64)
    left, times = least_terms(terms), draw.exponential(size=(50, 4, 1))
    assert left.shape[1] < 100
    assert (terms * times).max(axis=1).min(axis=1).tolist() == (left * times).max(axis=1).min(axis=1).tolist()
    assert all((left[:, [i]] > np.delete(left, i, axis=1)).any(axis=0).all() for i in range(left.shape[1]))


def test_designs_without_memory_are_bounded_in_any_order():
    base = design_of(hardware.chip("tpu-v5p"))
    cluster, job = hardware.cluster("tpu-v5p", chips=64), Job(models.load("llama-2-7b"), 4096, 64)
    orders = [np.array([2.0, 0.0]), np.array([0.0, 2.0])]
    one, other = (design_bounds([job], cluster, base.varied({"hbm_stacks": o}), [1]).reshape(-1) for o in orders)
    assert np.array_equal(one, other[::-1])
