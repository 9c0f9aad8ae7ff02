"""Vector operators and attention: bytes over bandwidth against work over lanes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats


@dataclass(frozen=True, slots=True)
class VectorUnits:
    """What vector work needs to know of a chip; every field an array over chips."""

    #: operations per second of all lanes
    vector_flops: Floats
    memory_bytes_per_s: Floats
    launch_s: Floats


def vector_seconds(flops: Floats, moved_bytes: Floats, chip: VectorUnits) -> Floats:
    """An elementwise, normalising or data-moving kernel: the slower of its lanes and its memory."""
    return np.maximum(flops / chip.vector_flops, moved_bytes / chip.memory_bytes_per_s) + chip.launch_s


@dataclass(frozen=True, slots=True)
class AttentionUnits:
    """What fused attention needs to know of a chip."""

    matrix_flops: Floats
    #: independent units the blocks of queries are spread over
    units: Floats
    #: part of the peak the matrix products of the fused kernel reach, forward and backward
    forward_efficiency: Floats
    backward_efficiency: Floats
    vector_flops: Floats
    memory_bytes_per_s: Floats
    launch_s: Floats


#: Queries of one block of a fused attention kernel (FlashAttention-2, section 3.3).
ATTENTION_BLOCK = 128

#: How much of the longest block's time is left when the other units have run out of blocks, forward and backward.
#: Between the fits on flash-attention timings of A100 (0.83, 0.46) and B200 (1.8, 0.31), 88 shapes;
#: docs/explanation/cost.md has them.
ATTENTION_TAIL = (1.2, 0.4)


def attention_seconds(
    matrix_flops: Floats,
    vector_flops: Floats,
    moved_bytes: Floats,
    chip: AttentionUnits,
    longest_block_flops: Floats,
    *,
    backward: bool,
) -> Floats:
    """Fused attention: its products at the kernel's efficiency; the softmax runs beside them and can bound.

    One unit works on a block of queries alone, and with few heads on a chip the last blocks leave the others idle.
    """
    efficiency = chip.backward_efficiency if backward else chip.forward_efficiency
    tail = ATTENTION_TAIL[backward] * (chip.units - 1) * longest_block_flops
    products = (matrix_flops + np.minimum(tail, (chip.units - 1) * matrix_flops)) / (chip.matrix_flops * efficiency)
    softmax = vector_flops / chip.vector_flops
    return np.maximum(np.maximum(products, softmax), moved_bytes / chip.memory_bytes_per_s) + chip.launch_s
