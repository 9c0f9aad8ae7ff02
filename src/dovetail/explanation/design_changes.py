"""Designs one step away from another: each variable 10 % larger, and its next values in the space."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from dovetail.exploration.position import Position
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.frozen import frozen
from dovetail.hardware.design_space.space import Axis, DesignSpace
from dovetail.hardware.design_space.variable import BOUNDS

#: How much more there is of a variable whose value is asked for; whole numbers rise by one at least.
MORE = 1.1
#: Variables that are a choice and no amount.
_CHOICES = ("output_stationary", "narrowest_bits")

Step = Literal["+10 %", "next larger", "next smaller", "other"]
#: In the order in which they are looked at.
STEPS: tuple[Step, ...] = ("+10 %", "next larger", "next smaller", "other")


@frozen
class DesignChange:
    """A change of one variable, or of several that go together."""

    #: the variable, or what the space calls several
    name: str
    step: Step
    #: variable → its value before and after
    values: Mapping[str, tuple[float, float]]
    #: where the changed design is in the study
    position: int
    #: the candidate it is; None if it is none of the space
    code: int | None

    @property
    def words(self) -> str:
        """In a few words."""
        return f"{self.name} {self.step}"

    def of(self, space: DesignSpace, design: int) -> DesignSpace:
        """The changed design, as a space of its own."""
        return alone(space, design, {name: after for name, (_, after) in self.values.items()})


def alone(space: DesignSpace, design: int, values: Mapping[str, float] | None = None) -> DesignSpace:
    """A design as a space of its own, with other values of some variables; what is derived follows."""
    designs, changed = space.designs([design]), values or {}
    axes = tuple(
        Axis(axis.name, {name: np.array([changed.get(name, _value(designs.value(name)))]) for name in axis.values})
        for axis in space.axes
    )
    return replace(space, axes=axes)


def design_changes(study: ResolvedStudy, code: int) -> list[DesignChange]:
    """All changes of a candidate, those of 10 % first."""
    changes = [*_of_variables(study, code), *_of_positions(study, code)]
    # a tenth more may be the next value of the space
    listed = [change.values for change in changes if change.code is not None]
    once = [change for change in changes if change.code is not None or change.values not in listed]
    return sorted(once, key=lambda change: STEPS.index(change.step))


def _of_variables(study: ResolvedStudy, code: int) -> Iterator[DesignChange]:
    position, design = study.located(code)
    number, space = int(np.searchsorted(study.firsts, code, side="right")) - 1, position.space
    places = _places(space, design)
    for n, axis in enumerate(space.axes):
        before = {name: float(column[places[n]]) for name, column in axis.values.items()}
        for name, value in before.items():
            larger = _larger(name, value)
            if larger is not None:
                yield DesignChange(name, "+10 %", {name: (value, larger)}, number, None)
        for step, row in _next_rows(axis, places[n]):
            after = {name: float(column[row]) for name, column in axis.values.items()}
            values = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
            there = _index(space, [*places[:n], row, *places[n + 1 :]])
            yield DesignChange(axis.name, step, values, number, int(study.codes(number, np.array([there]))[0]))


def _of_positions(study: ResolvedStudy, code: int) -> Iterator[DesignChange]:
    """The same design in the next numbers of chips, and on other networks."""
    position, design = study.located(code)
    alike = [(n, p) for n, p in enumerate(study.positions) if _same_hardware(p, position) and p is not position]
    same_network = [(n, p) for n, p in alike if p.network == position.network]
    larger = [(p.count, n) for n, p in same_network if p.count > position.count]
    smaller = [(-p.count, n) for n, p in same_network if p.count < position.count]
    steps: list[tuple[Step, list[tuple[int, int]]]] = [("next larger", larger), ("next smaller", smaller)]
    for step, numbers in steps:
        if numbers:
            _, number = min(numbers)
            name = "wafers" if position.of_wafers else "chips"
            values = {name: (float(position.count), float(study.positions[number].count))}
            yield DesignChange(name, step, values, number, int(study.codes(number, np.array([design]))[0]))
    for number, other in alike:
        if other.count == position.count and other.network != position.network:
            name = f"network {other.network}"
            yield DesignChange(name, "other", {}, number, int(study.codes(number, np.array([design]))[0]))


def _same_hardware(one: Position, other: Position) -> bool:
    return one.name == other.name and one.reference == other.reference


def _larger(name: str, value: float) -> float | None:
    """A tenth more of a variable; None if there is none."""
    bounds = BOUNDS[name]
    if name in _CHOICES or bounds.only or not value or not math.isfinite(value):
        return None
    larger = max(math.floor(MORE * value + 0.5), value + 1) if bounds.quantity is None else MORE * value
    return float(larger) if bool(bounds.hold(np.asarray(float(larger)))) else None


def _next_rows(axis: Axis, row: int) -> Iterator[tuple[Step, int]]:
    """Rows of an axis next to one: by value, or in the order of the file where several variables go together."""
    names = list(axis.values)
    if len(names) > 1:
        order = np.arange(len(axis))
    else:
        (column,) = axis.values.values()
        if names[0] in _CHOICES:
            for other in range(len(axis)):
                if other != row:
                    yield "other", other
            return
        order = np.argsort(column, kind="stable")
    place = int(np.nonzero(order == row)[0][0])
    if place + 1 < len(order):
        yield "next larger", int(order[place + 1])
    if place > 0:
        yield "next smaller", int(order[place - 1])


def _places(space: DesignSpace, design: int) -> list[int]:
    """The row of each axis that a design has."""
    places: list[int] = []
    for axis in reversed(space.axes):
        design, place = divmod(design, len(axis))
        places.append(place)
    return places[::-1]


def _index(space: DesignSpace, places: Sequence[int]) -> int:
    """The design with these rows of the axes."""
    index = 0
    for axis, place in zip(space.axes, places, strict=True):
        index = index * len(axis) + place
    return index


def _value(values: np.ndarray) -> float:
    return float(np.ravel(values)[0])
