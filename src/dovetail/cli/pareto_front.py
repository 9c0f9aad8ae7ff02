"""The Pareto front over numbers of chips, as `dovetail plan --chips 256..4096` shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from dovetail.cli.evaluation import job_words
from dovetail.cli.exit_codes import EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_NOTHING_FOUND
from dovetail.cli.interrupt import Interrupt
from dovetail.cli.output import print_facts, print_json, print_scale, print_table
from dovetail.cli.plan_request import Objective, PlanRequest
from dovetail.cli.plan_view import print_launch_note, write_plan
from dovetail.errors import InputError
from dovetail.units import count_text, dollars_text, duration_text, quantity_text, seconds_text

if TYPE_CHECKING:
    from dovetail.cli.question import Asked
    from dovetail.plans.plan_file import Question
    from dovetail.search import Answer
    from dovetail.search.pareto_front import FrontPoint, Training

#: Tokens to train on by default.
USUAL_TOKENS = 1e12
ON_COST_FRONT, ON_FRONT = "◆", "●"


def answer_front(asked: Asked, request: PlanRequest, interrupt: Interrupt) -> None:
    """The best plan for every number of chips, and the choice between them; after an interrupt for those reached."""
    from dovetail.search.pareto_front import best_of, pareto_front
    from dovetail.search.plan import plan

    limited, risked = request.memory_limit_bytes is not None, request.fit_risk is not None
    refused = {"--explain": request.explain, "--ideal": request.ideal, "--memory-limit": limited, "--fit-risk": risked}
    for flag, given in refused.items():
        if given:
            raise InputError(flag, "is for one number of chips", "give one with --chips")
    question = asked.any_question()
    objective: Objective = request.objective or "time"
    _check_objective(objective, question, request)
    start = time.monotonic()
    points = pareto_front(
        question.job,
        asked.cluster,
        question.framework,
        interrupt.until_asked(_with_progress(asked.counts)),
        USUAL_TOKENS if request.tokens is None else request.tokens,
        space=request.space,
        price_per_chip_hour=request.price_per_chip_hour,
        search=partial(plan, time_limit_s=request.time_limit_s, on_progress=interrupt.notice),
    )
    best = best_of(points, objective)
    if best is not None and request.out is not None:
        write_plan(_answered(best), asked, request.out)
    if request.as_json:
        from dovetail.report.answer_fields import front_fields

        fields = front_fields(points, best, objective, question)
        print_json(fields | {"timing": {"seconds": time.monotonic() - start}})
    elif best is not None:
        _print(question, points, best, objective)
        print_launch_note(question.job, question.framework)
        if request.out is not None:
            typer.echo(f"wrote {request.out}")
    if best is None:
        typer.echo(str(_nowhere(question, points)), err=True)
        code = EXIT_INFEASIBLE if all(point.proven for point in points) else EXIT_NOTHING_FOUND
        raise typer.Exit(EXIT_INTERRUPTED if interrupt.asked else code)
    if interrupt.asked:
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_objective(objective: Objective, question: Question, request: PlanRequest) -> None:
    """Refuses objectives that could not be compared, before the search."""
    from dovetail.search.pareto_front import price
    from dovetail.step.profiles import rates_of

    chip = question.cluster.chip
    if objective == "cost" and price(question.cluster, request.price_per_chip_hour) is None:
        raise InputError("--objective", f"is cost, but {chip.name} has no rental price", "give --price-per-chip-hour")
    if objective == "energy" and chip.tdp_w is None and rates_of(question.cluster) is None:
        what = f"is energy, but neither the power nor the energies of {chip.name} are known"
        raise InputError("--objective", what, "choose time or cost")


def _with_progress(counts: Sequence[int]) -> Iterable[int]:
    """The numbers of chips, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(counts, "searching", console=console, transient=True, disable=not console.is_terminal)


def _print(question: Question, points: Sequence[FrontPoint], best: FrontPoint, objective: Objective) -> None:
    from dovetail.plans.words import ABBREVIATIONS, plan_words

    job, training = question.job, _trained(best)
    print_facts(
        [
            ("job", job_words(job)),
            ("chips", f"{question.cluster.chip.name}, {question.framework.name}"),
            ("training", f"{count_text(training.tokens)} tokens, {training.steps:,} steps"),
            ("best", f"{best.chips:,} chips by {objective}: {plan_words(_answered(best).plan)}"),
            ("proof", _proof_text(points)),
        ]
    )
    figures = "energy" if objective == "energy" else "cost"
    print_table(
        ("chips", "step", "MFU", "time", "chip-hours", figures, "plan"),
        [_row(point, best, figures) for point in points if point.training],
    )
    typer.echo(f"plan: {ABBREVIATIONS}\n")
    name, figure, text = _drawn(objective)
    typer.echo(f"{name} against chips")
    rows = [(_label(point, best), figure(point.training) if point.training else None) for point in points]
    print_scale(rows, text)
    found = "" if all(point.proven for point in points) else ", of the plans found"
    typer.echo(f"\n{ON_FRONT} on the Pareto front of chips and time{found}")
    typer.echo(f"{ON_COST_FRONT} also on the Pareto front of cost and time   < best by {objective}")
    for point in points:
        if point.training is None:
            typer.echo(f"{point.chips:,} chips: {point.reason.rstrip('.')}")


def _proof_text(points: Sequence[FrontPoint]) -> str:
    from dovetail.report.certificate_words import proof_of_counts

    found = [_answered(point).certificate for point in points if point.training]
    return proof_of_counts(found, [point.chips for point in points if not point.proven and not point.training])


def _row(point: FrontPoint, best: FrontPoint, figures: str) -> tuple[str, ...]:
    from dovetail.plans.words import large_degrees

    answer, training = _answered(point), _trained(point)
    _, figure, text = _drawn("energy" if figures == "energy" else "cost")
    value = figure(training)
    return (
        _label(point, best),
        seconds_text(answer.step_time_s),
        f"{answer.mfu:.1%}",
        duration_text(training.train_s),
        f"{training.chip_hours:,.0f}",
        "?" if value is None else text(value),
        large_degrees(answer.plan) or "one chip",
    )


def _label(point: FrontPoint, best: FrontPoint) -> str:
    mark = ON_COST_FRONT if point.on_cost_front else ON_FRONT if point.on_front else " "
    return f"{point.chips:,} {mark}{'<' if point is best else ' '}"


def _drawn(objective: Objective) -> tuple[str, Callable[[Training], float | None], Callable[[float], str]]:
    match objective:
        case "time":
            return "time", lambda run: run.train_s, duration_text
        case "cost":
            return "cost", lambda run: run.cost_usd, dollars_text
        case "energy":
            return "energy", lambda run: run.energy_j, _energy_text


def _energy_text(joules: float) -> str:
    return quantity_text(joules / 3600, "Wh")


def _nowhere(question: Question, points: Sequence[FrontPoint]) -> InputError:
    last = points[-1]
    where = f"{question.job.model.name} on {points[0].chips:,} to {last.chips:,} × {question.cluster.chip.name}"
    if not all(point.proven for point in points):
        what = "no plan that fits was found in the time given, and it is not proven that there is none"
        return InputError(where, what, "give a longer --time-limit")
    return InputError(where, f"no plan fits on any number of chips; on {last.chips:,}: {last.reason}", "try more chips")


def _answered(point: FrontPoint) -> Answer:
    assert point.answer is not None, "the point has a plan"
    return point.answer


def _trained(point: FrontPoint) -> Training:
    assert point.training is not None, "the point has a plan"
    return point.training
