"""Draws plots of the results pages from the tables of the pages themselves, so that the two cannot disagree.

python docs/results/plots.py            write docs/assets/*.svg
python docs/results/plots.py --check    fail where a plot is not that of its page

Plots of measured runs, of the TMAC curves, of samplers and of the PHAZE studies are drawn by what makes their figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.report.svg import Bars, bars

PAGES = Path(__file__).parent
ASSETS = PAGES.parent / "assets"

Row = dict[str, str]


def tables(page: str, first: str) -> list[list[Row]]:
    """The tables of a page whose first column has this name, as rows by column; of equal names the first counts."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    blocks = ("\n".join(line if line.startswith("|") else "" for line in text.splitlines())).split("\n\n")
    found: list[list[Row]] = []
    for block in blocks:
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if line]
        if lines and lines[0][0] == first:
            names = lines[0]
            found.append([dict(reversed([*zip(names, cells, strict=True)])) for cells in lines[2:]])
    assert found, f"{page}.md has no table that begins with {first!r}"
    return found


def fraction(cell: str) -> float | None:
    """A percentage as a fraction; None where a cell has none."""
    number, percent, _ = cell.replace("−", "-").partition("%")
    return float(number) / 100 if percent else None


def model_and_simulation() -> str:
    """How both order the plans of each job, and how far they are apart."""
    (jobs,) = tables("model-and-simulation", "job")
    rows: list[Bars] = []
    for job in jobs:
        model, where, framework = job["job"].split(", ")
        chips = where.split(" × ")[0]
        rows.append(
            Bars(f"{model}, {chips}, {framework}", (fraction(job["inversions"]), fraction(job["median error"])))
        )
    names = ("pairs ordered the other way", "median error of the model")
    return bars("The model against the simulation, by job (chips)", rows, names, "goals: 10 % of pairs, 5 % of error")


def partition() -> str:
    """What Dovetail's plans gain over Megatron's."""
    (jobs,) = tables("partition", "model")
    rows = [Bars(f"{job['model']}, {job['chips']}", (fraction(job["gain"]),)) for job in jobs if job["gain"]]
    title = "Any partition, recompute by operator, against Megatron-LM's options"
    return bars(title, rows, ("gain",), "how much longer Megatron-LM's best plan takes")


def published_plans() -> str:
    """What found plans gain over published ones."""
    models = ("405B", "DeepSeek-V3", "GPT-3", "BLOOM")
    rows = [
        Bars(f"{model}, {', '.join(job['on'].split(', ')[:2])}", (fraction(job["gain"]),))
        for model, jobs in zip(models, tables("published-plans", "on"), strict=True)
        for job in jobs
        if job["gain"]
    ]
    return bars("Published plans against those found", rows, ("gain",), "how much longer the published plan takes")


def wafer_plans() -> str:
    """How far model and simulation are apart, and how full the fullest link is, by wafer and strategy."""
    rows: list[Bars] = []
    for links, plans in zip(("", ", links ÷ 30"), tables("wafer-plans", "wafer"), strict=True):
        for wafer in dict.fromkeys(plan["wafer"] for plan in plans):
            for strategy in ("Megatron", "ZeRO-3", "data parallel"):
                of_both = [p for p in plans if p["wafer"] == wafer and p["strategy"].startswith(strategy)]
                if of_both:
                    apart = max(abs(float(plan["ratio"]) - 1) for plan in of_both)
                    fullest = max(fraction(plan["fullest link"]) or 0.0 for plan in of_both)
                    rows.append(Bars(f"{wafer.split()[0]}, {strategy}{links}", (apart, fullest)))
    names = ("model and simulation apart, at most", "fullest link busy")
    return bars("GPT-3 on wafers: model, simulation and links", rows, names, "part of the step")


def tensor_on_mesh() -> str:
    """The best step with TP 8 over that with TP 4."""
    (verdicts,) = tables("tensor-on-mesh", "dies")[:1]
    kinds = [(plans, collectives) for plans in ("any", "fits") for collectives in ("optimal", "rings")]
    rows: list[Bars] = []
    for dies in dict.fromkeys(row["dies"] for row in verdicts):
        here = [row for row in verdicts if row["dies"] == dies]
        by_kind = {(row["plans"], row["collectives"]): float(row["TP 8 / TP 4"]) for row in here}
        rows.append(Bars(dies, tuple(by_kind.get(kind) for kind in kinds)))
    names = tuple(f"{plans}, {collectives}" for plans, collectives in kinds)
    return bars("TP 8 against TP 4 on the WATOS-like wafer", rows, names, "step with TP 8, of that with TP 4")


