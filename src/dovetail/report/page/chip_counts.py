"""The page of `plan` for several numbers of chips: how long training takes on each, what it costs, which to choose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import cast

from dovetail.plans.words import ABBREVIATIONS
from dovetail.report.certificate_words import proof_of_counts
from dovetail.report.page.answer_file import CountPart, FrontFile
from dovetail.report.page.answers import provenance_texts
from dovetail.report.page.charts import Mark, factors, marked
from dovetail.report.page.document import Page, Section, Table
from dovetail.report.page.questions import chip_name, model_name, narrowing_words, question_words
from dovetail.search.answer import Certificate
from dovetail.units import (
    count_text,
    dollars_text,
    duration_text,
    percent_text,
    quantity_text,
    seconds_text,
)

DAY, HOUR = 86400.0, 3600.0


def front_page(front: FrontFile, best: CountPart, command: str) -> Page:
    """The best plan of each number of chips, on curves and in a table; `best` is the number to choose."""
    found = front.with_plans
    counts = [point.chips for point in front.front]
    return Page(
        title=f"{model_name(front.job)} on {min(counts):,} to {max(counts):,} × {chip_name(front.cluster)}",
        sentence=_sentence(front, best),
        cards=_cards(found, best),
        sections=(_time(found), *_cost(found), _plans(front, found)),
        command="\n".join([*_asked(front, best), command]),
        provenance=provenance_texts(front.provenance),
    )


def _sentence(front: FrontFile, best: CountPart) -> str:
    least = {"time": "is fastest", "cost": "is cheapest", "energy": "takes the least energy"}[front.objective]
    return (
        f"Training on {count_text(best.tokens or 0.0)} tokens {least} on {_chips(best)}: with "
        f"{front.cluster['framework']}, run {best.words}; it takes {_days(best)}{_price(best)}. "
        f"{_proof(front).capitalize()}."
    )


def _cards(found: Sequence[CountPart], best: CountPart) -> tuple[tuple[str, str, str], ...]:
    fewest = min(found, key=lambda point: point.chips)
    share = percent_text(_hours(fewest) / _hours(best))
    against = "" if best is fewest else f"{share} of what a chip does among {fewest.chips:,}"
    cards = [
        ("chips", f"{best.chips:,}", f"{seconds_text(best.step_time_s or 0.0)} a step"),
        ("MFU", percent_text(best.mfu or 0.0), against),
        (f"{count_text(best.tokens or 0.0)} tokens", _days(best), f"{_hours(best):,.0f} chip-hours"),
    ]
    if best.cost_usd is not None:
        cards.append(("cost", dollars_text(best.cost_usd), f"{dollars_text(best.cost_usd / _hours(best))} a chip-hour"))
    if best.energy_j is not None:
        cards.append(("energy", quantity_text(best.energy_j / HOUR, "Wh"), "all chips, the whole training"))
    return tuple(cards)


def _time(found: Sequence[CountPart]) -> Section:
    chips, days = [float(point.chips) for point in found], [(point.train_s or 0.0) / DAY for point in found]
    points = [Mark(x, y, "", _text(point), joined=True) for x, y, point in zip(chips, days, found, strict=True)]
    x_axis = factors(chips, [f"{point.chips:,}" for point in found], "chips")
    y_axis = factors(days, [_days(point) for point in found])
    words = "Training time by number of chips: " + ", ".join(f"{point.chips:,} {_days(point)}" for point in found)
    lead = "Training time against chips, both by factors: where the line gets flatter, more chips are worth less."
    return Section("time", "How long it takes", lead, (marked(points, x_axis, y_axis, words),))


def _cost(found: Sequence[CountPart]) -> list[Section]:
    priced = [point for point in found if point.cost_usd is not None]
    if not priced:
        return []
    days = [(point.train_s or 0.0) / DAY for point in priced]
    points = [
        Mark(x, point.cost_usd or 0.0, f"{point.chips:,}", _text(point), joined=point.on_cost_front)
        for x, point in zip(days, priced, strict=True)
    ]
    words = "Cost and training time by number of chips: " + ", ".join(
        f"{point.chips:,} {dollars_text(point.cost_usd or 0.0)} and {_days(point)}" for point in priced
    )
    x_axis = factors(days, [_days(point) for point in priced])
    front = ", ".join(f"{point.chips:,}" for point in priced if point.on_cost_front)
    lead = f"Each point is a number of chips; the line joins the Pareto front of cost and time: {front}."
    return [Section("cost", "What it costs", lead, (marked(points, x_axis, {"title": {"text": "USD"}}, words),))]


def _plans(front: FrontFile, found: Sequence[CountPart]) -> Section:
    rows = tuple(
        (
            f"{point.chips:,}",
            seconds_text(point.step_time_s or 0.0),
            percent_text(point.mfu or 0.0),
            _days(point),
            f"{_hours(point):,.0f}",
            "" if point.cost_usd is None else dollars_text(point.cost_usd),
            "" if point.energy_j is None else quantity_text(point.energy_j / HOUR, "Wh"),
            point.words or "",
        )
        for point in found
    )
    columns = ("chips", "step", "MFU", "training", "chip-hours", "cost", "energy", "fastest plan")
    table = Table(columns, rows)
    without = tuple(f"{_chips(point)}: {point.reason}" for point in front.front if point.train_s is None)
    lead = f"{_proof(front).capitalize()}. ({ABBREVIATIONS}.)"
    return Section("plans", "The plan for each number of chips", lead, (), table, open=True, notes=without)


def _proof(front: FrontFile) -> str:
    found = [cast("Certificate", point.certificate) for point in front.with_plans]
    missing = [point for point in front.front if point.train_s is None and point.certificate is not None]
    return proof_of_counts(found, [p.chips for p in missing if p.certificate and p.certificate.status == "feasible"])


def _asked(front: FrontFile, best: CountPart) -> list[str]:
    """The command that gave the answer, where flags say all of it."""
    words = question_words(front.job, front.cluster, ",".join(str(point.chips) for point in front.front))
    if words is None:
        return []
    words += ["--tokens", f"{best.tokens:.12g}", "--objective", front.objective]
    # of the values asked for, each number of chips has those that it can have
    words += narrowing_words(*(point.certificate for point in front.front if point.certificate is not None))
    if best.cost_usd is not None:
        words += ["--price-per-chip-hour", f"{best.cost_usd / _hours(best):.6g}"]
    return [f"{shlex.join(words)} --json > answer.json"]


def _text(point: CountPart) -> str:
    return f"{_chips(point)}: {_days(point)}{_price(point)}<br>{point.words}"


def _chips(point: CountPart) -> str:
    return "1 chip" if point.chips == 1 else f"{point.chips:,} chips"


def _days(point: CountPart) -> str:
    return duration_text(point.train_s or 0.0)


def _price(point: CountPart) -> str:
    return "" if point.cost_usd is None else f" and {dollars_text(point.cost_usd)}"


def _hours(point: CountPart) -> float:
    return point.chip_hours or 0.0
