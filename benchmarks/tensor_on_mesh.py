"""Whether tensor parallelism over 4 dies beats 8 on a wafer's mesh (WATOS), with rings and with optimal collectives.

First the tensor-parallel collectives of one layer of GPT-3 175B on tiles of the WATOS-like wafer: seconds by the loads
of every link. Then whole steps under Megatron by the model, twice: as it prices groups (packed trees), and with the
rates and hops of rings in place of these, for all groups of a plan. 8 × 7 dies hold tiles of 4 and 8 as lines alone; as
2 × 2 and 2 × 4 they are on the 8 × 6 dies that are left without a column.

    python benchmarks/tensor_on_mesh.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple
from unittest.mock import patch

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.arrays import Floats
from dovetail.cost.grid import as_tier
from dovetail.cost.mesh import DieMesh, best
from dovetail.cost.tier import TierArrays
from dovetail.cost.units import way_arrays
from dovetail.hardware import Cluster
from dovetail.layout import CollectiveKind
from dovetail.models import Job
from dovetail.partition.partition_plan import partition_plan
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.step.evaluate import Evaluation, evaluate

WAFER, MODEL, SEQ_LEN, HIDDEN = "watos-like", "gpt3-175b", 2048, 12288
TILES = ((2, 2), (1, 4), (2, 4), (1, 8))
#: What a layer's forward and backward exchange, without and with sequence parallelism.
EXCHANGED = {
    "no SP": {CollectiveKind.ALL_REDUCE: 4},
    "SP": {CollectiveKind.ALL_GATHER: 4, CollectiveKind.REDUCE_SCATTER: 4},
}
#: Sequences of a step: for both sizes of wafer, and degrees of data to 14.
GLOBAL_BATCH = 336
RECOMPUTE: tuple[Literal["selective", "full"], ...] = ("selective", "full")
#: Tensor, pipeline by rows × columns of dies.
SPLITS = {
    (8, 7): ((4, 14), (8, 7), (4, 7), (8, 1), (4, 1)),
    (8, 6): ((4, 12), (8, 6), (4, 6), (8, 3), (4, 3), (8, 1)),
}


# -- one layer


@lru_cache(maxsize=4096)
def busiest_and_hops(kind: CollectiveKind, rows: int, cols: int, *, optimal: bool) -> tuple[float, int]:
    """For one byte: over the busiest link, and hops one after another; the fewest bytes, then the fewest hops."""
    made = best(kind, DieMesh(rows, cols), 1.0, 1.0, optimal=optimal)
    return made.busiest_bytes, made.hops


def layer_seconds(tile: tuple[int, int], exchanged: dict[CollectiveKind, int], *, optimal: bool) -> float:
    """Seconds of a layer's collectives and one sequence, on links as large messages reach them."""
    cluster = hardware.cluster(WAFER)
    link = way_arrays(cluster)[0]
    bytes_per_s = float(link.bytes_per_s * link.efficiency) / 2
    sent = SEQ_LEN * HIDDEN * 2.0
    return sum(
        count
        * best(kind, DieMesh(*tile), sent, bytes_per_s, float(link.latency_s), optimal=optimal).seconds(
            bytes_per_s, float(link.latency_s)
        )
        for kind, count in exchanged.items()
    )


# -- whole steps


def ring_tier(kind: CollectiveKind, axes: Sequence[tuple[Floats, TierArrays]]) -> tuple[Floats, TierArrays]:
    """What cost.grid.as_tier says, at the rate and hops of rings."""
    chips, tier = as_tier(kind, axes)
    if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE):
        return chips, tier
    # a group may be given without the axes it does not lie along
    extents = np.broadcast_arrays(*(extent for extent, _ in axes), np.ones(()))[:2]
    pairs = zip(*(np.ravel(extent).tolist() for extent in extents), strict=True)
    found = np.array([_by_ring(kind, round(rows), round(cols)) for rows, cols in pairs])
    slower, longer = (column.reshape(extents[0].shape) for column in found.T)
    return chips, replace(tier, bytes_per_s=tier.bytes_per_s / slower, latency_s=tier.latency_s * longer)


def _by_ring(kind: CollectiveKind, rows: int, cols: int) -> tuple[float, float]:
    """How many times the bytes on the busiest link, and the hops, a ring has of what the model counts."""
    if rows * cols == 1:
        return 1.0, 1.0
    ring, ring_hops = busiest_and_hops(kind, rows, cols, optimal=False)
    packed, _ = busiest_and_hops(kind, rows, cols, optimal=True)
    phases = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return ring / packed, ring_hops / phases / (rows + cols - 2)


@dataclass(frozen=True)
class Priced:
    """A plan with optimal collectives and with rings."""

    plan: Plan
    tile: tuple[int, ...]
    optimal: Evaluation
    rings: Evaluation


def resolved(spec: PlanSpec, cluster: Cluster) -> tuple[Plan, Job]:
    """The plan and the job it is for."""
    job = Job(models.load(MODEL), seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH)
    plan = resolve_plan(spec, chips=cluster.chips, global_batch=GLOBAL_BATCH, num_layers=job.model.num_layers)
    check_runs(plan, job, cluster)
    return plan, job


def priced(spec: PlanSpec, cluster: Cluster) -> Priced:
    """The plan by the model, both ways."""
    (plan, job), framework = resolved(spec, cluster), frameworks.load("megatron")
    optimal = evaluate(plan, job, cluster, framework, energy=False)
    with patch("dovetail.cost.collective.as_tier", ring_tier):
        rings = evaluate(plan, job, cluster, framework, energy=False)
    joins = arrange(plan, job.graph(), cluster).joins
    tile = next((n for axis, n in joins.items() if axis.startswith("heads")), (1, 1))
    return Priced(plan, tile, optimal, rings)


