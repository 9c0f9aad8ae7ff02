"""What recompute per operator and uneven stages gain over the best of Megatron's own options.

Every model is planned twice at Megatron's costs, over tensor, pipeline and data parallelism, interleaving and
microbatch (sequence parallelism wherever tensors are cut, optimizer state sharded). *Megatron*: even stages (embedding
and head counted as layers or not), and of recompute none, every set of modules, and full for any number of a chunk's
layers. *Dovetail*: any cut, and any operators per layer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.cost.calibration import calibration
from dovetail.models import Job
from dovetail.partition.partition_plan import PartitionedPlan, partition_profiled
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.step.evaluate import Evaluation, ProfiledJob, evaluation_of, profiled_job, step_from
from dovetail.step.facts import facts_of

#: Model, tokens of a sequence, sequences of a batch: as published for GPT-3 and BLOOM; of Llama 3.1 the first batch.
JOBS = [("gpt3-175b", 2048, 1536), ("llama-3.1-405b", 8192, 512), ("bloom-176b", 2048, 2048)]
CHIPS = ("a100-80gb", "h100-sxm")
COUNTS = (64, 512, 1024)
MODULES = ("core_attn", "layernorm", "mlp")
#: Plans whose time without any recompute is this much above the best so far are not placed.
MARGIN = 1.02


def degrees(job: Job, chips: int) -> Iterator[PlanSpec]:
    """Every tensor, pipeline and data parallelism, interleaving and microbatch."""
    layers = job.model.num_layers
    for tensor in (1, 2, 4, 8):
        for stages in (p for p in range(1, min(chips // tensor, 64) + 1) if chips % (tensor * p) == 0):
            data = chips // (tensor * stages)
            for micro in (1, 2, 4, 8):
                if job.global_batch % (data * micro):
                    continue
                microbatches = job.global_batch // (data * micro)
                chunks = range(1, (layers + 2) // stages + 1) if stages > 1 and microbatches % stages == 0 else [1]
                for virtual in (v for v in chunks if v <= 8):
                    yield PlanSpec(
                        tensor_parallel=tensor, pipeline_parallel=stages, virtual_stages=virtual, micro_batch=micro,
                        zero_stage=1, sequence_parallel=tensor > 1,
                    )  # fmt: skip


def even_cuts(plan: Plan) -> list[tuple[int, ...]]:
    """Equally many layers in every chunk, where embedding, head, both or neither count as one."""
    parts, layers = len(plan.layers_per_stage), sum(plan.layers_per_stage)
    cuts = []
    for first, last in ((0, 0), (1, 1), (1, 0), (0, 1)):
        if (layers + first + last) % parts == 0:
            each = (layers + first + last) // parts
            cut = [each] * parts
            cut[0] -= first
            cut[-1] -= last
            if min(cut[1:-1], default=1) > 0 and min(cut) >= 0:
                cuts.append(tuple(cut))
    return cuts


def menu(cut: tuple[int, ...]) -> Iterator[dict[str, object]]:
    """Megatron's choices: none, modules, full for some or all layers of a chunk."""
    for names in chain.from_iterable(combinations(MODULES, n) for n in range(len(MODULES) + 1)):
        yield {"recompute": names or "none"}
    for some in range(1, max(cut) + 1):
        yield {"recompute": "full", "recompute_share": some / max(cut)}


def best_of_menu(plan: Plan, job: Job, profiled: ProfiledJob, limit_s: float) -> Evaluation | None:
    """The fastest plan of these degrees that Megatron's options allow, that fits and takes less than the limit."""
    best: Evaluation | None = None
    for cut in even_cuts(plan):
        for choice in menu(cut):
            tried = replace(plan, layers_per_stage=cut, **choice)
            found = evaluation_of(step_from(tried, profiled), tried, job, profiled.cluster, profiled.facts, "")
            if found.step_time_s >= limit_s and choice["recompute"] == "none":
                # whatever is computed again only takes longer
                break
            if found.fits and found.step_time_s < limit_s:
                best, limit_s = found, found.step_time_s
    return best


@dataclass(frozen=True)
class Comparison:
    """The best of Megatron's options, the best placement, and Megatron's options at that one's degrees."""

    theirs: Evaluation | None
    ours: PartitionedPlan | None
    theirs_there: Evaluation | None


