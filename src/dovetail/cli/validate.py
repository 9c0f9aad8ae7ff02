"""`dovetail validate`: how far predictions are from measured training runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from dovetail.cli.fit_score import print_fit
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.accuracy import Errors, MeasuredRuns, Prediction, Ranking, Refusal, Scoreboard
    from dovetail.accuracy.ranking import RatioErrors
    from dovetail.accuracy.scoreboard import Slice
    from dovetail.accuracy.simulated import Compared, SimulatedScore

#: How many ids and reasons the view lists; JSON has all of them.
SHOWN = 5
Key = Literal["family", "chip", "framework", "model"]  # the scoreboard's, which is slow to import
ItemT = TypeVar("ItemT")
_FIGURES = ("runs", "MAPE", "median", "p90", "bias")


def validate(
    runs: Annotated[
        Path | None, typer.Option("--runs", help="A CSV file of measured runs; default: the published ones.")
    ] = None,
    by: Annotated[Key, typer.Option("--by", help="What the table is grouped by.")] = "family",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also simulate the runs of tier A, and compare with the model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Compare predictions with measured runs: step time, memory, which plan is fastest, and whether runs fit."""
    from dovetail import accuracy
    from dovetail.accuracy.outcomes import fit_fields, predict_outcomes, score_outcomes
    from dovetail.accuracy.scoreboard import fields, fields_without_times

    measured = accuracy.published_runs() if runs is None else accuracy.read_runs(runs)
    try:
        answers = accuracy.predict(_with_progress(measured.runs, "predicting"))
        outcomes = predict_outcomes(_with_progress(measured.outcomes, "predicting outcomes"))
        measured, fit = measured.refusing(outcomes), score_outcomes(outcomes)
        timed = fit is None or any(isinstance(answer, accuracy.Prediction) for answer in answers)
        board = accuracy.score(measured, answers, accuracy.left_out_predictions(answers)) if timed else None
        replayed = _replayed(answers) if simulate else None
    except InputError as error:
        raise InputError(str(runs or error.where), error.what, error.fix) from None
    if as_json:
        times = fields_without_times(measured) if board is None else fields(board, by)
        print_json(times | {"fit": fit_fields(fit)} | _simulated_fields(replayed))
        return
    if board is not None:
        _print(board, by, "the published runs" if runs is None else str(runs), measured)
    if fit is not None:
        print_fit(fit, measured)
    if replayed is not None:
        _print_simulated(replayed)


def _replayed(answers: Iterable[Prediction | Refusal]) -> SimulatedScore:
    from dovetail.accuracy import Prediction
    from dovetail.accuracy.simulated import TIER, score_simulated, simulate_runs

    in_tier = [answer for answer in answers if isinstance(answer, Prediction) and answer.run.tier == TIER]
    return score_simulated(simulate_runs(_with_progress(in_tier, "simulating")))


def _simulated_fields(replayed: SimulatedScore | None) -> dict[str, Any]:
    from dovetail.accuracy.simulated import simulated_fields

    return {} if replayed is None else {"simulated": simulated_fields(replayed)}


