"""Measured fused attention against the model: the rows that stand for training, the errors, and the fits."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail import hardware
from dovetail.accuracy.gemm_timings import LAUNCH_S, ShortRuns, descend
from dovetail.arrays import Floats
from dovetail.cost.attention import (
    ATTENTION_KERNELS,
    AttentionKernels,
    AttentionUnits,
    AttentionWork,
    attention_seconds,
    longest_block,
    masked_keys,
)
from dovetail.cost.calibration import generation_of
from dovetail.cost.units import chip_units
from dovetail.frozen import frozen
from dovetail.graph.mask import Mask, Span

#: Kernels, by who wrote them → the libraries and names they were measured under. Training frameworks run cuDNN's and
#: FlashAttention's; TensorRT-LLM's stand beside them for the shapes that have no other. Left out: FlashAttention-2 on
#: GPUs it is not written for or with a paged cache (vLLM, 16 % slower on A100), Triton's, FlashInfer's,
#: TensorRT-LLM's `torch_flow` (slower where others were measured too) and written-out attention, and
#: latent attention multiplied with the latents (sglang's `flash_attention` where heads of keys and values differ).
KERNELS: Mapping[str, frozenset[tuple[str, str]]] = {
    "cudnn": frozenset({("cudnn", "cudnn"), ("cudnn_fe", "cudnn_fe"), ("pyt_cudnn", "pyt_cudnn")}),
    "flash": frozenset(
        {("FA4", "FA4"), ("sglang", "flash_attention"), ("sglang", "fa3"), ("sglang", "flash_attention_v3")}
        | {("sglang", "flash_attention_v4"), ("vllm", "vllm_flash_attn_fa3")}
        | {("vllm", "vllm_flash_attn_fa4"), ("vllm", "vllm_vit_flash_attn_fa3"), ("vllm", "vllm_vit_flash_attn_fa4")}
    ),
    "tensorrt": frozenset(
        {("sglang", "trtllm_mha"), ("sglang", "trtllm_mla"), ("vllm", "vllm_flashinfer_trtllmprefill")}
        | {("trtllm", "default")}
    ),
}
#: Libraries that serve models; theirs launch more than the kernel, such as what appends to a cache of keys and values.
SERVING = frozenset({"sglang", "vllm", "trtllm"})
#: Fewer tokens are no micro-batch of a training run.
FEWEST_TOKENS = 4096

#: Of HBM's bandwidth, as the products measured have it (accuracy/data/priors.yaml).
STREAMING = 0.82


@frozen
class AttentionMeasurement:
    """What the measured seconds hold besides the kernel of a long run; both are fitted with the kernels."""

    #: of a serving library, for every call
    serving_s: float
    short_runs: ShortRuns


ATTENTION_MEASUREMENT = AttentionMeasurement(1.05e-5, ShortRuns(boost=0.17, half_s=3.6e-2))


@frozen
class AttentionTimings:
    """Attention that was measured, forward or backward; arrays over rows."""

    backward: bool
    chip: NDArray[np.str_]
    #: who wrote the kernel
    kernel: NDArray[np.str_]
    served: NDArray[np.bool_]
    work: AttentionWork
    units: AttentionUnits
    seconds: Floats
    #: keys of the sequence, and whether the future is masked out: what errors are listed by
    length: Floats
    causal: NDArray[np.bool_]

    @property
    def groups(self) -> NDArray[np.str_]:
        """Generation and kernel of each row: what has an efficiency of its own."""
        chips, rows = np.unique(self.chip, return_inverse=True)
        generations = np.array([generation_of(str(chip)) or str(chip) for chip in chips], np.str_)
        return np.char.add(np.char.add(generations[rows], " "), self.kernel)

    def part(self, rows: NDArray[np.intp]) -> AttentionTimings:
        """A selection of the rows."""
        work = replace(self.work, **{f.name: getattr(self.work, f.name)[rows] for f in fields(self.work)})
        units = replace(self.units, **{f.name: getattr(self.units, f.name)[rows] for f in fields(self.units)})
        own = ("chip", "kernel", "served", "seconds", "length", "causal")
        return replace(self, work=work, units=units, **{name: getattr(self, name)[rows] for name in own})

    def thinned(self, most: int) -> AttentionTimings:
        """At most so many rows of each chip and kernel, drawn at random."""
        rng, names = np.random.default_rng(0), _names(self)
        rows = [rng.permutation(np.flatnonzero(names == name))[:most] for name in np.unique(names)]
        return self.part(np.concatenate(rows))


@frozen
class AttentionErrors:
    """Errors of predicted times of attention, as fractions of the measured time."""

    name: str
    rows: int
    #: sum of absolute errors over the sum of times
    time_weighted: float
    #: sum of predicted over sum of measured times, less 1
    bias: float


def read_attention(path: Path) -> tuple[AttentionTimings, AttentionTimings]:
    """Forward and backward of bf16 self-attention of training's sizes: the fastest row of a chip, kernel and shape."""
    fastest: dict[tuple[str, ...], float] = {}
    by_name = {name: kernel for kernel, names in KERNELS.items() for name in names}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        header = next(lines)
        library, name = header.index("library"), header.index("kernel")
        for cells in lines:
            kernel = by_name.get((cells[library], cells[name]))
            if kernel is None:
                continue
            row = dict(zip(header, cells, strict=True))
            if _like_training(row):
                served = str(row["library"] in SERVING)
                key = (row["pass"], row["chip"], kernel, served, *(row[column] for column in _SHAPE))
                fastest[key] = min(fastest.get(key, np.inf), float(row["seconds"]))
    keys, seconds = list(fastest), np.array(list(fastest.values()))
    passes = np.array([key[0] for key in keys])
    forward, backward = (np.flatnonzero(passes == name) for name in ("fwd", "bwd"))
    return (
        _timings([keys[row] for row in forward], seconds[forward], backward=False),
        _timings([keys[row] for row in backward], seconds[backward], backward=True),
    )


