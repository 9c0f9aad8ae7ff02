"""Partition tables: how the blocks of a model are dealt to stages and chunks, as counts of layer classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from dovetail.arrays import Ints
from dovetail.graph import ModelGraph
from dovetail.plans.partitions import Blocks
from dovetail.plans.pipeline_schedule import PipelineSchedule
from dovetail.step.plan_columns import PartitionColumns


class LayerRuns(NamedTuple):
    """The layers of a model: blocks in runs of one class, and how many of every class come before and after them."""

    run_class: Ints
    run_length: Ints
    blocks: Ints
    first: Ints
    after: Ints
    #: whether all chunks but the first and the last have a fair share of the blocks, rounded down, or more
    fair_shares: bool


class PartitionTable:
    """Partitions as rows, made when they are first asked for."""

    def __init__(self, graph: ModelGraph, classes: Sequence[str], blocks: int) -> None:
        order = [run.layer for run in graph.chain for _ in range(run.count)]
        numbers = {name: i for i, name in enumerate(classes)}
        self._first = numbers[order[0]]
        self._blocks = [numbers[name] for name in order[1 : 1 + blocks]]
        self._after = [numbers[name] for name in order[1 + blocks :]]
        self._classes = len(classes)
        self._rows: dict[tuple[Blocks, int, str], int] = {}
        self.layers: list[Blocks] = []
        self._contents: list[Ints] = []
        self._stages: list[Ints] = []
        self._chunks: list[Ints] = []
        self._places: list[Ints] = []
        running = np.zeros((blocks + 1, self._classes), np.int64)
        for place, block in enumerate(self._blocks):
            running[place + 1] = running[place]
            running[place + 1, block] += 1
        self._running = running

    @property
    def block_counts(self) -> Ints:
        """How many blocks of every class the model has."""
        return self._running[-1]

    def chain(self, *, listed: bool) -> LayerRuns:
        """The model's layers, for bounds: over listed partitions, or over all."""
        runs = [(block, len(list(run))) for block, run in groupby(self._blocks)]
        first, after = self.end_counts
        numbers = np.array(runs, np.int64).reshape(-1, 2)
        return LayerRuns(numbers[:, 0].copy(), numbers[:, 1].copy(), self.block_counts, first, after, listed)

    @property
    def end_counts(self) -> tuple[Ints, Ints]:
        """How many layers of every class come before and after the blocks."""
        first, after = np.zeros((2, self._classes), np.int64)
        first[self._first] += 1
        np.add.at(after, self._after, 1)
        return first, after

    def row(self, layers: Blocks, stages: int, schedule: str) -> int:
        """The row of a partition into so many stages."""
        key = (layers, stages, "dualpipe" if schedule == PipelineSchedule.DUAL_PIPE else "")
        if key not in self._rows:
            self._rows[key] = len(self.layers)
            self._add(layers, stages, both_ways=bool(key[2]))
        return self._rows[key]

    def _add(self, layers: Blocks, stages: int, *, both_ways: bool) -> None:
        ends = np.concatenate([[0], np.cumsum(layers)])
        places = self._running[ends[1:]] - self._running[ends[:-1]]
        first, after = self.end_counts
        places[0] += first
        places[-1] += after
        by_stage = places.reshape(-1, stages, self._classes).sum(axis=0)
        if both_ways:
            by_stage = by_stage + by_stage[::-1]
        self.layers.append(layers)
        for table, rows, values in (
            (self._contents, self._stages, by_stage),
            (self._chunks, self._places, places),
        ):
            unique, inverse = np.unique(values, axis=0, return_inverse=True)
            table.append(unique)
            rows.append(inverse.reshape(-1))

    def arrays(self) -> PartitionColumns:
        """All rows so far, for kernels."""
        return PartitionColumns(
            *_joined(self._contents, self._classes),
            *_joined(self._stages),
            *_joined(self._chunks, self._classes),
            *_joined(self._places),
        )

    def places(self, row: int) -> Ints:
        """Layers of every class at each place along the model."""
        return self._chunks[row][self._places[row]]

    @property
    def most_places(self) -> int:
        """The most places of any partition."""
        return max(len(places) for places in self._places)


def _joined(parts: Sequence[Ints], width: int | None = None) -> tuple[Ints, Ints]:
    """Rows one after the other, and where each part begins."""
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    shape = (0,) if width is None else (0, width)
    return np.ascontiguousarray(np.concatenate([*parts, np.zeros(shape, np.int64)])), starts