def compared(name: str, seq_len: int, batch: int, chip: str, count: int) -> Comparison:
    """Both, each over all degrees."""
    job = Job(models.load(name), seq_len=seq_len, global_batch=batch)
    cluster, framework = hardware.cluster(chip, chips=count), frameworks.load("megatron")
    known = calibration(cluster.chip, job.precision)
    candidates: list[tuple[float, Plan, ProfiledJob]] = []
    for spec in degrees(job, count):
        plan = resolve_plan(spec, chips=count, global_batch=batch, num_layers=job.model.num_layers)
        facts = facts_of(framework, job, schedule=plan.pipeline_schedule, stages=plan.pipeline_parallel)
        profiled = profiled_job(plan, job, cluster, facts, known.efficiencies)
        candidates.append((float(np.ravel(step_from(plan, profiled).seconds)[0]), plan, profiled))
    candidates.sort(key=lambda candidate: candidate[0])
    theirs: Evaluation | None = None
    for _, plan, profiled in candidates:
        theirs = best_of_menu(plan, job, profiled, theirs.step_time_s if theirs else float("inf")) or theirs
    ours: PartitionedPlan | None = None
    there: Evaluation | None = None
    for fastest_s, plan, profiled in candidates:
        limit = ours.evaluation.step_time_s if ours else theirs.step_time_s if theirs else float("inf")
        if fastest_s >= limit * MARGIN:
            continue
        found = partition_profiled(plan, job, profiled, str(known), cluster.chip.usable_bytes)
        if found and found.evaluation.fits and (ours is None or found.evaluation.step_time_s < limit):
            ours, there = found, best_of_menu(plan, job, profiled, float("inf"))
    return Comparison(theirs, ours, there)


def words(evaluation: Evaluation) -> str:
    """A plan in short: degrees, interleaving, microbatch, what it recomputes, whether its chunks differ."""
    plan = evaluation.plan
    size = f"TP{plan.tensor_parallel} PP{plan.pipeline_parallel} VPP{plan.virtual_stages} MBS{plan.micro_batch}"
    return f"{size}, {recomputed(plan)}"


def recomputed(plan: Plan) -> str:
    """What a plan recomputes, in short."""
    again = plan.recompute if isinstance(plan.recompute, str) else " + ".join(plan.recompute)
    if plan.recompute_by_block is not None:
        blocks = sum(count for count, choice in plan.recompute_by_block if choice != "none")
        again = f"operators of {blocks} blocks" if blocks else "none"
    elif plan.recompute_share < 1:
        again += f" of {plan.recompute_share:.0%}"
    return again


def where(evaluation: Evaluation) -> str:
    """Seconds of a step, and how many of them are recompute and bubble."""
    part = evaluation.breakdown
    return f"{evaluation.step_time_s:.2f} ({part['recompute']:.2f} + {part['pipeline bubble']:.2f})"


def row(found: Comparison) -> str:
    """Both plans, and what Megatron's options make of ours."""
    theirs, ours, there = found.theirs, found.ours, found.theirs_there
    left = f"{words(theirs)} | {where(theirs)}" if theirs else "nothing fits |"
    if ours is None:
        return f"{left} | nothing {'better' if theirs else 'fits'} | | | |"
    gain = f"{theirs.step_time_s / ours.evaluation.step_time_s - 1:.1%}" if theirs else "fits"
    cut, even = ours.evaluation.plan.layers_per_stage, even_cuts(ours.evaluation.plan)
    same = "nothing fits" if even else "no even cut"
    if there is not None:
        same = f"{where(there)}, {recomputed(there.plan)}"
    uneven = f", {min(cut)} to {max(cut)} blocks a chunk" if cut not in even else ""
    return (
        f"{left} | {words(ours.evaluation)}{uneven} | {where(ours.evaluation)} | {same} | {gain}, gap {ours.gap:.2%} |"
    )


def main() -> None:
    """Prints one row of a table for every model, chip and number of chips."""
    print("Seconds of a step; in brackets those of recompute and of waiting, on the stage with most work.\n")
    print("| model | chips | Megatron's best | seconds | Dovetail's best | seconds | Megatron at its degrees | gain |")
    print("|---|---|---|---|---|---|---|---|")
    wanted = set(sys.argv[1:])
    for name, seq_len, batch in JOBS:
        for chip in CHIPS:
            for count in COUNTS:
                if wanted <= {name, chip, str(count)}:
                    before = time.process_time()
                    found = compared(name, seq_len, batch, chip, count)
                    print(f"| {name} | {count} {chip} | {row(found)}", flush=True)
                    print(f"{time.process_time() - before:.0f} s CPU", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
