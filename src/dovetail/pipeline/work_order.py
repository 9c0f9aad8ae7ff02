"""The explicit order of every pipeline schedule: what each stage does, one work item after another.

This is the definition of a schedule: step times, in-flight counts, simulation and charts all follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.frozen import frozen
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


class WorkKind(IntEnum):
    """What a stage does with one micro-batch of one chunk; a backward is both gradients at once."""

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3


@frozen
class WorkItem:
    """One entry of a stage's order; a joined item runs together with the next one, as DualPipe's pairs do."""

    kind: WorkKind
    microbatch: int
    chunk: int
    joined: bool = False


@frozen
class WorkOrder:
    """Every stage's items, one stage after another, as arrays."""

    pipeline: Pipeline
    #: stage i has the items starts[i] to starts[i + 1]
    starts: Ints
    kind: Ints
    microbatch: Ints
    chunk: Ints
    joined: Bools

    @property
    def stage(self) -> Ints:
        """The stage of every item."""
        return np.repeat(np.arange(self.pipeline.num_stages), np.diff(self.starts))

    @property
    def place(self) -> Ints:
        """The place along the model of every item's chunk."""
        return self.pipeline.places()[self.stage, self.chunk]

    def items(self, stage: int) -> tuple[WorkItem, ...]:
        """One stage's items for a reader."""
        span = slice(self.starts[stage], self.starts[stage + 1])
        columns = (self.kind[span], self.microbatch[span], self.chunk[span], self.joined[span])
        return tuple(
            WorkItem(WorkKind(kind), microbatch, chunk, joined)
            for kind, microbatch, chunk, joined in zip(*(c.tolist() for c in columns), strict=True)
        )


@frozen
class Needs:
    """What every item waits for besides the item before it: another item's result, and the link it comes over."""

    item: Ints
    link: Ints


def work_order(pipeline: Pipeline) -> WorkOrder:
    """The order the schedule defines."""
    patterns = [PATTERNS[pipeline.schedule](pipeline, stage) for stage in range(pipeline.num_stages)]
    starts = np.cumsum([0, *(len(pattern) - pattern.count("&") for pattern in patterns)])
    letters = np.frombuffer("".join(patterns).encode("ascii"), np.uint8)
    is_item = letters != ord("&")
    joined = np.append(~is_item[1:], False)[is_item]
    letters = letters[is_item]
    kind = np.frombuffer(letters.tobytes().upper().translate(_KINDS), np.uint8).astype(np.int64)
    microbatch, chunk = np.empty_like(kind), np.empty_like(kind)
    # A stage's n-th forward or backward of a stream takes the stream's n-th micro-batch.
    is_small = letters >= ord("a")
    is_weight, is_forward = kind == WorkKind.WEIGHT_GRADIENT, kind == WorkKind.FORWARD
    for small, stream in enumerate(_streams(pipeline)):
        of_stream = is_small == bool(small)
        for mask, chunks in ((is_forward, stream.forward_chunk), (~is_forward & ~is_weight, stream.backward_chunk)):
            (which,) = np.nonzero(mask & of_stream)
            microbatch[which], chunk[which] = stream.microbatch.ravel(), chunks.ravel()
    # Weight gradients follow first in, first out.
    waiting = kind == WorkKind.INPUT_GRADIENT
    microbatch[is_weight], chunk[is_weight] = microbatch[waiting], chunk[waiting]
    return WorkOrder(pipeline, starts, kind, microbatch, chunk, joined)


def needs(order: WorkOrder) -> Needs:
    """Data dependencies of the order; -1 where an item needs nothing, or nothing over a link."""
    pipeline, stage, place = order.pipeline, order.stage, order.place
    last, items = pipeline.num_places - 1, np.arange(len(order.kind))
    is_forward, is_weight = order.kind == WorkKind.FORWARD, order.kind == WorkKind.WEIGHT_GRADIENT
    is_backward = ~is_forward & ~is_weight
    key = order.microbatch * pipeline.num_places + place
    producer = np.full((2, pipeline.num_microbatches * pipeline.num_places), -1)
    producer[0, key[is_forward]] = items[is_forward]
    producer[1, key[is_backward]] = items[is_backward]
    item = np.full(len(items), -1)
    for mask, row, offset in (
        (is_forward & (place > 0), 0, -1),
        (is_backward & (place < last), 1, 1),
        (is_backward & (place == last), 0, 0),
        (is_weight, 1, 0),
    ):
        item[mask] = producer[row, key[mask] + offset]
    other = np.where(item >= 0, stage[item], stage)
    if pipeline.schedule is PipelineSchedule.DUAL_PIPE:
        link = np.minimum(stage, other)
    else:  # a link is named after the stage before it along the model
        link = np.where(is_forward, other, stage)
    return Needs(item, np.where(other == stage, -1, link))


