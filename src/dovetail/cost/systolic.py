"""Systolic arrays: the cycles a product takes and what streams through them, for arrays of shapes and of chips."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.shapes import Gemm


def array_cycles(
    gemm: Gemm, rows: Floats, cols: Floats, units: Floats, output_stationary: Floats, *, overlapped: bool = True
) -> Floats:
    """Cycles of the busiest of `units` arrays: tiles that stay, each while the third dim streams through it.

    Weight stationary: ⌈k/rows⌉·⌈n/cols⌉ tiles of weights, m rows stream; output stationary: ⌈m/rows⌉·⌈n/cols⌉ tiles of
    results, k steps accumulate (the folds of Samajdar et al., SCALE-Sim, ISPASS 2020).
    """
    stationary, streamed = np.where(output_stationary, gemm.m, gemm.k), np.where(output_stationary, gemm.k, gemm.m)
    tiles = gemm.batch * np.ceil(stationary / rows) * np.ceil(gemm.n / cols)
    busiest = np.ceil(tiles / units)
    if overlapped:
        # a second set of registers takes the next tile's weights, or the last one's results, while this one streams
        # (Jouppi et al., ISCA 2017, section 2), so a tile costs what streams or that shift, whichever is longer
        return busiest * np.maximum(streamed, rows) + rows + cols
    # operands enter along a diagonal; weights are shifted in before. That results are shifted out after all steps is
    # in the paper's 2·rows + cols + steps − 2, but not in what SCALE-Sim v3 counts: it lets them leave meanwhile.
    fill = rows + cols - 2 + np.where(output_stationary, 0.0, rows)
    return busiest * (streamed + fill)


def streamed_elements(gemm: Gemm, rows: Floats, cols: Floats, output_stationary: Floats) -> Floats:
    """Elements that enter and leave the arrays; every column of tiles streams the left operand anew.

    Partial sums stay in accumulators beside a weight-stationary array (Jouppi et al., ISCA 2017, section 2).
    """
    right_passes = np.where(output_stationary, np.ceil(gemm.m / rows), 1.0)
    left = gemm.m * gemm.k * np.ceil(gemm.n / cols)
    return gemm.batch * (left + gemm.k * gemm.n * right_passes + gemm.m * gemm.n)
