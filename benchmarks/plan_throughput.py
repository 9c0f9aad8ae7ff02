"""Plans evaluated per CPU second by the search's compiled tables, beside `evaluate()` and Calculon in the same run.

`python benchmarks/plan_throughput.py [shapes] [--calculon DIR]`: Llama-3.1-70B on 1,024 H100 under Megatron. Skeletons
are drawn at random and none is pruned: each stands with every sharding, recompute policy and listed partition, and of
each plan the step time and the memory of every stage are found. Counted is the time from rows of the tables to both,
with the exact step of interleaved pipelines; tables are made before, and their time is printed beside. DIR
is a checkout of github.com/calculon-ai/calculon (Isaev et al. 2023), timed on random executions of GPT-3 175B with its
logging silenced. Last comes the time of an interleaved step against the number of micro-batches.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from cpu_time import cpu_seconds

from dovetail import frameworks, hardware, models
from dovetail.bounds.batch import Batch, Candidates, Evaluated
from dovetail.models import Job
from dovetail.pipeline import ChunkTimes, Pipeline, PipelineSchedule, step_time
from dovetail.pipeline.step_time import longest_path_s
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
#: Executions that Calculon is timed on.
EXECUTIONS = 400
#: Pipelines whose growth with micro-batches is shown: stages, chunks; and how many plans go through each together.
GROWTH = ((2, 20), (8, 5))
TOGETHER = 64


def main(number: int, calculon: Path | None) -> None:
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
    parts: dict[str, tuple[int, float]] = {}
    for name, of_part in (("1F1B alone, exact", found.chunks == 1), ("interleaved alone, exact", found.chunks > 1)):
        part = candidates.take(of_part[candidates.skeleton])
        seconds_of_part = cpu_seconds(lambda part=part: exact(batch, part, cuts), repeats=5)
        parts[name] = len(exact(batch, part, cuts).partition), seconds_of_part
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
        **{name: count / seconds_of_part for name, (count, seconds_of_part) in parts.items()},
        "evaluate()": 1 / scalar,
    }
    if calculon is not None:
        rates["Calculon"] = calculon_rate(calculon)
    for name, rate in rates.items():
        print(f"{name:<36} {rate:12,.0f} plans per CPU second, {rate * scalar:10,.0f} times evaluate()")
    if calculon is not None:
        print(f"all, exact: {rates['all, exact'] / rates['Calculon']:,.0f} times Calculon")
    print(f"largest difference in time or memory over {SCALAR:,} random plans: {off:.1e}")
    growth()


def expanded(tables: Tables, space: Space, found: PlanSkeletons) -> tuple[Candidates, list[list[int]]]:
    """Every sharding and option of shapes, and the listed cuts of each."""
    setting, options = tables.setting, len(tables.policies)
    tiers = [tier.size for tier in setting.cluster.tiers]
    keys: list[list[StateSharding]] = []
    cuts: list[list[int]] = []
    for i in range(len(found)):
        split, copies, stages = int(found.degrees[i]), int(found.replicas[i]), int(found.stages[i])
        order, schedule = AXIS_ORDERS[int(found.inside[i])], NAMES[int(found.schedule[i])]
        states = shardings(setting.job, setting.framework, space, tables.degrees[split], copies, stages, tiers)
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


def growth() -> None:
    """Microseconds of an interleaved step, by its period and through its order written out."""
    draw = np.random.default_rng(0)
    print(f"CPU microseconds of an interleaved step, each of {TOGETHER}; in brackets with the order written out")
    for p, v in GROWTH:
        print(f"{p} stages of {v} chunks:", end="")
        for m in (32, 128, 512, 2048):
            pipeline = Pipeline(PipelineSchedule.INTERLEAVED, p, m, v)
            # layers alike, but for the embedding, the head, and what plans differ in
            forward = np.outer(draw.uniform(0.5, 1.5, TOGETHER), np.ones(p * v))
            forward[:, 0] *= 1.1
            forward[:, -1] *= 1.5
            times = ChunkTimes(forward, forward, forward, 0.02)
            columns = times.columns(pipeline)
            spent = [
                cpu_seconds(partial(step_time, pipeline, times)),
                cpu_seconds(partial(longest_path_s, pipeline, columns), repeats=3),
            ]
            print(f"  m={m}: {spent[0] / TOGETHER * 1e6:.1f} ({spent[1] / TOGETHER * 1e6:.0f})", end="")
        print()


def calculon_rate(folder: Path) -> float:
    """Executions that Calculon evaluates per CPU second, of those it completes."""
    sys.path.insert(0, str(folder))
    llm, system, reader = (import_module(name) for name in ("calculon.llm.llm", "calculon.system", "calculon.io"))
    silent = logging.getLogger("calculon")
    silent.addHandler(logging.NullHandler())
    silent.setLevel(logging.CRITICAL)
    silent.propagate = False
    application = llm.Llm.Application(reader.read_json_file(str(folder / "models" / "gpt3-175B.json")))
    chips = system.System(reader.read_json_file(str(folder / "systems" / "a100_80g.json")))
    draw, done, spent = np.random.default_rng(0), 0, 0.0
    while done < EXECUTIONS:
        execution = llm.Llm.Execution.from_json(random_execution(draw))
        before = time.process_time()
        try:
            model = llm.Llm(application, silent)
            model.compile(chips, execution)
            model.run(chips)
        except llm.Llm.Error:
            continue
        spent += time.process_time() - before
        done += 1
    return done / spent


def random_execution(draw: np.random.Generator) -> dict[str, Any]:
    """An execution of GPT-3 175B on 1,024 GPUs, in Calculon's words."""
    tensor, stages = int(2 ** draw.integers(0, 5)), int(2 ** draw.integers(0, 6))
    copies = 1024 // (tensor * stages)
    local = 2048 // copies
    return {
        "num_procs": 1024, "tensor_par": tensor, "pipeline_par": stages, "data_par": copies,
        "tensor_par_net": 0, "pipeline_par_net": 1, "data_par_net": 1,
        "batch_size": 2048, "microbatch_size": int(min(local, 2 ** draw.integers(0, 3))),
        "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": str(draw.choice(["full", "attn_only", "none"])),
        "pipeline_interleaving": 1 if stages == 1 else int(draw.choice([1, 3])),
        "optimizer_sharding": copies > 1 and bool(draw.integers(2)),
        "tensor_par_comm_type": str(draw.choice(["ar", "p2p_rs_ag", "rs_ag"])), "tensor_par_overlap": "none",
        "seq_par_ag_redo": False, "data_par_overlap": copies > 1 and bool(draw.integers(2)),
        "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("shapes", type=int, nargs="?", default=400)
    arguments.add_argument("--calculon", type=Path)
    given = arguments.parse_args()
    main(given.shapes, given.calculon)
