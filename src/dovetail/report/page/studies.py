"""The page of a study: its best design or Pareto front, the designs it looked at, and how the proof closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import InputError
from dovetail.explanation.study_reasons import digest_of
from dovetail.exploration.records import REASONS
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.resolving import study_of
from dovetail.exploration.result import StudyResult, points_so_far
from dovetail.exploration.store import RunStore
from dovetail.report.design_words import LEVELS, objective_text, variables_text
from dovetail.report.page.answers import provenance_texts
from dovetail.report.page.charts import Curve, steps
from dovetail.report.page.document import Page, Section, Table, Widget
from dovetail.report.page.study_designs import designs_data
from dovetail.report.page.study_reasons import comparison_sections, reason_sections
from dovetail.units import count_text, percent_text, seconds_text

#: Points of a Pareto front that the table shows.
MOST_ROWS = 200


def study_page(where: str, command: str) -> Page:
    """The page of a run directory, finished or not."""
    store = RunStore.view(where)
    study, history = _study(store), store.progress.read()
    finished, paused = store.result(), store.paused()
    told = finished or (paused and paused[0])
    running = told is None
    document: dict[str, Any] = {"certificate": None, "counts": {}, "provenance": {}}
    document |= {"front": points_so_far(study, store)} if told is None else told
    # the result as it was saved, by whose digest its reasons are known
    result = StudyResult(study, document if told is None else told, where)
    points = result.ordered_points()
    sections = [
        *_designs(result.answered, store, points),
        *_points(study, points),
        *comparison_sections(result),
        *_reasons(result, store),
        *_proof(document),
        *_convergence(history),
    ]
    state = "" if finished is not None else ", still running" if running else ", stopped early"
    title = f"Study {study.name}{state}"
    return Page(
        title=title,
        sentence=_sentence(study, document, points, history, running=running),
        cards=_cards(study, document, points, history),
        sections=tuple(sections),
        command=command,
        provenance=provenance_texts(document["provenance"]),
    )


def _reasons(result: StudyResult, store: RunStore) -> list[Section]:
    """The reasons that were saved with the run, if they are those of this result."""
    reasons = store.attached(REASONS)
    if reasons is None or reasons.get("result_sha256") != digest_of(result.document):
        return []
    return reason_sections(result, reasons)


def _study(store: RunStore) -> ResolvedStudy:
    """The study of a run; the files it names are looked for from here."""
    asked = {name: value for name, value in store.study.items() if name != "content"}
    try:
        return study_of(asked, store.where, Path())
    except InputError as error:
        fix = "run this in the folder of the study file"
        raise InputError(store.where, f"has a study that cannot be read again ({error})", fix) from None


def _sentence(
    study: ResolvedStudy,
    document: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    *,
    running: bool,
) -> str:
    if running:
        done = "just begun"
        if history:
            done = f"level {history[-1]['level']}, {history[-1]['evaluated']:,} designs evaluated"
        return f"The study is still running: {done}. What is shown is the best so far."
    if not points and document["certificate"]["status"] != "infeasible":
        return "The study was stopped before it found a design with a plan that fits."
    if not points:
        return f"None of the {study.design_words} within the limits has a plan that fits."
    certificate = document["certificate"]
    proven = "Proven" if certificate["status"] == "optimal" else f"Within {percent_text(certificate['gap'] or 0.0)}"
    over = f"{count_text(document['counts']['designs'])} designs, each with its fastest plans"
    if len(study.objectives) > 1:
        what = " and ".join(each.title for each in study.scored)
        return f"{len(points):,} designs are not beaten in {what} by any other. {proven}, over {over}."
    best, name = points[0], next(iter(study.objectives))
    objective = study.objective(name)
    value = objective_text(objective, best["objectives"][name])
    which = best["chip"] if "chip" in best else f"Design {best['design']:,}"
    first = f"{which} has the best {objective.title}, {value}"
    if "worst_regret" in best:
        first = (
            f"{which} has the least worst regret, {percent_text(best['worst_regret'])}, and {objective.title} {value}"
        )
    return f"{first}: {variables_text(best['variables'])}. {proven}, over {over}."


def _cards(
    study: ResolvedStudy,
    document: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, str, str], ...]:
    cards: list[tuple[str, str, str]] = []
    for point in points:
        if "worst_regret" in point:
            text = percent_text(point["worst_regret"])
            cards.append(("worst regret", text, f"over {len(study.scenarios)} scenarios"))
    for objective in study.scored:
        values = [point["objectives"][objective.name] for point in points]
        if values:
            text = objective_text(objective, objective.best(values))
            remark = f"{len(points):,} on the front" if len(study.scored) > 1 else ""
            cards.append((f"best {objective.title}" if not study.scenarios else objective.title, text, remark))
    certificate = document["certificate"]
    if certificate is not None:
        gap = "" if certificate["gap"] is None else f"gap {percent_text(certificate['gap'])}"
        cards.append(("certificate", certificate["status"], gap))
    cards.append(("designs", count_text(study.size), f"{len(study.jobs)} job{'s' if len(study.jobs) > 1 else ''}"))
    if history:
        cards.append(("time", seconds_text(history[-1]["elapsed_s"]), f"{history[-1]['workers']} workers"))
    return tuple(cards)


def _designs(study: ResolvedStudy, store: RunStore, points: Sequence[Mapping[str, Any]]) -> list[Section]:
    data = designs_data(study, store, points)
    if not data["group"]:
        return []
    words = "Choose what to plot and filter by a variable; click a design for its floor plan, figures and plans."
    lead = "Designs on the front, others that were evaluated, and a sample of those that a lower bound rules out."
    return [Section("designs", "Designs", lead, (Widget("designs", data, words),))]


def _points(study: ResolvedStudy, points: Sequence[Mapping[str, Any]]) -> list[Section]:
    if not points:
        return []
    rows = tuple(
        (
            f"{point['design']:,}",
            f"{point.get('wafers', point['chips']):,}",
            *(objective_text(each, point["objectives"][each.name]) for each in study.scored),
            *(f"{value:,.0f}" for value in point["silicon"].values()),
            variables_text(point["variables"]),
        )
        for point in points[:MOST_ROWS]
    )
    silicon = tuple(name.replace("_", " ") for name in points[0]["silicon"])
    counted = "wafers" if study.of_wafers else "chips"
    columns = ("design", counted, *(each.title for each in study.scored), *silicon, "variables")
    more = len(points) - len(rows)
    lead = "In the order of the first objective." + (f" {more:,} more are in the run's result." if more else "")
    title = "The front" if len(study.objectives) > 1 else "The best design"
    return [Section("front", title, lead, table=Table(columns, rows), open=True)]


def _proof(document: Mapping[str, Any]) -> list[Section]:
    certificate = document["certificate"]
    if certificate is None:
        return []
    counts = document["counts"]
    rows = tuple((text, f"{counts[name]:,}") for name, text in LEVELS.items() if name in counts)
    lead = f"{certificate['status'].capitalize()}, over {certificate['space']}."
    return [Section("proof", "What is proven", lead, table=Table(("designs", "number"), rows), open=True)]


def _convergence(history: Sequence[Mapping[str, Any]]) -> list[Section]:
    """How the best found and the lower bound approached each other."""
    known = [each for each in history if each["incumbent"] is not None]
    if len(known) < 2:
        return []
    unit = known[0]["unit"]
    curves = [Curve("best found", [e["elapsed_s"] for e in known], [e["incumbent"] for e in known])]
    bounded = [each for each in known if each["bound"] is not None]
    if bounded:
        curves.append(Curve("lower bound", [e["elapsed_s"] for e in bounded], [e["bound"] for e in bounded]))
    lead = f"The best {known[0]['objective']} found and the proven bound, while the study ran."
    chart = steps(curves, unit, None, lead, "seconds since the start")
    rows = tuple(
        (
            seconds_text(e["elapsed_s"]),
            e["level"],
            f"{e['incumbent']:.5g}",
            "" if e["bound"] is None else f"{e['bound']:.5g}",
            "" if e["gap"] is None else percent_text(e["gap"]),
            # runs before it was counted have none
            "" if e.get("left") is None else f"{e['left']:,}",
        )
        for e in known
    )
    table = Table(("time", "level", "best found", "bound", "gap", "designs left"), rows)
    return [Section("convergence", "Convergence", lead, (chart,), table)]
