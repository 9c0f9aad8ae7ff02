"""A design-space file: a base chip or wafer, axes of values, formulas and limits."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from pydantic import Field, model_validator

from dovetail.arrays import TOLERANCE, Floats
from dovetail.documents import Spec, validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.expression import FUNCTIONS, Expression, parse_expression
from dovetail.hardware.design_space.scope import KNOWN, SILICON, WAFER_KNOWN, Formulas
from dovetail.hardware.design_space.space import Axis, DesignSpace
from dovetail.hardware.design_space.table import TableSpec, read_table
from dovetail.hardware.design_space.variable import (
    DATAFLOW,
    WRITTEN,
    is_power_of_two,
    read_quantity,
    read_value,
    variable_of,
)
from dovetail.hardware.fields import Name, Text
from dovetail.hardware.silicon.wafer_check import RULES
from dovetail.hardware.technology import End, Technology
from dovetail.hardware.wafer_design import WAFER_VARIABLES, WaferDesigns

MAX_AXIS_VALUES = 10**6
MAX_DESIGNS = 10**15

STORE = ("store_bytes", "store_bytes_per_s")
#: A store has a size and a rate, or there is none.
WHOLE_STORE = "store_bytes == store_bytes_per_s == 0 or min(store_bytes, store_bytes_per_s) > 0"

Words = Annotated[str, Field(min_length=1, max_length=2000)]


class SpaceSpec(Spec):
    """A design-space file as it stands; what is in its parts is read one by one, for a sentence about each."""

    name: Name
    base: Words | None = None
    """a chip of the catalogue, a path of a chip file, or a chip written out (which is read before this)"""
    wafer: Words | None = None
    """the same for a wafer: designs are wafers, and keep every physical rule before any limit"""
    technology: Words | None = None
    """of the catalogue, or a path; left out: that of the base"""
    coefficients: End = "value"
    """which end of the technology's figures the silicon estimate uses"""
    shares_cores: bool | None = None
    """whether operators of a layer run side by side on parts of a chip's cores; left out: as on the base"""
    set: dict[str, Any] = Field(default_factory=dict, max_length=100)
    """variables that have another value than in the base"""
    vary: dict[str, Any] = Field(min_length=1, max_length=40)
    """axes in order; the last varies fastest"""
    derive: dict[str, Any] = Field(default_factory=dict, max_length=40)
    """variables computed from others, in order"""
    define: dict[str, Any] = Field(default_factory=dict, max_length=100)
    """names of one's own for use below"""
    references: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=100)
    """designs to compare with: the base with some values changed"""
    limits: Annotated[tuple[Any, ...], Field(strict=False, max_length=100)] = ()
    """conditions every design kept fulfils"""
    source: Text = ""

    @model_validator(mode="after")
    def _based(self) -> SpaceSpec:
        if self.base is None and self.wafer is None:
            raise InputError("base", "is missing", "add this field")
        if self.base is not None and self.wafer is not None:
            raise InputError("wafer", "cannot be combined with base", "drop one of them")
        return self

    def space(self, start: Designs, technology: Technology | None, where: str, folder: Path) -> DesignSpace:
        """The design space around a chip or wafer; paths of its tables begin at `folder`."""
        base = start.base
        axes = tuple(_axis(name, entry, f"{where}: vary.{name}", folder) for name, entry in self.vary.items())
        changed = _values(self.set, f"{where}: set")
        named = [*(n for axis in axes for n in axis.values), *changed, *self.derive]
        _check_wafers([*named, *(n for one in self.references.values() for n in one)], start, technology, where)
        fixed = start.varied({name: np.asarray(value) for name, value in changed.items()})
        once = [(f"vary.{axis.name}", name) for axis in axes for name in axis.values]
        once += [(f"set.{name}", name) for name in changed] + [(f"derive.{name}", name) for name in self.derive]
        _check_once(once, where)
        given = [name for _, name in once] + [name for values in self.references.values() for name in values]
        if base.kind != "systolic" and any(name in ("output_stationary", DATAFLOW) for name in given):
            fix = f"leave it out: {base.name} is a {base.kind} chip"
            raise InputError(f"{where}: {DATAFLOW}", "belongs to systolic arrays", fix)
        if self.shares_cores is not None and (base.kind != "systolic" or isinstance(start, WaferDesigns)):
            fix = "leave it out: only spaces of systolic chips have it"
            raise InputError(f"{where}: shares_cores", f"cannot be combined with {base.name}", fix)
        size = math.prod(len(axis) for axis in axes)
        if size > MAX_DESIGNS:
            fix = f"keep it to {MAX_DESIGNS:.0e}: fewer values or axes"
            raise InputError(f"{where}: vary", f"makes {size:.3g} designs", fix)
        formulas = self._formulas(technology, fixed, where)
        physics = [f"{figure} <= 1" for figure in RULES.values()] if formulas.wafer else []
        physics += [WHOLE_STORE] if _may_have_half_a_store(fixed, axes, self.derive) else []
        limits = _limits((*physics, *self.limits), formulas, where, len(physics))
        return DesignSpace(self.name, fixed, axes, formulas, limits, self.source, shares_cores=self.shares_cores)

    def _formulas(self, technology: Technology | None, fixed: Designs, where: str) -> Formulas:
        """Every expression but the limits, each checked against the names it may use."""
        wafer = isinstance(fixed, WaferDesigns)
        _check_defined_names([*self.define, *self.references], WAFER_KNOWN if wafer else KNOWN, where)
        derived = {
            name: parse_expression(text, f"{where}: derive.{name}", "number") for name, text in self.derive.items()
        }
        defined = {
            name: parse_expression(text, f"{where}: define.{name}", "number") for name, text in self.define.items()
        }
        given = {name: _values(values, f"{where}: references.{name}") for name, values in self.references.items()}
        # one design as an array of one: the same arithmetic as for many
        designs = {
            name: fixed.varied({n: np.asarray([value]) for n, value in (_single(fixed) | values).items()})
            for name, values in given.items()
        }
        bare = Formulas(tuple(derived.items()), defined, designs, technology, self.coefficients, wafer)
        _check_defined(bare, where)
        _check_derived(bare, where)
        completed = {name: bare.completed(one, given[name]) for name, one in designs.items()}
        return Formulas(bare.derived, defined, completed, technology, self.coefficients, wafer)


