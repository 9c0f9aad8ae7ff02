"""The tables and plots of the TMAC study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tmac_mappings import FRAMEWORK, PUBLISHED, TUNED, JobOnWafers, MappedJob

from dovetail import hardware
from dovetail.plans.arrange import arrange
from dovetail.report.svg import Panel, Series, growth
from dovetail.report.wafer_picture import wafer_pictures
from dovetail.report.wafer_svg import wafer_svg
from dovetail.simulation import simulate

#: Mappings by a shorter name.
SHORT = dict(zip(TUNED, ("Megatron, full", "Megatron, selective", "ZeRO-3", "AccPar"), strict=True))
#: The wafer whose links and memory are changed, and the plan whose tiles are drawn.
BASE = "watos-buildable"
DRAWN = "llama-3.1-70b", "wse-3-like"

#: Where a mapping has no plan: proven, or not.
NONE = {"nothing fits": "none fits", "nothing found that fits": "none found"}

#: StudyFile of one place by their mapping.
ByMapping = dict[str, MappedJob]


def by_place(rows: Iterable[MappedJob], part: str) -> list[ByMapping]:
    """The rows of every place of a part."""
    places: dict[tuple[str, str, float, float], ByMapping] = {}
    for row in rows:
        if row.part == part:
            places.setdefault((row.model, row.wafer, row.d2d_tb_s, row.memory_gb), {})[row.mapping] = row
    largest_first = sorted(places, key=lambda key: (-key[-1], -key[-2]))
    return [places[key] for key in (places if part == "points" else largest_first)]


def ratio(place: ByMapping, mapping: str) -> float | None:
    """How much longer a mapping takes than free layouts, where both fit."""
    free, other = place["free"], place[mapping]
    if free.step_s is None or other.step_s is None or not (free.fits and other.fits):
        return None
    return other.step_s / free.step_s


def ratio_cell(place: ByMapping, mapping: str) -> str:
    """The same to read, or what is missing."""
    times, row = ratio(place, mapping), place[mapping]
    if times is not None:
        return f"{times:.2f}"
    if row.missing_gb:
        return f"lacks {row.missing_gb:,.0f} GB" if row.missing_gb >= 1 else f"lacks {row.missing_gb:.2f} GB"
    return NONE.get(row.words, "–" if row.step_s else "refused")


def gap_cell(row: MappedJob) -> str:
    """How far a step may be from the best."""
    if row.step_s is None or row.lower_bound_s is None:
        return "–"
    return f"{max(0.0, 1 - row.lower_bound_s / row.step_s):.1%}"


def free_cells(row: MappedJob) -> list[str]:
    """Step, gap and memory of free layouts."""
    if row.step_s is None or row.peak_gb is None:
        return [row.words, "–", "–"]
    return [f"{row.step_s:,.2f}", gap_cell(row), f"{row.peak_gb:.3g}"]


def print_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Markdown."""
    print(f"| {' | '.join(head)} |", "|" + "---|" * len(head), sep="\n")
    for cells in lines:
        print(f"| {' | '.join(cells)} |")
    print()


def print_tables(rows: Sequence[MappedJob]) -> None:
    """Everything a file has."""
    points, curves = by_place(rows, "points"), by_place(rows, "curves")
    ratios = [*(SHORT[name] for name in TUNED), *(f"{SHORT[name]}, published" for name in TUNED)]

    def cells(place: ByMapping, where: Callable[[MappedJob], list[str]]) -> list[str]:
        free = place["free"]
        return [*where(free), *free_cells(free), *(ratio_cell(place, name) for name in (*TUNED, *PUBLISHED))]

    ours = ["free: step s", "gap", "GB a die"]
    whole = [place for place in points if len(place) == 1 + len(TUNED) + len(PUBLISHED)]
    lines = [cells(place, lambda row: [row.model, f"{row.wafers} × {row.wafer}"]) for place in whole]
    print_table(["model", "wafers", *ours, *ratios], lines)
    print_table(
        ["model", "wafers", "mapping", "step s", "for the store s", "tokens/s", "GB a die", "gap", "plan"],
        [plan_cells(row) for place in whole for row in place.values() if row.fits and row.mapping not in PUBLISHED],
    )
    for model in dict.fromkeys(place["free"].model for place in curves if "free" in place):
        print(f"{model}\n")
        lines = [
            cells(place, lambda row: [f"{row.memory_gb:g}", f"{row.d2d_tb_s:g}"])
            for place in curves
            if "free" in place and place["free"].model == model
        ]
        print_table(["GB", "TB/s", *ours, *ratios], lines)
    print_table(
        ["model", "mapping", "step s", "GB a die", "free: step s", "GB a die", "times less", "at most"],
        [memory_cells(rows, row) for row in compared(rows)],
    )
    print(f"{sum(row.cpu_s for row in rows) / 60:.0f} CPU minutes, {len(rows)} rows")


def plan_cells(row: MappedJob) -> list[str]:
    """A plan that fits."""
    assert row.step_s is not None
    store = f"{row.store_s:,.1f}" if row.store_s else "–"
    figures = [f"{row.step_s:,.2f}", store, f"{row.tokens_per_s:,.0f}", f"{row.peak_gb:.3g}", gap_cell(row)]
    return [row.model, f"{row.wafers} × {row.wafer}", row.mapping, *figures, row.words]


