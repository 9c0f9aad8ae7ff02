"""The layouts a tensor takes in turn, for all options at once: which is converted from which, at what price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Array, Floats, Ints
from dovetail.frozen import frozen
from dovetail.mapping.layouts.conversion_kernels import UNREACHABLE, conversion_seconds, conversions

#: Most bytes of collectives that are remembered: tensors of all sizes have the same ones.
REMEMBERED_BYTES = 2**28

_remembered: dict[tuple[tuple[int, ...], bytes], tuple[Array, Array, Array]] = {}


def _collectives(layouts: Ints) -> tuple[Array, Array, Array]:
    """The collectives, weights and gathers of `conversions`; those asked for long ago are forgotten."""
    key = layouts.shape, layouts.tobytes()
    found = _remembered.pop(key, None)
    if found is None:
        steps, weights, gathers = conversions(layouts)
        places = 4 << 2 * layouts.shape[1]
        found = steps.astype(np.uint16 if places <= 1 << 16 else np.int32), weights, gathers
    _remembered[key] = found
    while len(_remembered) > 1 and sum(a.nbytes for each in _remembered.values() for a in each) > REMEMBERED_BYTES:
        del _remembered[next(iter(_remembered))]
    return found


class Conversions:
    """Costs of converting any layout of a tensor into any other."""

    def __init__(self, layouts: Ints, prices: Floats) -> None:
        self.layouts = layouts
        steps, self.weights, self.gathers = _collectives(layouts)
        self.seconds = conversion_seconds(steps, prices.reshape(len(prices), -1))


@frozen
class Entry:
    """A layout that a tensor gets, under the options that do not have it yet."""

    layout: Ints
    #: whether no earlier entry has this layout
    is_new: Array
    #: the entry it is converted from, the seconds by price, and whether it is gathered from shards
    made_of: Ints | None = None
    seconds: tuple[Floats, ...] = ()
    gathered: Array | None = None


class Versions:
    """Layouts in the order `derive` creates them: a reader uses one that exists, or converts the nearest one."""

    def __init__(self, conversions: Conversions) -> None:
        self.conversions = conversions
        self.entries: list[Entry] = []

    def give(self, layout: Ints) -> Ints:
        """Adds a layout that exists; returns the number of its entry."""
        number, missing = self._find(layout)
        self.entries.append(Entry(layout, missing))
        return np.where(missing, len(self.entries) - 1, number)

    def require(self, layout: Ints) -> Ints:
        """Adds a layout that a reader needs; returns the number of its entry."""
        number, missing = self._find(layout)
        if not missing.any():
            return number
        conversions = self.conversions
        best: Array = np.full((), UNREACHABLE, np.int64)
        source: Array = np.zeros((), np.int64)
        seconds: list[Array] = [np.zeros(()) for _ in conversions.seconds]
        gathered: Array = np.zeros((), np.bool_)
        for position, entry in enumerate(self.entries):
            weight = np.where(entry.is_new, conversions.weights[entry.layout, layout], UNREACHABLE)
            nearer = weight < best
            best = np.where(nearer, weight, best)
            source = np.where(nearer, position, source)
            gathered = np.where(nearer, conversions.gathers[entry.layout, layout] >= 2, gathered)
            seconds = [
                np.where(nearer, priced[entry.layout, layout], before)
                for before, priced in zip(seconds, conversions.seconds, strict=True)
            ]
        assert not (missing & (best == UNREACHABLE)).any(), "a layout cannot be reached from any other"
        paid = tuple(np.where(missing, each, 0.0) for each in seconds)
        self.entries.append(Entry(layout, missing, source, paid, gathered))
        return np.where(missing, len(self.entries) - 1, number)

    def _find(self, layout: Ints) -> tuple[Ints, Array]:
        number: Array = np.zeros((), np.int64)
        missing: Array = np.ones((), np.bool_)
        for position, entry in enumerate(self.entries):
            same = missing & entry.is_new & (entry.layout == layout)
            number = np.where(same, position, number)
            missing = missing & ~same
        return number, missing

    def seconds(self, price: int) -> Array:
        """Total seconds of all conversions at one of the prices."""
        made = [entry.seconds[price] for entry in self.entries if entry.seconds]
        return sum(made, np.zeros(()))


def saved_entries(
    versions: Versions, needed: Sequence[Array], recompute_reads: Sequence[Array], writer_recomputed: Array, price: int
) -> tuple[list[Array], Array]:
    """Which entries are saved for the backward, and the seconds to recreate the others.

    By entry, `needed` says what the backward reads and `recompute_reads` what recomputed operators read. If the writer
    is recomputed, nothing is saved; otherwise gathered layouts are gathered once more from the saved shards.
    """
    marked = [n | w for n, w in zip(needed, recompute_reads, strict=True)]
    saved: list[Array] = [np.zeros((), np.bool_) for _ in marked]
    seconds: Array = np.zeros(())
    for position in reversed(range(len(marked))):
        entry = versions.entries[position]
        if entry.made_of is None or entry.gathered is None:
            saved[position] = marked[position] & ~writer_recomputed
            continue
        remade = marked[position] & (writer_recomputed | (entry.gathered & ~needed[position]))
        saved[position] = marked[position] & ~remade
        seconds = seconds + np.where(remade, entry.seconds[price], 0.0)
        for source in range(position):
            marked[source] = marked[source] | (remade & (entry.made_of == source))
    return saved, seconds