def _single(fixed: Designs) -> dict[str, float]:
    return {name: float(fixed.value(name)) for name in fixed.variables}


def _check_wafers(names: Iterable[str], start: Designs, technology: Technology | None, where: str) -> None:
    """Variables of wafers stand in spaces of wafers, which need a technology and whose dies have four edges."""
    wafer = isinstance(start, WaferDesigns)
    if wafer and technology is None:
        raise InputError(f"{where}: technology", "is missing", "name one: whether a wafer can be built depends on it")
    for name in names:
        if name in WAFER_VARIABLES and not wafer:
            raise InputError(f"{where}: {name}", "belongs to wafers", "name a wafer instead of a base")
        if name in ("link_ports", "dies") and wafer:
            raise InputError(f"{where}: {name}", "is the same for all wafers", "leave it out: a die has four edges")


def _may_have_half_a_store(fixed: Designs, axes: Iterable[Axis], derived: Iterable[str]) -> bool:
    """Whether some combination may have a store's size without its rate, or the other way round."""
    if not isinstance(fixed, WaferDesigns):
        return False
    columns = {name: fixed.value(name) for name in STORE}
    columns |= {name: column for axis in axes for name, column in axis.values.items() if name in STORE}
    alike = {bool(there) for column in columns.values() for there in np.ravel(column > 0)}
    return len(alike) > 1 or not set(STORE).isdisjoint(derived)


def _values(written: Mapping[str, object], where: str) -> dict[str, float]:
    """Values of variables as a file writes them, by the variable's own name."""
    values = {variable_of(n, f"{where}.{n}"): read_value(n, value, f"{where}.{n}") for n, value in written.items()}
    if len(values) < len(written):
        raise InputError(where, f"gives {DATAFLOW} and output_stationary", "drop one of them")
    return values


def _check_once(names: Iterable[tuple[str, str]], where: str) -> None:
    """A variable is given in one place."""
    seen: dict[str, str] = {}
    for place, written in names:
        name = variable_of(written, f"{where}: {place}")
        if written == DATAFLOW and place.startswith("derive"):
            raise InputError(f"{where}: {place}", "is a word", "derive output_stationary, which is 0 or 1")
        if name in seen:
            raise InputError(f"{where}: {place}", f"gives {name}, as {seen[name]} does", "drop one of them")
        seen[name] = place


def _check_defined_names(names: Iterable[str], reserved: Iterable[str], where: str) -> None:
    taken = {*reserved, *FUNCTIONS}
    for name in names:
        if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or len(name) > 100:
            fix = "use letters, digits and underscores"
            raise InputError(f"{where}: {quoted(name)}", "cannot be used in an expression", fix)
        if name in taken:
            raise InputError(f"{where}: {name}", "is already taken", "choose another name")
        taken.add(name)


def _check_defined(formulas: Formulas, where: str) -> None:
    """A definition uses what is known and definitions above it, so none goes round in a circle."""
    above: dict[str, Expression] = {}
    for name, expression in formulas.defined.items():
        so_far = Formulas(formulas.derived, above, formulas.references, formulas.technology, wafer=formulas.wafer)
        so_far.check_names(expression, f"{where}: define.{name}")
        above = {**above, name: expression}


def _check_derived(formulas: Formulas, where: str) -> None:
    """A variable is derived from those known by then: not from itself, a later one, or the finished silicon."""
    later = list(dict(formulas.derived))
    for name, expression in formulas.derived:
        at = f"{where}: derive.{name}"
        formulas.check_names(expression, at)
        for used in (u for part in expression.names for u in formulas.uses(part)):
            if used in later:
                raise InputError(at, f"needs {used}, which is not derived yet", "derive it before")
            if used in SILICON or used in formulas.references:
                fix = "use variables and what follows from them"
                raise InputError(at, f"needs {used}, which is known only once the design is complete", fix)
        later.remove(name)


