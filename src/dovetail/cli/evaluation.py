"""How an evaluated plan is shown: JSON fields, facts, and where each second and byte goes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from dovetail.cli.figures import quantity_text
from dovetail.cli.output import print_bars
from dovetail.errors import InputError
from dovetail.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from dovetail.evaluation import Evaluation
    from dovetail.frameworks import Framework
    from dovetail.hardware import Cluster
    from dovetail.models import Job
    from dovetail.placement.plan import Plan

#: Ends a command whose plan does not fit, or whose question has no plan.
EXIT_INFEASIBLE = 3

Facts = list[tuple[str, str]]


def evaluation_fields(result: Evaluation) -> dict[str, Any]:
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
        "plan": plan_fields(result.plan),
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it."""
    from dovetail.evaluation import write

    return write.plan_fields(plan)


def question_facts(job: Job, cluster: Cluster, framework: Framework) -> Facts:
    """What is trained, on what, by which framework."""
    return [
        ("job", f"{job.model.name}, {job.global_batch} sequences of {job.seq_len} a step, {job.precision}"),
        ("cluster", f"{cluster.chips} × {cluster.chip.name} ({cluster.name}), {framework.name}"),
    ]


def result_facts(result: Evaluation) -> Facts:
    """What the plan takes."""
    return [
        ("step", f"{seconds_text(result.step_time_s)}, {result.mfu:.1%} of peak (MFU)"),
        ("speed", f"{result.tokens_per_s_per_chip:,.0f} tokens/s per chip"),
        ("energy", _energy(result)),
        ("rests on", result.provenance["calibration"]),
    ]


def plan_facts(plan: Plan) -> Facts:
    """A plan in words, every choice it makes."""
    experts = ""
    if plan.expert_parallel > 1 or plan.expert_tensor_parallel not in (1, plan.tensor_parallel):
        cut = f", each cut over {plan.expert_tensor_parallel}" if plan.expert_tensor_parallel > 1 else ""
        experts = f", experts over {plan.expert_parallel}{cut}"
    degrees = (
        f"tensor {plan.tensor_parallel} × context {plan.context_parallel} × pipeline {plan.pipeline_parallel} "
        f"× data {plan.data_parallel}{experts}"
    )
    if plan.layouts is not None:
        tile = f"{plan.layouts.rows} × {plan.layouts.cols}"
        degrees = f"every operator cut by itself on a tile of {tile} × pipeline {plan.pipeline_parallel}"
    kinds = [f"context by {plan.context_kind.replace('_', '-')}"] if plan.context_parallel > 1 else []
    kinds += ["sequence-parallel"] if plan.sequence_parallel else []
    batch = f"micro-batch {plan.micro_batch} × {plan.num_microbatches}"
    lines = [", ".join([degrees, *kinds]), f"{batch}, {_zero_text(plan)}, recompute {_recompute_text(plan)}"]
    if plan.pipeline_parallel > 1:
        lines.append(_pipeline_text(plan))
    return [("plan" if position == 0 else "", line) for position, line in enumerate(lines)]


def _zero_text(plan: Plan) -> str:
    if plan.layouts is not None and plan.zero_stage:
        return f"ZeRO-{plan.zero_stage} wherever weights are copied"
    return f"ZeRO-{plan.zero_stage} over {plan.zero_group}" if plan.zero_stage else "no ZeRO"


def _recompute_text(plan: Plan) -> str:
    if plan.recompute_by_block is not None:
        again = sum(blocks for blocks, choice in plan.recompute_by_block if choice not in ("none", ()))
        return f"by block ({again} of {sum(plan.layers_per_stage)})"
    words = plan.recompute if isinstance(plan.recompute, str) else ", ".join(plan.recompute)
    return words if plan.recompute_share == 1 else f"{words} in {plan.recompute_share:.4g} of the blocks"


def _pipeline_text(plan: Plan) -> str:
    chunks = f" with {plan.virtual_stages} chunks a stage" if plan.virtual_stages > 1 else ""
    part = "chunk" if plan.virtual_stages > 1 else "stage"
    beside = "; stages lie beside each other, copies apart" if plan.stages_inside else ""
    return f"{plan.pipeline_schedule}{chunks}, blocks per {part} {_runs(plan.layers_per_stage)}{beside}"


def _runs(numbers: Sequence[int]) -> str:
    """Numbers in order, equal neighbours together: 2, 10 × 3, 0."""
    runs = [(value, len(list(group))) for value, group in groupby(numbers)]
    return ", ".join(f"{value}" if count == 1 else f"{count} × {value}" for value, count in runs)


def print_parts(result: Evaluation, cluster: Cluster) -> None:
    """Where each second of the busiest stage and each byte of the fullest goes, as bars."""
    typer.echo("\nwhere each second of the busiest stage goes")
    print_bars(dict(result.breakdown), seconds_text)
    stage = fullest_stage(result)
    capacity = cluster.chip.memory_bytes
    typer.echo(f"\nmemory of stage {stage}, the fullest: {bytes_text(result.peak_bytes)} of {bytes_text(capacity)}")
    print_bars(dict(result.memory_by_stage[stage]), bytes_text)


def fullest_stage(result: Evaluation) -> int:
    """The stage whose chips need most memory."""
    return max(range(len(result.memory_by_stage)), key=lambda i: sum(result.memory_by_stage[i].values()))


def exit_unless_fits(result: Evaluation, where: str) -> None:
    """Ends a command whose plan does not fit, with the stage and the missing bytes."""
    if not result.fits:
        what = f"does not fit by {bytes_text(result.missing_bytes)} per chip"
        sentence = InputError(f"{where}: stage {fullest_stage(result)}", what, "use more chips, more recompute or ZeRO")
        typer.echo(str(sentence), err=True)
        raise typer.Exit(EXIT_INFEASIBLE)


def _energy(result: Evaluation) -> str:
    if result.energy_j is None:
        return result.provenance["energy"]
    return f"{quantity_text(result.energy_j, 'J')} a step ({result.provenance['energy']})"
