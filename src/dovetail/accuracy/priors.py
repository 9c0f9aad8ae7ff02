"""Priors of the fitted numbers, as data."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Annotated

from pydantic import Field

from dovetail.accuracy.parameters import Parameter, Prior
from dovetail.documents import Spec, parse_document, validate

_Positive = Annotated[float, Field(gt=0, le=100)]


class _Spread(Spec):
    spread: _Positive
    shared: _Positive
    high: _Positive


class _Value(Spec):
    value: _Positive
    source: str
    spread: _Positive | None = None
    """instead of that of its name"""


class _PriorsFile(Spec):
    names: dict[str, _Spread]
    generations: dict[str, dict[str, _Value]]
    frameworks: dict[str, dict[str, _Positive]]


@lru_cache(maxsize=1)
def shipped_priors() -> dict[Parameter, Prior]:
    """The priors of this version's fit."""
    entry = files("dovetail.accuracy") / "data" / "priors.yaml"
    file = validate(_PriorsFile, parse_document(entry.read_text(encoding="utf-8"), "priors", ours=True), "priors")
    priors: dict[Parameter, Prior] = {}
    for group, values in file.generations.items():
        for name, value in values.items():
            priors[Parameter(name, group)] = _prior(file, name, value.value, value.source, value.spread)
    for group, values in file.frameworks.items():
        for name, value in values.items():
            priors[Parameter(name, group)] = _prior(file, name, value, "assumed")
    return priors


def _prior(file: _PriorsFile, name: str, value: float, source: str, wider: float | None = None) -> Prior:
    usual = file.names[name.partition(".")[0]]
    return Prior(value, usual.shared, wider or usual.spread, usual.high, source, unmeasured=wider is not None)