# A pattern writes a stage's order in letters: Forward, whole Backward, Input gradient, Weight gradient; small
# letters are the second stream of micro-batches (DualPipe's other direction); "&" joins an item to the next.


def _gpipe(pipeline: Pipeline, stage: int) -> str:
    # Huang et al. 2019, fig. 2c
    del stage
    return "F" * pipeline.num_microbatches + "B" * pipeline.num_microbatches


def _one_f_one_b(pipeline: Pipeline, stage: int) -> str:
    # Narayanan et al. 2019 (PipeDream), flushed: Narayanan et al. 2021, fig. 4 top
    m = pipeline.num_microbatches
    warm = min(m, pipeline.num_stages - 1 - stage)
    return "F" * warm + "FB" * (m - warm) + "B" * warm


def _interleaved(pipeline: Pipeline, stage: int) -> str:
    # Narayanan et al. 2021, fig. 4 bottom; Megatron-LM's forward_backward_pipelining_with_interleaving
    runs = pipeline.num_microbatches * pipeline.num_chunks
    behind = pipeline.num_stages - 1 - stage
    warm = min(runs, 2 * behind + (pipeline.num_chunks - 1) * pipeline.microbatch_group_size)
    return "F" * warm + "FB" * (runs - warm) + "B" * warm


def _zb_h1(pipeline: Pipeline, stage: int) -> str:
    # Qi et al. 2023, section 2.1: 1F1B with input gradients; stage i lags i weight gradients behind
    m = pipeline.num_microbatches
    warm = min(m, pipeline.num_stages - 1 - stage)
    steady, lag = m - warm, min(m, stage)
    return (
        "F" * warm
        + "FI" * min(lag, steady)
        + "FIW" * (steady - lag)
        + "I" * (lag - steady)
        + "IW" * (m - max(lag, steady))
        + "W" * lag
    )


def _dual_pipe(pipeline: Pipeline, stage: int) -> str:
    # DeepSeek-AI 2024, fig. 5, in the eight steps of the code published with it
    p, half = pipeline.num_stages, pipeline.num_stages // 2
    near = min(stage, p - 1 - stage)  # stages between this one and the nearer end
    inner = half - 1 - near
    pairs = "F&bf&B" * (pipeline.num_microbatches // 2 - p + near + 1)
    if inner == 0:  # the two middle stages run their first pair one after the other
        pairs = pairs.replace("F&b", "Fb", 1)
    # of the last 2 (near + 1) backwards, the second half leaves its weight gradients for later
    drain = ("bB" * (near + 1))[: near + 1] + ("iI" * (near + 1))[near + 1 :]
    return (
        "F" * (2 * inner)
        + "Ff" * (near + 1)
        + "iWf" * inner
        + pairs
        + "bf&B" * inner
        + drain
        + "WI" * inner
        + "W" * (near + 1)
    )


PATTERNS: Mapping[PipelineSchedule, Callable[[Pipeline, int], str]] = MappingProxyType(
    {
        PipelineSchedule.GPIPE: _gpipe,
        PipelineSchedule.ONE_F_ONE_B: _one_f_one_b,
        PipelineSchedule.INTERLEAVED: _interleaved,
        PipelineSchedule.ZB_H1: _zb_h1,
        PipelineSchedule.DUAL_PIPE: _dual_pipe,
    }
)


_KINDS = bytes.maketrans(b"FBIW", bytes(WorkKind))


@frozen
class _Stream:
    """Arrays of stages × n: the micro-batch and chunk of a stage's n-th forward and backward."""

    microbatch: Ints
    forward_chunk: Ints
    backward_chunk: Ints


def _streams(pipeline: Pipeline) -> tuple[_Stream, ...]:
    p, m = pipeline.num_stages, pipeline.num_microbatches
    if pipeline.schedule is PipelineSchedule.DUAL_PIPE:
        # The first half of the micro-batches runs towards the last stage, the second half towards the first; at
        # each stage the first stream is the one that entered at the nearer end.
        half = np.tile(np.arange(m // 2), (p, 1))
        direction = np.where(np.arange(p) < p // 2, 0, 1)[:, None] + 0 * half
        first = _Stream(half + m // 2 * direction, direction, direction)
        return first, _Stream(half + m // 2 * (1 - direction), 1 - direction, 1 - direction)
    # Interleaved: a group of micro-batches passes every chunk before the next group; backwards, the last chunk first.
    v, size = pipeline.num_chunks, pipeline.microbatch_group_size
    groups = [np.arange(first, min(m, first + size)) for first in range(0, m, size)]
    microbatch = np.concatenate([np.tile(group, v) for group in groups])
    chunk = np.concatenate([np.repeat(np.arange(v), len(group)) for group in groups])
    rows = [np.tile(row, (p, 1)) for row in (microbatch, chunk, v - 1 - chunk)]
    return (_Stream(*rows),)
