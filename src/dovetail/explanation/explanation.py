"""An explanation: why a plan is best, with the scoreboard's prediction interval; text for a terminal, and JSON."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from dovetail.explanation.interval import Interval
from dovetail.explanation.marginal import LOWEST, MOST, Marginal, StaysBest
from dovetail.explanation.neighbours import Neighbour
from dovetail.explanation.smallest_fix import SmallestFix
from dovetail.frozen import frozen
from dovetail.plans.plan import Plan
from dovetail.plans.words import plan_words
from dovetail.units import bytes_text, percent_text, seconds_text

#: Columns of the text.
WIDTH = 110
#: Behind a plan that is not proven to be the best of its kind.
UNPROVEN = " (not proven)"
#: Longest bar of a part.
BAR = 30


@frozen
class StageBytes:
    """Memory of the chips of the fullest stage."""

    stage: int
    """counted from 1"""
    stages: int
    parts: Mapping[str, float]
    capacity_bytes: float


@frozen
class Explanation:
    """Why a plan is best; where no plan fits, what is missing and the smallest fix."""

    job: str
    cluster: str
    framework: str
    plan: Plan | None
    step_time_s: float | None
    mfu: float | None
    seconds: Mapping[str, float]
    tiers: Mapping[str, str]
    """the network that parts of the step go over"""
    bytes: StageBytes | None
    bottleneck: str
    neighbours: tuple[Neighbour, ...]
    marginal: tuple[Marginal, ...]
    stays_best: tuple[StaysBest, ...]
    doubts: tuple[str, ...]
    smallest_fix: tuple[SmallestFix, ...]
    """the smallest changes that make the job fit; empty where it does"""
    interval: Interval | None = None
    """how far the predicted step time may be off; None where no plan fits"""
    proven: bool = True
    """where there is no plan: it is proven that none fits"""
    unknown_fixes: tuple[str, ...] = ()
    """where there is no plan: what it is not known of, in the time given, whether more of it is enough"""

    def fields(self) -> dict[str, Any]:
        """What JSON has: plain numbers, texts and lists, and the words of each plan."""
        fields = cast("dict[str, Any]", _plain(asdict(self)))
        for name, rows in (("neighbours", self.neighbours), ("marginal", self.marginal)):
            for row, of in zip(fields[name], rows, strict=True):
                row["words"] = None if of.plan is None else plan_words(of.plan)
        return fields

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _lines(explanation: Explanation) -> Iterator[str]:
    yield f"{explanation.job} on {explanation.cluster}, {explanation.framework}"
    if explanation.plan is None:
        yield "no plan fits" if explanation.proven else "no plan that fits was found in the time given"
        yield from _paragraph("what is missing", explanation.bottleneck)
        rows = _fix_rows(explanation.smallest_fix)
        rows += [(f"more {what}", "", "not known in the time given") for what in explanation.unknown_fixes]
        yield from _section("smallest fixes", rows)
        yield from _doubts(explanation)
        return
    step_s, fullest = explanation.step_time_s or 0.0, explanation.bytes
    assert fullest is not None, "there is a plan"
    mfu = percent_text(explanation.mfu or 0.0)
    yield f"the fastest plan, {plan_words(explanation.plan)}: {_step(step_s)} a step, MFU {mfu}"
    yield from _paragraph("bottleneck", explanation.bottleneck)
    seconds = {
        f"{n} ({explanation.tiers[n]})" if n in explanation.tiers else n: s for n, s in explanation.seconds.items()
    }
    yield from _section("seconds of a step", _bars(seconds, step_s, seconds_text))
    full = percent_text(sum(fullest.parts.values()) / fullest.capacity_bytes)
    title = (
        f"bytes of a chip, stage {fullest.stage} of {fullest.stages}: {full} of {bytes_text(fullest.capacity_bytes)}"
    )
    yield from _section(title, _bars(fullest.parts, fullest.capacity_bytes, bytes_text))
    yield from _section("neighbouring choices, and what their best plan loses", _neighbour_rows(explanation.neighbours))
    yield from _section(
        "what more hardware gains, the global batch being the same",
        _marginal_rows(explanation.marginal, explanation.plan),
    )
    title = f"stays best of the plans tried ({LOWEST:g} to {MOST:g} times)"
    yield from _section(title, [_range_row(each) for each in explanation.stays_best])
    yield from _doubts(explanation)


def _doubts(explanation: Explanation) -> Iterator[str]:
    yield ""
    yield "doubts"
    texts = list(explanation.doubts)
    if (interval := explanation.interval) is not None:
        texts.insert(0, _interval_words(interval))
    for text in texts:
        yield from textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _interval_words(interval: Interval) -> str:
    """Where a measured step would be, and what that rests on."""
    low, high = seconds_text(interval.low_s), seconds_text(interval.high_s)
    runs = f"{interval.runs:,} published runs{f' {interval.of}' if interval.of else ''}"
    words = f"nine in ten measured steps would take {low} to {high}, by the errors of {runs} (as of {interval.date})"
    if not interval.spread:
        return words
    return f"{words}; what products sustain of this chip's peak is assumed, ± {percent_text(interval.spread)}"


def _paragraph(title: str, text: str) -> Iterator[str]:
    yield ""
    yield title
    yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _section(title: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A title, and rows in columns as wide as they need; numbers are right-aligned."""
    table = [tuple(row) for row in rows]
    yield ""
    yield title
    if not table:
        yield "  nothing"
        return
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        texts = (
            f"{text:>{width}}" if text[:1] in "0123456789+-−" and column else f"{text:<{width}}"
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(texts)}".rstrip()


