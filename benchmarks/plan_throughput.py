"""Plans evaluated per CPU second by the search's compiled tables, beside `evaluate()` one by one in the same run.

`python benchmarks/plan_throughput.py [shapes]`: Llama-3.1-70B on 1,024 H100 under Megatron. Skeletons are drawn at
random and none is pruned: each stands with every sharding, recompute policy and listed partition, and of each plan the
step time and the memory of every stage are found. Counted is the time from rows of the tables to both, with the exact
longest path of interleaved pipelines; tables are made before, and their time is printed beside.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from cpu_time import cpu_seconds

from dovetail import frameworks, hardware, models
from dovetail.bounds.batch import Batch, Candidates, Evaluated
from dovetail.models import Job
from dovetail.plans.partitions import listed_partitions
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons, plan_skeletons, shardings
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.evaluate import evaluate
from dovetail.step.layer_tables import Setting, recompute_policies
from dovetail.step.plan_tables import Tables
from dovetail.step.state_tables import StateSharding
from dovetail.step.tabled_plan import plan_of

#: Plans that are evaluated one by one for the comparison.
SCALAR = 1000
#: What Calculon does on a machine of this kind, as measured: as it comes, and with its logging silenced.
CALCULON_PER_S = (36, 228)


def main(number: int) -> None:
    """Prints rates and the largest difference between both ways."""
    job = Job(models.load("llama-3.1-70b"), seq_len=8192, global_batch=1024)
    cluster, framework = hardware.cluster("h100-sxm", chips=1024), frameworks.load("megatron")
    space = Space().resolve(job, cluster, framework)
    before = time.process_time()
    every = stage_degrees(job, cluster, framework, space)
    tables = Tables(Setting.of(job, cluster, framework), every, recompute_policies(space))
    found = plan_skeletons(
        job, cluster, framework, space, every, np.ones((len(every), len(space.pipeline_parallel)), bool)
    )
    draw = np.random.default_rng(0)
    found = found.take(np.sort(draw.choice(len(found), number, replace=False)))
    batch = Batch(tables, found)
    candidates, cuts = expanded(tables, space, found)
    batch.bound(candidates.take(np.arange(1)), None, float("inf"))
    evaluated = exact(batch, candidates, cuts)
    made = time.process_time() - before
    seconds = cpu_seconds(lambda: exact(batch, candidates, cuts), repeats=5)
    bounded = cpu_seconds(lambda: batch.evaluate(candidates, cuts), repeats=5)
    closed = candidates.take(found.chunks[candidates.skeleton] == 1)
    closed_plans = len(batch.evaluate(closed, cuts).partition)
    closed_s = cpu_seconds(lambda: batch.evaluate(closed, cuts), repeats=5)
    plans = len(evaluated.partition)
    print(f"{plans:,} plans of {number:,} shapes, tables made in {made:.1f} s of CPU with the first call")

    rows = draw.choice(plans, SCALAR, replace=False)
    chosen = [
        plan_of(
            every[int(found.degrees[s])], found, s, tables.policies[int(candidates.policy[c])],
            tables.states.keys[int(candidates.state[c])], tables.partitions.layers[int(evaluated.partition[row])],
        )
        for row in rows.tolist()
        for c in [int(evaluated.candidate[row])]
        for s in [int(candidates.skeleton[c])]
    ]  # fmt: skip
    evaluate(chosen[0], job, cluster, framework, energy=False)
    before = time.process_time()
    alone = [evaluate(plan, job, cluster, framework, energy=False) for plan in chosen]
    scalar = (time.process_time() - before) / SCALAR
    off = max(
        max(abs(one.step_time_s / evaluated.seconds[row] - 1), abs(one.peak_bytes / evaluated.peak_bytes[row] - 1))
        for one, row in zip(alone, rows.tolist(), strict=True)
    )
    rates = {
        "all, exact": plans / seconds,
        "all, interleaved pipelines bounded": plans / bounded,
        "1F1B alone, exact": closed_plans / closed_s,
        "evaluate()": 1 / scalar,
    }
    for name, rate in rates.items():
        print(f"{name:<36} {rate:12,.0f} plans per CPU second, {rate * scalar:10,.0f} times evaluate()")
    print(f"{'Calculon, as stated, not run here':<36} {CALCULON_PER_S[0]:12,} ({CALCULON_PER_S[1]} silenced)")
    print(f"largest difference in time or memory over {SCALAR:,} random plans: {off:.1e}")


def expanded(tables: Tables, space: Space, found: PlanSkeletons) -> tuple[Candidates, list[list[int]]]:
    """Every sharding and option of shapes, and the listed cuts of each."""
    setting, options = tables.setting, len(tables.policies)
    tiers = [tier.size for tier in setting.cluster.tiers]
    keys: list[list[StateSharding]] = []
    cuts: list[list[int]] = []
    for i in range(len(found)):
        split, copies, stages = int(found.degrees[i]), int(found.replicas[i]), int(found.stages[i])
        order, schedule = AXIS_ORDERS[int(found.inside[i])], NAMES[int(found.schedule[i])]
        states = shardings(setting.framework, space, tables.degrees[split], copies, stages, tiers)
        keys.append([StateSharding(split, copies, stages, order, *state) for state in states])
        listed = listed_partitions(
            setting.job.model.num_layers, stages, int(found.chunks[i]), schedule, space.partition, "any"
        )
        cuts.append([tables.partitions.row(layers, stages, schedule) for layers in listed])
    rows = tables.states.rows([key for some in keys for key in some])
    parts = np.split(rows, np.cumsum([len(some) for some in keys])[:-1])
    shape = np.concatenate([np.full(len(part) * options, i) for i, part in enumerate(parts)])
    option = np.concatenate([np.repeat(np.arange(options), len(part)) for part in parts])
    state = np.concatenate([np.tile(part, options) for part in parts])
    return Candidates(shape, option, state), cuts


def exact(batch: Batch, candidates: Candidates, cuts: list[list[int]]) -> Evaluated:
    """Time and memory of all plans, pipelines by their longest path where that is not the kernel's value."""
    found = batch.evaluate(candidates, cuts)
    (rows,) = np.nonzero(~found.exact)
    if len(rows):
        found.pipeline_s[rows] = batch.pipeline_seconds(candidates, found, rows)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
