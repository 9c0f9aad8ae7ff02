"""The chain problem solved exactly: the best of all stages, widths and numbers of pipelines."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.frozen import frozen
from dovetail.partition.chain import Chain, ChainPlacement, Layers, chain_seconds


@frozen
class ChainSolution:
    """The best partition of a chain over the whole space; None where none fits."""

    status: Literal["optimal", "infeasible"]
    placement: ChainPlacement | None
    seconds: float


def solve_chain(chain: Chain) -> ChainSolution:
    """The partition with the least time per batch; of equal ones that of the smallest width and fewest stages."""
    # numba is imported where it is used: that takes longer than all that a command without it needs
    from dovetail.partition.chain_kernels import best_of_width, guessed_seconds

    problems = [problem_of(chain, layers) for layers in chain.layers]
    best, placement = math.inf, None
    for problem in problems:
        best = guessed_seconds(*problem, best)
    # what was guessed is searched for too, with all that equals it
    best = math.nextafter(best, math.inf)
    for layers, problem in zip(chain.layers, problems, strict=True):
        best, answer = best_of_width(*problem, best)
        if len(answer):
            pipelines, *ends = answer.tolist()
            placement = ChainPlacement(layers, tuple(ends), pipelines)
    if placement is None:
        assert best == math.inf
        return ChainSolution("infeasible", None, best)
    return ChainSolution("optimal", placement, chain_seconds(chain, placement))


def problem_of(chain: Chain, layers: Layers) -> tuple[Floats, Floats, Ints]:
    """The table, limits and counts chain_kernels names."""
    count = len(layers.ids)
    table = np.zeros((7, count + 1))
    # of width 1 every stage takes one device: there is nothing to tell apart
    sharded = np.ones(count) if layers.width == 1 else layers.sharded
    sums = (layers.forward_s, layers.backward_s, layers.parameter_bytes, layers.activation_bytes, sharded)
    for row, values in zip(table, sums, strict=False):
        np.cumsum(values, out=row[1:])
    table[6, :-1] = layers.input_bytes
    table[5] = table[6] / chain.bytes_per_s
    edge_s, edge_bytes = table[5:, 1:-1].min(axis=1) if count > 1 else (0.0, 0.0)
    memory = chain.device_bytes * (1 + ROUNDING)
    limits = (memory, chain.state, chain.bytes_per_s, chain.recompute, edge_s, edge_bytes)
    counts = (layers.width, chain.devices, chain.microbatches)
    return table, np.array(limits, np.float64), np.array(counts)
