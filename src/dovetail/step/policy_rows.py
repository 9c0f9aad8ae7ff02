"""Layer rows of profiles under recompute policies: made when first asked for, with others of their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.arrays import Bools, Ints, distinct
from dovetail.step.layer_pool import LayerPool
from dovetail.step.layer_tables import LayerTable, RecomputePolicy


class PolicyRows:
    """A row for each policy, one after the other, of every profile."""

    def __init__(self, pool: LayerPool, policies: Sequence[RecomputePolicy]) -> None:
        self._pool = pool
        self._policies = policies
        self._whole: Bools = np.array([share == 1 for _, share in policies], np.bool_)
        #: by table: its first row, and which of its profiles × policies there are rows of
        self._made: dict[int, tuple[int, Bools]] = {}
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
        asked, first = np.unique(profiles), np.zeros(len(tables), np.int64)
        likely = np.union1d(asked, self._likely)
        needed = wanted | self._whole
        for (number,) in distinct(places[asked, 0])[0]:
            rows, others = (some[places[some, 0] == number] for some in (asked, likely))
            first_row, there = self._of_table(number, tables[number].num_profiles)
            first[number] = first_row
            missing = np.any(~there[:, needed], axis=1)
            if missing[places[rows, 1]].any():
                poll()
                made = places[others, 1]
                self._make(tables[number], first_row, there, made[missing[made]], needed)
        return first[places[profiles, 0]] + places[profiles, 1] * len(self._policies)

    def _of_table(self, number: int, profiles: int) -> tuple[int, Bools]:
        if number not in self._made:
            there = np.zeros((profiles, len(self._policies)), np.bool_)
            self._made[number] = self._pool.add(there.size), there
        return self._made[number]

    def _make(self, table: LayerTable, first: int, there: Bools, rows: Ints, needed: Bools) -> None:
        block = self._pool.block(first, there.shape)
        fresh = rows[~there[rows].any(axis=1)]
        for column in block:
            column[np.ix_(fresh, ~needed)] = np.nan
        table.choice_times(self._policies, needed, block, rows)
        there[np.ix_(rows, needed)] = True
