"""The scoreboard as Markdown: the tables of the accuracy page and the short one of the README."""

from __future__ import annotations

import datetime
import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dovetail.accuracy import (
    Errors,
    MeasuredRun,
    MeasuredRuns,
    Prediction,
    Ranking,
    Scoreboard,
    errors_of,
    macro_average,
    rank,
)
from dovetail.accuracy.measured import Metric
from dovetail.accuracy.scoreboard import TOLERATED_SHARE, reasons
from dovetail.frozen import frozen

#: Of reasons for refusals the page names the most frequent.
SHOWN_REASONS = 12
LONGEST_REASON = 200
#: In Markdown these would mean something, in a table the last would end a cell.
SPECIAL = "\\`*_[]~|"
NONE = "–"
METRICS: Mapping[Metric, str] = {
    "step time": "the step time",
    "tokens per second": "tokens per second",
    "FLOPS": "FLOPS, counted in a known way",
    "derived step time": "FLOPS or tokens, already turned into a step time",
}


@frozen
class LeftOutFigures:
    """What is known where every family is predicted by what was fitted to the others; all empty where nothing was."""

    families: Mapping[str, Errors]
    macro: Errors | None
    step_time: Errors | None
    ranking: Ranking | None

    @staticmethod
    def of(predictions: Iterable[Prediction]) -> LeftOutFigures:
        """The figures over predictions made without their runs' families."""
        made = list(predictions)
        if not made:
            return LeftOutFigures({}, None, None, None)
        ratios: defaultdict[str, list[float]] = defaultdict(list)
        for prediction in made:
            ratios[family_of(prediction.run)].append(prediction.step_time_ratio)
        families = {family: errors_of(ratios[family]) for family in sorted(ratios)}
        return LeftOutFigures(
            families, macro_average(families.values()), errors_of(p.step_time_ratio for p in made), rank(made)
        )

    def family(self, name: str) -> str:
        """A family's mean error, as a table has it."""
        return _mape(self.families.get(name))

    @property
    def regret(self) -> str:
        """The mean regret, as a table has it."""
        return _regret(self.ranking)


def family_of(run: MeasuredRun) -> str:
    """The name the scoreboard has for a run's family."""
    return run.family or "unnamed"


def page_tables(
    measured: MeasuredRuns, scoreboard: Scoreboard, left_out: LeftOutFigures, date: datetime.date
) -> dict[str, str]:
    """The parts of the accuracy page by name."""
    return {
        "summary": _summary(scoreboard, left_out, date),
        "families": _families(scoreboard, left_out),
        "memory": table(("memory", *_FIGURES), [(kind, *_figures(e)) for kind, e in scoreboard.memory.items()]),
        "ranking": _ranking(scoreboard, left_out.ranking),
        "worst": _worst(scoreboard),
        "rows": _rows(measured, scoreboard),
        "refused": _refused(scoreboard),
    }


def readme_lines(scoreboard: Scoreboard, left_out: LeftOutFigures, date: datetime.date) -> str:
    """The headline, memory and regret, a line each."""
    families = _many(scoreboard.families, "family", "families")
    runs = f"{scoreboard.rows_used:,} measured runs of {families} of sources"
    lines = [f"**Step time**: {percent(scoreboard.macro.mape)} off on {runs}"]
    if left_out.macro is not None:
        lines.append(f"**A family left out of the fit**: {_mape(left_out.macro)} off")
    kinds = scoreboard.memory.items()
    memory = [f"{percent(e.mape)} off what is {kind} ({_many(e.rows, 'run')})" for kind, e in kinds]
    lines += [f"**Memory**: {', '.join(memory)}"] if memory else []
    ranking = scoreboard.ranking
    if ranking.mean_regret is not None:
        groups = _many(ranking.groups, "group")
        lines.append(
            f"**The plan it ranks first**: {_regret(ranking)} slower than the best measured of its group ({groups})"
        )
    where = "[where it is worst, and why](docs/results/accuracy.md)"
    lines.append(f"Mean absolute errors, each family counting the same, as of {date.isoformat()}; {where}")
    return "\n".join(f"- {line}" for line in lines)


