"""A block with a price on memory: layouts, recompute and memory bounded together.

This is a Lagrangian relaxation. For any price of a byte, n blocks cost at least n times the lowest seconds plus priced
bytes of one block, and the blocks of a stage use at most the memory of a die. So their seconds are at least that sum
minus the price of a full die. Every block may choose by itself. The bound is concave in the price: where the layout
that is cheapest at one price needs too much memory and the one at another does not, the best price is between them, at
first guess where both cost the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.layout.encoding import Strings
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.layouts.layer_problem import LayerProblem
from dovetail.pipeline.in_flight import in_flight as in_flight_of
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule

#: Prices that are tried downwards before none at all.
FIRST_GUESSES = 3

#: Prices tried for one number of micro-batches in flight, at most, and how much the first guesses differ.
MOST_PRICES = 6
STRIDE = 3.0

#: A bound this close to the best that any price can give, relative, is close enough.
PRECISE = 1e-4

#: A price this close to another, relative, teaches nothing.
CLOSE = 0.02


#: A bound of blocks: the price of a byte, micro-batches in flight, and the lowest seconds plus priced bytes of a block.
Line = tuple[float, float, float]


@frozen
class PricedLayout:
    """The cheapest layout of a block at a price of a byte."""

    #: of a byte of state, and of a byte a micro-batch saves
    prices: tuple[float, float]
    #: seconds plus priced bytes
    lowest: float
    seconds: float
    state_bytes: float
    saved_bytes: float
    strings: dict[str, Strings]
    stream: dict[str, str]

    def used_bytes(self, in_flight: int) -> float:
        """State, and all that micro-batches in flight save."""
        return self.state_bytes + in_flight * self.saved_bytes


class PricedBlock:
    """A layer class on a tile, solved at different prices of memory."""

    def __init__(self, problem: LayerProblem) -> None:
        self._problem = problem
        self._tree = tree_of(problem.problem)

    def at(self, price: float, in_flight: int) -> PricedLayout | None:
        """The cheapest layout if every byte in use has this price; None if there is none."""
        return self.at_prices(price, price * in_flight)

    def at_prices(self, of_state: float, of_saved: float) -> PricedLayout | None:
        """The cheapest layout at prices of a byte of state and of a byte that a micro-batch saves."""
        solved = Messages(self._problem.problem, self._tree, np.array([1.0, of_state, of_saved]))
        if np.isinf(solved.lowest):
            return None
        choice = np.array(solved.choice(), np.int64)
        seconds, state, saved = (float(cost) for cost in self._problem.problem.cost(choice[None])[0])
        strings, stream = self._problem.strings(choice), self._problem.stream(choice)
        return PricedLayout((of_state, of_saved), solved.lowest, seconds, state, saved, strings, stream)

    def search(self, in_flight: int, share_bytes: float, first_price: float) -> Iterator[PricedLayout]:
        """Layouts at prices that come closer and closer to the best for blocks with such a share of memory."""
        over: PricedLayout | None = None
        under: PricedLayout | None = None
        price, best, tried = first_price, 0.0, list[float]()
        for _ in range(MOST_PRICES):
            found = self.at(price, in_flight)
            if found is None:
                return
            tried.append(price)
            best = max(best, found.lowest - price * share_bytes)
            yield found
            if found.used_bytes(in_flight) > share_bytes:
                over = found
            else:
                under = found
            if over is None:
                # down to no price at all: perhaps the fastest layout fits
                price = price / STRIDE if len(tried) < FIRST_GUESSES else 0.0
            elif under is None:
                price = price * STRIDE ** len(tried)
            else:
                price = _crossing(over, under, in_flight)
                if _most(over, under, in_flight, share_bytes) <= best * (1 + PRECISE):
                    return
            if any(abs(price - other) <= CLOSE * max(price, other) for other in tried):
                return


def _crossing(over: PricedLayout, under: PricedLayout, in_flight: int) -> float:
    """The price at which two layouts cost the same; 0 if the smaller one is no slower."""
    saved = over.used_bytes(in_flight) - under.used_bytes(in_flight)
    return max((under.seconds - over.seconds) / saved, 0.0)


def _most(over: PricedLayout, under: PricedLayout, in_flight: int, share_bytes: float) -> float:
    """What no price can raise the bound of a block above, if one layout takes too much memory and another does not."""
    return under.seconds + _crossing(over, under, in_flight) * (under.used_bytes(in_flight) - share_bytes)


def flights(stages: int, microbatches: int) -> tuple[int, ...]:
    """Numbers of micro-batches in flight worth a bound of their own, most first; each bounds stages with more too."""
    counts = sorted(
        set(in_flight_of(Pipeline(PipelineSchedule.ONE_F_ONE_B, stages, microbatches)).tolist()), reverse=True
    )
    taken = min(len(counts), MOST_FLIGHTS)
    return tuple(counts[place * (len(counts) - 1) // max(taken - 1, 1)] for place in range(taken))


#: Most numbers of micro-batches in flight with a bound of their own.
MOST_FLIGHTS = 4


def as_lines(lines: Sequence[Line]) -> Floats:
    """Bounds as the kernels take them."""
    return np.array(lines, np.float64).reshape(len(lines), 3)
