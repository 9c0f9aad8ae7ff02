"""Operators as shapes: what a contraction, an attention or a vector operator asks of a core."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph import Operator
from dovetail.graph.size import Sizes, as_array, product


@frozen
class Gemm:
    """`batch` products of an m × k by a k × n matrix; fields are arrays of one shape."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats

    @property
    def flops(self) -> Floats:
        """Floating-point operations."""
        return 2 * self.batch * self.m * self.n * self.k


def gemm_of(operator: Operator, sizes: Sizes) -> Gemm:
    """A contraction's matrix product: dims shared by all are batch, kept by one operand m or n, summed k."""
    left, right = (set(o.indices) for o in operator.inputs[:2])
    output = set(operator.outputs[0].indices)

    def points(dims: set[str]) -> Floats:
        return as_array(product(sizes, sorted(dims)))

    return Gemm(
        batch=points(left & right & output),
        m=points((left & output) - right),
        n=points((right & output) - left),
        # a gradient may sum a dim of one operand alone: it streams through like any summed dim
        k=points((left | right) - output),
    )


def stacked(gemms: Sequence[Gemm], chip_dims: int) -> Gemm:
    """Several products as one, along a new first axis ahead of the axes that chips have."""
    columns = np.stack(np.broadcast_arrays(*(x for gemm in gemms for x in (gemm.batch, gemm.m, gemm.n, gemm.k))))
    columns = columns.reshape(len(gemms), 4, *[1] * max(chip_dims - columns.ndim + 1, 0), *columns.shape[1:])
    return Gemm(batch=columns[:, 0], m=columns[:, 1], n=columns[:, 2], k=columns[:, 3])
