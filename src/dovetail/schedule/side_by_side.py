"""What a layer gains if its operators run concurrently: cycles of a schedule relative to sequential execution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.cost.operators import ChipUnits, PlacedWork
from dovetail.graph.size import Size, as_array
from dovetail.schedule.arrays import Arrays
from dovetail.schedule.layer import layer_problems
from dovetail.schedule.quick import TRIES, quick_many


def side_by_side_share(work: PlacedWork, chip: ChipUnits) -> Floats:
    """Makespan of a forward or backward on one chip relative to sequential execution on all cores; at most 1.

    Sizes are numbers, or arrays over cases.
    """
    cases = {name: _column(size) for name, size in work.sizes.items()}
    axes = {name: _column(size) for name, size in work.axis_sizes.items()}
    problems = layer_problems(replace(work, sizes=cases, axis_sizes=axes), [chip])
    makespans = _makespans(problems.arrays)
    share = np.minimum(makespans / problems.serial, 1.0)
    many = any(as_array(size).ndim for size in (*work.sizes.values(), *work.axis_sizes.values()))
    return share if many else share[0]


def _makespans(arrays: Arrays) -> Ints:
    """The makespan of every case; equal cases are scheduled once."""
    first: dict[bytes, int] = {}
    alike = np.array(
        [first.setdefault(arrays.cycles[n].tobytes() + arrays.uses[n].tobytes(), n) for n in range(len(arrays.cycles))]
    )
    rows = np.array(list(first.values()))
    parts = (arrays.capacities, arrays.modes, arrays.cycles, arrays.uses)
    makespans, _, _, _ = quick_many(Arrays(arrays.graph, *(part[rows] for part in parts)), TRIES)
    return makespans[np.searchsorted(rows, alike)]


def _column(size: Size) -> Size:
    """The size with a last axis for parts of the cores."""
    array = as_array(size)
    return array[:, None] if array.ndim else size