def _with_progress(items: Sequence[ItemT], what: str) -> Iterable[ItemT]:
    """The items, with a progress bar on a terminal: thousands take half a minute and more."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    off = not console.is_terminal
    return track(items, what, console=console, transient=True, disable=off)


def _print(board: Scoreboard, by: Key, where: str, measured: MeasuredRuns) -> None:
    macro, left_out = board.macro, board.left_one_family_out
    over = f"mean over {_many(board.families, 'family', 'families')}"
    ignored = measured.rows_read - measured.rows_used
    others = f", {ignored:,} of another tier" if ignored else ""
    print_facts(
        [
            ("runs", f"{where}: {board.rows_used:,} predicted, {len(board.refused):,} refused{others}"),
            ("step time", f"MAPE {macro.mape:.1%} ({over}), bias {macro.bias:+.1%}"),
            *([("", f"MAPE {left_out.macro.mape:.1%} with the run's family left out of the fit")] if left_out else []),
            *_ranking_facts(board.ranking),
            *_tie_facts(board.ratios),
            *_fit_facts(board),
        ]
    )
    _print_slices(board, by)
    if board.memory:
        print_table(("memory", *_FIGURES), [(kind, *_figures(errors)) for kind, errors in board.memory.items()])
    _print_worst(board)
    _print_refused(board)


def _tie_facts(ratios: RatioErrors | None) -> list[tuple[str, str]]:
    from dovetail.step.ties import TIE_MARGIN

    if ratios is None:
        return []
    over = f"{_many(ratios.groups, 'group')}, {_many(ratios.pairs, 'pair')}"
    left_out = f"{ratios.left_out_median_ape:.1%} with the family left out of the fit"
    return [
        ("ties", f"ratios of two plans' times are off by {ratios.median_ape:.1%} (median, {over})"),
        ("", f"{left_out}; plans within {TIE_MARGIN:.0%} are ties"),
    ]


def _print_slices(board: Scoreboard, by: Key) -> None:
    left_out = board.left_one_family_out
    rows = [
        _slice_row(name + " *" * (part.transfer == part.rows), part.step_time, part.left_out, _ranked(part))
        for name, part in board.by[by].items()
    ]
    columns = (by, "runs", "MAPE", "left out", "median", "bias", "regret", "tau")
    rows.append(("",) * len(columns))
    rows.append(_slice_row("all runs", board.step_time, left_out and left_out.step_time, _ranked(board)))
    rows.append(_slice_row("family mean", board.macro, left_out and left_out.macro, ("", "")))
    print_table(columns, rows)
    if any(part.transfer == part.rows for part in board.by[by].values()):
        typer.echo("* transfer: its chips or framework are in no other family\n")


def _slice_row(name: str, errors: Errors, left_out: Errors | None, ranked: tuple[str, str]) -> tuple[str, ...]:
    rows, mape, median, _, bias = _figures(errors)
    return (name, rows, mape, "" if left_out is None else f"{left_out.mape:.1%}", median, bias, *ranked)


def _print_simulated(score: SimulatedScore) -> None:
    from dovetail.accuracy.simulated import TIER

    all_runs, number = score.all_runs, _many(len(score.families), "family", "families")
    regrets = all_runs.simulation.ranking.mean_regret, all_runs.model.ranking.mean_regret
    facts = [
        (
            "simulated",
            f"{_many(all_runs.rows, 'run')} of tier {TIER}, {all_runs.ratio - 1:+.1%} vs. the model's time (mean)",
        ),
        ("", f"MAPE {score.macro.mape:.1%} (mean over {number}), the model's {score.model_macro.mape:.1%}"),
    ]
    if regrets[0] is not None and regrets[1] is not None:
        facts.append(("", f"choice {regrets[0]:.1%} slower than the best measured, the model's {regrets[1]:.1%}"))
    print_facts(facts)
    rows = [_compared_row(name, each) for name, each in score.families.items()]
    columns = ("family", "runs", "MAPE", "sim.", "bias", "sim.", "regret", "sim.")
    rows.append(("",) * len(columns))
    rows.append(_compared_row("all runs", all_runs))
    rows.append(("family mean", f"{all_runs.rows:,}", *_both(score.model_macro, score.macro), "", ""))
    print_table(columns, rows)
    for title, groups in (("where simulation helps", score.nearer), ("where it is worse", score.further)):
        shown = [
            (
                f"{g.family}, {g.chip}, {g.model}",
                f"{g.rows:,}",
                f"{g.model_mape:.1%}",
                f"{g.simulation_mape:.1%}",
                f"{g.ratio - 1:+.1%}",
            )
            for g in groups
        ]
        print_table((title, "runs", "model", "simulated", "longer"), shown or [("nowhere", "", "", "", "")])


def _compared_row(name: str, each: Compared) -> tuple[str, ...]:
    regrets = (each.model.ranking.mean_regret, each.simulation.ranking.mean_regret)
    ranked = ("" if regret is None else f"{regret:.1%}" for regret in regrets)
    return (name, f"{each.rows:,}", *_both(each.model.step_time, each.simulation.step_time), *ranked)


def _both(model: Errors, simulation: Errors) -> tuple[str, ...]:
    return f"{model.mape:.1%}", f"{simulation.mape:.1%}", f"{model.bias:+.1%}", f"{simulation.bias:+.1%}"


def _print_worst(board: Scoreboard) -> None:
    rows = [
        (
            f"{g.family}, {g.chip}, {g.model}",
            f"{g.step_time.rows:,}",
            f"{g.step_time.mape:.1%}",
            f"{g.step_time.bias:+.1%}",
        )
        for g in board.worst
    ]
    print_table(("largest errors (family, chip, model)", "runs", "MAPE", "bias"), rows)


def _print_refused(board: Scoreboard) -> None:
    from dovetail.accuracy.scoreboard import reasons

    if not board.refused:
        return
    by_reason = reasons(board.refused)
    typer.echo("refused")
    for reason, ids in by_reason[:SHOWN]:
        typer.echo(f"  {_named(ids)}\n    {reason}")
    rest = sum(len(ids) for _, ids in by_reason[SHOWN:])
    if rest:
        typer.echo(f"  and {rest:,} more for {_many(len(by_reason) - SHOWN, 'other reason')}: see --json")


def _figures(errors: Errors) -> tuple[str, ...]:
    shares = (errors.mape, errors.median_ape, errors.p90_ape)
    return (f"{errors.rows:,}", *(f"{share:.1%}" for share in shares), f"{errors.bias:+.1%}")


def _ranked(part: Slice | Scoreboard) -> tuple[str, str]:
    regret, tau = part.ranking.mean_regret, part.ranking.kendall_tau
    return "" if regret is None else f"{regret:.1%}", "" if tau is None else f"{tau:.2f}"


def _ranking_facts(ranking: Ranking) -> list[tuple[str, str]]:
    if ranking.mean_regret is None or ranking.max_regret is None:
        return [("choice", "unknown: no three plans were measured under equal conditions")]
    facts = [
        ("choice", f"{ranking.mean_regret:.1%} slower than the best measured, {ranking.max_regret:.1%} at worst"),
        ("", f"({_many(ranking.groups, 'group')} of plans measured under equal conditions, {ranking.plans:,} plans)"),
    ]
    if ranking.kendall_tau is not None and ranking.group_kendall_tau is not None:
        tau = f"Kendall tau {ranking.kendall_tau:.2f} over all pairs, {ranking.group_kendall_tau:.2f} mean over groups"
        facts += [("order", tau), ("", f"({_many(ranking.pairs, 'pair')} measured more than 3% apart)")]
    return facts


def _fit_facts(board: Scoreboard) -> list[tuple[str, str]]:
    families = {name: part.called_infeasible for name, part in board.by["family"].items() if part.called_infeasible}
    if not families:
        return [("fit", "all runs are predicted to fit, within 2% of memory")]
    most = sorted(families.items(), key=lambda each: -each[1])
    named = [f"{name} {number}" for name, number in most[:4]] + (["..."] if len(most) > 4 else [])
    share = f"{len(board.called_infeasible):,} of {board.rows_used:,} runs"
    return [
        ("fit", f"{share} are predicted not to fit, by more than 2% of memory"),
        ("", f"({', '.join(named)})"),
    ]


def _named(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids):,} rows ({ids[0]}, ...)"


def _many(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
