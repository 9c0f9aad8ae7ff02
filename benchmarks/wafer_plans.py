"""GPT-3 175B on the wafers of the catalogue: Megatron, ZeRO-3 and data-parallel plans, by the model and simulated.

Every plan is priced whether it fits or not; what its fullest die lacks stands beside it. Where model and simulation are
more than 10 % apart the row says what waits for what: messages that took longer than alone, by the groups that send
them, and how full the links along each axis are.

    python benchmarks/wafer_plans.py                  every wafer
    python benchmarks/wafer_plans.py watos zero       rows that hold all of these
    python benchmarks/wafer_plans.py --links          contention and links of every plan, not only of those far apart
    python benchmarks/wafer_plans.py --slower 30 zero on links of a thirtieth of the rate
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.report.step_breakdown import entry_routes, link_shares
from dovetail.simulation import Simulation, simulate
from dovetail.step.evaluate import Evaluation, evaluate

MODEL, SEQ_LEN = "gpt3-175b", 2048
#: Sequences of a step for each die.
SEQUENCES = 4
#: Where the simulation may lie, over the model.
WITHIN = 0.9, 1.1
#: Tensor × pipeline degrees by wafer; tensor degrees divide the 96 heads: for the 25 dies of a Dojo tile 1 alone.
SPLITS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "dojo-tile": ((1, 25), (1, 5)),
    "temp-like": ((2, 24), (4, 12), (4, 6), (8, 6), (8, 3), (16, 3)),
    "watos-like": ((2, 28), (2, 14), (4, 14), (4, 7), (8, 7), (8, 1)),
    "wse-3-like": ((1, 84), (2, 42), (4, 21), (4, 7), (6, 14), (12, 7)),
}


class Case(NamedTuple):
    """A plan on a wafer under a framework."""

    wafer: str
    strategy: str
    framework: str
    spec: PlanSpec


def cases() -> Iterator[Case]:
    """Every plan, wafer by wafer."""
    for wafer, splits in SPLITS.items():
        dies = hardware.cluster(wafer).chips
        for tensor, pipeline in splits:
            data = dies // (tensor * pipeline)
            for recompute in ("full", "selective"):
                spec = PlanSpec(
                    tensor_parallel=tensor,
                    pipeline_parallel=pipeline,
                    # where the tokens of a sequence can be shared
                    sequence_parallel=tensor > 1 and SEQ_LEN % tensor == 0,
                    # the distributed optimizer, where there is anybody to share it with
                    zero_stage=1 if data > 1 else 0,
                    recompute=recompute,
                )
                yield Case(wafer, f"Megatron TP{tensor} PP{pipeline} DP{data}, {recompute}", "megatron", spec)
        yield from _copies(wafer, dies)


def _copies(wafer: str, dies: int) -> Iterator[Case]:
    """Plans that are data-parallel alone."""
    for framework in ("deepspeed", "fsdp"):
        spec = PlanSpec(zero_stage=3, recompute="full")
        yield Case(wafer, f"ZeRO-3 DP{dies}, {framework}", framework, spec)
    yield Case(wafer, f"data parallel DP{dies}", "megatron", PlanSpec(recompute="full"))


@dataclass(frozen=True)
class Compared:
    """A plan both ways."""

    case: Case
    plan: Plan
    cluster: Cluster
    lies: str
    model: Evaluation
    simulation: Simulation
    cpu_s: float

    @property
    def ratio(self) -> float:
        """Simulated over modelled."""
        return self.simulation.step_time_s / self.model.step_time_s

    @property
    def apart(self) -> bool:
        """Whether the two disagree by more than they may."""
        return not WITHIN[0] <= self.ratio <= WITHIN[1]


def compare(case: Case, slower: float = 1.0) -> Compared:
    """The plan priced and replayed, whatever memory it needs; on links that are so many times slower."""
    cluster, framework = hardware.cluster(case.wafer), frameworks.load(case.framework)
    tiers = tuple(replace(tier, bytes_per_s=tier.bytes_per_s / slower) for tier in cluster.tiers)
    cluster = replace(cluster, tiers=tiers)
    job = Job(models.load(MODEL), seq_len=SEQ_LEN, global_batch=cluster.chips * SEQUENCES)
    plan = resolve_plan(case.spec, chips=cluster.chips, global_batch=job.global_batch, num_layers=job.model.num_layers)
    check_runs(plan, job, cluster, framework)
    before = time.process_time()
    model = evaluate(plan, job, cluster, framework, energy=False)
    replayed = simulate(plan, job, cluster, framework, rates=True)
    arranged = arrange(plan, job.graph(), cluster)
    lies = ", ".join(
        f"{axis} {'×'.join(map(str, joins))} every {'×'.join(map(str, arranged.strides[axis]))}"
        for axis, joins in arranged.joins.items()
        if max(joins) > 1
    )
    return Compared(case, plan, cluster, lies, model, replayed, time.process_time() - before)


class Delay(NamedTuple):
    """Messages of one kind of group: how long they took in all, alone, and how often their rate was cut."""

    stream: str
    took_s: float
    alone_s: float
    slowed: int


def delays(simulation: Simulation) -> list[Delay]:
    """By stream, what messages took longer than alone, on the stage where this is most; longest first."""
    graph, labels, timeline = simulation.tasks.graph, simulation.tasks.labels, simulation.timeline
    network = graph.network
    per_byte = np.zeros(network.num_routes)
    np.maximum.at(per_byte, entry_routes(simulation), network.part / network.bytes_per_s[network.link])
    (sends,) = np.nonzero(graph.bytes > 0)
    alone = graph.seconds[sends] + graph.bytes[sends] * per_byte[graph.route[sends]]
    took = (timeline.end_s - timeline.start_s)[sends]
    slowed = took > alone * (1 + 1e-6)
    found: list[Delay] = []
    for number, stream in enumerate(labels.streams):
        mine = labels.stream[sends] == number
        if mine.any():
            chips = labels.chip[sends][mine]
            longer = np.bincount(chips, (took - alone)[mine])
            here = mine & (labels.chip[sends] == int(np.argmax(longer)))
            found.append(Delay(stream, float(took[here].sum()), float(alone[here].sum()), int(slowed[here].sum())))
    return sorted(found, key=lambda each: each.alone_s - each.took_s)


def reason(found: Compared) -> str:
    """What contends, in words."""
    messages = [
        f"{each.stream} messages took {each.took_s:.2f} s, {each.alone_s:.2f} s alone ({each.slowed} slowed)"
        for each in delays(found.simulation)
    ]
    links = [f"{link.name} {link.busiest_share:.0%}" for link in link_shares(found.simulation)]
    return "; ".join([*messages, "links: " + ", ".join(links), "lies: " + found.lies])


def row(found: Compared) -> str:
    """One plan of the table."""
    missing = f"{found.model.missing_bytes / 1e9:,.1f}" if found.model.missing_bytes else "fits"
    grid = "×".join(str(n) for n in found.cluster.tiers[0].shape)
    return (
        f"| {found.case.wafer} {grid} | {found.case.strategy} | {found.model.step_time_s:.2f} | "
        f"{found.simulation.step_time_s:.2f} | {found.ratio:.3f} | {missing} | {waits(found.simulation)} |"
    )


def waits(simulation: Simulation) -> str:
    """The messages that shared links longest, and how full the fullest link is."""
    first = delays(simulation)[0]
    longer = first.took_s - first.alone_s
    fullest = link_shares(simulation)[0].busiest_share
    return f"{f'{first.stream} {longer:.2f} s' if longer > 0.005 else '–'} | {fullest:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows that hold all of these words")
    parser.add_argument("--links", action="store_true", help="contention and links of every plan")
    parser.add_argument("--slower", type=float, default=1.0, help="how many times slower links are")
    options = parser.parse_args()
    print("| wafer | strategy | model s | simulated s | ratio | missing GB | longer than alone | fullest link |")
    print("|---|---|---|---|---|---|---|---|")
    every: list[Compared] = []
    for case in cases():
        if not all(word.lower() in f"{case.wafer} {case.strategy}".lower() for word in options.words):
            continue
        found = compare(case, options.slower)
        every.append(found)
        print(row(found), flush=True)
        if options.links or found.apart:
            print(f"    {reason(found)}", flush=True)
    if every:
        ratios = [found.ratio for found in every]
        print(
            f"\n{len(every)} plans, {sum(found.apart for found in every)} more than 10 % apart; "
            f"ratios {min(ratios):.3f} to {max(ratios):.3f}; {sum(found.model.fits for found in every)} fit; "
            f"{sum(found.cpu_s for found in every):.0f} s of CPU"
        )


if __name__ == "__main__":
    main()
