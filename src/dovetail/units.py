"""SI inside: quantities such as "80 GiB", "2 us" or "600 mm2" are parsed once, at the edge."""

from __future__ import annotations

import math
import re
from types import MappingProxyType

from dovetail.errors import InputError, one_of, quoted

_DECIMAL = {"": 1e0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SMALL = {"": 1e0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "\u03bc": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15}


def _scaled(base: str, prefixes: dict[str, float], unit: float = 1.0) -> dict[str, float]:
    return {f"{prefix}{base}": unit * scale for prefix, scale in prefixes.items()}


#: quantity → unit → factor to the SI unit named after the quantity in the suffix of a field.
UNITS = MappingProxyType(
    {
        "bytes": _scaled("B", _DECIMAL | _BINARY)
        | _scaled("bit", _DECIMAL, 1 / 8)
        | _scaled("b", _DECIMAL, 1 / 8)
        | {"bytes": 1.0},
        "bytes_per_s": _scaled("B/s", _DECIMAL | _BINARY)
        | _scaled("bit/s", _DECIMAL, 1 / 8)
        | _scaled("b/s", _DECIMAL, 1 / 8)
        | _scaled("bps", _DECIMAL, 1 / 8),
        "s": _scaled("s", _SMALL) | {"min": 60.0, "h": 3600.0, "d": 86400.0},
        "hz": _scaled("Hz", _DECIMAL),
        "flops": _scaled("FLOPS", _DECIMAL) | _scaled("FLOP/s", _DECIMAL),
        "w": _scaled("W", _DECIMAL | {"m": 1e-3, "u": 1e-6}),
        "j": _scaled("J", _DECIMAL | _SMALL),
        "mm2": {"mm2": 1.0, "mm²": 1.0, "um2": 1e-6, "µm²": 1e-6, "\u03bcm²": 1e-6, "cm2": 1e2},
        "mm": {"mm": 1.0, "um": 1e-3, "cm": 10.0, "m": 1e3},
        "usd": {"USD": 1.0, "$": 1.0, "kUSD": 1e3, "MUSD": 1e6},
    }
)

_QUANTITY = re.compile(r"\s*((?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^\s0-9][^\s]*)?\s*")


def parse(value: object, quantity: str, where: str) -> float:
    """The SI number of a quantity given as a plain number (already SI) or as "80 GiB"."""
    units = UNITS[quantity]
    example = f'it should be a number of {quantity} or a text such as "3 {next(iter(units))}"'
    if isinstance(value, int | float) and not isinstance(value, bool):
        number, unit = _as_float(value), None
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= 64 else None
        if match is None:
            raise InputError(where, f"{quoted(value)} is not a quantity of {quantity}", example)
        number, unit = float(match[1].replace("_", "")), match[2]
    if unit is not None and unit not in units:
        raise InputError(where, f"the unit {quoted(unit)} does not measure {quantity}", one_of(units, unit))
    number *= units[unit] if unit is not None else 1.0
    if not math.isfinite(number) or number < 0:
        raise InputError(where, f"{quoted(value)} is not a finite quantity of zero or more", example)
    return number


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number may be larger than any float
        return math.inf


def _scaled_text(number: float, unit: str, steps: list[tuple[float, str]]) -> str:
    for factor, prefix in steps:
        if abs(number) >= factor:
            return f"{_three_digits(number / factor)} {prefix}{unit}"
    return f"{_three_digits(number)} {unit}"


def _three_digits(number: float) -> str:
    # 1023 MiB has a fourth digit, which the plain format would turn into an exponent
    return f"{number:.0f}" if 999.5 <= abs(number) < 9999.5 else f"{number:.3g}"


_LARGE_STEPS = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
_BYTE_STEPS = [(2.0**50, "Pi"), (2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki")]
_SECOND_STEPS = [(1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")]


def bytes_text(number: float) -> str:
    """Bytes for a reader, in binary multiples."""
    return _scaled_text(number, "B", _BYTE_STEPS)


def seconds_text(number: float) -> str:
    """Seconds for a reader."""
    return _scaled_text(number, "s", _SECOND_STEPS)


def percent_text(part: float) -> str:
    """A part of a whole for a reader."""
    return f"{100 * part:.1f} %"


def probability_text(probability: float) -> str:
    """A probability in per cent, never rounded to what is sure; 0 is."""
    if 0.001 <= probability <= 0.999:
        return f"{100 * probability:.1f} %"
    if probability == 0:
        return "0 %"
    return "more than 99.9 %" if probability > 0.5 else "less than 0.1 %"


def flop_text(number: float) -> str:
    """A count of floating-point operations for a reader."""
    return _scaled_text(number, "FLOP", _LARGE_STEPS)


def count_text(number: float) -> str:
    """A large count (parameters, tokens) for a reader: 405.9 B."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.99995 * factor:  # what rounds to 1000 of the smaller unit
            return f"{number / factor:.4g} {suffix}"
    return f"{number:g}"


def quantity_text(number: float, unit: str) -> str:
    """A figure in decimal multiples of its unit, with the digits it was published with."""
    factor, prefix = next(((f, p) for f, p in _LARGE_STEPS if number >= f), (1.0, ""))
    return f"{number / factor:.4g} {prefix}{unit}"


def duration_text(seconds: float) -> str:
    """A long time for a reader: hours below two days, then days, then years."""
    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.3g} h" if hours >= 1 else seconds_text(seconds)
    days = hours / 24
    return f"{days:,.3g} days" if days < 730 else f"{days / 365.25:,.1f} years"


def dollars_text(dollars: float) -> str:
    """Dollars for a reader, to three digits or so."""
    for factor, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if dollars >= factor:
            return f"{dollars / factor:,.4g}{suffix}USD"
    return f"{dollars:,.2f} USD"
