"""Every shape that an operator of a layer class can have on one die, and which of them so many dies can make of it.

A die's part of an operator has a divisor of each dim it may shard; the same parts occur with many numbers of dies and
sequences. So each distinct part is timed once per chip, and the fewest seconds on some dies are the least of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.cost.operators import ChipUnits, PlacedWork, operator_seconds
from dovetail.frozen import frozen
from dovetail.graph import DerivedSize, LayerGraph, ModelGraph, Operator, differentiate
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import Size, Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.layout import PlacedOperator
from dovetail.layout.encoding.rules import HEAD_DIMS, divides
from dovetail.models import Job
from dovetail.plans.space import divisors


class _DieParts:
    """The distinct shapes on a die of operators with the same dims, as divisors of those of the whole batch."""

    def __init__(self, operator: Operator, sizes: Mapping[int, Sizes]) -> None:
        self._operator = operator
        self._sizes = sizes
        whole = sizes[max(sizes)]
        #: by batch and dim: how much shorter it is than in the whole batch
        self._scale = np.array([[_ratio(whole[d], each[d]) for d in operator.dims] for each in sizes.values()])
        self._known: dict[tuple[float, ...], int] = {}
        self._on: dict[int, tuple[Ints, Ints]] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def rows(self) -> Floats:
        """Divisors of every shape seen so far, by dim."""
        return np.array(list(self._known), np.float64).reshape(len(self), len(self._operator.dims))

    def on(self, dies: int) -> tuple[Ints, Ints]:
        """The numbers of the shapes on so many dies, batch by batch, and where each batch begins."""
        if dies not in self._on:
            self._on[dies] = self._find(dies)
        return self._on[dies]

    def _find(self, dies: int) -> tuple[Ints, Ints]:
        operator, numbers = self._operator, np.array(divisors(dies))
        # by dim, batch and divisor: whether the dies may make so many parts of it
        ways = [
            np.array([_ways(operator, each, dim, numbers) for each in self._sizes.values()]) for dim in operator.dims
        ]
        parts = _parts(tuple(tuple(numbers[way.any(axis=0)].tolist()) for way in ways), dies)
        fitting = np.ones((len(self._sizes), len(parts)), np.bool_)
        for place, way in enumerate(ways):
            fitting &= way[:, np.searchsorted(numbers, parts[:, place])]
        ratios = _regrouped(operator, parts)[None] * self._scale[:, None]
        starts = np.concatenate([[0], fitting.sum(axis=1).cumsum()[:-1]])
        return self._numbers(ratios[fitting]), starts

    def _numbers(self, ratios: Floats) -> Ints:
        """The number of each shape; new ones are added."""
        keys = np.zeros(len(ratios), np.int64)
        for column in ratios.T:
            distinct, place = np.unique(column, return_inverse=True)
            keys = keys * len(distinct) + place.reshape(-1)
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        rows = ratios[first]
        numbers = [self._known.setdefault(tuple(row), len(self._known)) for row in rows.tolist()]
        return np.array(numbers, np.int64)[place.reshape(-1)]


class LocalShapes:
    """The shapes of one layer class of a job on one die, and the fewest seconds of its operators on some dies."""

    def __init__(self, graph: LayerGraph, seq_len: int, global_batch: int) -> None:
        backward = differentiate(graph)
        self.graph = graph
        self.forward = len(graph.operators)
        self.operators: tuple[Operator, ...] = (*graph.operators, *backward.graph.operators)
        self.batches = tuple(divisors(global_batch))
        self.sizes = {b: graph.resolve(batch=b, seq=seq_len) for b in self.batches}
        self._tensors = {**backward.graph.tensors, **graph.tensors}
        alike: dict[object, _DieParts] = {}
        self._shapes = [alike.setdefault(_signature(o), _DieParts(o, self.sizes)) for o in self.operators]
        self._timed: dict[tuple[float, ...], tuple[list[int], list[Floats]]] = {}

    def least_seconds(self, dies: Sequence[int], chip: ChipUnits, widths: Mapping[Element, int]) -> Floats:
        """Fewest seconds: dies × divisors of the batch × operators, forward ones first; messages take no time."""
        on_dies = [[shapes.on(n) for shapes in self._shapes] for n in dies]
        seconds = self._seconds(chip, widths)
        least = np.empty((len(dies), len(self.batches), len(self.operators)))
        for i, by_operator in enumerate(on_dies):
            for place, (numbers, starts) in enumerate(by_operator):
                least[i, :, place] = np.minimum.reduceat(seconds[place][numbers], starts)
        return least

    def _seconds(self, chip: ChipUnits, widths: Mapping[Element, int]) -> list[Floats]:
        """Seconds of every shape by operator; those of a chip seen before are timed only if there are new shapes."""
        counts, key = [len(shapes) for shapes in self._shapes], _chip_key(chip)
        if key not in self._timed or self._timed[key][0] != counts:
            if len(self._timed) >= MOST_CHIPS:
                self._timed.pop(next(iter(self._timed)))
            self._timed[key] = counts, self._time(chip, widths)
        return self._timed[key][1]

    def _time(self, chip: ChipUnits, widths: Mapping[Element, int]) -> list[Floats]:
        tokens = self.graph.sizes.get(EXPERT_TOKENS)
        imbalance = tokens.imbalance if isinstance(tokens, DerivedSize) else 1.0
        most = max(len(shapes) for shapes in self._shapes)
        seconds: dict[str, Floats] = {}
        # forward and backward apart: which tensors stay inside a kernel depends on their operators
        for part in (slice(self.forward), slice(self.forward, None)):
            if self.operators[part]:
                seconds |= operator_seconds(self._work(part, most, widths, imbalance), chip)
        return [np.broadcast_to(seconds[o.name], (most,)) for o in self.operators]

    def _work(self, part: slice, most: int, widths: Mapping[Element, int], imbalance: float | None) -> PlacedWork:
        placed: list[PlacedOperator] = []
        axis_sizes: dict[str, Size] = {}
        for operator, shapes in zip(self.operators[part], self._shapes[part], strict=True):
            rows = np.ones((most, len(operator.dims)))
            rows[: len(shapes)] = shapes.rows
            names = {f"{operator.name}#{dim}": dim for dim in operator.dims}
            placed.append(PlacedOperator(operator, names))
            axis_sizes |= dict(zip(names, rows.T, strict=True))
        return PlacedWork(placed, self._tensors, self.sizes[self.batches[-1]], axis_sizes, widths, imbalance)


#: Chips whose seconds are remembered.
MOST_CHIPS = 64


def _ways(operator: Operator, sizes: Sizes, dim: str, numbers: Ints) -> list[bool]:
    """Which numbers of parts dies may make of a dim."""
    may = dim not in HEAD_DIMS and operator.split(dim) is not None
    return [n == 1 or (may and divides(dim, sizes, n)) for n in numbers.tolist()]


@lru_cache(maxsize=4096)
def _parts(ways: tuple[tuple[int, ...], ...], dies: int) -> Ints:
    """Every way to divide dims among dies; some dies may do the same."""
    parts, left = np.ones((1, 0), np.int64), np.full(1, dies)
    for numbers in ways:
        wider = [
            (np.column_stack([parts[fits], np.full(fits.sum(), n)]), left[fits] // n)
            for n in numbers
            for fits in [left % n == 0]
        ]
        parts, left = np.concatenate([p for p, _ in wider]), np.concatenate([rest for _, rest in wider])
    return parts


def _signature(operator: Operator) -> object:
    """All that an operator's shapes depend on besides sizes."""
    return operator.dims, tuple(operator.split(dim) is not None for dim in operator.dims), operator.regroups


