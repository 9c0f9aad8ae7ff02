"""Predicted power and energy against published figures: which lie in the range, and which do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail.accuracy.power import predicted_power, published_power

#: Figures outside of their range, as docs/explanation/energy.md says.
OUTSIDE = {"latif-node", "olmo-2-7b", "olmo-2-13b", "olmo-7b", "tpu-v4-typical"}
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "energy.md"


@pytest.fixture(scope="module")
def predictions():
    return {found.run.id: found for found in map(predicted_power, published_power())}


def test_what_is_outside_is_known(predictions):
    assert {name for name, found in predictions.items() if not found.inside} == OUTSIDE


def test_h100_at_a_published_mfu_is_within_a_tenth(predictions):
    for name in ("olmo-3-7b", "olmo-3-32b", "fernandez-128"):
        found = predictions[name]
        assert found.predicted.value == pytest.approx(found.run.figure, rel=0.1)
        assert found.predicted.high <= 700 * (1 + 1e-9)


def test_every_figure_has_a_source_and_a_tier():
    for run in published_power():
        assert run.tier in ("S", "M")
        assert run.unit in ("W", "J/token")
        assert len(run.source) > 5


def test_the_page_has_the_table(predictions):
    rows = dict(re.findall(r"^\| ([a-z0-9-]+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for name, found in predictions.items():
        shown = f"{found.predicted.value:,.0f}" if found.run.unit == "W" else f"{found.predicted.value:.3f}"
        # without a published speed the figure is at that of the calibration of the day
        assert found.run.mfu is None or shown in rows[name]
        assert ("outside" in rows[name]) is not found.inside
