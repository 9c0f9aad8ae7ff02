"""The model against the simulation: how both order plans that are close to the best, and how far apart they are.

For each of 20 jobs up to 40 plans are simulated, all within 20 % of the best by the model: the best plan, those of
other degrees, and plans that differ from these in a few fields, drawn with a fixed seed. Counted are *inversions*
(pairs whose simulated times differ by more than 2 %, ordered the other way by the model), *regret* (how much longer
the model's choice takes than the best, both simulated), and the error of the model.

    python benchmarks/model_and_simulation.py                 every job
    python benchmarks/model_and_simulation.py gpt3 gb200      jobs whose line holds all of these
    python benchmarks/model_and_simulation.py --plans gpt3    each of their plans too
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.words import plan_words
from dovetail.search.best_first import BestFirst
from dovetail.search.membership import canonical
from dovetail.search.progress import simplicity
from dovetail.simulation import simulate
from dovetail.step.evaluate import evaluate
from dovetail.step.layer_tables import Setting

#: Plans are as close to the best by the model, and so many of a job are simulated.
WITHIN, MOST = 0.20, 40
#: Of these at most so many are the best of their degrees; the others are drawn.
OF_OTHER_DEGREES = 20
#: Plans tried for a job before it has to do with fewer.
TRIES = 1500
#: Simulated times closer than this are equal.
INDISTINCT = 0.02
#: Blocks × microbatches of a plan that still takes less than 2 s of CPU; plans with more are left out, but the best.
LARGEST = 8100
#: Schedules with one chunk a stage.
ONE_CHUNK = ("gpipe", "1f1b", "zb_h1")
WORDS = ("none", "selective", "full")
SEED = 0
GOALS = {"inversions": 0.10, "regret": 0.01, "error": 0.05}


class Case(NamedTuple):
    """A job, where it runs and under which framework."""

    model: str
    seq_len: int
    global_batch: int
    cluster: str
    chips: int
    framework: str

    def __str__(self) -> str:
        return f"{self.model}, {self.chips} × {self.cluster}, {self.framework}"


CASES = [
    Case("bert-large", 512, 4096, "dgx-a100-80gb", 64, "deepspeed"),
    Case("gpt3-1.3b", 2048, 256, "dgx-a100-80gb", 16, "megatron"),
    Case("llama-3.2-3b", 4096, 128, "hgx-h100", 32, "fsdp"),
    Case("llama-3.1-8b", 8192, 128, "hgx-h100", 64, "torchtitan"),
    Case("llama-3.1-8b", 65536, 32, "hgx-h100", 128, "megatron"),
    Case("gpt3-13b", 2048, 512, "dgx-a100-80gb", 128, "deepspeed"),
    Case("llama-2-13b", 4096, 256, "mi300x-roce", 64, "megatron"),
    Case("qwen3-32b", 4096, 256, "trn2", 128, "megatron"),
    Case("llama-2-70b", 4096, 512, "tpu-v5p-pod", 256, "maxtext"),
    Case("llama-3.1-70b", 8192, 256, "hgx-h100", 256, "megatron"),
    Case("llama-3.1-70b", 8192, 512, "meta-24k-roce", 512, "torchtitan"),
    Case("gpt3-175b", 2048, 512, "dgx-a100-80gb", 512, "megatron"),
    Case("gpt3-175b", 2048, 512, "tpu-v4-pod", 512, "maxtext"),
    Case("nemotron-4-340b", 4096, 288, "gb200-nvl72", 288, "megatron"),
    Case("llama-3.1-405b", 8192, 256, "meta-24k-roce", 2048, "megatron"),
    Case("mixtral-8x7b", 4096, 256, "hgx-h100", 128, "megatron"),
    Case("mixtral-8x22b", 4096, 512, "hgx-b200", 256, "megatron"),
    Case("qwen3-30b-a3b", 4096, 256, "hgx-b200", 64, "megatron"),
    Case("qwen3-235b-a22b", 4096, 576, "gb200-nvl72", 288, "megatron"),
    Case("deepseek-v3", 4096, 2048, "deepseek-h800", 2048, "megatron"),
]


# -- figures


class Times(NamedTuple):
    """Seconds of one plan's step, both ways."""

    model_s: float
    simulated_s: float


def pair_orders(times: Sequence[Times]) -> list[int]:
    """For every pair that the simulation tells apart: 1 ordered alike, -1 the other way, 0 equal by the model."""
    orders: list[int] = []
    for pair in combinations(times, 2):
        fast, slow = sorted(pair, key=lambda both: both.simulated_s)
        if slow.simulated_s > (1 + INDISTINCT) * fast.simulated_s:
            orders.append((slow.model_s > fast.model_s) - (slow.model_s < fast.model_s))
    return orders


def regret(times: Sequence[Times]) -> float:
    """How much longer than the best the plan takes that the model ranks first; the first of equals."""
    chosen = min(times, key=lambda both: both.model_s)
    return chosen.simulated_s / min(both.simulated_s for both in times) - 1


def median_error(times: Iterable[Times]) -> float:
    """How far the model is from the simulation, as a part of it."""
    return median(abs(model_s / simulated_s - 1) for model_s, simulated_s in times)


