"""A lower bound of every schedule of a layer's operators, relative to running them in sequence, for many chips."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, largest, summed
from dovetail.cost.cores import part_of
from dovetail.cost.operators import ChipUnits, PlacedWork, operator_bytes, operator_seconds
from dovetail.graph import Kind
from dovetail.schedule.layer import BOTH, needs
from dovetail.schedule.problem import MAX_CYCLES


def least_share(work: PlacedWork, chip: ChipUnits, seconds: Mapping[str, Floats]) -> Floats:
    """A lower bound of `side_by_side_share`: the longest of the chain of operators and of each resource's work.

    `seconds` are those of operators on all cores, which no other mode beats. An operator has the least work on a single
    core, where it pays what does not scale with cores (memory, filling, launches) only once.
    """
    cores = chip.cores
    kinds = {p.operator.name: p.operator.kind for p in work.operators}
    products = operator_seconds(work, part_of(chip, 1 / cores.tensor_cores, np.asarray(np.inf)))
    lanes = operator_seconds(work, part_of(chip, np.asarray(np.inf), 1 / cores.vector_cores))
    on_tensor = summed(s for n, s in products.items() if kinds[n] is Kind.CONTRACTION or kinds[n] in BOTH)
    on_vector = summed(s for n, s in lanes.items() if kinds[n] is not Kind.CONTRACTION)
    moved = summed(operator_bytes(work, chip).values())
    limits = [
        _longest_chain(work, seconds),
        on_tensor / cores.tensor_cores,
        on_vector / cores.vector_cores,
        moved / chip.matrix.memory_bytes_per_s,
    ]
    cycles = {name: np.ceil(value * cores.clock_hz * (1 - TOLERANCE)) for name, value in seconds.items()}
    longest = MAX_CYCLES if chip.sharing == "least" else np.inf
    serial = summed(np.clip(value, 1, longest) for value in cycles.values())
    share = np.minimum(largest(limits) * cores.clock_hz * (1 - 2 * TOLERANCE) / serial, 1.0)
    # beyond the longest cycles a schedule may have, the bound does not hold
    return np.where(largest(products.values()) * cores.clock_hz < longest, share, 0.0)


def _longest_chain(work: PlacedWork, seconds: Mapping[str, Floats]) -> Floats:
    """The longest chain of dependent operators, each on all cores."""
    ends: list[Floats] = []
    for placed, before in zip(work.operators, needs(work.operators), strict=True):
        ends.append(largest(ends[i] for i in before) + seconds[placed.operator.name])
    return largest(ends)