def _limits(texts: Iterable[object], formulas: Formulas, where: str, ours: int) -> tuple[Expression, ...]:
    """Limits, of which the first so many are not the file's."""
    limits: list[Expression] = []
    for number, text in enumerate(texts, -ours):
        at = f"{where}: limits.{number}"
        limit = parse_expression(text, at, "condition")
        formulas.check_names(limit, at)
        if any(limit.text == other.text for other in limits):
            raise InputError(at, f"{quoted(limit.text)} is given twice", "drop one of them")
        limits.append(limit)
    return tuple(limits)


_Ends = Annotated[tuple[Any, ...], Field(strict=False, min_length=2, max_length=2)]


class StepsSpec(Spec):
    """Values from one end to another, both included: powers of two, or equal steps."""

    powers_of_two: _Ends | None = None
    range: _Ends | None = None
    step: Any = None
    """of a range; 1 unless given"""


def _axis(name: str, entry: object, where: str, folder: Path) -> Axis:
    """An axis: values of a variable, or, under a name of its own, several variables that go together."""
    if name in WRITTEN:
        values = _axis_values(name, entry, where)
        return Axis(name, {variable_of(name, where): np.asarray(values, np.float64)})
    if isinstance(entry, Mapping) and "table" in entry:
        table = validate(TableSpec, cast("Mapping[str, Any]", entry), where)
        return Axis(name, read_table(table, where, folder))
    rows = cast("list[object]", entry) if isinstance(entry, list) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        fix = f"{one_of(WRITTEN, name)}; an axis of several variables is a list of mappings or a table"
        raise InputError(where, "is not a variable of a design", fix)
    return Axis(name, _tied(cast("list[Mapping[str, object]]", rows), where))


def _axis_values(name: str, entry: object, where: str) -> list[float]:
    if isinstance(entry, Mapping):
        steps = validate(StepsSpec, cast("Mapping[str, Any]", entry), where)
        if steps.powers_of_two is not None and steps.range is None and steps.step is None:
            return _powers(name, steps.powers_of_two, f"{where}.powers_of_two")
        if steps.range is not None and steps.powers_of_two is None:
            return _steps(name, steps.range, 1 if steps.step is None else steps.step, where)
        entry = None
    values = cast("list[object]", entry) if isinstance(entry, list) else []
    if not values:
        fix = "give a list, {powers_of_two: [1, 64]} or {range: [1, 8], step: 1}"
        raise InputError(where, "is not a list of values", fix)
    _check_length(len(values), where)
    numbers = [read_value(name, value, f"{where}.{n}") for n, value in enumerate(values)]
    first = {value: n for n, value in reversed(list(enumerate(numbers)))}
    for n, value in enumerate(numbers):
        if first[value] < n:
            raise InputError(where, f"has {quoted(values[n])} twice", "give each value once")
    return numbers


def _powers(name: str, ends: tuple[object, ...], where: str) -> list[float]:
    low, high = (read_value(name, end, where) for end in ends)
    for end, value in zip(ends, (low, high), strict=True):
        if not is_power_of_two(value):
            near = 2.0 ** round(math.log2(value)) if value > 0 else 1
            raise InputError(where, f"{quoted(end)} is not a power of two", f"the nearest is {near:,.0f}")
    if high < low:
        raise InputError(where, "are in the wrong order", "give the lower end first")
    return [2.0**n for n in range(round(math.log2(low)), round(math.log2(high)) + 1)]


def _steps(name: str, ends: tuple[object, ...], by: object, where: str) -> list[float]:
    low, high = (read_value(name, end, f"{where}.range") for end in ends)
    step = read_quantity(name, by, f"{where}.step") if name != DATAFLOW else 1.0
    if step <= 0:
        raise InputError(f"{where}.step", f"is {quoted(by)}", "it should be more than 0")
    if high < low:
        raise InputError(f"{where}.range", "is in the wrong order", "give the lower end first")
    # steps as 0.1 GHz are no exact numbers: the last value counts when it is reached but for rounding
    number = math.floor(min((high - low) / step, 1e15) + TOLERANCE) + 1
    _check_length(number, where)
    return [min(low + n * step, high) for n in range(number)]


def _tied(rows: list[Mapping[str, object]], where: str) -> dict[str, Floats]:
    _check_length(len(rows), where)
    entries = [_values(row, f"{where}.{n}") for n, row in enumerate(rows)]
    names = list(entries[0])
    seen: set[frozenset[tuple[str, float]]] = set()
    for n, row in enumerate(entries):
        if set(row) != set(names) or not names:
            fix = f"every entry should give {', '.join(names) or 'the same variables'}"
            raise InputError(f"{where}.{n}", f"gives {', '.join(row) or 'nothing'}", fix)
        choice = frozenset(row.items())
        if choice in seen:
            raise InputError(f"{where}.{n}", "is given twice", "give each choice once")
        seen.add(choice)
    return {name: np.asarray([row[name] for row in entries]) for name in names}


def _check_length(number: int, where: str) -> None:
    if number > MAX_AXIS_VALUES:
        raise InputError(where, f"has {number:,} values", f"an axis has at most {MAX_AXIS_VALUES:,}: take larger steps")
