"""Design spaces: every combination of some variables' values, numbered once and for all, sieved in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from dovetail.arrays import ROUNDING, Bools, Floats, Ints
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.hardware.chip import Chip
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.expression import Expression
from dovetail.hardware.design_space.scope import Formulas, Scope
from dovetail.hardware.design_space.sieve import Rule, Sieve
from dovetail.hardware.design_space.variable import read_value, variable_of
from dovetail.hardware.wafer import Wafer
from dovetail.hardware.wafer_design import WaferDesigns

#: Designs looked at together: arrays of this length stay in a core's cache.
BATCH_ROWS = 2**17
MAX_ROWS = 2**24
#: Up to this size a sample looks at every design; in larger spaces designs are drawn until enough are kept.
_SMALL = 2**20
_DRAWS = 2**16
_ROUNDS = 64


@frozen
class Axis:
    """Values a design takes one of: of one variable, or of several that go together."""

    name: str
    values: Mapping[str, Floats]
    """variable → its values, as many for each"""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


@frozen
class DesignBatch:
    """Designs a space keeps, and their indices."""

    designs: Designs
    """variables that differ within the space as arrays of one dimension, the others as single numbers"""
    index: Ints

    def __len__(self) -> int:
        return len(self.index)


@frozen
class DesignCounts:
    """What became of the designs of a space."""

    size: int
    kept: int
    left_out: dict[str, int]
    """limit → designs that keep all limits above it and break this one"""
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """figure → its least and greatest value over the designs kept"""


@frozen
class DesignSpace:
    """Designs around a chip or wafer: the index counts through the axes, the last one fastest, whatever the limits."""

    name: str
    fixed: Designs
    """one design: what no axis and no formula changes"""
    axes: tuple[Axis, ...]
    formulas: Formulas
    limits: tuple[Expression, ...] = ()
    source: str = ""
    technology_name: str | None = None
    """what its chips call their technology: its name in the catalogue, None where it is not of the catalogue"""
    shares_cores: bool | None = None
    """whether operators run side by side on parts of a chip's cores; None: as on the base"""

    @property
    def base(self) -> Chip:
        """The chip all designs start from."""
        return self.fixed.base

    @property
    def wafer(self) -> Wafer | None:
        """The wafer all designs start from; None where they are chips."""
        return self.fixed.wafer if isinstance(self.fixed, WaferDesigns) else None

    @property
    def size(self) -> int:
        """Designs before any limit."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def variables(self) -> tuple[str, ...]:
        """What differs between designs: the variables of axes, and those derived."""
        return tuple(dict.fromkeys([*(n for axis in self.axes for n in axis.values), *dict(self.formulas.derived)]))

    def designs(self, indices: Sequence[int] | Ints) -> Designs:
        """Any designs by their indices, kept or not."""
        return self.formulas.completed(self.fixed.varied(self._columns(self._checked(indices))))

    def batches(
        self, rows: int = BATCH_ROWS, start: int = 0, stop: int | None = None, left_out: dict[str, int] | None = None
    ) -> Iterator[DesignBatch]:
        """The designs kept, in order of their index, from `start` to before `stop`; at most `rows` looked at a time.

        To `left_out` is added how many designs each limit leaves out, as in `count`.
        """
        for first, sieve in self._sieved(rows, start, stop):
            if left_out is not None:
                for text, number in sieve.left_out.items():
                    left_out[text] = left_out.get(text, 0) + number
            if sieve.kept:
                designs, positions = sieve.survivors(self.variables)
                yield DesignBatch(designs, first + positions)

    def count(
        self, ranges: Iterable[str] = (), rows: int = BATCH_ROWS, start: int = 0, stop: int | None = None
    ) -> DesignCounts:
        """How many designs each limit leaves out, how many are kept, and the ends between which some figures lie."""
        names = [self._checked_name(name) for name in ranges]
        left_out = {rule.text: 0 for rule in self.rules}
        ends = dict.fromkeys(names, (math.inf, -math.inf))
        size = remaining = 0
        for _, sieve in self._sieved(rows, start, stop):
            size, remaining = size + sieve.size, remaining + sieve.kept
            for text, number in sieve.left_out.items():
                left_out[text] += number
            for name in names if sieve.kept else ():
                low, high = sieve.ends(name)
                ends[name] = min(ends[name][0], low), max(ends[name][1], high)
        ranges_left = {name: (low, high) for name, (low, high) in ends.items() if low <= high}
        return DesignCounts(size, remaining, left_out, ranges_left)

    def broken(self, rows: int = BATCH_ROWS) -> dict[str, int]:
        """Limit → designs that break it, whatever else they break."""
        broken_by = {rule.text: 0 for rule in self.rules}
        for _, shape, columns in self._blocks(self._looked_at(rows), 0, self.size):
            scope = Scope(self.formulas.completed(self.fixed.varied(columns)), self.formulas)
            for rule in self.rules:
                holds = np.broadcast_to(rule.holds(scope), shape)
                broken_by[rule.text] += holds.size - int(np.count_nonzero(holds))
        return broken_by

    def keeps(self, indices: Sequence[int] | Ints) -> Bools:
        """Whether designs keep every limit."""
        designs = self.designs(indices)
        sieve = Sieve(designs, (len(indices),), self.rules, self.formulas)
        result = np.zeros(len(indices), np.bool_)
        result[sieve.positions()] = True
        return result

    def values(self, name: str, designs: Designs) -> Floats:
        """A figure of designs of this space, by any name its limits could use."""
        return np.broadcast_to(Scope(designs, self.formulas)(self._checked_name(name)), designs.shape)

    def index_of(self, values: Mapping[str, object]) -> int:
        """The index of the design with these values of the variables that are varied; texts with units are read too."""
        asked = {variable_of(name, name): read_value(name, value, name) for name, value in values.items()}
        varied = [name for axis in self.axes for name in axis.values]
        for name in (n for n in asked if n not in varied):
            raise InputError(name, f"is not varied in {self.name}", one_of(varied, name))
        index = 0
        for axis in self.axes:
            match = np.ones(len(axis), np.bool_)
            for name, column in axis.values.items():
                if name not in asked:
                    raise InputError(name, "is missing", f"say which value of {axis.name} the design has")
                # values in steps of 0.05 GHz are no exact numbers
                match &= np.isclose(column, asked[name], rtol=ROUNDING, atol=0.0)
            if not match.any():
                given = ", ".join(f"{name} {asked[name]:.15g}" for name in axis.values)
                raise InputError(axis.name, f"{given} is not one of its values", _choices(axis))
            index = index * len(axis) + int(match.argmax())
        return index

    def sample(self, number: int, seed: int) -> DesignBatch:
        """Designs drawn at random from those kept, each at most once, by index; fewer where fewer are found."""
        if number < 1:
            raise InputError("number", f"is {number}", "draw at least one design")
        random = np.random.default_rng(seed)
        if self.size <= _SMALL:
            feasible = np.concatenate([np.empty(0, np.int64), *(batch.index for batch in self.batches())])
            sampled = random.choice(feasible, min(number, len(feasible)), replace=False)
        else:
            sampled = np.empty(0, np.int64)
            for _ in range(_ROUNDS + number // _DRAWS):
                drawn = random.integers(0, self.size, _DRAWS)
                both = np.concatenate([sampled, drawn[self.keeps(drawn)]])
                sampled = both[np.sort(np.unique(both, return_index=True)[1])]
                if len(sampled) >= number:
                    break
        indices = np.sort(sampled[:number])
        return DesignBatch(self.designs(indices), indices)

    def chip(self, index: int) -> Chip:
        """One design as a chip, with area and power of the silicon estimate; what a seller would ask nobody knows."""
        return self.chips([index])[0]

    def chips(self, indices: Sequence[int] | Ints) -> list[Chip]:
        """Designs as chips."""
        numbers = np.asarray(indices).tolist()
        sources = [f"design {index} of the design space {self.name}, from {self.base.name}" for index in numbers]
        return self.chips_of(self.designs(indices), [f"{self.name}-{index}" for index in numbers], sources)

    def chips_of(self, designs: Designs, names: Sequence[str], sources: Sequence[str]) -> list[Chip]:
        """Designs as chips, of this space or between those of it."""
        common: dict[str, Any] = dict(self.made_in())
        if self.shares_cores is not None:
            common["shares_cores"] = self.shares_cores
        figures: dict[str, Floats] = {}
        if self.formulas.technology is not None:
            figures = {"area_mm2": self.values("area_mm2", designs), "tdp_w": self.values("peak_power_w", designs)}
        chips: list[Chip] = []
        for position, (name, source) in enumerate(zip(names, sources, strict=True)):
            estimated = {figure: float(np.ravel(values)[position]) for figure, values in figures.items()}
            chip = designs.chip(position, name)
            chips.append(replace(chip, source=source, **common, **estimated))
        return chips

    def made_in(self) -> dict[str, str | None]:
        """What chips of the space say of their technology; nothing where there is none."""
        technology = self.formulas.technology
        if technology is None:
            return {}
        node = self.base.node if technology.name == self.base.technology else technology.name
        return {"technology": self.technology_name, "node": node}

    def wafers(self, indices: Sequence[int] | Ints) -> list[Wafer]:
        """Designs of a space of wafers as wafers without defects."""
        designs, base = self.designs(indices), self.wafer
        if base is None or not isinstance(designs, WaferDesigns):
            raise InputError(self.name, "is a space of chips", "ask for its chips")
        # in proportion to what was published of the base's die, as the limits have it; else a check estimates them
        scaled = {"area_mm2": "area_mm2", "tdp_w": "die_power_w"}
        published = {name: figure for name, figure in scaled.items() if getattr(base.die, name) is not None}
        figures = {name: self.values(figure, designs) for name, figure in published.items()}
        wafers: list[Wafer] = []
        for position, index in enumerate(np.asarray(indices).tolist()):
            wafer = designs.wafer_at(position, f"{self.name}-{index}")
            source = f"design {index} of the design space {self.name}, from {base.name}"
            estimated: dict[str, Any] = {name: float(values[position]) for name, values in figures.items()}
            wafers.append(replace(wafer, die=replace(wafer.die, source=source, **estimated), source=source))
        return wafers

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What a design must keep, in order: derived variables within their bounds, then the limits."""
        return (*(Rule.bounds(name) for name, _ in self.formulas.derived), *map(Rule.limit, self.limits))

    def _checked_name(self, name: str) -> str:
        self.formulas.check_name(name, self.name)
        return name

    def _checked(self, indices: Sequence[int] | Ints) -> Ints:
        array = np.asarray(indices)
        wrong = array.ndim != 1 or (array.size and array.dtype.kind not in "iu")
        if wrong or (array.size and not (array.min() >= 0 and array.max() < self.size)):
            raise InputError(
                "index", f"is {quoted(indices)}", f"they should be whole numbers from 0 to {self.size - 1}"
            )
        return array.astype(np.int64)

    def _columns(self, index: Ints) -> dict[str, Floats]:
        columns: dict[str, Floats] = {}
        for axis in reversed(self.axes):
            index, position = np.divmod(index, len(axis))
            columns |= {name: column.take(position) for name, column in axis.values.items()}
        return columns

    def _sieved(self, rows: int, start: int, stop: int | None) -> Iterator[tuple[int, Sieve]]:
        """The space block after block: the index of a block's first design, and what is left of its designs."""
        rows = self._looked_at(rows)
        stop = self.size if stop is None else stop
        if not 0 <= start <= stop <= self.size:
            raise InputError("start, stop", f"are {start} and {stop}", f"they should lie within 0 and {self.size}")
        rules = self.rules
        for first, shape, columns in self._blocks(rows, start, stop):
            designs = self.formulas.completed(self.fixed.varied(columns))
            inside = (max(start - first, 0), min(stop - first, math.prod(shape)))
            yield first, Sieve(designs, shape, rules, self.formulas, inside)

    def _looked_at(self, rows: int) -> int:
        if not 1 <= rows <= MAX_ROWS:
            raise InputError("rows", f"is {rows}", f"look at 1 to {MAX_ROWS:,} designs at a time")
        return rows

    def _blocks(self, rows: int, start: int, stop: int) -> Iterator[tuple[int, tuple[int, ...], dict[str, Floats]]]:
        """Blocks of the grid: single values of the outer axes, a run of one axis, all values of the inner ones.

        An inner axis has a dimension of its own, so what depends on few axes is computed for few designs.
        """
        sizes = [len(axis) for axis in self.axes]
        split = len(sizes) - 1
        while split > 0 and math.prod(sizes[split:]) <= rows:
            split -= 1
        inner = math.prod(sizes[split + 1 :])
        pieces = -(-sizes[split] // max(rows // inner, 1))
        run = -(-sizes[split] // pieces)
        within: dict[str, Floats] = {}
        for beyond, axis in enumerate(reversed(self.axes[split + 1 :])):
            within |= _along(axis, beyond)
        stride = sizes[split] * inner
        for outer in range(start // stride, -(-stop // stride)):
            columns, rest = dict(within), outer
            for axis in reversed(self.axes[:split]):
                rest, position = divmod(rest, len(axis))
                columns |= {name: column[position] for name, column in axis.values.items()}
            for low in range(0, sizes[split], run):
                high = min(low + run, sizes[split])
                first = outer * stride + low * inner
                if start < first + (high - low) * inner and first < stop:
                    piece = _along(self.axes[split], len(sizes) - split - 1, low, high)
                    yield first, (high - low, *sizes[split + 1 :]), columns | piece


def _along(axis: Axis, beyond: int, low: int = 0, high: int | None = None) -> dict[str, Floats]:
    """Values of an axis, with so many dimensions after their own."""
    return {name: column[low:high].reshape(-1, *[1] * beyond) for name, column in axis.values.items()}


def _choices(axis: Axis) -> str:
    """What to write instead, for a sentence: some values of an axis."""
    rows = list(zip(*(column[:6] for column in axis.values.values()), strict=True))
    texts = [" with ".join(f"{value:.15g}" for value in row) for row in rows]
    more = f" and {len(axis) - len(rows):,} more" if len(axis) > len(rows) else ""
    return f"it should be one of {', '.join(texts)}{more}"
