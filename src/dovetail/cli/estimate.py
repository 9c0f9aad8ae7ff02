"""`dovetail estimate`: what one given plan takes, and where each second and byte goes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dovetail as dt
from dovetail.cli.output import print_bars, print_facts, print_json
from dovetail.errors import InputError
from dovetail.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from dovetail.evaluation import Evaluation
    from dovetail.evaluation.plan_file import Task

EXIT_INFEASIBLE = 3


def estimate(
    plan: Annotated[Path, typer.Argument(help="A plan file: job, cluster and plan in YAML.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """What a given plan takes: step time, memory, energy, and where each second goes."""
    task = dt.evaluation.load_task(plan)
    result = dt.evaluation.evaluate(task.plan, task.job, task.cluster, task.framework)
    if as_json:
        print_json(fields(result))
    else:
        _print(task, result)
    if not result.fits:
        what = f"does not fit by {bytes_text(result.missing_bytes)} per chip"
        sentence = InputError(f"{plan}: stage {_fullest(result)}", what, "use more chips, more recompute or ZeRO")
        typer.echo(str(sentence), err=True)
        raise typer.Exit(EXIT_INFEASIBLE)


def fields(result: Evaluation) -> dict[str, Any]:
    """The JSON fields others rely on."""
    return {
        "fits": result.fits,
        "step_time_s": result.step_time_s,
        "mfu": result.mfu,
        "tokens_per_s_per_chip": result.tokens_per_s_per_chip,
        "breakdown": dict(result.breakdown),
        "memory_bytes": {
            "peak": result.peak_bytes,
            "missing": result.missing_bytes,
            "by_stage": [dict(parts) for parts in result.memory_by_stage],
        },
        "energy_j": result.energy_j,
        "provenance": dict(result.provenance),
        "plan": asdict(result.plan),
    }


def _print(task: Task, result: Evaluation) -> None:
    job, cluster, plan = task.job, task.cluster, result.plan
    degrees = (
        f"tensor {plan.tensor_parallel} × context {plan.context_parallel} × pipeline {plan.pipeline_parallel} "
        f"× data {plan.data_parallel}"
    )
    print_facts(
        [
            ("job", f"{job.model.name}, {job.global_batch} sequences of {job.seq_len} a step, {job.precision}"),
            ("cluster", f"{cluster.chips} × {cluster.chip.name} ({cluster.name}), {task.framework.name}"),
            ("plan", f"{degrees}, micro-batch {plan.micro_batch} × {plan.num_microbatches}, {plan.pipeline_schedule}"),
            ("step", f"{seconds_text(result.step_time_s)}, {result.mfu:.1%} of peak (MFU)"),
            ("speed", f"{result.tokens_per_s_per_chip:,.0f} tokens/s per chip"),
            ("energy", _energy(result)),
            ("rests on", result.provenance["calibration"]),
        ]
    )
    typer.echo("\nwhere each second of the busiest stage goes")
    print_bars(dict(result.breakdown), seconds_text)
    stage = _fullest(result)
    capacity = task.cluster.chip.hbm_bytes or task.cluster.chip.sram_bytes
    typer.echo(f"\nmemory of stage {stage}, the fullest: {bytes_text(result.peak_bytes)} of {bytes_text(capacity)}")
    print_bars(dict(result.memory_by_stage[stage]), bytes_text)


def _energy(result: Evaluation) -> str:
    if result.energy_j is None:
        return result.provenance["energy"]
    return f"{result.energy_j / 1e6:,.3g} MJ a step ({result.provenance['energy']})"


def _fullest(result: Evaluation) -> int:
    return max(range(len(result.memory_by_stage)), key=lambda i: sum(result.memory_by_stage[i].values()))
