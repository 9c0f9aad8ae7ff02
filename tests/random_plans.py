"""Random plans of a search's tables: rows as the search makes them, and the plans they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.bounds.batch import Batch, Candidates, Evaluated
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.partitions import listed_partitions
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, plan_skeletons, shardings
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.layer_tables import Setting, recompute_policies
from dovetail.step.plan_tables import Tables
from dovetail.step.state_tables import StateSharding
from dovetail.step.tabled_plan import plan_of

#: Model, chips, sequences a step, tokens of a sequence, framework and chip.
QUESTIONS = (
    ("llama-3.1-70b", 1024, 1024, 8192, "megatron", "h100-sxm"),
    ("llama-3.1-8b", 24, 48, 4096, "ideal", "h100-sxm"),
    ("mixtral-8x7b", 64, 256, 4096, "megatron", "h100-sxm"),
    ("deepseek-v3", 256, 512, 4096, "ideal", "h100-sxm"),
    ("glm-4.5-air", 16, 32, 4096, "megatron", "h100-sxm"),
    ("llama-3.1-8b", 64, 256, 4096, "torchtitan", "a100-80gb"),
    ("gpt3-175b", 96, 192, 2048, "deepspeed", "a100-80gb"),
    ("mixtral-8x7b", 64, 256, 4096, "maxtext", "tpu-v5p"),
    ("llama-3.1-8b", 16, 64, 4096, "fsdp", "h100-sxm"),
    ("llama-3.2-1b", 16, 64, 2048, "megatron", "h100-sxm"),
)


@dataclass(frozen=True, slots=True)
class RandomPlans:
    """Plans, and the batch they are rows of."""

    job: Job
    cluster: Cluster
    framework: Framework
    batch: Batch
    candidates: Candidates
    partitions: list[list[int]]
    plans: list[Plan]

    @property
    def limit_bytes(self) -> float:
        """What plans of a search may take of a chip."""
        return self.batch.tables.setting.capacity_bytes

    def evaluated(self) -> Evaluated:
        """By the compiled kernel."""
        return self.batch.evaluate(self.candidates, self.partitions)


def random_plans(question: tuple[str, int, int, int, str, str], number: int, seed: int) -> RandomPlans:
    """So many plans of a question, each with any sharding, option and listed cut."""
    model, chips, batch, seq, name, chip = question
    job = Job(models.load(model), seq_len=seq, global_batch=batch)
    return random_plans_of(job, hardware.cluster(chip, chips=chips), frameworks.load(name), number, seed)


def random_plans_of(job: Job, cluster: Cluster, framework: Framework, number: int, seed: int) -> RandomPlans:
    """The same of a job on a cluster."""
    space = Space().resolve(job, cluster, framework)
    every = stage_degrees(job, cluster, framework, space)
    draw = np.random.default_rng(seed)
    wanted = draw.random((len(every), len(space.pipeline_parallel))) < min(1.0, 60 / len(every))
    found = plan_skeletons(job, cluster, framework, space, every, wanted)
    found = found.take(np.sort(draw.choice(len(found), min(number, len(found)), replace=False)))
    tables = Tables(Setting.of(job, cluster, framework), every, recompute_policies(space))
    tiers = [tier.size for tier in cluster.tiers]
    layers, uneven, offered = job.model.num_layers, framework.uneven_stages, tables.offered(found)
    drawn, option, keys, partitions = list[int](), list[int](), list[StateSharding](), list[list[int]]()
    for i in range(len(found)):
        split, copies, stages = int(found.degrees[i]), int(found.replicas[i]), int(found.stages[i])
        states = shardings(job, framework, space, every[split], copies, stages, tiers)
        if not states:
            continue  # FSDP has to shard, and there may be nothing to shard over
        drawn.append(i)
        order = AXIS_ORDERS[int(found.inside[i])]
        keys.append(StateSharding(split, copies, stages, order, *states[draw.integers(len(states))]))
        schedule, chunks = NAMES[int(found.schedule[i])], int(found.chunks[i])
        option.append(int(draw.choice(np.flatnonzero(offered[i]))))
        # some of the layers are recomputed in equal stages alone
        allowed = space.partition if tables.policies[option[-1]][1] == 1 else "even"
        listed = listed_partitions(layers, stages, chunks, schedule, allowed, uneven)
        partitions.append([tables.partitions.row(listed[draw.integers(len(listed))], stages, schedule)])
    found = found.take(np.array(drawn, np.int64))
    candidates = Candidates(np.arange(len(found)), np.array(option, np.int64), tables.states.rows(keys))
    plans = [
        plan_of(
            every[int(found.degrees[i])],
            found,
            i,
            tables.policies[option[i]],
            keys[i],
            tables.partitions.layers[row],
        )
        for i, (row,) in enumerate(partitions)
    ]
    return RandomPlans(job, cluster, framework, Batch(tables, found), candidates, partitions, plans)