def _bars(parts: Mapping[str, float], whole: float, text: Callable[[float], str]) -> list[tuple[str, ...]]:
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return [
        (name, text(value), percent_text(value / whole), "█" * round(BAR * value / whole)) for name, value in ordered
    ]


def _neighbour_rows(neighbours: Iterable[Neighbour]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for other in neighbours:
        name = f"{other.field.replace('_', ' ')} {other.value}"
        if other.plan is None or other.loss is None or other.step_time_s is None:
            rows.append((name, "", "", "no plan fits" if other.proven else "nothing found in time"))
        else:
            words = plan_words(other.plan) + ("" if other.proven else UNPROVEN)
            rows.append((name, _step(other.step_time_s), _signed(other.loss), words))
    return rows


def _marginal_rows(values: Iterable[Marginal], best: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for value in values:
        name = f"{value.what} {value.change}"
        if value.plan is None or value.gain is None or value.step_time_s is None:
            why = "no plan divides chips and global batch, and fits" if value.proven else "nothing found in time"
            rows.append((name, "", "", why))
            continue
        step, words = _step(value.step_time_s), "the same plan"
        if value.plan != best:
            same = value.same_plan_gain
            words = plan_words(value.plan) + ("" if same is None else f" (the same plan {_signed(same)})")
        rows.append((name, step, _signed(value.gain), words + ("" if value.proven else UNPROVEN)))
    return rows


def _range_row(stays: StaysBest) -> tuple[str, ...]:
    low = "it does not fit" if stays.low_unfit else plan_words(stays.low_rival) if stays.low_rival else ""
    high = plan_words(stays.high_rival) if stays.high_rival else ""
    beyond = "; ".join(f"{word} {text}" for word, text in (("below:", low), ("above:", high)) if text)
    return (stays.what, f"{stays.low:.3g} to {stays.high:.3g}", beyond)


def _fix_rows(fixes: Iterable[SmallestFix]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for fix in fixes:
        memory = fix.what.startswith("memory")
        before, after = (bytes_text(n) if memory else f"{n:,.0f}" for n in (fix.before, fix.after))
        name = f"{fix.what} {before} -> {after}"
        words = plan_words(fix.plan) + ("" if fix.proven else " (not known in the time given whether less is enough)")
        rows.append((name, f"{fix.after / fix.before:.3g} times", words))
    return rows


def _signed(part: float) -> str:
    return f"{100 * part:+.2f} %"


def _step(seconds: float) -> str:
    """With a digit more than other figures: neighbours are close."""
    return f"{seconds:#.4g} s" if 1 <= seconds < 1000 else seconds_text(seconds)