def chip_2026() -> str:
    """Steps of known chips and of the best design."""
    (chips,) = tables("chip-2026", "chip")
    rows = [Bars(f"{row['chip']}, {row['network']}", (fraction(row["of B200 as sold"]),)) for row in chips]
    names = ("step, geometric mean",)
    return bars("Three large models on 16,384 chips", rows, names, "of 1.348 s: B200 in domains of 8")


def wafer_best() -> str:
    """The step of the best wafer under each limit, and the proven bound, of the best with Megatron-LM's plans."""
    megatron, free, _ = tables("wafer-best", "limits")
    whole = float(megatron[0]["step s"])
    rows = [Bars(f"Megatron, {row['limits']}", (float(row["step s"]) / whole, None)) for row in megatron]
    for row in free:
        step, gap = float(row["step s"]) / whole, fraction(row["proven gap"]) or 0.0
        rows.append(Bars(f"free mapping, {row['limits']}", (step, step * (1 - gap))))
    names = ("step of the best wafer", "proven lower bound, of free mapping")
    return bars("The best wafer for GPT-3", rows, names, f"of {whole:g} s: 20 kW, Megatron-LM's plans")


def wafer_faults() -> str:
    """Throughput with the plan kept and planned again, medians."""
    (maps,) = tables("wafer-faults", "model")
    rows = [
        Bars(f"{row['model']}, {row['dead']}", (fraction(row["plan kept"]), fraction(row["planned again"])))
        for row in maps
    ]
    names = ("plan of the whole wafer kept", "planned again")
    return bars("Throughput with dead dies or links", rows, names, "of the whole wafer's, median of three maps")


def tmac_mappings() -> str:
    """How much longer than free layouts other mappings take on the WATOS-like wafer, where both fit."""
    (places,) = tables("tmac", "model")[:1]
    rows: list[Bars] = []
    for place in places:
        if place["wafers"] == "1 × watos-buildable":
            for mapping in ("Megatron, full", "Megatron, selective", "ZeRO-3", "AccPar"):
                ratios = (place[mapping], place.get(f"{mapping}, published"))
                values = tuple(float(ratio) - 1 if ratio else None for ratio in ratios)
                rows.append(Bars(f"{place['model']}, {mapping}", values))
    names = ("tuned over all degrees", "as published")
    return bars("Others against free layouts, 70 GB a die, 2 TB/s", rows, names, "how much longer a step takes")


def fit_reliability() -> str:
    """How often runs fitted, by P(fits)."""
    bins, *_ = tables("fit", "P(fits)")
    rows = [
        Bars(f"{each['P(fits)']}, {each['runs']} runs", (fraction(each["mean P(fits)"]), fraction(each["fitted"])))
        for each in bins
    ]
    return bars(
        "Runs that fitted, by P(fits)", rows, ("predicted", "fitted"), "equal bars: P(fits) is how often runs fit"
    )


def layout_search() -> str:
    """How many seeds miss the optimum."""
    (blocks,) = tables("layout-search", "layer")

    def missed(cell: str) -> float:
        found, seeds = cell.split(", ")[-1].split("/")
        return 1 - int(found) / int(seeds)

    columns = [f"{search}: {time}" for search in ("annealing", "genetic") for time in ("equal time", "10 × the time")]
    rows = [
        Bars(f"{block['layer']}, {block['tile']}, {block['sequences']}", tuple(missed(block[name]) for name in columns))
        for block in blocks
    ]
    names = ("annealing, equal time", "10 × the time", "genetic, equal time", "10 × the time")
    return bars("Seeds that miss the best layout (layer, tile, sequences)", rows, names, "of ten seeds")


PLOTS: dict[str, Callable[[], str]] = {
    "model-and-simulation": model_and_simulation,
    "partition-gain": partition,
    "published-plans": published_plans,
    "wafer-plans": wafer_plans,
    "tensor-on-mesh": tensor_on_mesh,
    "chip-2026": chip_2026,
    "wafer-best": wafer_best,
    "wafer-faults-throughput": wafer_faults,
    "tmac-mappings": tmac_mappings,
    "layout-search": layout_search,
    "fit-reliability": fit_reliability,
}


def main(arguments: Sequence[str]) -> int:
    """Writes or checks every plot; 1 where one is not that of its page."""
    stale = 0
    for name, draw in PLOTS.items():
        path, text = ASSETS / f"{name}.svg", draw()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale += 1
            sys.stderr.write(f"{path.name} is not the plot of its page: python docs/results/plots.py\n")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
