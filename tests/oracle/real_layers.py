"""Layers of catalogue models on eight H100, and copies of their profiles in whole bytes and ticks of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dovetail import models
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.graph import LayerGraph
from dovetail.profile import LayerProfile
from dovetail.step.evaluate import step_of
from dovetail.step.facts import facts_of
from valid_plans import costed

Layer = tuple[LayerGraph, LayerProfile]
Layers = dict[str, Layer]

CHIPS = 8
SEQ_LEN = 4096
#: A little less than a nanosecond; sums of its multiples are exact.
TICK = 2.0**-30
#: Not blocks: what stands before and behind them.
ENDS = ("embedding", "head")


@cache
def layers_of(name: str, tensor_parallel: int = 1, attention: str = "fused") -> Layers:
    """Graph and profile of every layer class of a model; with tensor parallelism, sequence parallelism too."""
    longest = models.load(name).max_seq_len or SEQ_LEN
    document = {
        "job": {
            "model": name, "seq_len": min(SEQ_LEN, longest), "global_batch": CHIPS, "attention": attention,
        },
        "cluster": {"name": "hgx-h100", "chips": CHIPS, "framework": "megatron"},
        "plan": {"tensor_parallel": tensor_parallel, "sequence_parallel": tensor_parallel > 1, "micro_batch": 1},
    }  # fmt: skip
    task = costed(document)
    known = calibration(task.cluster.chip, task.job.precision).efficiencies
    profiles = step_of(task.plan, task.job, task.cluster, facts_of(task.framework, task.job), known).profiles
    return {layer: (graph, profiles.layers[layer]) for layer, graph in profiles.graph.layers.items()}


def blocks_of(name: str, tensor_parallel: int = 1, attention: str = "fused") -> Layers:
    """Those of the layers that are blocks."""
    layers = layers_of(name, tensor_parallel, attention)
    return {layer: both for layer, both in layers.items() if layer not in ENDS}


def every_block(name: str) -> Iterator[Layer]:
    """The blocks of a model, whole and, where it can be so cut, over eight chips."""
    for tensor_parallel in (1, 8):
        try:
            blocks = blocks_of(name, tensor_parallel)
        except InputError:
            assert tensor_parallel > 1
            continue
        yield from blocks.values()


def in_ticks(profile: LayerProfile) -> LayerProfile:
    """A copy whose bytes are whole and whose seconds are whole ticks."""
    return replace(
        profile,
        versions=tuple(replace(v, bytes=np.round(v.bytes), made_s=_ticks(v.made_s)) for v in profile.versions),
        operator_s=_ticks(profile.operator_s),
        exchange_s={name: _ticks(parts) for name, parts in profile.exchange_s.items()},
    )


def _ticks(seconds: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.round(s / TICK) * TICK for name, s in seconds.items()}
