"""Readings of rows that decide how much memory a run took."""

from __future__ import annotations

from dovetail.accuracy.row_model import side_by_side
from dovetail.models import load


def test_the_default_block_of_maxtext_adds_both_halves_at_once():
    serial = load("llama-3-8b")
    parallel = side_by_side(serial)
    assert all(block.parallel and block.shared_norm for block in parallel.blocks.values())
    assert not any(block.parallel for block in serial.blocks.values())
