"""What searches of partitions share: a chain, the policies of its stages, the best partition so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dovetail.arrays import ROUNDING, Floats
from dovetail.partition.layer_chain import LayerChain, LayerPartition
from dovetail.partition.stage_policies import StagePolicies


class PartitionSearch(ABC):
    """A search for the best partition of a chain and policies of its layers."""

    def __init__(self, chain: LayerChain, poll: Callable[[], None] = lambda: None) -> None:
        self.chain = chain
        #: called from time to time, and may raise
        self._poll = poll
        self.seconds = float("inf")
        self.placement: LayerPartition | None = None
        self._policies = StagePolicies(chain)
        #: the class of every layer, in order
        self._classes = [chain.classes[c] for c in chain.order]

    @abstractmethod
    def solve(self) -> float:
        """Finds the best partition; returns a lower bound over all of them."""

    def _improves(self, seconds: float) -> bool:
        """Whether a step time, or a bound of one, is below that of the best partition so far."""
        return seconds < self.seconds * (1 - ROUNDING)


def running_sums(rows: Iterable[Sequence[float]]) -> Floats:
    """Sums over layers with a 0 ahead, so that the layers from s to e are a difference of two."""
    values = np.array(list(rows), np.float64)
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
