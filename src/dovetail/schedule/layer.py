"""Schedule problems of a layer's forward or backward: for many chips, or many sizes on one chip, at once.

Every operator may run on any divisor of its kind's cores. Attention has a part on each kind: fused into one phase that
uses both, or in two phases, products first. Costs are those of `operator_seconds` with that many cores. Memory
bandwidth is counted in parts; an operator takes the parts it needs to move its bytes while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.cost.cores import part_of, together
from dovetail.cost.operators import ChipUnits, PlacedWork, operator_bytes, operator_seconds
from dovetail.frozen import frozen
from dovetail.graph import Kind
from dovetail.graph.size import as_array
from dovetail.layout import PlacedOperator
from dovetail.schedule.arrays import Arrays, graph_of
from dovetail.schedule.problem import MAX_CYCLES, RESOURCES, Mode, ModePhase, Problem, ScheduleTask

#: Parts of the memory bandwidth.
BANDWIDTH = 1000

#: Bandwidth limits of an operator, so that others get some.
LEVELS = (BANDWIDTH, 3 * BANDWIDTH // 4, BANDWIDTH // 2, BANDWIDTH // 4)

#: Kinds that use tensor and vector cores in one kernel.
BOTH = (Kind.ATTENTION, Kind.LINEAR_ATTENTION, Kind.STATE_SPACE, Kind.INDEXER)


@frozen
class LayerProblems:
    """One graph in many cases: chips, or sizes."""

    names: tuple[str, ...]
    arrays: Arrays
    serial: Ints
    """by case: cycles of all operators one after the other on all cores"""
    after: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.serial)

    def problem(self, case: int) -> Problem:
        """The problem of one case."""
        tasks = tuple(self._task(case, number) for number in range(len(self.names)))
        tensor, vector, bandwidth = self.arrays.capacities[case].tolist()
        return Problem(tasks, tensor, vector, bandwidth)

    def _task(self, case: int, number: int) -> ScheduleTask:
        cycles, uses = self.arrays.cycles[case, number].tolist(), self.arrays.uses[case, number].tolist()
        modes: list[Mode] = []
        for mode in range(self.arrays.modes[case, number]):
            rows = zip(cycles[mode], uses[mode], strict=True)
            modes.append(Mode(tuple(ModePhase(length, *used) for length, used in rows if length)))
        # a chip with fewer divisors has equal modes: drop duplicates
        return ScheduleTask(self.names[number], tuple(dict.fromkeys(modes)), self.after[number])


def layer_problems(work: PlacedWork, chips: Sequence[ChipUnits]) -> LayerProblems:
    """The problems of a layer on chips with the same formats, or of many sizes of it on one chip.

    Sizes that are arrays have a last axis of 1, for parts of a chip's cores.
    """
    units, chip_cores = together(chips), [chip.cores for chip in chips]
    tensor, vector = (_divisors([int(getattr(cores, kind)) for cores in chip_cores]) for kind in RESOURCES[:2])
    # equal columns for both kinds: an operator that uses both takes the k-th part of each
    width = max(tensor.shape[1], vector.shape[1])
    tensor, vector = (np.pad(d, ((0, 0), (0, width - d.shape[1])), mode="edge") for d in (tensor, vector))
    given = (as_array(size) for size in (*work.sizes.values(), *work.axis_sizes.values()))
    count = np.broadcast_shapes((len(chips),), *(size.shape[:1] for size in given))
    tensor, vector = (np.broadcast_to(cores, (*count, width)) for cores in (tensor, vector))
    clock = np.broadcast_to(np.array([float(cores.clock_hz) for cores in chip_cores]), count)
    pricing = _Pricing(work, units, clock, tensor, vector)
    modes = [pricing.modes(placed) for placed in work.operators]
    counts = np.array([cycles.shape[1] for cycles, _ in modes], np.int64)
    after = needs(work.operators)
    arrays = Arrays(
        graph_of(after),
        capacities=np.stack([tensor.max(axis=1), vector.max(axis=1), np.full(count, BANDWIDTH)], axis=1),
        modes=np.tile(counts, (*count, 1)),
        cycles=np.stack([_widened(cycles, counts.max()) for cycles, _ in modes], axis=1),
        uses=np.stack([_widened(uses, counts.max()) for _, uses in modes], axis=1),
    )
    names = tuple(placed.operator.name for placed in work.operators)
    return LayerProblems(names, arrays, pricing.serial(), after)


class _Pricing:
    """Cycles and uses of operators on the k-th largest part of the cores, cases × parts."""

    def __init__(self, work: PlacedWork, units: ChipUnits, clock_hz: Floats, tensor: Ints, vector: Ints) -> None:
        self._clock, self._tensor, self._vector = clock_hz[:, None], tensor, vector
        shares = [cores / cores.max(axis=1, keepdims=True) for cores in (tensor, vector)]
        unlimited = np.full_like(shares[0], np.inf)
        parts = {"fused": shares, "products": [shares[0], unlimited], "lanes": [unlimited, shares[1]]}
        self._seconds = {part: operator_seconds(work, part_of(units, *both)) for part, both in parts.items()}
        self._bytes = operator_bytes(work, units)
        self._memory = units.matrix.memory_bytes_per_s

    def serial(self) -> Ints:
        """All operators one after the other on all cores."""
        return sum((self._cycles(seconds)[:, 0] for seconds in self._seconds["fused"].values()), np.zeros((), np.int64))

    def modes(self, placed: PlacedOperator) -> tuple[Ints, Ints]:
        """Cases × modes: cycles by phase, and uses by phase and resource."""
        operator = placed.operator
        name, none = operator.name, np.zeros_like(self._tensor)
        if operator.kind in BOTH:
            fused = _two_phases(*self._one(name, "fused", self._tensor, self._vector))
            first, second = (
                self._one(name, "products", self._tensor, none),
                self._one(name, "lanes", none, self._vector),
            )
            separate = [np.concatenate(both, axis=2) for both in zip(first, second, strict=True)]
            cycles, uses = (np.concatenate(both, axis=1) for both in zip(fused, separate, strict=True))
            return cycles, uses
        on_tensor = operator.kind is Kind.CONTRACTION
        cores = (self._tensor, none) if on_tensor else (none, self._vector)
        by_level = [_two_phases(*self._one(name, "fused", *cores, most)) for most in LEVELS]
        cycles, uses = (np.concatenate(both, axis=1) for both in zip(*by_level, strict=True))
        return cycles, uses

    def _one(self, name: str, part: str, tensor: Ints, vector: Ints, most: int = BANDWIDTH) -> tuple[Ints, Ints]:
        """One phase with a bandwidth limit: cycles with an axis of phases, uses also with one of resources."""
        memory_cycles = self._cycles(self._bytes[name] * (BANDWIDTH / most) / self._memory)
        cycles = np.maximum(self._cycles(self._seconds[part][name]), memory_cycles)
        moved = self._bytes[name] * self._clock / (self._memory * cycles)
        bandwidth = np.minimum(np.ceil(BANDWIDTH * moved * (1 - TOLERANCE)), most).astype(np.int64)
        return cycles[..., None], np.stack([tensor, vector, bandwidth], axis=-1)[:, :, None, :]

    def _cycles(self, seconds: Floats) -> Ints:
        # rounded up, except for floating-point noise
        cycles = np.ceil(seconds * self._clock * (1 - TOLERANCE))
        return np.broadcast_to(np.clip(cycles, 1, MAX_CYCLES).astype(np.int64), self._tensor.shape)


def _divisors(cores: Sequence[int]) -> Ints:
    """The divisors of every number, largest first, padded with 1."""
    lists = [[d for d in range(n, 0, -1) if n % d == 0] for n in cores]
    most = max(len(divisors) for divisors in lists)
    return np.array([divisors + [1] * (most - len(divisors)) for divisors in lists], np.int64)


def _two_phases(cycles: Ints, uses: Ints) -> tuple[Ints, Ints]:
    """Cycles and uses with an empty second phase added."""
    # np.pad takes most of the time of small problems
    both, used = np.zeros((*cycles.shape[:2], 2), np.int64), np.zeros((*uses.shape[:2], 2, uses.shape[3]), np.int64)
    both[:, :, :1], used[:, :, :1] = cycles, uses
    return both, used


def _widened(values: Ints, modes: int) -> Ints:
    """Values padded with empty modes."""
    wide = np.zeros((len(values), modes, *values.shape[2:]), np.int64)
    wide[:, : values.shape[1]] = values
    return wide


def needs(operators: Sequence[PlacedOperator]) -> tuple[tuple[int, ...], ...]:
    """The operators that produce what each one reads."""
    made: dict[str, int] = {}
    needed: list[tuple[int, ...]] = []
    for number, placed in enumerate(operators):
        operator = placed.operator
        needed.append(tuple(sorted({made[o.tensor] for o in operator.inputs if o.tensor in made})))
        made |= {operand.tensor: number for operand in operator.outputs}
    return tuple(needed)
