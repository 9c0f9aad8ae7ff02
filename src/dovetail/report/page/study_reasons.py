"""The sections of a study's page that say why: chips to compare with, scenarios, reasons of the best designs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.explanation.asked_study import AskedStudy
from dovetail.exploration.result import StudyResult
from dovetail.report.comparison_tables import reference_table, regret_table
from dovetail.report.page.charts import grouped, signed_bars
from dovetail.report.page.document import Chart, Section, Table
from dovetail.report.reason_tables import ReasonTable, change_text, point_name, reason_tables
from dovetail.units import percent_text

Point = Mapping[str, Any]

#: Points of a front that the page explains, without these reasons, and bars of a chart.
MOST_POINTS, LEFT_OUT, MOST_BARS = 3, ("roofline", "system"), 16


def comparison_sections(result: StudyResult) -> list[Section]:
    """Chips to compare with, and scenarios."""
    tables = [reference_table(result), regret_table(result)]
    return [_section(table, "", "") for table in tables if table is not None]


def reason_sections(result: StudyResult, reasons: Mapping[str, Any]) -> list[Section]:
    """Why the answer is what it is, from `reasons.json`: of the best design, or of the first points of a front."""
    objectives, points = AskedStudy.of(result).objectives, reasons["points"]
    sections: list[Section] = []
    for number, point in enumerate(points[:MOST_POINTS]):
        several = len(points) > 1
        suffix, name = (f"-of-{number + 1}", f", {point_name(point)}") if several else ("", "")
        tables = [t for t in reason_tables(objectives, point) if not (several and t.key.startswith(LEFT_OUT))]
        sections += [_section(table, suffix, name, _chart(table.key, point)) for table in tables]
    return sections


def _section(table: ReasonTable, suffix: str, name: str, chart: Chart | None = None) -> Section:
    rows = Table(table.columns, table.rows) if table.rows else None
    pictures = () if chart is None else (chart,)
    return Section(f"{table.key}{suffix}", f"{table.title}{name}", table.lead, pictures, rows, open=True)


def _chart(key: str, point: Point) -> Chart | None:
    """The picture of a reason, if one says more than its table."""
    if key.startswith("bottleneck"):
        return _step_chart(list(point["jobs"].values())[int(key.removeprefix("bottleneck-"))])
    match key:
        case "gains":
            return _gain_chart(point)
        case "limits":
            return _limit_chart(point)
        case "parts":
            return _part_chart(point)
        case _:
            return None


def _step_chart(job: Mapping[str, Any]) -> Chart:
    parts = sorted(job["seconds"].items(), key=lambda each: -each[1])[:MOST_BARS]
    shares = [seconds / job["step_time_s"] for _, seconds in parts]
    words = ", ".join(f"{name} {percent_text(share)}" for (name, _), share in zip(parts, shares, strict=True))
    return grouped([name for name, _ in parts], {"of the step": shares}, f"Parts of the step: {words}")


def _gain_chart(point: Point) -> Chart | None:
    fitting = [each for each in point["gains"]["changes"] if each["gains"]]
    if not fitting:
        return None
    names = list(fitting[0]["gains"])
    ordered = sorted(fitting, key=lambda each: -each["gains"][names[0]])[:MOST_BARS]
    rows = [
        (change_text(each), list(each["gains"].values()), f"breaks {', '.join(each['breaks'])}" * bool(each["breaks"]))
        for each in ordered
    ]
    words = "; ".join(f"{label} {100 * (gains[0] or 0.0):+.1f} %" for label, gains, _ in rows)
    return signed_bars(rows, [name.replace("_", " ") for name in names], f"Gain of each change: {words}")


def _limit_chart(point: Point) -> Chart | None:
    known = [each for each in point["limits"] if each["share"] is not None]
    if not known:
        return None
    ordered = sorted(known, key=lambda each: -each["share"])[:MOST_BARS]
    words = ", ".join(f"{each['name']} {percent_text(each['share'])}" for each in ordered)
    return grouped([each["name"] for each in ordered], {"used": [each["share"] for each in ordered]}, words)


def _part_chart(point: Point) -> Chart | None:
    figures = {"area_mm2": "area", "peak_power_w": "peak power", "cost_usd": "cost"}
    known = {title: point["parts"][name] for name, title in figures.items() if name in point["parts"]}
    names = list(dict.fromkeys(part for parts in known.values() for part in parts))
    if not names:
        return None
    shares = {title: [_share(parts, name) for name in names] for title, parts in known.items()}
    words = "; ".join(
        f"{title}: " + ", ".join(f"{name} {percent_text(_share(parts, name) or 0.0)}" for name in parts)
        for title, parts in known.items()
    )
    return grouped(names, shares, f"Shares of each part. {words}")


def _share(parts: Mapping[str, float], name: str) -> float | None:
    return parts[name] / (sum(parts.values()) or 1.0) if name in parts else None
