"""The chain problem solved exactly: the best of all stages, widths and numbers of pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.placement.chain import Chain, ChainPlacement, Floats, Layers, chain_seconds


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """The best placement of a chain, which the whole space was searched for; none where no placement fits."""

    status: Literal["optimal", "infeasible"]
    placement: ChainPlacement | None
    seconds: float


def solve_chain(chain: Chain) -> ChainSolution:
    """The placement with the least time per batch; of equal ones that of the smallest width and fewest stages."""
    # numba is imported where it is used: that takes longer than all that a command without it needs
    from dovetail.placement.chain_kernels import best_of_width

    best, found = float("inf"), None
    limits = np.array([chain.device_bytes, chain.state, chain.bytes_per_s, float(chain.recompute)])
    for layers in chain.layers:
        # of width 1 every stage takes one device: there is nothing to tell apart
        narrow = 0 if layers.width == 1 else int((~layers.cut).sum())
        table = _table(layers, chain.bytes_per_s)
        best, answer = best_of_width(table, limits, layers.width, narrow, chain.devices, chain.microbatches, best)
        if len(answer):
            pipelines, *ends = (int(number) for number in answer)
            found = ChainPlacement(layers, tuple(ends), pipelines)
    if found is None:
        return ChainSolution("infeasible", None, best)
    return ChainSolution("optimal", found, chain_seconds(chain, found))


def _table(layers: Layers, bytes_per_s: float) -> Floats:
    """The rows chain_kernels names."""
    sums = (layers.forward_s, layers.backward_s, layers.parameter_bytes, layers.activation_bytes, layers.cut)
    received = np.append(layers.input_bytes, 0.0)
    return np.stack([*(np.append(0.0, np.cumsum(values)) for values in sums), received / bytes_per_s, received])
