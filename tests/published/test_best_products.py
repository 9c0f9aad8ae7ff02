"""What is assumed of chips without runs, against the best products that were timed on chips."""

import csv
from math import hypot, log
from pathlib import Path
from statistics import fmean, stdev

import pytest

from dovetail.cost.calibration import shipped

FILE = Path(__file__).parents[2] / "../shared/data/chips_2.csv"
#: Chips with a best product of a search over shapes → the generation whose runs were fitted, if any.
FITTED = {
    "a100-80gb": "ampere",
    "h100-sxm": "hopper",
    "b200": "blackwell",
    "gb200": "blackwell",
    "b300": "blackwell-ultra",
}
GPUS = (*FITTED, "gh200-141gb", "mi300x", "mi325x", "mi355x")


@pytest.fixture(scope="module")
def best():
    if not FILE.exists():
        pytest.skip("../shared/data/chips_2.csv is not beside the repository")
    with FILE.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    peaks = {name: float(rows[name]["peak_bf16_TFLOPS_dense"].split()[0]) for name in (*GPUS, "gaudi2", "gaudi3")}
    return {name: float(rows[name]["measured_bf16_TFLOPS"]) / peak for name, peak in peaks.items()}


def half(generation):
    return shipped().generations[generation].matrix["half"]


def runs_over_best(best):
    """Logarithms of what runs sustain of the best product, one for each fitted generation."""
    groups = {group: [log(best[name]) for name in FITTED if FITTED[name] == group] for group in FITTED.values()}
    return [log(half(group).value) - fmean(logs) for group, logs in groups.items()]


def test_priors_are_the_best_products_times_what_runs_sustain_of_such(best):
    share, unsure = fmean(runs_over_best(best)), stdev(runs_over_best(best))
    assert (log(0.76), 0.16) == pytest.approx((share, unsure), abs=0.03)
    for generation, names in {"cdna3": ("mi300x", "mi325x"), "gaudi3": ("gaudi3",)}.items():
        expected = fmean(log(best[name]) for name in names) + share
        assert log(half(generation).value) == pytest.approx(expected, abs=0.04)
        apart = stdev(log(best[name]) for name in names) if len(names) > 1 else 0.0
        assert half(generation).spread == pytest.approx(hypot(unsure, apart), abs=0.02)
    logs = [log(best[name]) for name in GPUS]
    default = shipped().defaults["gpu"].matrix["half"]
    assert log(default.value) == pytest.approx(fmean(logs) + share, abs=0.04)
    assert default.spread == pytest.approx(hypot(unsure, stdev(logs)), abs=0.02)