def inverted(orders: Sequence[int]) -> float:
    """The part of pairs that is ordered the other way."""
    return orders.count(-1) / len(orders) if orders else 0.0


# -- plans


class Field(NamedTuple):
    """A field of a plan and the values it may take."""

    name: str
    values: tuple[object, ...]


def near_plans(job: Job, cluster: Cluster, framework: Framework, rng: np.random.Generator) -> list[tuple[float, Plan]]:
    """Plans within reach of the best and how long they take by the model: the best first, then a varied choice."""
    whole = Space().resolve(job, cluster, framework)
    if BY_BLOCK in whole.recompute:
        # the same for all blocks: placing each by itself takes minutes
        whole = replace(whole, recompute=tuple(word for word in WORDS if word in framework.recompute))
    progress = BestFirst(Setting.of(job, cluster, framework), whole).run()
    assert progress.best is not None, "every job of this benchmark has a plan that fits"
    limit_s = (1 + WITHIN) * progress.best.seconds
    found = {
        plain(each.plan, job, cluster, framework): each.seconds
        for each in (progress.best, *progress.by_degrees.values())
        if each is progress.best or (each.seconds <= limit_s and simulable(each.plan))
    }
    fields = fields_of(whole)
    for _ in range(TRIES):
        if len(found) >= 4 * MOST:
            break
        parents = list(found)
        plan = changed(parents[int(rng.integers(len(parents)))], fields, job, cluster, rng)
        plan = plan and plain(plan, job, cluster, framework)
        if plan is not None and plan not in found:
            seconds = seconds_of(plan, job, cluster, framework)
            if seconds is not None and seconds <= limit_s:
                found[plan] = seconds
    return chosen([(seconds, plan) for plan, seconds in found.items()], rng)


