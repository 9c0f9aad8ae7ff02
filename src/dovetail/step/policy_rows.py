"""Layer rows of profiles under recompute policies: made when first asked for, with others of their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.arrays import Bools, Ints, numbers
from dovetail.step.layer_pool import LayerPool
from dovetail.step.layer_tables import LayerTable, RecomputePolicy


class PolicyRows:
    """A row for each policy, one after the other, of every profile that is asked for."""

    def __init__(self, pool: LayerPool, policies: Sequence[RecomputePolicy]) -> None:
        self._pool = pool
        self._policies = policies
        self._whole = np.array([share == 1 for _, share in policies], np.bool_)
        #: by profile: its first row, -1 where it has none, and which policies there are rows of
        self._first = np.zeros(0, np.int64)
        self._there = np.zeros((0, len(policies)), np.bool_)
        self._likely: Ints = np.zeros(0, np.int64)

    def expect(self, profiles: Ints) -> None:
        """Profiles that may be asked for: those of a table are made with the first of them, which takes least."""
        self._likely = np.unique(profiles)

    def first(
        self,
        tables: Sequence[LayerTable],
        places: Ints,
        profiles: Ints,
        wanted: Bools,
        poll: Callable[[], None],
    ) -> Ints:
        """Rows of profiles under the first policy; `places` are the table and the number there of every profile.

        Policies for some of the layers, which few pipelines can have, are there only where they are wanted.
        """
        new = len(places) - len(self._first)
        self._first = np.append(self._first, np.full(new, -1))
        self._there = np.append(self._there, np.zeros((new, len(self._policies)), np.bool_), axis=0)
        needed = wanted | self._whole
        missing = np.asarray(~self._there[:, needed].all(axis=1))
        likely: Ints = np.union1d(profiles, self._likely)
        likely = likely[missing[likely]]
        for number in numbers(np.unique(places[profiles[missing[profiles]], 0])):
            poll()
            made = likely[places[likely, 0] == number]
            self._make(tables[number], made, places[made, 1], needed)
        return self._first[profiles]

    def _make(self, table: LayerTable, profiles: Ints, rows: Ints, needed: Bools) -> None:
        fresh, policies = profiles[self._first[profiles] < 0], len(self._policies)
        self._first[fresh] = self._pool.add(len(fresh) * policies) + np.arange(len(fresh)) * policies
        times = table.choice_times(self._policies, needed, rows)
        self._pool.set(self._first[profiles][:, None] + np.nonzero(needed)[0], times)
        self._there[np.ix_(profiles, needed)] = True
