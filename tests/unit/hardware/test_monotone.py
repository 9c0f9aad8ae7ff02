"""What a formula's form tells of it is true for whatever values its names take."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.hardware.design_space.expression import parse_expression
from dovetail.hardware.design_space.monotone import trend

MOVING = {"step_s": 1, "energy_j": 1, "tokens_per_s": -1}
FIXED = ("area_mm2", "chips")
#: Powers and logarithms are rounded, and not evenly.
ROUNDING = 1e-12


def expressions() -> st.SearchStrategy[str]:
    """Formulas of what moves and what does not, with everything an expression may have."""
    leaves = st.sampled_from([*MOVING, *FIXED, "1", "2", "0.25", "3.5"])

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        def joined(operators: list[str]) -> st.SearchStrategy[str]:
            return st.tuples(inner, st.sampled_from(operators), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")

        powers = st.tuples(inner, st.sampled_from(["2", "0.5", "-1", "(-2)", "chips", "-1.5", "0"]))
        functions = st.tuples(st.sampled_from(["sqrt", "log2", "floor", "ceil", "abs", "-", "+"]), inner)
        several = st.tuples(st.sampled_from(["max", "min"]), st.lists(inner, min_size=2, max_size=3))
        choice = st.tuples(inner, inner, st.sampled_from(["<", ">=", "=="]), inner, inner)
        return st.one_of(
            joined(["+", "*", "/"]),
            joined(["+", "-", "*", "/", "//", "%", "**"]),
            powers.map(lambda p: f"({p[0]} ** {p[1]})"),
            functions.map(lambda p: f"{p[0]}({p[1]})"),
            several.map(lambda p: f"{p[0]}({', '.join(p[1])})"),
            choice.map(lambda p: f"({p[0]} if {p[1]} {p[2]} {p[3]} and not chips > 5 else {p[4]})"),
        )

    return st.recursive(leaves, larger, max_leaves=7)


VALUES = st.floats(min_value=2.0**-6, max_value=64.0)


@settings(max_examples=150)
@given(
    text=expressions(),
    starts=st.tuples(*[VALUES] * 5),
    factors=st.lists(st.tuples(*[VALUES] * 3), min_size=3, max_size=6),
)
def test_what_is_certain_is_true(text, starts, factors):
    expression = parse_expression(text, "formula", "number")
    certain = trend(expression, MOVING)
    if certain.direction is None and not certain.positive:
        return
    named = dict(zip([*MOVING, *FIXED], starts, strict=True))
    values = [float(expression.number(lambda name: np.asarray(named[name])))]
    for grown in factors:
        for (name, direction), by in zip(MOVING.items(), grown, strict=True):
            named[name] *= (1 + by) ** direction
        values.append(float(expression.number(lambda name: np.asarray(named[name]))))
    if certain.positive:
        assert all(value >= 0 for value in values if math.isfinite(value)), text
    if certain.direction is None:
        return
    for before, after in pairwise(values):
        if math.isfinite(before) and math.isfinite(after):
            slack = ROUNDING * max(abs(before), abs(after))
            assert (after - before) * certain.direction >= -slack, text
            assert certain.direction != 0 or after == before, text


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("step_s", 1),
        ("tokens_per_s / area_mm2", -1),
        ("1 / tokens_per_s + energy_j", 1),
        ("chips / energy_j", -1),
        ("step_s ** 2 * area_mm2", 1),
        ("energy_j ** -1", -1),
        ("max(step_s, 0.2) * area_mm2 + step_s", 1),
        ("sqrt(step_s * energy_j)", 1),
        ("ceil(step_s) / min(tokens_per_s, 3)", 1),
        ("step_s if chips > 3 else 2 * step_s", 1),
        ("step_s * (chips - 1) ** 2", None),
        ("area_mm2 * chips", 0),
        ("step_s * max(area_mm2 - 100, 1)", 1),
        ("abs(step_s) / abs(chips - 3)", 1),
    ],
)
def test_the_trends_of_plain_formulas_are_seen(text, direction):
    found = trend(parse_expression(text, "formula", "number"), MOVING)
    assert found.direction == direction
    assert found.positive or direction is None
