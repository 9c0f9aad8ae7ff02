"""Cuts of a chain for interleaved pipelines: equal chunks but for the first and the last, all of them looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.placement.chunk_times import ChunkTimes
from dovetail.placement.layer_chain import LayerChain, LayerPlacement, flights_per_chunk, placement_seconds
from dovetail.placement.lower_bound import lower_bound
from dovetail.placement.stage_options import StageOptions

#: Gains below this part of a step time are rounding.
ROUNDING = 1e-12


class InterleavedCuts:
    """The best of all cuts into equal chunks, between an embedding and a head that stand with the first and the last.

    A stage's options are those with the least seconds in all that fit. They are dealt to its chunks in turn, the
    dearest first, so that its chunks differ little. Another way to deal them might give a shorter step: the bound
    allows for any.
    """

    def __init__(self, chain: LayerChain) -> None:
        self.chain = chain
        self.seconds = float("inf")
        self.placement: LayerPlacement | None = None
        self._options = StageOptions(chain)
        self._flights = flights_per_chunk(chain.pipeline)

    def solve(self) -> float:
        """Finds the best placement; returns what no placement takes less than."""
        bounds = sorted((self._bound(ends), ends) for ends in self._cuts())
        for bound, ends in bounds:
            if bound >= self.seconds * (1 - ROUNDING):
                break
            self._try(ends)
        return bounds[0][0] if bounds else self.seconds

    def _cuts(self) -> Iterator[tuple[int, ...]]:
        """Where chunks end, of every cut."""
        places, blocks = self.chain.pipeline.num_places, len(self.chain.order) - 2
        # with two chunks there are none between: how many blocks each of those would have makes no difference
        for each in range(1, 2 if places == 2 else blocks + 1):
            left = blocks - each * (places - 2)
            for first in range(left + 1):
                sizes = [1 + first, *(each for _ in range(places - 2)), left - first + 1]
                yield tuple(np.cumsum(sizes).tolist())

    def _layers(self, ends: Sequence[int], stage: int) -> list[list[int]]:
        """The layers of a stage's chunks."""
        starts = (0, *ends[:-1])
        places = range(stage, len(ends), self.chain.pipeline.num_stages)
        return [list(range(starts[place], ends[place])) for place in places]

    def _bound(self, ends: tuple[int, ...]) -> float:
        """No options of this cut take less: each stage does its work between the ways in and out of it.

        Nor less than the pipeline with every layer's fastest option.
        """
        chain = self.chain
        classes = [chain.classes[c] for c in chain.order]
        starts = (0, *ends[:-1])
        forward, of_input, of_weight = (
            np.array([sum(part[s:e]) for s, e in zip(starts, ends, strict=True)])
            for part in (
                [c.forward_s for c in classes],
                [float(c.input_gradient_s.min()) for c in classes],
                [c.weight_gradient_s for c in classes],
            )
        )
        delay = chain.transfer_s
        if chain.sends_itself:
            forward[:-1] += delay
            of_input[1:] += delay
            delay = 0.0
        longest, once = 0.0, 0.0
        for stage, flights in enumerate(self._flights):
            layers = [i for chunk in self._layers(ends, stage) for i in chunk]
            least = self._options.bound(self._options.content(layers), flights)
            if least == np.inf:
                return np.inf
            places = range(stage, len(ends), chain.pipeline.num_stages)
            fastest = sum(float(classes[i].input_gradient_s.min()) for i in layers)
            work = sum(forward[r] + of_input[r] + of_weight[r] for r in places) + least - fastest
            ways = float((forward + of_input + of_weight)[:stage].sum()) + 2 * stage * delay
            longest = max(longest, ways + chain.pipeline.num_microbatches * work)
            once = max(once, sum(classes[i].once_s for i in layers))
        times = ChunkTimes(forward, of_input, of_weight, delay)
        return max(longest, float(lower_bound(chain.pipeline, times))) + once

    def _try(self, ends: tuple[int, ...]) -> None:
        """Solves the stages of a cut and keeps it if it is better."""
        options = [0] * len(self.chain.order)
        for stage, flights in enumerate(self._flights):
            chunks = self._layers(ends, stage)
            choice = self._options.choice(self._options.content([i for chunk in chunks for i in chunk]), flights)
            if choice is None:
                return
            picks = {c: iter(taken) for c, taken in choice.options.items()}
            for turn in range(max(len(chunk) for chunk in chunks)):
                for chunk in chunks:
                    if turn < len(chunk):
                        options[chunk[turn]] = next(picks[self.chain.order[chunk[turn]]])
        placement = LayerPlacement(ends, tuple(options))
        seconds = placement_seconds(self.chain, placement)
        if seconds < self.seconds * (1 - ROUNDING):
            self.seconds, self.placement = seconds, placement
