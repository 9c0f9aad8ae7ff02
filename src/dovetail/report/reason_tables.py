"""The reasons of a study as tables of texts, from their JSON: for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.frozen import frozen
from dovetail.report.design_words import objective_text, variable_label, variable_text
from dovetail.units import percent_text, seconds_text

if TYPE_CHECKING:  # commands that load no study use the words
    from dovetail.exploration.objective import Objective

Point = Mapping[str, Any]

#: Estimates whose change is told, and in which column.
_COLUMNS = {"area_mm2": "area", "peak_power_w": "power", "wafer_power_w": "power", "cost_usd": "cost"}
#: Figures by part, and what they are called.
_BY_PART = {"area_mm2": "area", "peak_power_w": "peak power", "cost_usd": "cost", "system_cost_usd": "system cost"}
#: Limits in units of their own.
_UNITS = {"_mm2": "mm2", "_w": "W", "_usd": "USD"}
#: A change of an objective below this part is none.
_NOTHING = 5e-4


@frozen
class ReasonTable:
    """One reason: what it says in a sentence, and its rows."""

    key: str
    title: str
    lead: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def reason_tables(objectives: Sequence[Objective], point: Point) -> list[ReasonTable]:
    """All reasons of one best design."""
    return [
        *_bottlenecks(point),
        _runner_ups(objectives, point),
        *_gains(objectives, point),
        *_limits(point),
        *_parts(point),
    ]


def _bottlenecks(point: Point) -> list[ReasonTable]:
    tables: list[ReasonTable] = []
    for n, (name, job) in enumerate(point["jobs"].items()):
        bound = sorted(job["bound_by"].items(), key=lambda each: -each[1])
        told = ", ".join(f"{unit} {percent_text(share)}" for unit, share in bound if share >= 0.0005)
        full = percent_text(job["memory_share"])
        lead = f"{job['plan']}, {seconds_text(job['step_time_s'])} per step, MFU {percent_text(job['mfu'])}. "
        lead += f"Bound by {told}. The fullest chip's memory is {full} full."
        parts = sorted(job["seconds"].items(), key=lambda each: -each[1])
        rows = [
            (_part_name(part, job["tiers"]), seconds_text(seconds), percent_text(seconds / job["step_time_s"]))
            for part, seconds in parts
            if seconds >= 0.0005 * job["step_time_s"]
        ]
        columns = ("part of the step", "time", "share")
        tables.append(ReasonTable(f"bottleneck-{n}", f"Bottleneck of {name}", lead, columns, tuple(rows)))
        tables.append(_roofline(n, name, job))
    return tables


def _part_name(part: str, tiers: Mapping[str, str]) -> str:
    return f"{part} ({tiers[part]})" if part in tiers else part


def _roofline(number: int, name: str, job: Mapping[str, Any]) -> ReasonTable:
    ridge = job["ridge_flops_per_byte"]
    lead = f"The longest operators. Above {ridge:,.0f} FLOPs per byte matrix units are slower than memory."
    rows = tuple(
        (
            each["name"],
            percent_text(each["seconds"] / job["step_time_s"]),
            each["bound_by"],
            "" if each["flops_per_byte"] is None else f"{each['flops_per_byte']:,.0f}",
            percent_text(each["roof_share"]),
        )
        for each in job["operators"]
    )
    columns = ("operator", "of the step", "bound by", "FLOP/B", "of the roof")
    return ReasonTable(f"roofline-{number}", f"Roofline of {name}", lead, columns, rows)


def _runner_ups(objectives: Sequence[Objective], point: Point) -> ReasonTable:
    told, single = point["runner_ups"], len(objectives) == 1
    rows = tuple(
        (
            each.get("chip", f"{each['design']:,}"),
            *(objective_text(o, each["objectives"][o.name]) for o in objectives if single),
            *(_signed(each["losses"][o.name]) for o in objectives),
            "; ".join(_difference(name, ends) for name, ends in each["differs"].items()),
        )
        for each in told["designs"]
    )
    lead = f"The next best of {told['evaluated']:,} designs with plans, and what they lose"
    if told["others_lose"]:
        lead += f"; by its lower bound, no other design loses less than {percent_text(told['others_lose'])}"
    elif told["others_lose"] is not None:
        lead += "; a design that a lower bound ruled out may come between them"
    figures = (objectives[0].title, "loses") if single else tuple(o.title for o in objectives)
    return ReasonTable("runner-ups", "Runner-ups", f"{lead}.", ("design", *figures, "differs in"), rows)


def _difference(name: str, ends: Mapping[str, Any]) -> str:
    best, here = (_value(name, ends[end]) for end in ("best", "here"))
    return f"{variable_label(name)} {here}, not {best}"


def _value(name: str, value: Any) -> str:
    return value if isinstance(value, str) else variable_text(name, value)


def _gains(objectives: Sequence[Objective], point: Point) -> list[ReasonTable]:
    gains, silicon = point["gains"], point["silicon"]
    if not gains["changes"]:
        return []
    first = objectives[0].name
    ordered = sorted(gains["changes"], key=lambda each: -(each["gains"] or {first: -float("inf")})[first])
    figures = {name: title for name, title in _COLUMNS.items() if name in silicon}
    if "wafer_power_w" in figures:
        figures.pop("peak_power_w", None)
    rows = tuple(
        (
            change_text(each),
            *(("no plan fits", *("" for _ in objectives[1:])) if each["gains"] is None else _gain_texts(each)),
            *(_signed(each["more"][name] / silicon[name]) for name in figures),
            ", ".join(each["breaks"]),
        )
        for each in ordered
    )
    lead = "Each variable one step up and down, with the best plans of the changed design"
    lead += "." if len(objectives) == 1 else ": gains by objective."
    if gains["left_out"]:
        lead += f" {len(gains['left_out'])} changes are left out: they needed more searches than allowed."
    gained = ("gain",) if len(objectives) == 1 else tuple(o.title for o in objectives)
    columns = ("change", *gained, *figures.values(), "breaks")
    return [ReasonTable("gains", "What each variable gains", lead, columns, rows)]


def _gain_texts(change: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_signed(gain) for gain in change["gains"].values())


def change_text(change: Mapping[str, Any]) -> str:
    """Values before and after; where it is one amount, by how much it grows."""
    ends = [
        f"{variable_label(name)} {variable_text(name, each['before'])} → {variable_text(name, each['after'])}"
        for name, each in change["values"].items()
    ]
    text = ", ".join(ends) or change["name"]
    if len(ends) == 1 and change["step"] != "other":
        (each,) = change["values"].values()
        if each["before"]:
            text += f" ({100 * (each['after'] / each['before'] - 1):+.0f} %)"
    return text


def _limits(point: Point) -> list[ReasonTable]:
    rows: list[tuple[str, ...]] = []
    for limit in sorted(point["limits"], key=lambda each: -(each["share"] or 0.0)):
        unit = next((unit for ending, unit in _UNITS.items() if limit["name"].endswith(ending)), "")
        used, most = (_amount(limit[name], unit) for name in ("used", "limit"))
        share = "within" if limit["share"] is None else percent_text(limit["share"])
        stops = _stops(limit["stops"])
        rows.append((limit["name"], used, most, share, stops))
    if not rows:
        return []
    lead = "How much of each limit is used, and which changes would gain but break it."
    return [ReasonTable("limits", "Limits", lead, ("limit", "used", "allowed", "share", "stops"), tuple(rows))]


def _stops(names: Sequence[str]) -> str:
    """Which variables a limit stops, each once."""
    return ", ".join(dict.fromkeys(name.removesuffix(" +10 %").removesuffix(" next larger") for name in names))


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if unit else f"{value:,.4g}"


def _parts(point: Point) -> list[ReasonTable]:
    """Parts of the chip, with what each takes of every figure."""
    figures = {name: title for name, title in _BY_PART.items() if name in point["parts"]}
    if not figures:
        return []
    own = {name: title for name, title in figures.items() if name != "system_cost_usd"}
    names = dict.fromkeys(part for figure in own for part in point["parts"][figure])
    first = next(iter(own))
    ordered = sorted(names, key=lambda part: -point["parts"][first].get(part, 0.0))
    rows = [(part, *(_part(point["parts"][figure], part) for figure in own)) for part in ordered]
    totals = [sum(point["parts"][figure].values()) for figure in own]
    rows.append(("all", *(f"{total:,.0f}" for total in totals)))
    columns = ("part", *(f"{title}, {_unit(figure)}" for figure, title in own.items()))
    one = "die" if "wafers" in point else "chip"
    tables = [ReasonTable("parts", "Area, power and cost by part", f"Of one {one}.", columns, tuple(rows))]
    if "system_cost_usd" in figures:
        tables.append(_system(point["parts"]["system_cost_usd"], one))
    return tables


def _system(parts: Mapping[str, float], one: str) -> ReasonTable:
    ordered = sorted(parts, key=lambda part: -parts[part])
    rows = [(part, _part(parts, part)) for part in ordered]
    rows.append(("all", f"{sum(parts.values()):,.0f}"))
    lead = f"Of one {one} with what stands around it."
    return ReasonTable("system", "System cost by part", lead, ("part", "USD"), tuple(rows))


def _unit(figure: str) -> str:
    return {"area_mm2": "mm2", "peak_power_w": "W"}.get(figure, "USD")


def _part(parts: Mapping[str, float], part: str) -> str:
    if part not in parts:
        return ""
    whole = sum(parts.values()) or 1.0
    return f"{parts[part]:,.0f} ({100 * parts[part] / whole:.0f} %)"


def _signed(part: float) -> str:
    return "0 %" if abs(part) < _NOTHING else f"{100 * part:+.1f} %"


def point_name(point: Point) -> str:
    """Which design a point is."""
    if "chip" in point:
        name = str(point["chip"])
    else:
        name = f"design {point['design']:,}" + (f" of {point['space']}" if "space" in point else "")
    counted = "wafers" if "wafers" in point else "chips"
    number = f"{point[counted]:,} {counted if point[counted] > 1 else counted[:-1]}"
    return f"{name}, {number}" + (f" on {point['network']}" if "network" in point else "")
