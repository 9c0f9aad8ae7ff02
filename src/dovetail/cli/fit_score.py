"""How `dovetail validate` shows outcomes: runs that fitted or ran out of memory against P(fits)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.cli.output import print_facts, print_table

if TYPE_CHECKING:
    from dovetail.accuracy import MeasuredRuns
    from dovetail.accuracy.outcomes import FitScore


def print_fit(score: FitScore, measured: MeasuredRuns) -> None:
    """Both kinds of mistakes, by family, and how often runs fitted by P(fits)."""
    from dovetail.step.capacity import FIT_RISK

    refused, others = len(measured.refused), "other families" if score.families > 1 else "this one family"
    taken = score.within_risk
    print_facts(
        [
            ("outcomes", f"{score.rows:,} runs that fitted or ran out of memory, {refused:,} refused"),
            ("called", f"out of memory, said to fit: {_share(score.macro_oom_called_fits)};"),
            ("", f"ran, said not to: {_share(score.macro_fits_called_oom)} (means over families)"),
            ("", f"P(fits) by the errors of {others}, logistic with a scale of {score.error:.1%};"),
            ("", f"its mean squared error (Brier) is {score.brier:.3f}"),
            ("risk", f"{taken.oom:,} of {taken.rows:,} runs that searches would take ran out of memory"),
            ("", f"(P(fits) of the framework as it ships at least {1 - FIT_RISK:.0%})"),
        ]
    )
    rows = [
        (name, *(f"{part[column]:,}" for column in ("rows", "oom_called_fits", "fits_called_oom")))
        for name, part in score.by_family.items()
    ]
    print_table(("family", "runs", "out of memory, said to fit", "ran, said not to"), rows)
    if score.memory:
        figures = [
            (kind, f"{e.rows:,}", f"{e.mape:.1%}", f"{e.median_ape:.1%}", f"{e.bias:+.1%}")
            for kind, e in score.memory.items()
        ]
        print_table(("peak memory", "runs", "MAPE", "median", "bias"), figures)
    bins = [
        (f"{b.low:.2f} to {b.high:.2f}", f"{b.rows:,}", f"{b.mean_probability:.1%}", f"{b.fits_share:.1%}")
        for b in score.reliability
    ]
    print_table(("P(fits)", "runs", "mean", "fitted"), bins)


def _share(share: float | None) -> str:
    return "no such run" if share is None else f"{share:.1%}"
