"""How the answer of a search is shown and written: the plan, its certificate, what else was close."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dovetail.cli.evaluation import (
    Facts,
    plan_facts,
    print_parts,
    question_facts,
    result_facts,
)
from dovetail.cli.output import print_facts, wrapped
from dovetail.errors import InputError
from dovetail.units import count_text, dollars_text, duration_text, quantity_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.cli.question import Asked
    from dovetail.explanation.covered import Covered
    from dovetail.explanation.suggestions import Suggestion
    from dovetail.frameworks import Framework
    from dovetail.models import Job
    from dovetail.search import Answer, Certificate
    from dovetail.search.pareto_front import Training

#: Time limit of each search for a smallest fix.
FIX_SECONDS = 5.0


def print_answer(
    answer: Answer, *, training: Training | None = None, ideal: Answer | None = None, explanation: Any = None
) -> None:
    """The view for reading."""
    facts = [
        *question_facts(answer.job, answer.cluster, answer.framework),
        *plan_facts(answer.plan),
        *result_facts(answer.best),
        *_fastest_facts(answer),
        *_simulation_facts(answer),
        *certificate_facts(answer.certificate),
    ]
    if training is not None:
        facts.append(("training", training_text(training)))
    if ideal is not None:
        facts.append(("ideal", _ideal_text(answer, ideal)))
    print_facts(facts)
    if explanation is not None:
        typer.echo(f"\n{explanation}")
        return
    print_parts(answer.best)
    _print_alternatives(answer)


def _fastest_facts(answer: Answer) -> Facts:
    """The fastest plan, where a simpler one is recommended."""
    if answer.recommended is None:
        return []
    from dovetail.plans.words import plan_words

    step = seconds_text(answer.fastest.step_time_s)
    text = f"{step}, {answer.recommended_loss:.1%} less, closer than the model can tell (--fastest takes it)"
    return [("fastest", text), ("", plan_words(answer.fastest.plan))]


def _simulation_facts(answer: Answer) -> Facts:
    if not answer.simulated:
        return []
    best, modelled = answer.simulated[0], min(answer.simulated, key=lambda replayed: replayed.model_s)
    text = f"{seconds_text(best.step_time_s)} per step ({best.step_time_s / best.model_s - 1:+.1%} over the model)"
    loss = modelled.step_time_s / best.step_time_s - 1
    choice = "also the model's choice" if modelled is best else f"the model's choice is {loss:.1%} slower"
    return [("simulated", text), ("", f"best of {len(answer.simulated):,} simulated; {choice}")]


def certificate_facts(certificate: Certificate) -> Facts:
    """What is proven, and over which space."""
    from dovetail.report.certificate_words import counts_text, proof_text

    return [
        ("proof", proof_text(certificate)),
        ("", counts_text(certificate)),
        *wrapped("space", certificate.space_text),
    ]


def training_text(training: Training) -> str:
    """Time, chip-hours, cost and energy of the whole training run."""
    parts = [
        f"{count_text(training.tokens)} tokens in {duration_text(training.train_s)} ({training.steps:,} steps)",
        f"{training.chip_hours:,.0f} chip-hours",
    ]
    if training.cost_usd is not None:
        parts.append(dollars_text(training.cost_usd))
    if training.energy_j is not None:
        parts.append(quantity_text(training.energy_j / 3600, "Wh"))
    return ", ".join(parts)


def _ideal_text(answer: Answer, ideal: Answer) -> str:
    from dovetail.report.answer_fields import ideal_fields

    fields = ideal_fields(answer, ideal)
    most = "" if fields["gain_at_most"] is None else f"; at most {max(fields['gain_at_most'], 0.0):.1%} could be gained"
    if fields["gain"] is None or fields["gain"] <= 0:
        return f"no faster plan was found among all that the model can express{most}"
    step = seconds_text(fields["step_time_s"])
    proven = ", proven optimal" if fields["status"] == "optimal" else most
    return f"plans that no framework runs would gain {fields['gain']:.1%} ({step} per step{proven})"


def suggestion_fields(suggested: Sequence[Suggestion] | None) -> dict[str, Any]:
    """Other questions as JSON; nothing where there is nothing to suggest."""
    return {"suggestions": [asdict(each) for each in suggested]} if suggested else {}


def print_suggestions(suggested: Sequence[Suggestion] | None) -> None:
    """Other questions in a sentence each."""
    words = {"global_batch": "a global batch of {}", "chips": "{} chips"}
    for each in suggested or ():
        asked = words[each.field].format(f"{each.value:,}")
        typer.echo(f"\ntry {asked}: {each.gain:.1%} more tokens a second per chip than {each.asked:,}")


def launch_fields(answer: Answer) -> dict[str, Any]:
    """That no launch file can be written, as JSON; nothing where one can."""
    from dovetail.plans.runs import why_no_launch_file

    why = why_no_launch_file(answer.job, answer.framework)
    return {} if why is None else {"launch_note": why}


def print_launch_note(job: Job, framework: Framework) -> None:
    """The same in a sentence."""
    from dovetail.plans.runs import why_no_launch_file

    why = why_no_launch_file(job, framework)
    if why is not None:
        typer.echo(f"\n{why}")


def covered_fields(held: Covered | None) -> dict[str, Any]:
    """A plan held against the answer, as JSON."""
    if held is None:
        return {}
    step = None if held.evaluation is None else held.evaluation.step_time_s
    fields = {"covered": held.covered, "reason": held.reason, "step_time_s": step, "loss": held.loss}
    return {"covers": {**fields, "partition_tried": held.partition_tried, "why": held.why}}


def _print_alternatives(answer: Answer) -> None:
    if not answer.alternatives:
        return
    from dovetail.plans.words import ABBREVIATIONS, plan_words

    typer.echo("\nother degrees that were evaluated, and how much slower they are")
    for other in answer.alternatives:
        typer.echo(f"  {seconds_text(other.step_time_s):>8}  {other.loss:+6.1%}  {plan_words(other.plan)}")
    typer.echo(f"  ({ABBREVIATIONS})")


def infeasible(answer: Answer, fix_s: float = FIX_SECONDS) -> InputError:
    """Why no plan fits, by how much, and the smallest fix, each of whose searches takes `fix_s` at most."""
    from dovetail.explanation.explain import shortfall
    from dovetail.explanation.smallest_fix import CHIPS, MEMORY, Fixes, smallest_fixes

    chips, certificate = answer.cluster.chips, answer.certificate
    where = f"{answer.job.model.name} on {chips:,} × {answer.cluster.chip.name}"
    if certificate.status != "infeasible":
        what = "no plan that fits was found in the time given, and it is not proven that there is none"
        return InputError(where, what, "give a longer --time-limit")
    if certificate.counted == 0:
        return InputError(
            where, shortfall(answer, Fixes()), "change the number of chips or sequences, or fix fewer fields"
        )
    fixes = smallest_fixes(answer, fix_s) if fix_s else Fixes(unknown=(MEMORY, CHIPS))
    what = f"none of {certificate.counted:,} plans fits the {shortfall(answer, fixes)}"
    more = next((fix for fix in fixes.found if fix.what == CHIPS), None)
    if more is None:
        return InputError(where, what, "use more chips, chips with more memory, or shorter sequences")
    return InputError(where, what, f"{more.after:,.0f} chips are enough, at {seconds_text(more.step_time_s)} per step")


def write_plan(answer: Answer, asked_for: Asked, out: Path) -> tuple[Path, ...]:
    """The plan as a file that `dovetail estimate` reads; returns what is written."""
    from dovetail.plans.write import plan_document, write_plan_file

    framework = asked_for.framework_in_file(out)
    return write_plan_file(out, plan_document(answer.plan, answer.job, answer.cluster, framework))
