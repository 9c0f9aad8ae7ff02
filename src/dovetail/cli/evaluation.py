"""How an evaluated plan is shown: facts, and where time and memory go."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import typer

from dovetail.cli.exit_codes import EXIT_INFEASIBLE
from dovetail.cli.output import print_bars
from dovetail.errors import InputError
from dovetail.units import bytes_text, probability_text, quantity_text, seconds_text

if TYPE_CHECKING:
    from dovetail.frameworks import Framework
    from dovetail.hardware import Cluster
    from dovetail.memory.reserved import ReservedMemory
    from dovetail.models import Job
    from dovetail.plans.plan import Plan
    from dovetail.step.evaluation import Evaluation

Facts = list[tuple[str, str]]

#: Approximated operators that the view names.
MOST_APPROXIMATED = 3
#: Letters of what is left out that the view shows.
MOST_LETTERS = 120
#: When in a step memory is fullest, in words.
_WHEN = {
    "loss": "at the loss",
    "backward of the head": "in the backward of the head",
    "backward of the last layer": "in the backward of its last layer",
    "backward of the first layer": "in the backward of its first layer",
    "backward of the embedding": "in the backward of the embedding",
    "optimizer": "in the optimizer's step",
}


def job_words(job: Job) -> str:
    """What is trained."""
    words = f"{job.model.name}, {job.global_batch} sequences of {job.seq_len} per step, {job.precision}"
    return words if job.adapters is None else f"{words}, {job.adapters.words}"


def question_facts(job: Job, cluster: Cluster, framework: Framework) -> Facts:
    """What is trained, on what, by which framework."""
    return [
        ("job", job_words(job)),
        ("cluster", f"{cluster.chips} × {cluster.chip.name} ({cluster.name}), {framework.name}"),
    ]


def result_facts(result: Evaluation) -> Facts:
    """Step time, memory and energy of the plan."""
    return [
        ("step", f"{seconds_text(result.step_time_s)}, {result.mfu:.1%} of peak (MFU)"),
        ("speed", f"{result.tokens_per_s_per_chip:,.0f} tokens/s per chip"),
        ("energy", _energy(result)),
        *([("host", _host(result))] if result.plan.offload else []),
        *([("approximated", _approximated(result))] if result.approximated else []),
        *([("left out", _left_out(result))] if result.left_out else []),
        ("based on", result.provenance["calibration"]),
    ]


def _approximated(result: Evaluation) -> str:
    """What of a traced model stands for something else, and how much of the time that is."""
    shown = [f"{each.operator} of {each.layer} ({each.words})" for each in result.approximated[:MOST_APPROXIMATED]]
    more = len(result.approximated) - len(shown)
    rest = f" and {more} more in --json" if more else ""
    return f"{result.approximated_share:.1%} of the operators' time: {', '.join(shown)}{rest}"


def _left_out(result: Evaluation) -> str:
    """What of a traced model is in no figure, on one line."""
    more = len(result.left_out) - 1
    return textwrap.shorten(result.left_out[0], MOST_LETTERS) + (f" and {more} more in --json" if more else "")


def _host(result: Evaluation) -> str:
    return f"{bytes_text(result.host_bytes)} of {bytes_text(result.host_limit_bytes)} for each chip"


def plan_facts(plan: Plan) -> Facts:
    """All choices of a plan, in words."""
    from dovetail.plans.words import plan_lines

    return [("plan" if position == 0 else "", line) for position, line in enumerate(plan_lines(plan))]


def print_parts(result: Evaluation) -> None:
    """The time of the busiest stage and the memory of the fullest, part by part as bars."""
    typer.echo("\ntime of the busiest stage")
    print_bars(dict(result.breakdown), seconds_text)
    stage = result.fullest_stage
    when = f" at its fullest, {_WHEN[result.fullest_phases[stage]]}"
    typer.echo(f"\nmemory of stage {stage}{when}: {memory_text(result)}")
    print_bars(dict(result.memory_by_stage[stage]), bytes_text)


def print_reserved(reserved: ReservedMemory | None) -> None:
    """What the allocator holds, and where memory runs out."""
    if reserved is None:
        return
    tensors, held = bytes_text(reserved.allocated_bytes), bytes_text(reserved.reserved_bytes)
    typer.echo(f"\nallocator: tensors take {tensors} at most; PyTorch reserves {held} unless memory runs short")
    if reserved.operator is not None:
        typer.echo(f"memory runs out in the {reserved.phase}, when {reserved.operator} asks for more")


def memory_text(result: Evaluation) -> str:
    """Bytes of the fullest stage's chips, and what they leave free."""
    text = f"{bytes_text(result.peak_bytes)} of {bytes_text(result.usable_bytes)} usable"
    headroom = f", {bytes_text(result.headroom_bytes)} headroom" if result.fits else ""
    return f"{text}{headroom}; fits with a probability of {probability_text(result.fit_probability)}"


def exit_unless_fits(result: Evaluation, where: str, fix: str | None = None) -> None:
    """Ends a command whose plan does not fit, with the stage, the missing bytes and what would make it fit."""
    if not result.fits and not result.missing_bytes and result.host_bytes > result.host_limit_bytes:
        what = f"does not fit: a host has {bytes_text(result.host_limit_bytes)} for each of its chips"
        sentence = InputError(
            f"{where}: plan.offload", what, f"{bytes_text(result.host_bytes)} are needed: offload less"
        )
        typer.echo(str(sentence), err=True)
        raise typer.Exit(EXIT_INFEASIBLE)
    if not result.fits:
        what = f"does not fit: {bytes_text(result.missing_bytes)} are missing per chip"
        fix = fix or "use more chips, recompute more or raise the ZeRO stage"
        sentence = InputError(f"{where}: stage {result.fullest_stage}", what, fix)
        typer.echo(str(sentence), err=True)
        raise typer.Exit(EXIT_INFEASIBLE)


def _energy(result: Evaluation) -> str:
    if result.energy is None or result.power is None:
        return result.provenance["energy"]
    chip, system, facility = result.power.chip, result.power.system, result.power.facility
    text = f"{quantity_text(result.energy.value, 'J')} per step, {_watts(chip.value)} a chip"
    text += f" ({_watts(chip.low)} to {_watts(chip.high)})"
    if system is not None and facility is not None:
        text += f"; {_watts(system.value)} with hosts and network, {_watts(facility.value)} with cooling"
    # all of a chip's design power is the most it can take
    return f"{text}; {result.provenance['energy']}" if result.provenance["energy"].startswith("TDP") else text


def _watts(watts: float) -> str:
    return f"{watts:,.0f} W"
