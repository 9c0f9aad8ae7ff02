"""Efficiencies of chip generations, as data with sources; never above 1, so bounds stay bounds."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import Field

from dovetail.documents import Spec, parse_document, validate

Fraction = Annotated[float, Field(gt=0, le=1)]
Overhead = Annotated[float, Field(ge=0, le=1)]


class Calibration(Spec):
    """What a generation of chips sustains of its published peaks."""

    source: str
    matrix: Fraction
    """large matrix products"""
    attention_forward: Fraction
    attention_backward: Fraction
    memory: Fraction
    """streaming kernels, of HBM bandwidth"""
    collective: Fraction
    """large messages, of link bandwidth"""
    launch_s: Overhead
    """one kernel"""
    collective_launch_s: Overhead


class Generation(Calibration):
    """A calibration and the chips it holds for."""

    chips: Annotated[tuple[str, ...], Field(strict=False)]


class CalibrationFile(Spec):
    """The file of calibrations."""

    generations: dict[str, Generation]
    defaults: dict[Literal["gpu", "systolic", "many_core"], Calibration]


@lru_cache(maxsize=1)
def _file() -> CalibrationFile:
    entry = files("dovetail.cost") / "data" / "calibration.yaml"
    return validate(CalibrationFile, parse_document(entry.read_text(encoding="utf-8"), "calibration"), "calibration")


def calibration(chip: str, kind: str) -> tuple[Calibration, str]:
    """A chip's calibration and what it rests on: its generation, or an assumption for its kind."""
    for name, generation in _file().generations.items():
        if chip in generation.chips:
            return generation, f"generation {name}"
    return next(c for k, c in _file().defaults.items() if k == kind), f"assumed for {kind}"
