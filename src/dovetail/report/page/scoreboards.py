"""The page of `validate`: how far predictions are from measured runs, and where they are worst."""

from __future__ import annotations

from dovetail.report.page.answer_file import ErrorsPart, ScoreboardFile
from dovetail.report.page.charts import grouped
from dovetail.report.page.document import Page, Section, Table
from dovetail.units import percent_text


def scoreboard_page(board: ScoreboardFile, command: str) -> Page:
    """The accuracy of predictions by family of runs, of memory and of choices."""
    from dovetail import __version__

    left_out = board.left_one_family_out
    sentence = (
        f"Step times of {board.rows.used:,} measured runs are predicted within {percent_text(board.macro.mape)} on "
        f"average, each {board.grouped_by} counting the same."
    )
    if left_out is not None:
        sentence += f" For families the calibration has not seen it is {percent_text(left_out.macro.mape)}."
    return Page(
        title="Predictions against measured runs",
        sentence=sentence,
        cards=_cards(board),
        sections=(_families(board), *_memory(board), *_worst(board)),
        command=command,
        provenance={"version": __version__, "runs read": f"{board.rows.read:,}", "runs used": f"{board.rows.used:,}"},
    )


def _cards(board: ScoreboardFile) -> tuple[tuple[str, str, str], ...]:
    ranking, left_out = board.ranking, board.left_one_family_out
    cards = [("error, mean of families", percent_text(board.macro.mape), f"bias {board.macro.bias:+.1%}")]
    if left_out is not None:
        cards.append(("family left out", percent_text(left_out.macro.mape), f"bias {left_out.macro.bias:+.1%}"))
    cards.append(("nine in ten runs within", percent_text(board.step_time.p90_ape), f"{board.step_time.rows:,} runs"))
    if ranking.mean_regret is not None:
        cards.append(("regret of the choice", percent_text(ranking.mean_regret), f"{ranking.groups:,} groups of plans"))
    return tuple(cards)


def _families(board: ScoreboardFile) -> Section:
    ordered = sorted(board.by.items(), key=lambda each: each[1].step_time.mape)
    labels = [f"{name} ({part.rows:,})" for name, part in ordered]
    series: dict[str, list[float | None]] = {"fitted with all": [part.step_time.mape for _, part in ordered]}
    if any(part.left_out for _, part in ordered):
        series["this family left out of the fit"] = [part.left_out and part.left_out.mape for _, part in ordered]
    words = "Mean absolute error by " + board.grouped_by + ": "
    words += ", ".join(f"{name} {percent_text(part.step_time.mape)}" for name, part in ordered)
    rows = tuple((name, *_figures(part.step_time), _mape(part.left_out)) for name, part in ordered)
    columns = (board.grouped_by, "runs", "mean error", "median", "90th percentile", "bias", "left out")
    lead = f"Mean absolute error of step times by {board.grouped_by}; in brackets the number of runs."
    return Section("families", "Step time", lead, (grouped(labels, series, words),), Table(columns, rows))


def _memory(board: ScoreboardFile) -> list[Section]:
    if not board.memory:
        return []
    rows = tuple((name, *_figures(errors)) for name, errors in board.memory.items())
    columns = ("memory", "runs", "mean error", "median", "90th percentile", "bias")
    lead = (
        "Peak memory against what runs reported: tensors allocated, reserved by the allocator, or used on the device."
    )
    return [Section("memory", "Memory", lead, table=Table(columns, rows), open=True)]


def _worst(board: ScoreboardFile) -> list[Section]:
    if not board.worst:
        return []
    rows = tuple((f"{w.family}, {w.chip}, {w.model}", *_figures(w.step_time)) for w in board.worst)
    columns = ("family, chip, model", "runs", "mean error", "median", "90th percentile", "bias")
    lead = "The groups of runs whose step times are predicted worst."
    return [Section("worst", "Where it is worst", lead, table=Table(columns, rows), open=True)]


def _figures(errors: ErrorsPart) -> tuple[str, ...]:
    shares = (errors.mape, errors.median_ape, errors.p90_ape)
    return (f"{errors.rows:,}", *(percent_text(share) for share in shares), f"{errors.bias:+.1%}")


def _mape(errors: ErrorsPart | None) -> str:
    return "" if errors is None else percent_text(errors.mape)
