"""Layers of many profiles in one array, fields × profiles × classes: what rows of a search are taken from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.profile import LayerProfile, Recompute
from dovetail.step.plan_columns import LayerColumns
from dovetail.step.times import LayerWork, Overlaps, hidden_shares, layer_times

#: Kinds of groups, each with the seconds of its collectives.
KINDS = tuple(hidden_shares(Overlaps(), 0.0))
WORK = ("forward_s", "input_gradient_s", "weight_gradient_s", "forward_kernels", "backward_kernels")
FORWARD_KERNELS = WORK.index("forward_kernels")
_RECOMPUTE = ("saved_bytes", "added_s", "workspace_bytes", "working_bytes", "added_kernels", "offloaded_bytes")
_SHARES = ("tensor_forward", "tensor_backward", "context", "expert", "weight_gather", "gradient_reduction")


def work_array(layers: Sequence[LayerProfile | LayerWork], rows: int) -> Floats:
    """What layers do in every micro-batch: `WORK`, then collectives of forward and backward by kind."""
    return _stacked(
        [
            [
                *(getattr(layer, name) for name in WORK),
                *(seconds.get(kind, 0.0) for seconds in _collectives(layer) for kind in KINDS),
            ]
            for layer in layers
        ],
        rows,
    )


def recompute_array(parts: Sequence[Recompute], rows: int) -> Floats:
    """What layers save and recompute, collectives by kind last."""
    return _stacked(
        [
            [*(getattr(r, name) for name in _RECOMPUTE), *(r.added_collective_s.get(kind, 0.0) for kind in KINDS)]
            for r in parts
        ],
        rows,
    )


def recomputed(array: Floats) -> Recompute:
    """The same as one object of arrays."""
    saved, added, workspace, working, kernels, offloaded = array[: len(_RECOMPUTE)]
    collectives = _by_kind(array[len(_RECOMPUTE) :])
    return Recompute(saved, added, workspace, working, kernels, collectives, offloaded)


def joined_overlaps(parts: Sequence[tuple[Overlaps, int]]) -> Overlaps:
    """Overlaps of several tables with so many profiles each, as arrays; they differ in shares alone."""
    return replace(
        parts[0][0],
        **{
            name: np.concatenate([np.broadcast_to(getattr(overlaps, name), rows) for overlaps, rows in parts])
            for name in _SHARES
        },
    )


def shaped_overlaps(overlaps: Overlaps, index: object) -> Overlaps:
    """The same with the shares that are arrays indexed: some of them, or along more axes."""
    shares = {name: getattr(overlaps, name) for name in _SHARES}
    return replace(overlaps, **{name: share[index] for name, share in shares.items() if np.ndim(share)})


def timed(work: Floats, recompute: Recompute, overlaps: Overlaps, host_s: Floats | float) -> LayerColumns:
    """Seconds and bytes of rows."""
    part = len(WORK) + len(KINDS)
    forward, backward = _by_kind(work[len(WORK) : part]), _by_kind(work[part:])
    seconds, of_input, of_weight, kernels, of_backward = work[: len(WORK)]
    layers = LayerWork(seconds, of_input, of_weight, kernels, of_backward, forward, backward)
    times = layer_times(layers, recompute, overlaps, host_s)
    columns = (times.forward_s, times.input_gradient_s, times.weight_gradient_s, *recompute.bytes())
    return LayerColumns(*np.broadcast_arrays(*columns))


def _collectives(layer: LayerProfile | LayerWork) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
    return layer.forward_collective_s, layer.backward_collective_s


def _stacked(columns: Sequence[Sequence[Floats | float]], rows: int) -> Floats:
    array = np.empty((len(columns[0]), rows, len(columns)))
    for column, fields in enumerate(columns):
        for field, values in enumerate(fields):
            array[field, :, column] = values
    return array


def _by_kind(parts: Floats) -> dict[str, Floats]:
    return {kind: part for kind, part in zip(KINDS, parts, strict=True) if part.any()}
