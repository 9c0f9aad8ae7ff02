"""`dovetail estimate`: step time, memory and energy of one given plan, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.defects import DefectOptions, DefectRate, Defects, LinkDefectRate, Seed
from dovetail.cli.evaluation import (
    exit_unless_fits,
    plan_facts,
    print_parts,
    print_reserved,
    question_facts,
    result_facts,
)
from dovetail.cli.output import print_facts, print_json
from dovetail.units import bytes_text, probability_text, seconds_text

if TYPE_CHECKING:
    from dovetail.explanation.fitting_changes import FittingChange
    from dovetail.plans.plan_file import Task
    from dovetail.step.evaluation import Evaluation

#: Changes that the view lists.
SHOWN = 6


def estimate(
    plan: Annotated[Path, typer.Argument(help="A plan file: job, cluster and plan in YAML.")],
    defects: Defects = None,
    defect_rate: DefectRate = None,
    link_defect_rate: LinkDefectRate = None,
    seed: Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Estimate a given plan: step time, memory, energy, and where the time goes."""
    from dovetail.memory.reserved import reserved_memory
    from dovetail.step.evaluate import evaluated_step

    task = DefectOptions(defects, defect_rate, link_defect_rate, seed).task(plan)
    evaluated = evaluated_step(task.plan, task.job, task.cluster, task.framework)
    result, reserved = evaluated.evaluation, reserved_memory(evaluated, task.plan, task.framework)
    changes = () if result.fits else _changes(task)
    if as_json:
        from dovetail.report.answer_fields import evaluation_fields

        fields = evaluation_fields(result, task.job, task.cluster, task.framework, reserved)
        print_json(fields | {"changes": [each.fields() for each in changes]})
    else:
        asked = question_facts(task.job, task.cluster, task.framework)
        print_facts([*asked, *plan_facts(task.plan), *result_facts(result)])
        print_parts(result)
        print_reserved(reserved)
        _print_changes(changes, result)
    exit_unless_fits(result, str(plan), _first(changes))


def _changes(task: Task) -> tuple[FittingChange, ...]:
    from dovetail.explanation.fitting_changes import fitting_changes

    return fitting_changes(task)


def _first(changes: tuple[FittingChange, ...]) -> str | None:
    """The first change as the fix of a sentence."""
    if not changes:
        return None
    return f"it fits with {changes[0].words}, at {seconds_text(changes[0].evaluation.step_time_s)} per step"


def _print_changes(changes: tuple[FittingChange, ...], result: Evaluation) -> None:
    """The fastest changes that make the plan fit, a line each."""
    if not changes:
        return
    typer.echo("\nchanges that make it fit, the fastest first")
    for each in changes[:SHOWN]:
        after = each.evaluation
        longer = after.step_time_s / result.step_time_s - 1
        typer.echo(
            f"  {each.words}: fits with a probability of {probability_text(after.fit_probability)}, "
            f"{bytes_text(after.peak_bytes)}, step {seconds_text(after.step_time_s)} ({100 * longer:+.0f} %)"
        )
    if len(changes) > SHOWN:
        typer.echo(f"  {len(changes) - SHOWN} more in --json")
