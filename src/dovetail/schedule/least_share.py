"""What no schedule of a layer's operators beats: cycles at least, over those one after the other, for many chips."""

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
    """At most what `side_by_side_share` gives: the longest of the chain of operators and of each resource's work.

    `seconds` are those of operators on all cores, which no other mode beats. An operator asks least of a kind of cores
    on one of them, where all that is not spread over cores (memory, filling, launches) is paid once and not by all.
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
    cycles = {name: np.ceil(own * cores.clock_hz * (1 - TOLERANCE)) for name, own in seconds.items()}
    longest = MAX_CYCLES if chip.sharing == "least" else np.inf
    serial = summed(np.clip(own, 1, longest) for own in cycles.values())
    share = np.minimum(largest(limits) * cores.clock_hz * (1 - 2 * TOLERANCE) / serial, 1.0)
    # beyond the longest times that schedules are made of nothing is known
    return np.where(largest(products.values()) * cores.clock_hz < longest, share, 0.0)


def _longest_chain(work: PlacedWork, seconds: Mapping[str, Floats]) -> Floats:
    """Operators that wait for each other, each on all cores."""
    ends: list[Floats] = []
    for placed, before in zip(work.operators, needs(work.operators), strict=True):
        ends.append(largest(ends[i] for i in before) + seconds[placed.operator.name])
    return largest(ends)