def placed(spec: PlanSpec, cluster: Cluster, *, rings: bool) -> Evaluation | None:
    """The degrees of a plan with the best cut into stages and the best recompute of each block that fit."""
    (plan, job), framework = resolved(spec, cluster), frameworks.load("megatron")
    with patch("dovetail.cost.collective.as_tier", ring_tier if rings else as_tier):
        found = partition_plan(plan, job, cluster, framework)
    return found and found.evaluation


def dies(rows: int, cols: int, slower: float = 1.0) -> Cluster:
    """A rectangle of the wafer's dies, with links that are so many times slower."""
    cluster = hardware.cluster(WAFER)
    tier = cluster.tiers[0]
    tier = replace(tier, size=rows * cols, shape=(rows, cols), bytes_per_s=tier.bytes_per_s / slower)
    return replace(cluster, chips=rows * cols, tiers=(tier,))


class Setting(NamedTuple):
    """What plans of both degrees have in common."""

    grid: tuple[int, int]
    sequence_parallel: bool
    slower: float = 1.0

    def __str__(self) -> str:
        rows, cols = self.grid
        links = f", links ÷ {self.slower:g}" if self.slower > 1 else ""
        return f"{rows} × {cols}, {'SP' if self.sequence_parallel else 'no SP'}{links}"


def specs(setting: Setting, recompute: Literal["selective", "full"]) -> list[PlanSpec]:
    """Every split of these dies."""
    rows, cols = setting.grid
    return [
        PlanSpec(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            sequence_parallel=setting.sequence_parallel,
            zero_stage=1 if tensor * pipeline < rows * cols else 0,
            recompute=recompute,
        )
        for tensor, pipeline in SPLITS[setting.grid]
    ]


def plans(setting: Setting) -> list[Priced]:
    """Every split of these dies, with both kinds of recompute."""
    cluster = dies(*setting.grid, setting.slower)
    return [priced(spec, cluster) for recompute in RECOMPUTE for spec in specs(setting, recompute)]


def print_layers() -> None:
    """Communication of one layer."""
    print("| tile | sequence parallel | optimal µs | rings µs | rings / optimal |\n|---|---|---|---|---|")
    for name, exchanged in EXCHANGED.items():
        for tile in TILES:
            optimal, rings = (layer_seconds(tile, exchanged, optimal=kind) for kind in (True, False))
            rows, cols = tile
            print(f"| {rows} × {cols} | {name} | {optimal * 1e6:.1f} | {rings * 1e6:.1f} | {rings / optimal:.2f} |")


def print_steps() -> None:
    """Whole steps."""
    print("\n| dies | plan | tile | optimal s | tensor-parallel s | rings s | tensor-parallel s | missing GB |")
    print("|---|---|---|---|---|---|---|---|")
    for grid in SPLITS:
        for sequence_parallel in (True, False):
            setting = Setting(grid, sequence_parallel)
            for each in plans(setting):
                print(_row(setting, each))


def print_verdicts() -> None:
    """Which degree is best over all splits: whether it fits or not, and placed so that it does."""
    print("\n| dies | collectives | plans | TP 4 s | TP 8 s | TP 8 / TP 4 | best with TP 4 | best with TP 8 |")
    print("|---|---|---|---|---|---|---|---|")
    for grid in SPLITS:
        for sequence_parallel in (True, False):
            for slower in (1.0, 10.0):
                setting = Setting(grid, sequence_parallel, slower)
                found, cluster = plans(setting), dies(*grid, slower)
                for rings in (False, True):
                    all_of_them = [each.rings if rings else each.optimal for each in found]
                    fitting = [placed(spec, cluster, rings=rings) for spec in specs(setting, "full")]
                    words = f"{setting} | {'rings' if rings else 'optimal'}"
                    print(_verdict(f"{words} | any", all_of_them))
                    print(_verdict(f"{words} | fits", [each for each in fitting if each]), flush=True)


def _words(plan: Plan) -> str:
    degrees = f"TP{plan.tensor_parallel} PP{plan.pipeline_parallel} DP{plan.data_parallel}"
    return f"{degrees}, {plan.recompute}" if plan.recompute_by_block is None else degrees


def _row(setting: Setting, each: Priced) -> str:
    parts = (
        f"{setting}",
        _words(each.plan),
        " × ".join(map(str, each.tile)),
        *(
            f"{found.step_time_s:.2f} | {found.breakdown.get('tensor-parallel', 0.0):.3f}"
            for found in (each.optimal, each.rings)
        ),
        f"{each.optimal.missing_bytes / 1e9:.1f}" if each.optimal.missing_bytes else "fits",
    )
    return f"| {' | '.join(parts)} |"


def _verdict(words: str, found: Sequence[Evaluation]) -> str:
    """The best step of 8 over the best of 4."""
    seconds, chosen = [np.inf, np.inf], ["none", "none"]
    for each in found:
        place = (4, 8).index(each.plan.tensor_parallel)
        if each.step_time_s < seconds[place]:
            seconds[place], chosen[place] = each.step_time_s, _words(each.plan)
    ratio = f"{seconds[1] / seconds[0]:.3f}" if max(seconds) < np.inf else "–"
    numbers = [f"{each:.2f}" if each < np.inf else "–" for each in seconds]
    return f"| {words} | {' | '.join([*numbers, ratio, *chosen])} |"


def main() -> None:
    print_layers()
    print_steps()
    print_verdicts()


if __name__ == "__main__":
    main()
