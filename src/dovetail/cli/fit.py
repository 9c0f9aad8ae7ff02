"""`dovetail fit`: what fits on how many chips: the largest micro-batch and the longest sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.exit_codes import EXIT_INFEASIBLE
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.cli.question import asked, chip_counts
from dovetail.errors import InputError
from dovetail.units import bytes_text, probability_text

if TYPE_CHECKING:
    from dovetail.search.fitting_sizes import FittingSize, SizeQuestion

#: Tokens of a sequence by default, and the largest cluster that is tried.
USUAL_SEQ_LEN, MOST_CHIPS = 4096, 4096

_CHIPS = (
    "Numbers of chips: 8; 8,16,32; 8..64 (doubling) or 8..64:8 (steps); default: the smallest cluster to four times it."
)
_RISK = "How likely the plan may run out of memory, by the errors of predicted memory; default: 0.02."
_MODEL = "A model of the catalogue, a model file, a config.json or its folder, or a Hugging Face id."
_SEQ = "Tokens per sequence of the micro-batches; longer ones are tried from there; default: 4,096."
_BATCH = "Sequences per step; default: 16 for each chip."


def fit(
    model: Annotated[str | None, typer.Option("--model", help=_MODEL)] = None,
    chip: Annotated[str | None, typer.Option("--chip", help="A chip of the catalogue or its file.")] = None,
    chips: Annotated[str | None, typer.Option("--chips", help=_CHIPS)] = None,
    framework: Annotated[
        str | None, typer.Option("--framework", help="Framework that runs the plan; default: megatron.")
    ] = None,
    seq_len: Annotated[int | None, typer.Option("--seq-len", help=_SEQ)] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help=_BATCH)] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="Default: bf16.")] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="Default: adamw.")] = None,
    fit_risk: Annotated[float | None, typer.Option("--fit-risk", metavar="PART", help=_RISK)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Show what fits: the largest micro-batch and the longest sequence by chips and recompute, and the fewest chips."""
    from dovetail.models.traced import longest_seq_len
    from dovetail.search.fitting_sizes import fitting_sizes, smallest_cluster

    for flag, value in (("--model", model), ("--chip", chip)):
        if value is None:
            raise InputError("dovetail fit", f"needs {flag}", "give it")
    given = {
        "job.model": model,
        "job.seq_len": 1 if seq_len is None else seq_len,
        "job.global_batch": 1 if global_batch is None else global_batch,
    }
    given |= {"job.precision": precision, "job.optimizer": optimizer}
    given |= {"cluster.chip": chip, "cluster.framework": framework}
    counts = None if chips is None else chip_counts(chips)
    if counts is not None and counts[-1] > MOST_CHIPS:
        raise InputError("--chips", f"has {counts[-1]}", f"give at most {MOST_CHIPS}")
    question = _question(given, global_batch, fit_risk)
    _check_counts(question, counts or ())
    if seq_len is None:
        usual = min(USUAL_SEQ_LEN, longest_seq_len(question.job.model))
        question = replace(question, job=replace(question.job, seq_len=usual))
    smallest = smallest_cluster(question, MOST_CHIPS)
    if counts is None:
        counts = () if smallest is None else tuple(n for n in _four_times(smallest.chips) if n <= MOST_CHIPS)
    sizes = fitting_sizes(question, counts, longest_seq_len(question.job.model)) if counts else []
    if as_json:
        print_json({"rows": [_row(each) for each in sizes], "smallest_cluster": _smallest_fields(smallest)})
    else:
        _print(question, sizes, smallest, counts)
    if not sizes:
        typer.echo(str(_nothing(question, counts)), err=True)
        raise typer.Exit(EXIT_INFEASIBLE)


def _check_counts(question: SizeQuestion, counts: tuple[int, ...]) -> None:
    for chips in counts:
        try:
            question.cluster(chips)
        except InputError as error:
            raise InputError("--chips", error.what, error.fix) from None


def _nothing(question: SizeQuestion, counts: tuple[int, ...]) -> InputError:
    """Why nothing fits."""
    from dovetail.search.fitting_sizes import divides

    name, most = question.job.model.name, counts[-1] if counts else MOST_CHIPS
    where = f"on {'' if counts else 'up to '}{most} {'chip' if most == 1 else 'chips'}"
    if counts and not any(divides(question, chips) for chips in counts):
        what = f"no plan of {question.framework.name} divides the model and the global batch {where}"
        return InputError(name, what, "change the number of chips or sequences")
    what = f"no plan of {question.framework.name} fits {where}"
    return InputError(name, what, "use more chips, or shorter sequences")


