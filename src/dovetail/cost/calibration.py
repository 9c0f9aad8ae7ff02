"""What chips sustain of their published peaks, as data with sources; never above 1, so bounds stay bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from dovetail import hardware
from dovetail.arrays import Floats
from dovetail.documents import Spec, parse_document, validate
from dovetail.frozen import frozen
from dovetail.hardware import Chip

Basis = Literal["own", "fitted", "transfer", "assumed"]
"""own: measurements its file holds; fitted: runs of this chip at this precision; transfer: runs of its generation, or
of the chip it follows; assumed: no runs at all"""

#: Precisions of a job → the row of a calibration they are priced by.
PRECISION_ROWS: Mapping[str, str] = {"bf16": "half", "fp16": "half", "fp8": "fp8", "fp4": "fp4", "fp32": "half"}


@frozen
class Efficiencies:
    """Parts of a chip's peaks that are sustained; numbers, or arrays over variants that are tried at once."""

    #: large matrix products, at the job's precision and at half precision
    matrix: Floats
    matrix_half: Floats
    attention_forward: Floats
    attention_backward: Floats
    #: streaming kernels, of HBM bandwidth
    memory: Floats
    #: large messages, of the bandwidth inside a node (or rack, or torus)
    link: Floats
    #: and beyond it
    network: Floats
    #: seconds of the shortest kernel
    launch_s: Floats
    #: seconds any collective takes before its first byte
    collective_launch_s: Floats


#: Fields of the efficiencies that are alike at every precision.
OTHERS = (
    "attention_forward", "attention_backward", "memory", "link", "network", "launch_s", "collective_launch_s",
)  # fmt: skip

#: Matrix units under a power cap: power grows about with the square of the clock where voltage follows it, so a part
#: with the peak of its generation's first chip and less power sustains the root of its share of the power.
POWER_EXPONENT = 0.5


@frozen
class Calibration:
    """A chip's efficiencies at a precision, and what they rest on."""

    efficiencies: Efficiencies
    basis: Basis
    generation: str
    #: of own measurements
    source: str = ""
    #: the chip they were made on, if not this one
    measured_on: str = ""
    #: standard deviation of the logarithm of what products sustain, where it is assumed
    spread: float = 0.0

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        if self.basis == "own":
            return f"fitted on this chip's own measurements{source}, the rest as for {self.generation}"
        if self.measured_on:
            of = f"transferred from measurements of {self.measured_on}"
            return f"{of}{source}, the rest as for {self.generation}"
        if self.basis == "fitted":
            return f"fitted on runs of this chip (generation {self.generation})"
        if self.basis == "transfer":
            return f"transferred from generation {self.generation}"
        return f"assumed for {self.generation}"


class Figure(Spec):
    """One number of the calibration."""

    value: Annotated[float, Field(ge=0, le=1)]
    how: Annotated[str, Field(min_length=1, max_length=400)]
    """fitted on what and with which error, or why it is assumed"""
    spread: Annotated[float, Field(gt=0, le=1)] | None = None
    """standard deviation of its logarithm, where no run of its chips determines it"""


class GenerationFigures(Spec):
    """The numbers of a generation of chips, or of a kind of chip without one."""

    matrix: Annotated[dict[Literal["half", "fp8", "fp4"], Figure], Field(min_length=1)]
    attention_forward: Figure
    attention_backward: Figure
    memory: Figure
    link: Figure
    network: Figure
    launch_s: Figure
    collective_launch_s: Figure

    def efficiencies(self, precision: str, measured: Mapping[str, float] = MappingProxyType({})) -> Efficiencies:
        """What holds at a precision, `measured` figures first; one without any takes those of half precision."""
        row = _row(precision)
        matrix = {r: f.value for r, f in self.matrix.items()}
        half = measured.get("matrix.half", matrix["half"])
        return Efficiencies(
            matrix=np.asarray(half if row == "half" else measured.get(f"matrix.{row}", matrix.get(row, half))),
            matrix_half=np.asarray(half),
            **{name: np.asarray(measured.get(name, getattr(self, name).value)) for name in OTHERS},
        )

    def matrix_spread(self, precision: str) -> float:
        """How far, as a logarithm, what products sustain at a precision may be from the figure."""
        matrix = dict(self.matrix.items())
        return matrix.get(_row(precision), matrix["half"]).spread or 0.0