class Marked(str):
    """Text that is Markdown already."""

    __slots__ = ()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first columns are texts, to the left, and the others figures, to the right."""
    lines = [columns, ["---" if position < texts else "---:" for position in range(len(columns))]]
    lines += [[each if isinstance(each, Marked) else plain(each) for each in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Text on one line that neither Markdown nor HTML takes for more than text."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return html.escape("".join(f"\\{c}" if c in SPECIAL else c for c in line), quote=False)


def percent(value: float, *, signed: bool = False, decimals: int = 1) -> str:
    """A fraction in percent."""
    text = f"{100 * value:{'+' if signed else ''}.{decimals}f}"
    # what rounds to 0 has no direction
    return f"{text.lstrip('+-') if float(text) == 0 else text} %".replace("-", "−")


_FIGURES = ("runs", "MAPE", "median", "p90", "bias")


def _figures(errors: Errors) -> tuple[str, ...]:
    shares = (errors.mape, errors.median_ape, errors.p90_ape)
    return (f"{errors.rows:,}", *map(percent, shares), percent(errors.bias, signed=True))


def _mape(errors: Errors | None) -> str:
    return NONE if errors is None else percent(errors.mape)


def _regret(ranking: Ranking | None) -> str:
    return NONE if ranking is None or ranking.mean_regret is None else percent(ranking.mean_regret)


def _summary(scoreboard: Scoreboard, left_out: LeftOutFigures, date: datetime.date) -> str:
    macro = scoreboard.macro
    families = _many(scoreboard.families, "family", "families")
    text = (
        f"As of {date.isoformat()}, step time is **{percent(macro.mape)}** off (MAPE, mean over {families}, "
        f"{scoreboard.rows_used:,} runs), with a bias of {percent(macro.bias, signed=True)}"
    )
    if left_out.macro is None:
        return f"{text}."
    number = len(left_out.families)
    over = "" if number == scoreboard.families else f" (mean over the {number} that were left out)"
    return f"{text}; it is **{_mape(left_out.macro)}** off where a run's family was left out of the fit{over}."


def _families(scoreboard: Scoreboard, left_out: LeftOutFigures) -> str:
    rows: list[tuple[str, ...]] = [
        (
            f"{name} (transfer)" if part.transfer == part.rows else name,
            *_figures(part.step_time),
            left_out.family(name),
            *_ranked(part.ranking),
        )
        for name, part in scoreboard.by["family"].items()
    ]
    rows.append(("all runs", *_figures(scoreboard.step_time), _mape(left_out.step_time), *_ranked(scoreboard.ranking)))
    mean = (Marked("**mean over families**"), *_figures(scoreboard.macro), _mape(left_out.macro), NONE, NONE)
    return table(("family", *_FIGURES, "left out", "regret", "tau"), [*rows, mean])


def _ranked(ranking: Ranking) -> tuple[str, str]:
    return _regret(ranking), _tau(ranking.kendall_tau)


def _ranking(scoreboard: Scoreboard, left_out: Ranking | None) -> str:
    ranking = scoreboard.ranking
    if ranking.groups == 0:
        text = "Nowhere were three plans measured under equal conditions, so there is no choice to judge."
    else:
        names = (
            "groups of plans measured under equal conditions",
            "plans in them",
            "mean regret",
            "largest regret",
            "pairs measured more than 3 % apart",
            "Kendall tau, all pairs",
            "Kendall tau, mean over groups",
        )
        text = table(
            ("figure", "fitted to all", "left out"),
            zip(names, _ranking_figures(ranking), _ranking_figures(left_out), strict=True),
        )
    wrong = len(scoreboard.called_infeasible)
    said = f"{wrong:,} are" if wrong > 1 else "one is" if wrong else "none is"
    share = percent(TOLERATED_SHARE, decimals=0)
    fit = f"Of the {scoreboard.rows_used:,} runs, all of which ran, {said} said to exceed the chip's memory"
    return f"{text}\n\n{fit} by more than {share}."


def _ranking_figures(ranking: Ranking | None) -> tuple[str, ...]:
    if ranking is None:
        return (NONE,) * 7
    return (
        f"{ranking.groups:,}",
        f"{ranking.plans:,}",
        _regret(ranking),
        NONE if ranking.max_regret is None else percent(ranking.max_regret),
        f"{ranking.pairs:,}",
        _tau(ranking.kendall_tau),
        _tau(ranking.group_kendall_tau),
    )


def _tau(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}".replace("-", "−")


def _worst(scoreboard: Scoreboard) -> str:
    rows = [(g.family, g.chip, g.model, *_figures(g.step_time)) for g in scoreboard.worst]
    return table(("family", "chip", "model", *_FIGURES), rows, texts=3)


def _rows(measured: MeasuredRuns, scoreboard: Scoreboard) -> str:
    unclear = scoreboard.rows_read - scoreboard.rows_used - len(scoreboard.refused)
    metrics = Counter[Metric](run.metric for run in measured.runs)
    rows = [
        ("rows read", f"{scoreboard.rows_read:,}"),
        ("predicted", f"{scoreboard.rows_used:,}"),
        ("refused", f"{len(scoreboard.refused):,}"),
        ("configuration not known well enough", f"{unclear:,}"),
        *((f"runs whose source gives {words}", f"{metrics[metric]:,}") for metric, words in METRICS.items()),
        ("runs of which something is assumed", f"{sum(bool(run.assumptions) for run in measured.runs):,}"),
    ]
    return table(("rows", "number"), rows)


def _refused(scoreboard: Scoreboard) -> str:
    by_reason = reasons(scoreboard.refused)
    rows = [(_short(reason), f"{len(ids):,}", ids[0]) for reason, ids in by_reason[:SHOWN_REASONS]]
    text = table(("reason", "rows", "for example"), rows)
    rest = sum(len(ids) for _, ids in by_reason[SHOWN_REASONS:])
    if not rest:
        return text
    others = _many(len(by_reason) - SHOWN_REASONS, "other reason")
    return f"{text}\n\n{_many(rest, 'more row').capitalize()} for {others}; `dovetail validate --json` has all."


def _short(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."


def _many(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
