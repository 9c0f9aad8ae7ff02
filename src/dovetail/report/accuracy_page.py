"""The accuracy pages: plots of predictions against measured runs, and tables between the markers of the documents."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dovetail.accuracy import MeasuredRuns, Prediction, Refusal, Scoreboard, errors_of
from dovetail.accuracy.simulated import SimulatedScore
from dovetail.cost.calibration import generation_followed
from dovetail.errors import InputError
from dovetail.report.accuracy_tables import LeftOutFigures, family_of, page_tables, percent, readme_lines
from dovetail.report.simulated_tables import simulated_tables
from dovetail.report.svg import PALETTE, Bars, Panel, Sample, Series, bars, histogram, scatter

BEGIN = "<!-- scoreboard:begin -->"
END = "<!-- scoreboard:end -->"

#: Signed errors beyond these fall into the end bins.
EDGES = tuple(percentage / 100 for percentage in range(-60, 65, 5))
MOST_PANELS = 9
#: A generation with fewer is shown among the others.
LEAST_RUNS = 10
OTHER = "other chips"

#: What a reader types to get the figures again, below the headline of each page.
COMMANDS = """```sh
dovetail validate                 # the published runs that come with the package
dovetail validate --by chip       # or framework, model
dovetail validate --runs my-runs.csv --json
```"""
TABLES_COMMANDS = """```sh
dovetail validate --simulate      # also simulates the runs of tier A, and says where that is nearer
just accuracy FOLDER              # writes both pages
```"""


def write_accuracy_page(
    docs_dir: Path | str,
    measured: MeasuredRuns,
    scoreboard: Scoreboard,
    predictions: Iterable[Prediction | Refusal],
    left_out: Mapping[str, Prediction] | None,
    date: datetime.date,
    simulated: SimulatedScore | None = None,
) -> tuple[Path, ...]:
    """Writes the plots and the marked parts of the two accuracy pages in results/ and of the README; returns the paths.

    `left_out` has by run id what was predicted without the run's family; nothing is written where a marker is missing.
    Without `simulated` the pages say nothing of simulation.
    """
    docs = Path(docs_dir)
    answers = [answer for answer in predictions if isinstance(answer, Prediction)]
    rest = [left_out[run.id] for run in measured.runs if run.id in left_out] if left_out else []
    left_out_figures = LeftOutFigures.of(rest)
    figures = page_tables(measured, scoreboard, left_out_figures, date)
    if simulated is not None:
        figures["simulated"] = simulated_tables(simulated)
    results, readme = docs / "results", docs.parent / "README.md"
    page, tables = results / "accuracy.md", results / "accuracy-tables.md"
    texts = {
        page: replaced(page, _main_part(figures, scoreboard)),
        tables: replaced(tables, _tables_part(figures, scoreboard)),
        readme: replaced(readme, readme_lines(scoreboard, left_out_figures, date)),
    }
    plots = {docs / "assets" / name: text for name, text in _plots(scoreboard, answers, rest).items()}
    (docs / "assets").mkdir(exist_ok=True)
    for path, text in (plots | texts).items():
        path.write_bytes(text.encode())
    return tuple(plots | texts)


def replaced(path: Path, text: str) -> str:
    """A document with a text between its markers; what stands outside is kept to the byte."""
    try:
        lines = path.read_bytes().decode().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        raise InputError(str(path), "cannot be read as text", "give a folder with the documents to update") from None
    places = {marker: [i for i, line in enumerate(lines) if line.strip() == marker] for marker in (BEGIN, END)}
    for marker, lines_with in places.items():
        if len(lines_with) != 1:
            times = "is no line" if not lines_with else f"are {len(lines_with)} lines"
            raise InputError(str(path), f"there {times} {marker!r}", "the figures go between one of it and its pair")
    begin, end = places[BEGIN][0], places[END][0]
    if end < begin:
        raise InputError(str(path), f"{END!r} comes before {BEGIN!r}", "the figures go between the two")
    return "".join((*lines[: begin + 1], f"\n{text.strip()}\n\n", *lines[end:]))


def _main_part(figures: Mapping[str, str], scoreboard: Scoreboard) -> str:
    """The figures most readers come for, under their headings, with their plots."""
    return "\n\n".join(
        (
            figures["summary"],
            COMMANDS,
            "![Predicted against measured step time by generation](../assets/accuracy-predicted-measured.svg)",
            "## Step time by family",
            figures["families"],
            "![Mean absolute error of every family](../assets/accuracy-families.svg)",
            *(("## Memory", figures["memory"]) if scoreboard.memory else ()),
            "## Choice of plan",
            figures["ranking"],
            "## Furthest off",
            figures["worst"],
        )
    )


def _tables_part(figures: Mapping[str, str], scoreboard: Scoreboard) -> str:
    """The figures that few readers need, under their headings."""
    return "\n\n".join(
        (
            figures["summary"],
            TABLES_COMMANDS,
            "![How signed errors are distributed](../assets/accuracy-errors.svg)",
            *(("## Simulated", figures["simulated"]) if "simulated" in figures else ()),
            "## What is scored",
            figures["rows"],
            *(("## Refused", figures["refused"]) if scoreboard.refused else ()),
        )
    )


def _plots(
    scoreboard: Scoreboard,
    answers: Sequence[Prediction],
    left_out: Sequence[Prediction],
) -> dict[str, str]:
    without_family = LeftOutFigures.of(left_out).families
    samples = [_sample("fitted to all", answers)]
    if left_out:
        samples.append(_sample("fitted without the run's family", left_out))
    families = sorted(scoreboard.by["family"].items(), key=lambda each: -each[1].step_time.mape)
    rows = [
        Bars(
            f"{name} ({part.rows:,})",
            (part.step_time.mape, without_family[name].mape if name in without_family else None)
            if without_family
            else (part.step_time.mape,),
        )
        for name, part in families
    ]
    names = ("fitted to all", "fitted without the family")
    return {
        "accuracy-predicted-measured.svg": scatter(
            "Predicted against measured step time",
            _panels(answers),
            "measured step time (s)",
            "predicted step time (s)",
        ),
        "accuracy-errors.svg": histogram(
            "Signed error of step time",
            samples,
            EDGES,
            "predicted over measured, less one; the end bins hold what lies beyond",
            "share of runs, every family alike",
            lambda value: percent(value, signed=True, decimals=0),
        ),
        "accuracy-families.svg": bars(
            "Mean absolute error of step time by family (runs)", rows, names if without_family else names[:1], "MAPE"
        ),
    }


def _sample(name: str, predictions: Sequence[Prediction]) -> Sample:
    """Signed errors, weighted so that every family counts alike, as in the headline."""
    families = [family_of(p.run) for p in predictions]
    weights = {family: 1 / families.count(family) for family in set(families)}
    errors = tuple(p.step_time_ratio - 1 for p in predictions)
    return Sample(name, errors, tuple(weights[family] for family in families))


def _panels(predictions: Sequence[Prediction]) -> list[Panel]:
    """A panel per chip generation, those with most runs first, and one for what is too little for its own."""
    generations: defaultdict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        generations[generation_followed(prediction.run.task.cluster.chip) or OTHER].append(prediction)
    other = generations.pop(OTHER, [])
    order = sorted(generations, key=lambda name: (-len(generations[name]), name))
    shown = [name for name in order[: MOST_PANELS - 1] if len(generations[name]) >= LEAST_RUNS] or order[:1]
    other += [prediction for name in order[len(shown) :] for prediction in generations[name]]
    panels = [_panel(name, generations[name]) for name in shown]
    return [*panels, _panel(OTHER, other)] if other else panels


def _panel(name: str, predictions: Sequence[Prediction]) -> Panel:
    """A series per chip, those with most runs first."""
    chips: defaultdict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        chips[prediction.run.task.cluster.chip.name].append(prediction)
    order = sorted(chips, key=lambda chip: (-len(chips[chip]), chip))
    # the last colour is for all that have none of their own
    shown = order if len(order) <= len(PALETTE) else order[: len(PALETTE) - 1]
    rest = [prediction for chip in order[len(shown) :] for prediction in chips[chip]]
    series = [Series(chip, _points(chips[chip])) for chip in shown]
    if rest:
        series.append(Series(f"{len(order) - len(shown)} more", _points(rest)))
    errors = errors_of(p.step_time_ratio for p in predictions)
    noun = "run" if len(predictions) == 1 else "runs"
    return Panel(f"{name}: {len(predictions):,} {noun}, {percent(errors.mape)} off", tuple(series))


def _points(predictions: Iterable[Prediction]) -> tuple[tuple[float, float], ...]:
    return tuple((p.run.step_time_s, p.step_time_s) for p in predictions)
