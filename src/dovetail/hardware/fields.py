"""What a field of a hardware file may hold: quantities with their unit, bounded far above any hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from dovetail.errors import InputError, one_of
from dovetail.units import parse

#: What is unsure, by field; pairs rather than a mapping, so that what holds them can be hashed and sent elsewhere.
Doubts = tuple[tuple[str, str], ...]


def _measured_in(quantity: str) -> BeforeValidator:
    def read(value: object) -> float:
        return parse(value, quantity, "")

    return BeforeValidator(read)


_TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})

Bytes = Annotated[float, Field(le=1e18), _measured_in("bytes"), _TEXT_OR_NUMBER]
SomeBytes = Annotated[float, Field(gt=0, le=1e18), _measured_in("bytes"), _TEXT_OR_NUMBER]
BytesPerS = Annotated[float, Field(le=1e18), _measured_in("bytes_per_s"), _TEXT_OR_NUMBER]
SomeBytesPerS = Annotated[float, Field(gt=0, le=1e18), _measured_in("bytes_per_s"), _TEXT_OR_NUMBER]
Seconds = Annotated[float, Field(le=1.0), _measured_in("s"), _TEXT_OR_NUMBER]
Hertz = Annotated[float, Field(ge=1e6, le=1e11), _measured_in("hz"), _TEXT_OR_NUMBER]
Flops = Annotated[float, Field(gt=0, le=1e21), _measured_in("flops"), _TEXT_OR_NUMBER]
Watts = Annotated[float, Field(gt=0, le=1e6), _measured_in("w"), _TEXT_OR_NUMBER]
Joules = Annotated[float, Field(gt=0, le=1.0), _measured_in("j"), _TEXT_OR_NUMBER]
SquareMillimetres = Annotated[float, Field(gt=0, le=1e6), _measured_in("mm2"), _TEXT_OR_NUMBER]
Millimetres = Annotated[float, Field(le=1e4), _measured_in("mm"), _TEXT_OR_NUMBER]
SomeMillimetres = Annotated[float, Field(gt=0, le=1e4), _measured_in("mm"), _TEXT_OR_NUMBER]
Dollars = Annotated[float, Field(gt=0, le=1e9), _measured_in("usd"), _TEXT_OR_NUMBER]

Count = Annotated[int, Field(ge=1, le=2**24)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, Field(max_length=2000)]
DoubtTexts = Annotated[dict[str, Annotated[str, Field(min_length=1, max_length=2000)]], Field(max_length=100)]


def doubts_of(texts: Mapping[str, str], names: Iterable[str]) -> Doubts:
    """The doubts of a file in order; each must be about something the file can hold."""
    names = set(names)
    for name in texts:
        if name not in names:
            raise InputError(f"doubts.{name}", "is not about a field of this file", one_of(names, name))
    return tuple(texts.items())