_SHAPE = ("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "seq_q", "causal", "window")


def _like_training(row: Mapping[str, str]) -> bool:
    half = row["dtype"] == "bfloat16" and row["kv_cache_dtype"] in ("", "bfloat16")
    alike = row["seq_q"] == row["seq_k"] and int(row["batch"]) * int(row["seq_q"]) >= FEWEST_TOKENS
    latents = row["kernel"] == "flash_attention" and row["head_dim"] != row["head_dim_v"]
    return half and alike and not latents


def _timings(keys: Sequence[tuple[str, ...]], seconds: Floats, *, backward: bool) -> AttentionTimings:
    _, chips, kernels, served = (np.array([key[column] for key in keys]) for column in range(4))
    batch, heads, kv_heads, head, value, length, causal, window = np.array([key[4:] for key in keys], np.float64).T
    seen, masked, longest = (np.empty_like(seconds) for _ in range(3))
    for past, width in np.unique(np.stack([causal, window], axis=1), axis=0):
        mask = Mask(bool(past), Span.WINDOW if width else Span.ALL, int(width))
        rows = (causal == past) & (window == width)
        seen[rows] = length[rows] * np.asarray(mask.coverage({mask.key: length[rows]}, causal=True))
        masked[rows] = masked_keys(mask, seen[rows], length[rows])
        longest[rows] = longest_block(mask)
    queries = batch * heads * length
    products = 6 * head + 4 * value if backward else 2 * head + 2 * value
    # queries, keys, values and results once, backward also their gradients, and a float of statistics for each query
    elements = batch * length * (heads + kv_heads) * (head + value) * (2 if backward else 1)
    work = AttentionWork(
        matrix_flops=queries * seen * products,
        vector_flops=queries * seen * (10 if backward else 5),
        moved_bytes=2 * elements + 4 * queries,
        queries=queries,
        keys=seen,
        masked_keys=masked,
        longest=longest,
        head_dim=head,
        value_dim=value,
    )
    names, rows = np.unique(chips, return_inverse=True)
    each = [_units(str(name)) for name in names]
    units = AttentionUnits(
        **{f.name: np.array([getattr(u, f.name) for u in each])[rows] for f in fields(AttentionUnits)}
    )
    return AttentionTimings(backward, chips, kernels, served == "True", work, units, seconds, length, causal == 1)


def measured_seconds(
    timings: AttentionTimings,
    efficiency: Floats,
    kernels: AttentionKernels = ATTENTION_KERNELS,
    measurement: AttentionMeasurement = ATTENTION_MEASUREMENT,
) -> Floats:
    """The model's time of each measurement: the kernel at the clock of a short run, and the library's calls."""
    units = replace(timings.units, forward_efficiency=efficiency, backward_efficiency=efficiency)
    steady = attention_seconds(timings.work, units, kernels, backward=timings.backward)
    clock = 1 + measurement.short_runs.boost / (1 + steady / measurement.short_runs.half_s)
    boosted = np.minimum(efficiency * clock, 1.0)
    units = replace(
        units,
        forward_efficiency=boosted,
        backward_efficiency=boosted,
        exponentials_per_s=units.exponentials_per_s * clock,
    )
    seconds = attention_seconds(timings.work, units, kernels, backward=timings.backward)
    return seconds + timings.served * measurement.serving_s


def fit_efficiencies(
    timings: AttentionTimings,
    kernels: AttentionKernels = ATTENTION_KERNELS,
    measurement: AttentionMeasurement = ATTENTION_MEASUREMENT,
) -> dict[str, float]:
    """Generation and kernel → the part of the peak with the least error."""
    sample = timings.thinned(_MOST_ROWS)
    found: dict[str, float] = {}
    for name in np.unique(sample.groups):
        own = sample.part(np.flatnonzero(sample.groups == name))
        weights = _weights(own)

        def loss(tried: Sequence[float], own: AttentionTimings = own, weights: Floats = weights) -> float:
            return _loss(own, weights, np.full_like(own.seconds, tried[0]), kernels, measurement)

        (found[str(name)],) = descend(loss, [_START], [1.0], _SWEEPS)
    return found


def of_training(efficiencies: Mapping[str, float], generation: str) -> float | None:
    """What training's kernels reach on a generation: cuDNN's, or FlashAttention's where cuDNN's were not measured."""
    return efficiencies.get(f"{generation} cudnn", efficiencies.get(f"{generation} flash"))


def fit_kernels(forward: AttentionTimings, backward: AttentionTimings) -> tuple[AttentionKernels, AttentionMeasurement]:
    """The constants all GPUs share and those of measurements, each generation and kernel at its own efficiency.

    What the forward pass and the measurements have in common is fitted on the forward, which has most rows.
    """

    def shared(values: Sequence[float]) -> tuple[AttentionKernels, AttentionMeasurement]:
        exponents, block_s, tail, exposed, serving_s, boost, half_s = values
        kernels = AttentionKernels(exponents, (block_s, block_s), (tail, tail), exposed)
        return kernels, AttentionMeasurement(serving_s, ShortRuns(boost, half_s))

    # start far from the optimum, so that finding it again means something
    kernels, measurement = shared(_fit_shared(forward, shared, [0.7, 1e-6, 0.3, 0.4, 5e-6, 0.1, 1e-2]))

    def backwards(values: Sequence[float]) -> tuple[AttentionKernels, AttentionMeasurement]:
        block_s, tail = values
        pairs = ((kernels.block_s[0], block_s), (kernels.tail[0], tail))
        return replace(kernels, block_s=pairs[0], tail=pairs[1]), measurement

    return backwards(_fit_shared(backward, backwards, [1e-6, 0.3]))


def _fit_shared(
    timings: AttentionTimings,
    constants: Callable[[Sequence[float]], tuple[AttentionKernels, AttentionMeasurement]],
    start: Sequence[float],
) -> list[float]:
    sample = timings.thinned(_MOST_KERNEL_ROWS)
    names, groups = np.unique(sample.groups, return_inverse=True)
    weights = _weights(sample)

    def loss(tried: Sequence[float]) -> float:
        efficiency = np.asarray(tried[len(start) :])[groups]
        return _loss(sample, weights, efficiency, *constants(tried[: len(start)]))

    bounds = [np.inf] * len(start) + [1.0] * len(names)
    return descend(loss, [*start, *[_START] * len(names)], bounds, _SWEEPS)[: len(start)]


#: Rows of a chip and kernel the fits look at.
_MOST_ROWS = 2000
_MOST_KERNEL_ROWS = 600
_SWEEPS = 60
_START = 0.65
#: Errors (log) are clipped here: a larger one hints at a wrong row or an unlucky kernel choice.
_CLIP = 0.5
#: Part of the weight that rows have by their time, the rest is by number.
_BY_TIME = 0.7


def _loss(
    timings: AttentionTimings,
    weights: Floats,
    efficiency: Floats,
    kernels: AttentionKernels,
    measurement: AttentionMeasurement,
) -> float:
    seconds = measured_seconds(timings, efficiency, kernels, measurement)
    return float((weights * np.minimum(np.abs(np.log(seconds / timings.seconds)), _CLIP)).sum())


def _weights(timings: AttentionTimings) -> Floats:
    """Every chip and kernel counts alike."""
    names, weights = _names(timings), np.empty_like(timings.seconds)
    for name in np.unique(names):
        rows = names == name
        own = timings.seconds[rows]
        weights[rows] = _BY_TIME * own / own.sum() + (1 - _BY_TIME) / len(own)
    return weights


def attention_report(
    timings: AttentionTimings,
    efficiencies: Mapping[str, float],
    by: Sequence[NDArray[np.generic]],
    kernels: AttentionKernels = ATTENTION_KERNELS,
    measurement: AttentionMeasurement = ATTENTION_MEASUREMENT,
) -> list[AttentionErrors]:
    """Errors of the rows that are alike in all of some columns."""
    efficiency = np.array([efficiencies[str(group)] for group in timings.groups])
    off = measured_seconds(timings, efficiency, kernels, measurement) - timings.seconds
    names = np.array([" ".join(str(value) for value in values) for values in zip(*by, strict=True)], np.str_)
    report: list[AttentionErrors] = []
    for name in np.unique(names):
        rows = names == name
        total = timings.seconds[rows].sum()
        errors = (float(np.abs(off[rows]).sum() / total), float(off[rows].sum() / total))
        report.append(AttentionErrors(str(name), int(rows.sum()), *errors))
    return report


def _names(timings: AttentionTimings) -> NDArray[np.str_]:
    return np.char.add(np.char.add(timings.chip, " "), timings.kernel)


@lru_cache(maxsize=64)
def _units(chip: str) -> AttentionUnits:
    """A chip at the bandwidth and launch of measured products; the efficiencies are still to be set."""
    unit = hardware.chip(chip)
    streaming = np.asarray((unit.hbm_bytes_per_s or 0.0) * STREAMING)
    return replace(chip_units(unit, "bf16").attention, memory_bytes_per_s=streaming, launch_s=np.asarray(LAUNCH_S))
