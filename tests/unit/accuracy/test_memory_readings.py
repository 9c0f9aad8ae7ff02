"""Readings of rows that decide how much memory a run took."""

from __future__ import annotations

import pytest

from dovetail import frameworks
from dovetail.accuracy.row_framework import EAGER_LOGITS_BYTES, PARALLEL_LOGITS_BYTES, framework_of
from dovetail.accuracy.row_model import side_by_side
from dovetail.accuracy.table import TableRow
from dovetail.models import load


@pytest.mark.parametrize(
    ("name", "source", "tensor", "width"),
    [
        ("torchtitan", "torchtitan benchmarks Dec 2024", 1, EAGER_LOGITS_BYTES),
        ("torchtitan", "torchtitan benchmarks Dec 2024", 8, PARALLEL_LOGITS_BYTES),
        ("torchtitan", "torchtitan community benchmark Jun 2025", 1, None),
        ("fsdp", "torchtitan benchmarks Dec 2024", 1, EAGER_LOGITS_BYTES),
        ("fsdp", "llm-foundry benchmarks", 1, None),
        ("megatron", "torchtitan benchmarks Dec 2024", 1, None),
    ],
)
def test_torchtitan_ran_its_loss_operator_by_operator_before_2025(name, source, tensor, width):
    framework = framework_of(name, TableRow(2, {"source": source}), tensor)
    assert framework.logits_bytes == (width or frameworks.load(name).logits_bytes)


def test_the_default_block_of_maxtext_adds_both_halves_at_once():
    serial = load("llama-3-8b")
    parallel = side_by_side(serial)
    assert all(block.parallel and block.shared_norm for block in parallel.blocks.values())
    assert not any(block.parallel for block in serial.blocks.values())