def frontier(rows: Iterable[MappedJob], model: str) -> list[MappedJob]:
    """Plans of free layouts on the wafer as it is, whatever memory they were searched for."""
    base = hardware.wafer(BASE)
    same = (model, base.name, 1, base.d2d_bytes_per_s / 1e12, "free")
    return [
        row
        for row in rows
        if (row.model, row.wafer, row.wafers, row.d2d_tb_s, row.mapping) == same
        and row.memory_gb <= base.die.memory_bytes / 1e9
        and not row.store_s
        and "store" not in row.words
    ]


def compared(rows: Iterable[MappedJob]) -> list[MappedJob]:
    """What memory at equal speed is asked for: mappings of others on the wafer as it is."""
    rows = list(rows)
    models = {row.model for row in rows if row.part == "memory"}
    return [
        row
        for row in rows
        if (row.part, row.wafer) == ("points", BASE) and row.model in models and row.step_s and row.mapping != "free"
    ]


def memory_cells(rows: Sequence[MappedJob], row: MappedJob) -> list[str]:
    """A mapping, the plan of free layouts with the least memory that is as fast, and the most that memory can differ.

    Where the lower bound of all plans with some memory is longer than the mapping's step, no plan needs as little.
    """
    assert row.step_s is not None
    assert row.peak_gb is not None
    searched = frontier(rows, row.model)
    as_fast = [each for each in searched if each.step_s is not None and each.step_s <= row.step_s]
    head = [row.model, row.mapping, f"{row.step_s:.2f}", f"{row.peak_gb:,.1f}"]
    if not as_fast:
        return [*head, "–", "–", "–", "–"]
    least = min(as_fast, key=lambda each: each.peak_gb or 0.0)
    assert least.peak_gb is not None
    slower = [each.memory_gb for each in searched if each.lower_bound_s is not None and each.lower_bound_s > row.step_s]
    most = f"{row.peak_gb / max(slower):.2f}" if slower else "–"
    return [*head, f"{least.step_s:.2f}", f"{least.peak_gb:.1f}", f"{row.peak_gb / least.peak_gb:.2f}", most]


def draw(rows: Sequence[MappedJob], folder: Path) -> None:
    """Ratios over links and memory, memory at equal speed, and the tiles of one plan."""
    for model in dict.fromkeys(row.model for row in rows if row.part == "curves"):
        for kind, mappings in (("tuned", TUNED), ("published", PUBLISHED)):
            places = [place for place in by_place(rows, "curves") if place["free"].model == model]
            panels = [ratio_panel(places, mappings, gb) for gb in sorted({p["free"].memory_gb for p in places})]
            panels = [panel for panel in panels if any(series.points for series in panel.series)]
            title = f"{model}: {'others tuned' if kind == 'tuned' else 'as published'}"
            plot = growth(title, panels, "step over that of free layouts")
            (folder / f"tmac-{model}-{kind}.svg").write_text(plot, encoding="utf-8")
    panels = [memory_panel(rows, model) for model in dict.fromkeys(row.model for row in rows if row.part == "memory")]
    plot = growth("Step against memory", panels, "step over the fastest")
    (folder / "tmac-memory.svg").write_text(plot, encoding="utf-8")
    drawn = next(row for row in rows if (row.model, row.wafer, row.mapping) == (*DRAWN, "free") and row.fits)
    (folder / "tmac-tiles.svg").write_text(tiles(drawn), encoding="utf-8")


def ratio_panel(places: Iterable[ByMapping], mappings: Sequence[str], memory_gb: float) -> Panel:
    """Ratios against links, for one memory."""
    here = [place for place in places if place["free"].memory_gb == memory_gb]
    series: list[Series] = []
    for mapping in mappings:
        times = [(place["free"].d2d_tb_s, ratio(place, mapping)) for place in here]
        points = tuple(sorted((x, y) for x, y in times if y is not None))
        series.append(Series(SHORT[mapping.removesuffix(", as published")], points))
    return Panel(f"TB/s, {memory_gb:g} GB a die", tuple(series))


def memory_panel(rows: Sequence[MappedJob], model: str) -> Panel:
    """Free layouts in less memory, and others where they are; steps are over the fastest of free layouts."""
    free = frontier(rows, model)
    fastest_s = min(row.step_s for row in free if row.step_s is not None)

    def points(shown: Iterable[MappedJob]) -> tuple[tuple[float, float], ...]:
        return tuple(sorted((row.peak_gb, row.step_s / fastest_s) for row in shown if row.peak_gb and row.step_s))

    others = [row for row in compared(rows) if row.model == model]
    series = [Series(SHORT[name], points(row for row in others if row.mapping == name)) for name in TUNED]
    return Panel(f"{model}: GB a die", (Series("free layouts", points(free)), *series))


def tiles(row: MappedJob) -> str:
    """A plan's tiles and how full links are, simulated."""
    place = JobOnWafers.of(row.model, hardware.wafer(row.wafer))
    plan = next(place.evaluated([row])).plan
    arrangement = arrange(plan, place.job.graph(), place.cluster)
    return wafer_svg(wafer_pictures(simulate(plan, place.job, place.cluster, FRAMEWORK), arrangement, place.cluster))
