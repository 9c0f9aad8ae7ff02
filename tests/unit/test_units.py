"""Quantities: what is read, what is refused, what a reader sees."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.units import UNITS, bytes_text, count_text, flop_text, parse, seconds_text

FLOATS = st.floats(min_value=0, max_value=1e100, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "quantity", "number"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GB", "bytes", 80e9),
        ("1_024 KiB", "bytes", 2**20),
        ("8 Gbit", "bytes", 1e9),
        ("0 B", "bytes", 0),
        ("3 EB", "bytes", 3e18),
        ("3e3 EB", "bytes", 3e21),
        ("900 GB/s", "bytes_per_s", 900e9),
        ("400 Gbps", "bytes_per_s", 50e9),
        ("1.6 Tbit/s", "bytes_per_s", 200e9),
        ("2 us", "s", 2e-6),
        ("2 µs", "s", 2e-6),
        ("2 \u03bcs", "s", 2e-6),
        ("400 Gb/s", "bytes_per_s", 50e9),
        ("8 Gb", "bytes", 1e9),
        (".5 GiB", "bytes", 2**29),
        ("1.5 h", "s", 5400),
        ("10 min", "s", 600),
        ("1.98 GHz", "hz", 1.98e9),
        ("989 TFLOPS", "flops", 989e12),
        ("989 TFLOP/s", "flops", 989e12),
        ("700 W", "w", 700),
        ("0.8 pJ", "j", 0.8e-12),
        ("600 mm2", "mm2", 600),
        ("6 cm2", "mm2", 600),
        ("26 mm", "mm", 26),
        ("30 kUSD", "usd", 30_000),
        (" 5 s ", "s", 5),
        ("12", "s", 12),
        (12, "s", 12),
        (0.25, "s", 0.25),
    ],
)
def test_quantities_are_read_in_si(text, quantity, number):
    assert parse(text, quantity, "file.yaml: field") == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "value",
    [
        True, False, None, [], [80], {}, {"GiB": 80}, b"80 GiB", "", " ", "GiB", "eighty GiB", "-1 GiB", "+1 GiB", -1,
        -0.5, math.nan, math.inf, -math.inf, "nan", "inf GiB", "1e999 GiB", "1e1000 B", 10**400,
        pytest.param(16**9999, id="long"), "80 GiB GiB",
        "80 GiB/s", "80 s", "80 gib", "1.2.3 B", "1,5 GiB", "0x10 B", "８０ GiB GiB", "8" * 65, "80\x00GiB", "80 G\niB",
        "80 \x1b[31mGiB",
    ],
)  # fmt: skip
def test_what_is_no_quantity_of_bytes_is_refused(value, refusal):
    sentence = refusal(parse, value, "bytes", "file.yaml: memory")
    assert sentence.startswith("file.yaml: memory: ")
    assert len(sentence) < 300


@pytest.mark.parametrize(
    ("text", "quantity", "likely"),
    [("80 gib", "bytes", "'GiB'"), ("80 GiB", "bytes_per_s", "'GiB/s'"), ("3 ghz", "hz", "'GHz'")],
)
def test_the_likely_unit_is_named(text, quantity, likely, refusal):
    assert f"did you mean {likely}" in refusal(parse, text, quantity, "file.yaml: field")


@pytest.mark.parametrize("quantity", UNITS)
@pytest.mark.parametrize("other", UNITS)
def test_a_unit_of_another_quantity_is_refused(quantity, other, refusal):
    for unit in UNITS[other].keys() - UNITS[quantity].keys():
        assert quantity in refusal(parse, f"3 {unit}", quantity, "file.yaml: field")


@given(number=FLOATS, data=st.data())
def test_a_number_with_its_unit_is_read_back(number, data):
    quantity = data.draw(st.sampled_from(sorted(UNITS)))
    unit = data.draw(st.sampled_from(sorted(UNITS[quantity])))
    space = data.draw(st.sampled_from(["", " ", "\t"]))
    assert parse(f"{number!r}{space}{unit}", quantity, "x") == number * UNITS[quantity][unit]
    assert parse(number, quantity, "x") == number


@given(value=st.text(max_size=80) | st.binary(max_size=8) | st.integers() | st.floats() | st.booleans())
def test_anything_is_read_as_a_finite_number_or_refused(value, refusal):
    try:
        number = parse(value, "bytes", "x")
    except ValueError:
        refusal(parse, value, "bytes", "x")
    else:
        assert math.isfinite(number)
        assert number >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(80 * 2**30), "80 GiB"),
        (bytes_text(1023 * 2**20), "1023 MiB"),
        (bytes_text(12.5), "12.5 B"),
        (bytes_text(0), "0 B"),
        (seconds_text(2.5e-6), "2.5 us"),
        (seconds_text(3600), "3600 s"),
        (seconds_text(0), "0 s"),
        (flop_text(2.53e12), "2.53 TFLOP"),
        (flop_text(999.9e9), "1000 GFLOP"),
        (count_text(405.853e9), "405.9 B"),
        (count_text(128), "128"),
        (count_text(999_999_999), "1 B"),
        (count_text(999_900_000), "999.9 M"),
    ],
)
def test_figures_for_a_reader(text, expected):
    assert text == expected


@given(number=st.floats(min_value=1, max_value=2**59))
def test_a_reader_sees_no_exponent_and_loses_half_a_percent(number):
    text = bytes_text(number)
    assert "e" not in text
    assert parse(text, "bytes", "x") == pytest.approx(number, rel=0.006)
