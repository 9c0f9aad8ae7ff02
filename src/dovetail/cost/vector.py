"""Vector operators and attention: bytes over bandwidth against work over lanes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.cost.shapes import Array


@dataclass(frozen=True, slots=True)
class VectorUnits:
    """What vector work needs to know of a chip; every field an array over chips."""

    #: operations per second of all lanes
    vector_flops: Array
    memory_bytes_per_s: Array
    launch_s: Array


def vector_seconds(flops: Array, moved_bytes: Array, chip: VectorUnits) -> Array:
    """An elementwise, normalising or data-moving kernel: the slower of its lanes and its memory."""
    return np.maximum(flops / chip.vector_flops, moved_bytes / chip.memory_bytes_per_s) + chip.launch_s


@dataclass(frozen=True, slots=True)
class AttentionUnits:
    """What fused attention needs to know of a chip."""

    matrix_flops: Array
    #: part of the peak the matrix products of the fused kernel reach, forward and backward
    forward_efficiency: Array
    backward_efficiency: Array
    vector_flops: Array
    memory_bytes_per_s: Array
    launch_s: Array


def attention_seconds(
    matrix_flops: Array, vector_flops: Array, moved_bytes: Array, chip: AttentionUnits, *, backward: bool
) -> Array:
    """Fused attention: its products at the kernel's efficiency; the softmax runs beside them and can bound."""
    efficiency = chip.backward_efficiency if backward else chip.forward_efficiency
    products = matrix_flops / (chip.matrix_flops * efficiency)
    softmax = vector_flops / chip.vector_flops
    return np.maximum(np.maximum(products, softmax), moved_bytes / chip.memory_bytes_per_s) + chip.launch_s
