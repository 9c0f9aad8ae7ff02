"""The best policies for the layers of one stage: with its forward fixed, the least seconds of backward that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.frozen import frozen
from dovetail.partition.layer_chain import LayerChain, working_bytes

#: Which layers a stage holds: class, micro-batches in flight and number, in order of these.
Content = tuple[tuple[int, int, int], ...]
#: A class, and the micro-batches that its layers have in flight.
Kind = tuple[int, int]


@frozen
class StageChoice:
    """Input-gradient seconds of a stage's layers, and for each kind the policies its layers take, dearest first."""

    seconds: float
    policies: dict[Kind, tuple[int, ...]]


class StagePolicies:
    """Bounds and exact choices for the stages of a chain, each found once.

    The policies of a layer change only its backward, and a step never gets shorter when a stage's backward gets longer:
    so the best policies of a stage, given its layers, are those with the least seconds that fit its memory.
    """

    def __init__(self, chain: LayerChain) -> None:
        self.chain = chain
        #: policies of a class in order of bytes saved
        self._order = [np.lexsort((c.input_gradient_s, c.saved_bytes)) for c in chain.classes]
        self._bounds: dict[Content, float] = {}
        self._choices: dict[Content, StageChoice | None] = {}

    def content(self, chunks: Sequence[Sequence[int]], in_flight: Sequence[int]) -> Content:
        """The content of a stage whose chunks hold these layers, and have so many micro-batches in flight."""
        counts = Counter(
            (self.chain.order[i], flying) for chunk, flying in zip(chunks, in_flight, strict=True) for i in chunk
        )
        return tuple((c, flying, n) for (c, flying), n in sorted(counts.items()))

    def bound(self, content: Content) -> float:
        """Input-gradient seconds the stage takes at least; infinite where no policies fit."""
        from dovetail.partition.stage_kernels import least_bound

        if content not in self._bounds:
            self._bounds[content] = least_bound(*self._arrays(content)) if self._headroom(content) >= 0 else np.inf
        return self._bounds[content]

    def is_exact(self, content: Content) -> bool:
        """Whether the bound is the least seconds."""
        return content in self._choices

    def choice(self, content: Content) -> StageChoice | None:
        """The best policies, none where nothing fits; from then on the bound is exact."""
        from dovetail.partition.stage_kernels import least_seconds

        if content not in self._choices:
            self._choices[content] = None
            if self.bound(content) < np.inf:
                seconds, taken = least_seconds(*self._arrays(content))
                self._choices[content] = StageChoice(float(seconds), self._taken(content, taken))
                self._bounds[content] = float(seconds)
        return self._choices[content]

    def _headroom(self, content: Content) -> float:
        """Bytes that are left for activations."""
        classes = self.chain.classes
        state = sum(n * classes[c].state_bytes for c, _, n in content)
        # sums in another order may differ by a rounding: half of what the definition allows
        limit = self.chain.device_bytes * (1 + ROUNDING / 2)
        # no memory of activations is in use when the optimizer runs
        if state + sum(n * classes[c].step_bytes for c, _, n in content) > limit:
            return -np.inf
        return limit - state - max(classes[c].gathered_bytes for c, _, _ in content)

    def _arrays(self, content: Content) -> tuple[Floats, Ints, Ints, Floats]:
        """What the kernels take: policies of all kinds of the stage, where each begins, how many layers, limits."""
        classes = [self.chain.classes[c] for c, _, _ in content]
        orders = [self._order[c] for c, _, _ in content]
        policies = np.concatenate(
            [
                np.stack([flying * c.saved_bytes[o], c.workspace_bytes[o], c.input_gradient_s[o]])
                for c, o, (_, flying, _) in zip(classes, orders, content, strict=True)
            ],
            axis=1,
        )
        starts = np.cumsum([0, *(len(o) for o in orders)])
        limits = np.array([self._headroom(content), working_bytes(classes), max(c.loss_bytes for c in classes)])
        return policies, starts, np.array([n for _, _, n in content]), limits

    def _taken(self, content: Content, taken: Ints) -> dict[Kind, tuple[int, ...]]:
        """How many layers take each policy, as a list of policies per kind."""
        policies: dict[Kind, tuple[int, ...]] = {}
        start = 0
        for c, flying, _ in content:
            order, seconds = self._order[c], self.chain.classes[c].input_gradient_s
            picked = [int(k) for place, k in enumerate(order) for _ in range(int(taken[start + place]))]
            policies[c, flying] = tuple(sorted(picked, key=lambda k: (-seconds[k], k)))
            start += len(order)
        return policies