def plain(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> Plan:
    """The plan that stands for those that are the same but for fields without effect."""
    same = canonical(plan, job, cluster, framework)
    if same.context_parallel == 1:
        same = replace(same, context_kind="all_gather")
    if same.expert_parallel == 1:
        same = replace(same, expert_tensor_parallel=same.tensor_parallel)
    return same


def simulable(plan: Plan) -> bool:
    """Whether a plan has few enough tasks."""
    return plan.num_microbatches * sum(plan.layers_per_stage) <= LARGEST


def fields_of(whole: Space) -> list[Field]:
    """What a plan is changed in; the degree of data is what is left."""
    return [
        Field("tensor_parallel", whole.tensor_parallel),
        Field("context_parallel", whole.context_parallel),
        Field("context_kind", whole.context_kind),
        Field("pipeline_parallel", whole.pipeline_parallel),
        Field("virtual_stages", whole.virtual_stages),
        Field("pipeline_schedule", tuple(s for s in whole.pipeline_schedule if s in ONE_CHUNK) or ("1f1b",)),
        Field("expert_parallel", whole.expert_parallel),
        Field("sequence_parallel", whole.sequence_parallel),
        Field("micro_batch", tuple(b for b in whole.micro_batch if b <= 64)),
        Field("zero_stage", whole.zero_stage),
        Field("recompute", whole.recompute),
        Field("recompute_share", whole.recompute_share),
        Field("axis_order", whole.axis_order),
    ]


def changed(plan: Plan, fields: Sequence[Field], job: Job, cluster: Cluster, rng: np.random.Generator) -> Plan | None:
    """A plan with one to three fields changed and the rest made to match; None where they cannot."""
    count = int(rng.integers(1, 4))
    drawn = [fields[number] for number in rng.choice(len(fields), count, replace=False).tolist()]
    values: dict[str, object] = {f.name: f.values[int(rng.integers(len(f.values)))] for f in drawn}
    if "pipeline_schedule" in values:
        values["virtual_stages"] = 1
    plan = scheduled(replace(plan, recompute_by_block=None, **values))
    t, c, p = plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel
    data, left = divmod(cluster.chips, t * c * p)
    if left or data == 0 or job.global_batch % (data * plan.micro_batch):
        return None
    chunks, layers = p * plan.virtual_stages, job.model.num_layers
    if chunks > layers:
        return None
    same = len(plan.layers_per_stage) == chunks
    whole_experts = plan.expert_parallel > 1 and plan.expert_tensor_parallel == 1
    plan = replace(
        plan,
        data_parallel=data,
        num_microbatches=job.global_batch // (data * plan.micro_batch),
        layers_per_stage=plan.layers_per_stage if same else even_layers(chunks, layers),
        expert_tensor_parallel=1 if whole_experts else t,
        zero_group=data * c,
        sequence_parallel=plan.sequence_parallel and t > 1,
        recompute_share=plan.recompute_share if plan.recompute == "full" else 1.0,
    )
    return plan if simulable(plan) else None


def scheduled(plan: Plan) -> Plan:
    """The schedule that goes with a number of stages and chunks."""
    if plan.pipeline_parallel == 1:
        return replace(plan, virtual_stages=1, pipeline_schedule="1f1b")
    if plan.virtual_stages > 1 and plan.pipeline_schedule in ONE_CHUNK:
        return replace(plan, pipeline_schedule="interleaved")
    if plan.virtual_stages == 1 and plan.pipeline_schedule == "interleaved":
        return replace(plan, pipeline_schedule="1f1b")
    return plan


def seconds_of(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> float | None:
    """What a plan takes by the model; None where the framework does not run it or it does not fit."""
    try:
        check_runs(plan, job, cluster, framework)
        found = evaluate(plan, job, cluster, framework, energy=False)
    except InputError:
        return None
    return found.step_time_s if found.fits else None


def chosen(found: list[tuple[float, Plan]], rng: np.random.Generator) -> list[tuple[float, Plan]]:
    """The best plan, the best of other degrees, and others at random."""
    found = sorted(found, key=lambda each: (each[0], simplicity(each[1])))
    first: dict[tuple[int, ...], tuple[float, Plan]] = {}
    for seconds, plan in found:
        key = (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.expert_parallel)
        first.setdefault(key, (seconds, plan))
    picked = list(first.values())[:OF_OTHER_DEGREES]
    known = {plan for _, plan in picked}
    others = [each for each in found if each[1] not in known]
    count = min(len(others), MOST - len(picked))
    return picked + [others[number] for number in sorted(rng.choice(len(others), count, replace=False).tolist())]


# -- the comparison


@dataclass(frozen=True)
class Compared:
    """The plans of a job, both ways."""

    case: Case
    plans: tuple[Plan, ...]
    times: tuple[Times, ...]
    search_cpu_s: float
    #: of each simulation
    cpu_s: tuple[float, ...]

    @property
    def orders(self) -> list[int]:
        return pair_orders(self.times)


def compare(case: Case, seen: Callable[[str], None] | None = None) -> Compared:
    """Plans of a job found, then simulated one by one."""
    job = Job(models.load(case.model), seq_len=case.seq_len, global_batch=case.global_batch)
    cluster, framework = hardware.cluster(case.cluster, chips=case.chips), frameworks.load(case.framework)
    before = time.process_time()
    plans = near_plans(job, cluster, framework, np.random.default_rng(SEED))
    search_cpu_s = time.process_time() - before
    times: list[Times] = []
    spent: list[float] = []
    for _, plan in plans:
        before = time.process_time()
        found = simulate(plan, job, cluster, framework)
        spent.append(time.process_time() - before)
        times.append(Times(found.model_step_time_s, found.step_time_s))
        if seen is not None:
            seen(f"    {found.model_step_time_s:9.4f} {found.step_time_s:9.4f} {found.ratio:.4f}  {plan_words(plan)}")
    return Compared(case, tuple(plan for _, plan in plans), tuple(times), search_cpu_s, tuple(spent))


def row(found: Compared) -> str:
    """One job of the table."""
    orders = found.orders
    tau = f"{fmean(orders):.2f}" if orders else "–"
    worst = max((model_s / simulated_s - 1 for model_s, simulated_s in found.times), key=abs)
    return (
        f"| {found.case} | {len(found.times)} | {len(orders)} | {inverted(orders):.1%} | {tau} | "
        f"{regret(found.times):.2%} | {median_error(found.times):.1%} | {worst:+.1%} | {fmean(found.cpu_s):.2f} |"
    )


def summary(every: Sequence[Compared]) -> str:
    """All jobs together, beside the goals."""
    orders = [order for found in every for order in found.orders]
    regrets = [regret(found.times) for found in every]
    times = [both for found in every for both in found.times]
    cpu = [seconds for found in every for seconds in found.cpu_s]
    return "\n".join(
        [
            f"inversions: {orders.count(-1)} of {len(orders)} pairs, {inverted(orders):.1%} "
            f"(goal {GOALS['inversions']:.0%}); Kendall's tau {fmean(orders or [0]):.2f}",
            f"regret: mean {fmean(regrets):.2%}, largest {max(regrets):.2%} (goal {GOALS['regret']:.0%}); "
            f"above the goal in {sum(r > GOALS['regret'] for r in regrets)} of {len(regrets)} jobs",
            f"error: median {median_error(times):.1%} (goal {GOALS['error']:.0%}) over {len(times)} plans",
            f"CPU: {sum(cpu):.0f} s for {len(cpu)} simulations, at most {max(cpu):.2f} s for one; "
            f"{sum(found.search_cpu_s for found in every):.0f} s for finding plans",
        ]
    )


def main() -> None:
    """Prints one row for every job, then all of them together."""
    parser = argparse.ArgumentParser(description="The model against the simulation.")
    parser.add_argument("wanted", nargs="*", help="words that the line of a job holds")
    parser.add_argument("--plans", action="store_true", help="print every plan")
    given = parser.parse_args()
    print("| job | plans | pairs | inversions | tau | regret | median error | largest | CPU s per simulation |")
    print("|---|---|---|---|---|---|---|---|---|")
    every: list[Compared] = []
    for case in CASES:
        if all(word in str(case) for word in given.wanted):
            every.append(compare(case, print if given.plans else None))
            print(row(every[-1]), flush=True)
    if every:
        print(f"\n{summary(every)}")


if __name__ == "__main__":
    main()
