"""A pipeline: which schedule, how many stages, micro-batches and chunks; what each schedule refuses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from dovetail.arrays import Ints
from dovetail.errors import InputError
from dovetail.frozen import frozen

#: Stages × micro-batches × chunks; far beyond any training run, near what one process can order in memory.
MAX_CHUNK_RUNS = 2**22


class PipelineSchedule(StrEnum):
    """The order in which stages work on micro-batches; docs/explanation/pipeline.md describes each with its source."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb_h1"
    DUAL_PIPE = "dualpipe"


#: Schedules as compiled code knows them: small numbers.
ONE_F_ONE_B, GPIPE, INTERLEAVED, ZB_H1, DUAL_PIPE = range(5)
SCHEDULE_CODES: Mapping[PipelineSchedule, int] = MappingProxyType(
    {
        PipelineSchedule.ONE_F_ONE_B: ONE_F_ONE_B,
        PipelineSchedule.GPIPE: GPIPE,
        PipelineSchedule.INTERLEAVED: INTERLEAVED,
        PipelineSchedule.ZB_H1: ZB_H1,
        PipelineSchedule.DUAL_PIPE: DUAL_PIPE,
    }
)


@frozen
class Pipeline:
    """A pipeline schedule and its sizes.

    A *chunk* is a contiguous run of layers that a stage works on at a time; its *place* is its index along the
    model. Interleaving gives a stage `num_chunks` of them, DualPipe two (one per direction), the others one.
    """

    schedule: PipelineSchedule
    num_stages: int
    num_microbatches: int
    num_chunks: int = 1
    #: Interleaved: how many micro-batches pass one chunk before the next chunk's turn (Megatron-LM's
    #: `microbatch_group_size_per_vp_stage`); None takes the smallest that the schedule allows.
    group_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_stages", "num_microbatches", "num_chunks"):
            if getattr(self, name) < 1:
                raise InputError(name, f"is {getattr(self, name)}", "it should be 1 or more")
        runs = self.num_stages * self.num_microbatches * self.num_chunks
        if runs > MAX_CHUNK_RUNS:
            raise InputError(
                "num_microbatches",
                f"{runs} runs of a chunk per step are too many",
                f"keep stages × micro-batches × chunks within {MAX_CHUNK_RUNS}",
            )
        if self.schedule is PipelineSchedule.INTERLEAVED:
            self._check_interleaved()
        elif self.num_chunks != 1 or self.group_size is not None:
            field = "group_size" if self.num_chunks == 1 else "num_chunks"
            raise InputError(field, f"has no meaning for {self.schedule}", "use the interleaved schedule")
        if self.schedule is PipelineSchedule.DUAL_PIPE:
            self._check_dual_pipe()

    def _check_interleaved(self) -> None:
        if self.num_chunks < 2:
            raise InputError("num_chunks", "is 1", "interleave 2 chunks or more, or use 1f1b")
        if self.group_size is not None and not self._allows_group(self.group_size):
            p, m = self.num_stages, self.num_microbatches
            raise InputError(
                "group_size",
                f"{self.group_size} leaves stages waiting for each other with {p} stages and {m} micro-batches",
                f"{self.microbatch_group_size} is the smallest that does not",
            )

    def _allows_group(self, size: int) -> bool:
        # Megatron-LM refuses groups, the last one too, of fewer micro-batches than stages: a group could not fill
        # the pipeline, and some would deadlock. One group of all micro-batches, fewer than stages, is what
        # PyTorch's ScheduleInterleaved1F1B runs.
        p, m = self.num_stages, self.num_microbatches
        if m < p:
            return size == m
        return p <= size <= m and (m % size == 0 or m % size >= p)

    def _check_dual_pipe(self) -> None:
        p, m = self.num_stages, self.num_microbatches
        if p % 2:
            raise InputError("num_stages", f"{p} is odd", "dualpipe needs an even number of stages")
        if m % 2 or m < 2 * p:
            raise InputError(
                "num_microbatches",
                f"{m} with {p} stages",
                f"dualpipe needs an even number of at least twice the stages, so {2 * p} or more",
            )

    @property
    def microbatch_group_size(self) -> int:
        """The group size in use: the one given, or the smallest allowed (stages, where they divide micro-batches)."""
        if self.schedule is not PipelineSchedule.INTERLEAVED:
            return self.num_microbatches
        if self.group_size is not None and self._allows_group(self.group_size):
            return self.group_size
        if self.num_microbatches < self.num_stages:
            return self.num_microbatches
        return next(n for n in range(self.num_stages, self.num_microbatches + 1) if self._allows_group(n))

    @property
    def num_places(self) -> int:
        """Chunks along the model; DualPipe holds each twice."""
        return self.num_stages * self.num_chunks

    @property
    def num_links(self) -> int:
        """Links that transfers cross: link i joins stage i to stage i + 1, an interleaved pipeline closes the ring."""
        return self.num_stages if self.schedule is PipelineSchedule.INTERLEAVED else self.num_stages - 1

    def places(self) -> Ints:
        """The place of every stage's chunks: an array of stages × chunks."""
        stages = np.arange(self.num_stages)
        if self.schedule is PipelineSchedule.DUAL_PIPE:
            return np.stack([stages, stages[::-1]], axis=1)
        return stages[:, None] + self.num_stages * np.arange(self.num_chunks)
