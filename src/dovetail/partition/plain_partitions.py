"""Partitions for schedules with one chunk per stage: any boundary, best first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dovetail.arrays import Floats, Ints, distinct
from dovetail.frozen import frozen
from dovetail.partition.layer_chain import LayerChain, LayerPartition, partition_seconds
from dovetail.partition.partition_search import PartitionSearch, running_sums
from dovetail.partition.stage_policies import Content, StageChoice
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.in_flight import in_flight
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import PipelineSchedule

#: Partial partitions expanded before the proof is given up and the gap reported.
MAX_PARTITIONS = 5000


@frozen
class _Begun:
    """The first stages of a partition, and what they say about the step time."""

    ends: tuple[int, ...]
    #: seconds of their backwards
    backward: float
    #: longest stay at one of them, without the way through the stages still open; and one that needs no such way
    stay: float
    whole_stay: float
    once: float


class PlainPartitions(PartitionSearch):
    """The best partition of a chain and the policies of its layers.

    Stages enter with a bound of their backward; only those of the best partition are solved exactly, until none of them
    is left to solve. If its step time equals the bound it is the best. Otherwise partial partitions are expanded best
    first, stage by stage from the first, until no bound is below the best step time.
    """

    def __init__(
        self, chain: LayerChain, poll: Callable[[], None] = lambda: None, *, below_s: float = float("inf")
    ) -> None:
        super().__init__(chain, poll)
        self.seconds = below_s
        self._stages, self._layers = chain.pipeline.num_stages, len(chain.order)
        self._sums = running_sums(
            [
                [c.forward_s for c in self._classes],
                [float(c.input_gradient_s.min()) + c.weight_gradient_s for c in self._classes],
                *zip(*(c.once_s for c in self._classes), strict=True),
            ]
        )
        self._flying: list[int] = in_flight(chain.pipeline).tolist()
        self._in_flight = np.array(self._flying, np.float64)
        self._pipeline = _pipeline(chain)
        one_each = np.eye(len(chain.classes), dtype=np.int64)[list(chain.order)]
        self._counts = np.concatenate([np.zeros((1, len(chain.classes)), np.int64), np.cumsum(one_each, axis=0)])

    def solve(self) -> float:
        """Finds the best partition; returns a lower bound over all of them."""
        if self._stages > self._layers:
            return self.seconds
        self._try(tuple((i + 1) * self._layers // self._stages for i in range(self._stages)))
        self._fill()
        while True:
            self._poll()
            bound, ends = self._relax()
            if not ends or not self._improves(bound):
                return min(bound, self.seconds)
            solved = all(self._policies.is_exact(content) for content in self._contents(ends))
            self._try(ends)
            if solved:
                return self._best_first()

    def _contents(self, ends: tuple[int, ...]) -> list[Content]:
        """The content of every stage of a partition."""
        spans = zip((0, *ends[:-1]), ends, self._flying, strict=True)
        return [self._content(s, e, flying) for s, e, flying in spans]

    def _content(self, s: int, e: int, flying: int) -> Content:
        counts: list[int] = (self._counts[e] - self._counts[s]).tolist()
        return tuple((c, flying, n) for c, n in enumerate(counts) if n)

    def _try(self, ends: tuple[int, ...]) -> None:
        """Solves the stages of a partition and takes it if it is better."""
        choices: list[StageChoice] = []
        for content in self._contents(ends):
            choice = self._policies.choice(content)
            if choice is None:
                return
            choices.append(choice)
        if not self._improves(self._seconds(ends, choices)):
            return
        policies: list[int] = []
        for s, e, choice in zip((0, *ends[:-1]), ends, choices, strict=True):
            picks = {c: iter(taken) for (c, _), taken in choice.policies.items()}
            policies += [next(picks[self.chain.order[i]]) for i in range(s, e)]
        self.placement = LayerPartition(ends, tuple(policies))
        self.seconds = partition_seconds(self.chain, self.placement)

    def _seconds(self, ends: tuple[int, ...], choices: Sequence[StageChoice]) -> float:
        """The step time of a partition, of what is known of its stages."""
        from dovetail.partition.stage_split_kernels import FIRST_ONCE, FORWARD

        parts = np.diff(self._sums[:, [0, *ends]], axis=1)
        forward, of_input = parts[FORWARD], np.array([choice.seconds for choice in choices])
        of_weight = np.array([self._of_weight(content) for content in self._contents(ends)])
        forward[:-1] += self._sending
        of_input[1:] += self._sending
        times = ChunkTimes(forward, of_input, of_weight, self._delay)
        return float(step_time(self.chain.pipeline, times)) + float(parts[FIRST_ONCE:].max())

    def _fill(self) -> None:
        """Bounds of the backwards of all stages that could be part of a better partition."""
        from dovetail.partition.stage_split_kernels import least_values

        could = least_values(self._sums, self._in_flight, self._pipeline) < self.seconds
        self._backward = np.full(could.shape, np.inf)
        i, s, e = np.nonzero(could)
        _, kinds = distinct(i, *(self._counts[e] - self._counts[s]).T)
        order = np.argsort(kinds, kind="stable")
        #: content → the stages that have it
        self._alike: dict[Content, list[tuple[Ints, Ints, Ints]]] = {}
        for members in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1) if len(order) else []:
            content = self._content(int(s[members[0]]), int(e[members[0]]), self._flying[int(i[members[0]])])
            self._alike.setdefault(content, []).append((i[members], s[members], e[members]))
        for content in self._alike:
            self._poll()
            self._bounded(content)

    def _bounded(self, content: Content) -> None:
        seconds = self._policies.bound(content) + self._of_weight(content)
        for i, s, e in self._alike.get(content, ()):
            self._backward[i, s, e] = seconds + self._sending * (i > 0)

    def _of_weight(self, content: Content) -> float:
        return sum(n * self.chain.classes[c].weight_gradient_s for c, _, n in content)

    @property
    def _delay(self) -> float:
        return 0.0 if self.chain.sends_itself else self.chain.transfer_s

    @property
    def _sending(self) -> float:
        return self.chain.transfer_s if self.chain.sends_itself else 0.0

    def _relax(self) -> tuple[float, tuple[int, ...]]:
        """The lowest bound by what is known of the stages, and its partition; empty where none is better."""
        from dovetail.partition.stage_split_kernels import labels_of_partitions, values

        for content in self._alike:
            if self._policies.is_exact(content):
                self._bounded(content)
        self._labels = labels_of_partitions(self._sums, self._backward, self._in_flight, self._pipeline, self.seconds)
        places, labels, notes = self._labels
        start, count = places[0, 0].tolist()
        if count == 0:
            return float("inf"), ()
        bounds = values(labels[start : start + count], self._sums, self._stages, self._pipeline, 0.0)
        label, ends = start + int(np.argmin(bounds)), list[int]()
        for _ in range(self._stages):
            end, label = notes[label].tolist()
            ends.append(end)
        return float(bounds.min()), tuple(ends)

    def _best_first(self) -> float:
        """Goes through partitions in the order of their bounds until none is below the best step time, or too many."""
        queue: list[tuple[float, tuple[int, ...], _Begun]] = []
        begun = _Begun((), 0.0, -np.inf, -np.inf, 0.0)
        heapq.heappush(queue, (0.0, (), begun))
        for _ in range(MAX_PARTITIONS):
            if not queue or not self._improves(queue[0][0]):
                return self.seconds
            self._poll()
            _, _, begun = heapq.heappop(queue)
            for longer in self._longer(begun):
                if longer.ends[-1] == self._layers:
                    self._try(longer.ends)
                    continue
                bound = self._bound(longer)
                if self._improves(bound):
                    heapq.heappush(queue, (bound, longer.ends, longer))
        return min(queue[0][0], self.seconds) if queue else self.seconds

    def _longer(self, begun: _Begun) -> Iterator[_Begun]:
        """The same with one stage more."""
        from dovetail.partition.stage_split_kernels import FIRST_ONCE, stay

        i, s = len(begun.ends), begun.ends[-1] if begun.ends else 0
        m, flying = self.chain.pipeline.num_microbatches, self._in_flight[i]
        turns_there = self.chain.pipeline.schedule is PipelineSchedule.ONE_F_ONE_B and flying < m
        for e in np.flatnonzero(self._backward[i, s] < np.inf).tolist():
            backward = float(self._backward[i, s, e])
            whole = float(self._sums[0, e] - self._sums[0, s]) + backward
            whole += self._sending if i < self._stages - 1 else 0.0
            longest, whole_stay = begun.stay + whole, begun.whole_stay
            if turns_there:
                longest = max(longest, (m - flying) * whole + 2 * (self._stages - 1 - i) * self._delay)
            else:
                alone = stay(i, s, e, backward, 0.0, self._sums, self._in_flight, self._pipeline)
                whole_stay = max(whole_stay, alone)
            once = max(begun.once, float((self._sums[FIRST_ONCE:, e] - self._sums[FIRST_ONCE:, s]).max()))
            yield _Begun((*begun.ends, e), begun.backward + backward, longest, whole_stay, once)

    def _bound(self, begun: _Begun) -> float:
        """Seconds a step takes at least that begins with these stages."""
        from dovetail.partition.stage_split_kernels import BACKWARD, ONCE, STAY, values

        i, e = len(begun.ends), begun.ends[-1]
        places, labels, _ = self._labels
        start, count = places[i, e].tolist()
        if count == 0:
            return float("inf")
        joined = labels[start : start + count].copy()
        way = joined[:, BACKWARD] + self._sums[0, -1] - self._sums[0, e] + (self._stages - 1 - i) * self._sending
        joined[:, STAY] = np.maximum(np.maximum(joined[:, STAY], begun.stay + way), begun.whole_stay)
        joined[:, ONCE] = np.maximum(joined[:, ONCE], begun.once)
        return float(values(joined, self._sums, self._stages, self._pipeline, begun.backward).min())


def _pipeline(chain: LayerChain) -> Floats:
    """The entries that stage_split_kernels names."""
    from dovetail.partition.stage_split_kernels import GPIPE, ONE_F_ONE_B, OTHER

    codes = {PipelineSchedule.ONE_F_ONE_B: ONE_F_ONE_B, PipelineSchedule.GPIPE: GPIPE}
    times = (0.0, chain.transfer_s) if chain.sends_itself else (chain.transfer_s, 0.0)
    return np.array([codes.get(chain.pipeline.schedule, OTHER), chain.pipeline.num_microbatches, *times])