def _question(given: dict[str, Any], global_batch: int | None, fit_risk: float | None) -> SizeQuestion:
    from dovetail.plans.runs import check_job
    from dovetail.search.fitting_sizes import SizeQuestion
    from dovetail.step.capacity import FIT_RISK, check_fit_risk, memory_limit

    check_fit_risk(fit_risk, None, "--fit-risk")
    open_question = asked(None, given, "1")
    one = open_question.question(1)
    check_job(one.job, one.framework)
    limit = memory_limit(one.cluster.chip, one.framework, fit_risk=FIT_RISK if fit_risk is None else fit_risk)
    return SizeQuestion(one.job, open_question.cluster, one.framework, global_batch, limit)


def _four_times(chips: int) -> tuple[int, ...]:
    return chips, 2 * chips, 4 * chips


def _row(size: FittingSize) -> dict[str, Any]:
    from dovetail.plans.words import plan_words

    return {
        "largest": size.largest,
        "chips": size.chips,
        "recompute": size.recompute,
        "micro_batch": size.micro_batch,
        "seq_len": size.seq_len,
        "limited_by_memory": size.limited_by_memory,
        "peak_bytes": size.evaluation.peak_bytes,
        "fit_probability": size.evaluation.fit_probability,
        "words": plan_words(size.evaluation.plan),
        "step_time_s": size.evaluation.step_time_s,
    }


def _smallest_fields(size: FittingSize | None) -> dict[str, Any] | None:
    if size is None:
        return None
    from dovetail.plans.write import plan_fields

    row = _row(size)
    names = ("chips", "words", "peak_bytes", "fit_probability")
    return {name: row[name] for name in names} | {"plan": plan_fields(size.evaluation.plan)}


def _print(
    question: SizeQuestion, sizes: list[FittingSize], smallest: FittingSize | None, counts: tuple[int, ...]
) -> None:
    from dovetail.plans.words import plan_words

    job, chip = question.job, question.cluster(1).chip
    print_facts([("job", f"{job.model.name}, {job.precision}"), ("chip", f"{chip.name}, {question.framework.name}")])
    if smallest is not None:
        memory = bytes_text(smallest.evaluation.peak_bytes)
        many = "chip" if smallest.chips == 1 else "chips"
        typer.echo(f"smallest cluster: {smallest.chips} {many} at sequences of {job.seq_len:,}, {memory} of each")
        typer.echo(f"  {plan_words(smallest.evaluation.plan)}")
    _print_sizes(f"largest micro-batch at sequences of {job.seq_len:,}", sizes, "micro_batch")
    _print_sizes("longest sequence at micro-batch 1", sizes, "seq_len")
    for chips in counts:
        if chips not in {each.chips for each in sizes}:
            typer.echo(f"nothing fits on {chips} {'chip' if chips == 1 else 'chips'}")


def _print_sizes(title: str, sizes: list[FittingSize], column: Literal["micro_batch", "seq_len"]) -> None:
    """A table of one size by chips and recompute."""
    from dovetail.plans.field_words import zero_words
    from dovetail.plans.words import large_degrees

    shown = [each for each in sizes if each.largest == column]
    if not shown:
        return
    typer.echo(f"\n{title}")
    rows = [
        [
            f"{each.chips}",
            each.recompute,
            f"{getattr(each, column):,}{'' if each.limited_by_memory else ' *'}",
            bytes_text(each.evaluation.peak_bytes),
            probability_text(each.evaluation.fit_probability).replace("more than", ">"),
            " ".join(filter(None, (large_degrees(each.evaluation.plan), zero_words(each.evaluation.plan)))),
        ]
        for each in shown
    ]
    names = {"micro_batch": "micro-batch", "seq_len": "sequence"}
    print_table(["chips", "recompute", names[column], "memory", "P(fits)", "plan"], rows)
    if not all(each.limited_by_memory for each in shown):
        end = {
            "micro_batch": "the global batch divides into no larger ones",
            "seq_len": "the model is for no sequence twice as long",
        }
        typer.echo(f"* not limited by memory: {end[column]}")