def _regrouped(operator: Operator, parts: Ints) -> Floats:
    """Tokens regrouped by expert are sharded as the tokens are."""
    columns = {dim: parts[:, place].astype(np.float64) for place, dim in enumerate(operator.dims)}
    for source, target in operator.regroups:
        if source in columns and target in columns:
            follows = (columns[source] > 1) & (columns[target] == 1)
            columns[target] = np.where(follows, columns[source], columns[target])
    return np.stack(list(columns.values()), axis=1) if columns else np.ones((len(parts), 0))


def _ratio(whole: Size, size: Size) -> float:
    """A dim in the whole batch over that in a part of it; a little more if it is not a whole number."""
    exact = float(as_array(whole)) / float(as_array(size))
    return float(round(exact)) if abs(exact - round(exact)) < 1e-9 * exact else exact * (1 + 1e-12)


def _chip_key(chip: ChipUnits) -> tuple[float, ...]:
    """A chip's figures: equal for chips on which operators take equal time."""
    figures: list[float] = []
    for name in ("matrix", "half", "attention", "vector", "cores"):
        units = getattr(chip, name)
        figures += [float(getattr(units, each)) for each in units.__slots__]
    return (*figures, float(chip.systolic), chip.narrow_bytes or 0.0, chip.cast_bytes, chip.loss_bytes or 0.0)


@frozen
class _SharedGraph:
    """A graph as a cache key: graphs are built once per model and shared, so identity serves."""

    graph: ModelGraph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SharedGraph) and other.graph is self.graph


def local_shapes(job: Job) -> Mapping[str, LocalShapes]:
    """The shapes of every layer class of a job; one object per model, sequence length and batch."""
    return _local_shapes(_SharedGraph(job.graph()), job.seq_len, job.global_batch)


@lru_cache(maxsize=16)
def _local_shapes(shared: _SharedGraph, seq_len: int, global_batch: int) -> Mapping[str, LocalShapes]:
    return {name: LocalShapes(layer, seq_len, global_batch) for name, layer in shared.graph.layers.items()}
