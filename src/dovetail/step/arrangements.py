"""Arrangements of several plans along the same axes, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.graph.size import SettledSizes, Size, as_array
from dovetail.layout import Strategy
from dovetail.layout.axes import AtomicAxes
from dovetail.plans.arrange import Arrangement


@frozen
class Arrangements:
    """Arrangements along the same axes, side by side: what differs between them is arrays, or a number for one."""

    axes: AtomicAxes
    strategy: Strategy
    axis_sizes: Mapping[str, Size]
    #: groups each axis joins along every way of the network, and their stride: ways × arrangements
    joins: Mapping[str, Floats]
    strides: Mapping[str, Floats]
    #: sequences of a micro-batch on all replicas
    batch: Size

    @staticmethod
    def of(arranged: Sequence[Arrangement], batches: Sequence[int], along: Arrangement | None = None) -> Arrangements:
        """Arrangements of plans and the sequences of their micro-batches.

        They are `along` the axes of another one, of which some may have one chip; else all along the same.
        """
        axes, strategy = (along or arranged[0]).axes, (along or arranged[0]).strategy
        assert along or all(each.strategy == strategy for each in arranged), "plans along the same axes"
        ways = {axis: (1,) * len(n) for axis, n in (along or arranged[0]).joins.items()}
        joins, strides = (
            {a: np.array([getattr(each, field).get(a, ways[a]) for each in arranged], np.float64).T for a in axes.sizes}
            for field in ("joins", "strides")
        )
        return Arrangements(
            axes,
            strategy,
            SettledSizes({a: _together([each.axes.sizes.get(a, 1) for each in arranged]) for a in axes.sizes}),
            {axis: n if len(arranged) > 1 else n[:, 0] for axis, n in joins.items()},
            {axis: n if len(arranged) > 1 else n[:, 0] for axis, n in strides.items()},
            _together(batches),
        )

    def taken(self, rows: Ints, times: Ints) -> Arrangements:
        """Some of them, each with so many times the sequences."""
        return Arrangements(
            self.axes,
            self.strategy,
            SettledSizes(
                {axis: np.broadcast_to(as_array(size), self._count)[rows] for axis, size in self.axis_sizes.items()}
            ),
            {axis: self._wide(n)[:, rows] for axis, n in self.joins.items()},
            {axis: self._wide(n)[:, rows] for axis, n in self.strides.items()},
            np.broadcast_to(as_array(self.batch), self._count)[rows] * times,
        )

    def _wide(self, by_way: Floats) -> Floats:
        return np.broadcast_to(by_way.T, (*self._count, by_way.shape[0])).T

    @property
    def _count(self) -> tuple[int, ...]:
        return (np.size(as_array(self.batch)),)


def _together(values: Sequence[int]) -> Size:
    """One number as it is, several as an array."""
    return values[0] if len(values) == 1 else np.array(values, np.float64)
