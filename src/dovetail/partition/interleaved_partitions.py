"""Partitions for interleaved pipelines: equal chunks except the first and the last, each one tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dovetail.arrays import ROUNDING, TOLERANCE, Bools, Floats, Ints
from dovetail.partition.layer_chain import LayerChain, LayerPartition, partition_seconds, stage_bytes
from dovetail.partition.partition_search import PartitionSearch, running_sums
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.in_flight import in_flight_of_chunk, peak_saved
from dovetail.pipeline.lower_bound import stage_bounds
from dovetail.plans.pipeline_schedule import SCHEDULE_CODES

#: The order in which a stage's policies are dealt to the layers of its chunks, from the slowest on.
Deal = Callable[[Sequence[Sequence[int]]], list[int]]

#: Partitions tried before the proof is given up and the gap reported.
MAX_PARTITIONS = 1000


class InterleavedPartitions(PartitionSearch):
    """The best partition into like chunks, with the embedding in the first and the head in the last.

    The first and the last chunk hold any number of blocks. Those between hold equally many, or some one more: then
    these come first among them, or last. Chunks of a stage have different numbers of micro-batches in flight, which
    change during the step. A stage's policies are the fastest that fit when it has most in flight; where the peak of
    the whole step does not fit, the fastest that fit with the most micro-batches each chunk ever has; and where these
    do not fit, those that save least. They are dealt to layers from the slowest on: to chunks in turn, or one chunk
    after the other from the first or from the last. Other policies, or another way to deal them, might give a shorter
    step: the bound allows for any.
    """

    def __init__(self, chain: LayerChain, poll: Callable[[], None] = lambda: None) -> None:
        super().__init__(chain, poll)
        self._fastest = [float(c.input_gradient_s.min()) for c in self._classes]
        #: forwards, fastest input gradients, weight gradients, once a step
        self._sums = running_sums(
            [
                [c.forward_s for c in self._classes],
                self._fastest,
                [c.weight_gradient_s for c in self._classes],
                *zip(*(c.once_s for c in self._classes), strict=True),
            ]
        )
        pipeline = chain.pipeline
        code, stages, chunks = SCHEDULE_CODES[pipeline.schedule], pipeline.num_stages, pipeline.num_chunks
        sizes = stages, pipeline.num_microbatches, chunks, pipeline.microbatch_group_size
        #: stages × chunks: micro-batches in flight when a stage has most of them, and the most of each chunk
        self._flying = np.array(
            [[in_flight_of_chunk(code, *sizes, stage, chunk) for chunk in range(chunks)] for stage in range(stages)]
        )
        self._most_flying = np.array(
            [[round(peak_saved(code, *sizes, stage, one)) for one in np.eye(chunks)] for stage in range(stages)]
        )

    def solve(self) -> float:
        """Finds the best partition; returns a lower bound over all of them."""
        partitions = np.array(sorted(set(self._partitions())), np.int64).reshape(-1, self.chain.pipeline.num_places)
        partitions = partitions[self._may_fit(partitions)]
        if not len(partitions):
            return self.seconds
        by_stage, once = self._stage_seconds(partitions)
        fastest = by_stage.max(axis=0) + once
        lowest, tried = float("inf"), 0
        for row in np.argsort(fastest, kind="stable").tolist():
            if not self._improves(fastest[row]) or tried == MAX_PARTITIONS:
                return min(lowest, self.seconds, float(fastest[row]))
            self._poll()
            ends = tuple(partitions[row].tolist())
            bound = self._bound(ends, by_stage[:, row]) + float(once[row])
            lowest = min(lowest, bound)
            if self._improves(bound):
                self._try(ends)
                tried += 1
        return min(lowest, self.seconds)

    def _partitions(self) -> Iterator[tuple[int, ...]]:
        """Where chunks end, of every partition."""
        between, blocks = self.chain.pipeline.num_places - 2, len(self.chain.order) - 2
        for first in range(blocks - between + 1):
            for last in range(blocks - between - first + 1):
                if between == 0 and first + last < blocks:
                    continue
                each, more = divmod(blocks - first - last, between) if between else (0, 0)
                larger, equal = [each + 1] * more, [each] * (between - more)
                for sizes in (larger + equal, equal + larger):
                    yield tuple(np.cumsum([1 + first, *sizes, last + 1]).tolist())

    def _may_fit(self, partitions: Ints) -> Bools:
        """Whether a partition's stages can hold their state and the least their layers can save."""
        smallest = [float(c.saved_bytes.min()) for c in self._classes]
        chunks = _by_chunk(running_sums([[c.state_bytes for c in self._classes], smallest]), partitions)
        # places run over stages, then chunks
        chunks[1] *= self._flying.T.reshape(-1)
        state, saved = self._by_stage(chunks)
        return ((state + saved) <= self.chain.device_bytes * (1 + TOLERANCE)).all(axis=1)

    def _stage_seconds(self, partitions: Ints) -> tuple[Floats, Floats]:
        """Every partition with each layer's fastest policy: bounds by stage, and the slowest stage's end of step."""
        chain, chunks = self.chain, _by_chunk(self._sums, partitions)
        forward, of_input, of_weight = chunks[:3]
        delay = chain.transfer_s
        if chain.sends_itself:
            forward[:, :-1] += delay
            of_input[:, 1:] += delay
            delay = 0.0
        by_stage = stage_bounds(chain.pipeline, ChunkTimes(forward, of_input, of_weight, delay))
        return by_stage, self._by_stage(chunks[3:]).max(axis=(0, 2))

    def _by_stage(self, chunks: Floats) -> Floats:
        """Values of chunks, by their place along the model, added up over the chunks of every stage."""
        pipeline = self.chain.pipeline
        return chunks.reshape(*chunks.shape[:2], pipeline.num_chunks, pipeline.num_stages).sum(axis=2)

    def _chunks(self, ends: Sequence[int], stage: int) -> list[list[int]]:
        """The layers of a stage's chunks."""
        starts = (0, *ends[:-1])
        places = range(stage, len(ends), self.chain.pipeline.num_stages)
        return [list(range(starts[place], ends[place])) for place in places]

    def _bound(self, ends: tuple[int, ...], by_stage: Floats) -> float:
        """A lower bound of a partition over all policies: every stage does at least what fits it, each micro-batch."""
        longest = 0.0
        for stage, flying in enumerate(self._flying.tolist()):
            chunks = self._chunks(ends, stage)
            seconds = self._policies.bound(self._policies.content(chunks, flying))
            more = seconds - sum(self._fastest[i] for chunk in chunks for i in chunk)
            longest = max(longest, float(by_stage[stage]) + self.chain.pipeline.num_microbatches * max(more, 0.0))
        return longest

    def _try(self, ends: tuple[int, ...]) -> None:
        """Solves the stages of a partition, deals their policies in several ways and takes the best."""
        chunks = [self._chunks(ends, stage) for stage in range(self.chain.pipeline.num_stages)]
        for deal in (_in_turn, _from_the_first, _from_the_last):
            policies = [0] * len(self.chain.order)
            fits = [self._choose(stage, of_stage, deal, policies) for stage, of_stage in enumerate(chunks)]
            if not all(fits):
                return
            placement = LayerPartition(ends, tuple(policies))
            seconds = partition_seconds(self.chain, placement)
            if self._improves(seconds):
                self.seconds, self.placement = seconds, placement

    def _choose(self, stage: int, chunks: Sequence[Sequence[int]], deal: Deal, policies: list[int]) -> bool:
        """Writes the policies of a stage's layers; False where none fit."""
        for flying in (self._flying[stage].tolist(), self._most_flying[stage].tolist()):
            choice = self._policies.choice(self._policies.content(chunks, flying))
            if choice is None:
                continue
            of_chunk = {i: flying[number] for number, chunk in enumerate(chunks) for i in chunk}
            picks = {kind: iter(taken) for kind, taken in choice.policies.items()}
            for layer in deal(chunks):
                policies[layer] = next(picks[self.chain.order[layer], of_chunk[layer]])
            if self._fits(stage, chunks, policies):
                return True
        layers = [layer for chunk in chunks for layer in chunk]
        for cap in np.unique(np.concatenate([self._classes[layer].workspace_bytes for layer in layers])):
            if all((self._classes[layer].workspace_bytes <= cap).any() for layer in layers):
                for layer in layers:
                    of_layer = self._classes[layer]
                    saved = np.where(of_layer.workspace_bytes <= cap, of_layer.saved_bytes, np.inf)
                    policies[layer] = int(np.lexsort((of_layer.input_gradient_s, saved))[0])
                if self._fits(stage, chunks, policies):
                    return True
        return False

    def _fits(self, stage: int, chunks: Sequence[Sequence[int]], policies: Sequence[int]) -> bool:
        return stage_bytes(self.chain, stage, chunks, policies) <= self.chain.device_bytes * (1 + ROUNDING)


def _by_chunk(sums: Floats, partitions: Ints) -> Floats:
    """Running sums over layers as values of every partition's chunks: rows × partitions × places."""
    starts = np.concatenate([np.zeros((len(partitions), 1), np.int64), partitions[:, :-1]], axis=1)
    return sums[:, partitions] - sums[:, starts]


def _in_turn(chunks: Sequence[Sequence[int]]) -> list[int]:
    """The first layer of every chunk, the second of every chunk, and so on: chunks differ little."""
    most = max(len(chunk) for chunk in chunks)
    return [chunk[turn] for turn in range(most) for chunk in chunks if turn < len(chunk)]


def _from_the_first(chunks: Sequence[Sequence[int]]) -> list[int]:
    """One chunk after the other."""
    return [layer for chunk in chunks for layer in chunk]


def _from_the_last(chunks: Sequence[Sequence[int]]) -> list[int]:
    """The same from the last chunk on."""
    return [layer for chunk in reversed(chunks) for layer in chunk]