class Generation(GenerationFigures):
    """A generation, the chips it holds for, and those of them with measured runs at a precision."""

    chips: Annotated[tuple[str, ...], Field(strict=False)]
    measured: dict[Literal["half", "fp8", "fp4"], Annotated[tuple[str, ...], Field(strict=False)]]


class CalibrationFile(Spec):
    """The file of calibrations."""

    generations: dict[str, Generation]
    defaults: dict[Literal["gpu", "systolic", "many_core"], GenerationFigures]


def _row(precision: str) -> Literal["half", "fp8", "fp4"]:
    match PRECISION_ROWS[precision]:
        case "fp8":
            return "fp8"
        case "fp4":
            return "fp4"
        case _:
            return "half"


@lru_cache(maxsize=1)
def shipped() -> CalibrationFile:
    """The calibration this version comes with."""
    entry = files("dovetail.cost") / "data" / "calibration.yaml"
    document = parse_document(entry.read_text(encoding="utf-8"), "calibration", ours=True)
    return validate(CalibrationFile, document, "calibration")


def generation_of(name: str) -> str | None:
    """The generation that a chip of the catalogue belongs to, where there is one."""
    return next((group for group, generation in shipped().generations.items() if name in generation.chips), None)


def generation_followed(chip: Chip) -> str | None:
    """The generation whose figures hold for a chip: of the one it follows, of equal hardware, or of its name."""
    if chip.calibrated_as is not None:
        return generation_followed(chip.calibrated_as)
    return generation_of(hardware.listed_as(chip) or chip.name)


@lru_cache(maxsize=256)
def calibration(chip: Chip, precision: str) -> Calibration:
    """A chip's calibration at a precision: its own, else that of the chip it follows, its generation's, its kind's."""
    followed = chip.calibrated_as
    if followed is not None and chip.calibration is None:
        found = calibration(followed, precision)
        if found.basis == "assumed":
            return found
        measured_on = found.measured_on or (followed.name if found.basis == "own" else "")
        return replace(found, basis="transfer", measured_on=measured_on)
    name = generation_followed(chip)
    figures: GenerationFigures
    basis: Basis = "assumed"
    if name is None:
        figures = next(f for k, f in shipped().defaults.items() if k == chip.kind)
    else:
        figures = generation = shipped().generations[name]
        if generation.measured:
            fitted = hardware.listed_as(chip) in dict(generation.measured.items()).get(_row(precision), ())
            basis = "fitted" if fitted else "transfer"
    group = name or chip.kind
    if chip.calibration is None:
        spread = figures.matrix_spread(precision) if basis == "assumed" else 0.0
        return Calibration(figures.efficiencies(precision), basis, group, spread=spread)
    measured = {name: value for each in chip.measurements for name, value in each.values}
    return Calibration(figures.efficiencies(precision, measured), "own", group, chip.calibration.source)


@lru_cache(maxsize=256)
def power_share(chip: Chip) -> float:
    """The part of its matrix rate that a chip's power lets it sustain, of what its generation's first chip does.

    A chip that follows another sustains as much as that one: what a design draws is an estimate.
    """
    if chip.calibrated_as is not None:
        return power_share(chip.calibrated_as)
    name = generation_followed(chip)
    if name is None:
        return 1.0
    first = hardware.chip(shipped().generations[name].chips[0])
    if chip.dense_flops != first.dense_flops or not chip.tdp_w or not first.tdp_w:
        return 1.0
    return min(1.0, (chip.tdp_w / first.tdp_w) ** POWER_EXPONENT)
