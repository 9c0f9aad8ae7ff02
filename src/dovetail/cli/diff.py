"""`dovetail diff`: what differs between two plans, and what each single change would gain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.output import print_json, print_table
from dovetail.units import percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.explanation.differences import Comparison, Difference


def diff(
    ours: Annotated[Path, typer.Argument(metavar="MINE", help="A plan file.")],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="A plan file for the same job and cluster.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show how two plans differ, and what each single change to the first would gain, best first."""
    from dovetail.explanation.differences import compare
    from dovetail.plans.plan_file import load_task

    comparison = compare(load_task(ours), load_task(other))
    if as_json:
        print_json(_fields(comparison))
    else:
        _print(comparison, str(ours), str(other))


def _fields(comparison: Comparison) -> dict[str, Any]:
    return {
        "step_time_s": comparison.ours.step_time_s,
        "other_step_time_s": comparison.other.step_time_s,
        "gain": comparison.gain,
        "ratio_interval": [comparison.ratio.low, comparison.ratio.high],
        "distinguishable": comparison.ratio.distinguishable,
        "fits": comparison.ours.fits,
        "other_fits": comparison.other.fits,
        "differences": [
            {
                "fields": list(each.fields),
                "mine": list(each.ours),
                "other": list(each.other),
                "step_time_s": each.step_time_s,
                "gain": each.gain,
                "distinguishable": each.distinguishable,
                "fits": each.fits,
                "obstacle": each.obstacle,
            }
            for each in comparison.differences
        ],
    }


def _print(comparison: Comparison, ours: str, other: str) -> None:
    if not comparison.differences:
        typer.echo("the plans are identical")
        return
    rows = [
        [_names(each), _texts(each, each.ours), _texts(each, each.other), *_effect(each)]
        for each in comparison.differences
    ]
    print_table(("change", "mine", "other", "step", "alone gains"), rows)
    saved = percent_text(comparison.gain)
    times = [
        f"{seconds_text(each.step_time_s)}{'' if each.fits else ' (does not fit)'}"
        for each in (comparison.ours, comparison.other)
    ]
    typer.echo(f"{ours}: {times[0]} per step; {other}: {times[1]}; all changes together gain {saved}")
    low, high = (percent_text(1 - bound) for bound in (comparison.ratio.high, comparison.ratio.low))
    unsure = "" if comparison.ratio.distinguishable else ": the plans are not distinguishable"
    typer.echo(f"nine in ten measured gains would be {low} to {high}{unsure}")
    if any(each.distinguishable is False for each in comparison.differences):
        typer.echo("* not distinguishable from none")


def _names(each: Difference) -> str:
    return ", ".join(name for name, one, two in zip(each.fields, each.ours, each.other, strict=True) if one != two)


def _texts(each: Difference, values: tuple[Any, ...]) -> str:
    """The values that differ; long ones shortened."""
    shown = [value for value, one, two in zip(values, each.ours, each.other, strict=True) if one != two]
    texts = [_text(value) for value in shown]
    return ", ".join(text if len(text) <= 40 else f"{text[:37]}..." for text in texts)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return "-" if value is None else str(value)


def _effect(each: Difference) -> tuple[str, str]:
    if each.step_time_s is None or each.gain is None:
        return "-", f"not by itself: {each.obstacle}"
    gain = f"{percent_text(each.gain)}{'' if each.distinguishable else ' *'}"
    return seconds_text(each.step_time_s), gain if each.fits else f"{gain}, but does not fit"
