"""Fused attention: matrix products and exponentials of blocks of queries, which GPUs work on one by one."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph import Operator
from dovetail.graph.mask import Mask, Span
from dovetail.graph.size import Sizes, as_array, divided, product, total


@frozen
class AttentionUnits:
    """What fused attention needs to know of a chip."""

    matrix_flops: Floats
    #: independent units the blocks of queries are spread over
    units: Floats
    #: part of the peak the matrix products of the fused kernel reach, forward and backward
    forward_efficiency: Floats
    backward_efficiency: Floats
    vector_flops: Floats
    #: of the special-function units; infinite where the chip has no figure for them
    exponentials_per_s: Floats
    #: 1 where one unit works on a block of queries alone, as on GPUs, and 0 elsewhere
    blocked: Floats
    memory_bytes_per_s: Floats
    launch_s: Floats


#: Queries, and keys, of one block of a fused attention kernel (FlashAttention-2, section 3.3).
ATTENTION_BLOCK = 128
#: Head sizes are filled up to multiples of this (FlashAttention-2 and -3 are compiled for 64, 96, 128, ...).
HEAD_STEP = 32
#: Sums of 128 queries and so many values fill a unit's 256 KiB of registers (H100) or tensor memory (B200) half;
#: for wider values the scores are computed again. At 512 measured kernels reach half the rate they have at 256.
WIDEST_VALUES = 256


@frozen
class AttentionKernels:
    """What the fused kernels of all GPUs have in common; pairs are of forward and backward."""

    #: special-function operations a score takes: its exponential, and what else of the softmax is not hidden
    exponents: float
    #: seconds of a unit to start and end a block of queries
    block_s: tuple[float, float]
    #: how much of the longest block's time is left when the other units have run out of blocks
    tail: tuple[float, float]
    #: part of the shorter of memory's time and that of the units which is not hidden behind the longer
    exposed: float


#: Fitted by accuracy.attention_timings on kernels of seven GPUs; docs/explanation/attention.md has the errors.
ATTENTION_KERNELS = AttentionKernels(exponents=1.23, block_s=(2.27e-6, 7.05e-6), tail=(0.59, 1.47), exposed=0.51)


@frozen
class AttentionWork:
    """Attention of one chip, forward or backward: numbers, or arrays over cases."""

    #: of the pairs of query and key that the mask leaves
    matrix_flops: Floats
    vector_flops: Floats
    moved_bytes: Floats
    #: of all sequences and heads
    queries: Floats
    #: that a query sees, in the mean
    keys: Floats
    #: and those it does not see in the blocks that are computed whole
    masked_keys: Floats
    #: keys of the block of queries that sees most, over the mean
    longest: Floats
    head_dim: Floats
    value_dim: Floats


def attention_work(
    operator: Operator, local: Sizes, flops: tuple[Floats, Floats], moved_bytes: Floats
) -> AttentionWork:
    """The work of an attention operator with the sizes one chip sees."""
    mask = operator.mask
    assert mask is not None, f"{operator.name} has no mask"
    *pairs, head_dim = operator.work[0].dims
    parts = _seen(mask, as_array(local[mask.key]))
    keys = total(seen for _, _, seen in parts)
    return AttentionWork(
        *flops,
        moved_bytes,
        queries=as_array(product(local, [dim for dim in pairs if dim != mask.key])),
        keys=as_array(keys),
        masked_keys=as_array(total(masked_keys(part, seen, length) for part, length, seen in parts)),
        longest=as_array(divided(total(seen * longest_block(part) for part, _, seen in parts), keys)),
        head_dim=as_array(local[head_dim]),
        value_dim=as_array(local[operator.work[1].dims[-1]]),
    )


def _seen(mask: Mask, length: Floats) -> list[tuple[Mask, Floats, Floats]]:
    """Of the keys of each kind their mask, their number, and how many of them a query sees in the mean."""
    found: list[tuple[Mask, Floats, Floats]] = []
    for part, share in mask.parts():
        own = length * float(share)
        found.append((part, own, own * as_array(part.coverage({part.key: own}, causal=True))))
    return found


def masked_keys(mask: Mask, keys: Floats, length: Floats) -> Floats:
    """Keys a query does not see in blocks it sees a part of: half a block at each slanting edge of the mask."""
    if mask.span is Span.TOP_K:
        return np.zeros(())
    edges = np.asarray(float(mask.causal))
    if mask.span is Span.WINDOW:
        edges = np.where(length > mask.width, 2.0, edges)
    return np.minimum(edges * ATTENTION_BLOCK / 2, length - keys)


def longest_block(mask: Mask) -> Floats:
    """Keys of the block of queries that sees most, over the mean: the last of a causal sequence sees all of them."""
    return np.asarray(2.0 if mask.causal and mask.span is Span.ALL else 1.0)


def attention_seconds(
    work: AttentionWork, chip: AttentionUnits, kernels: AttentionKernels = ATTENTION_KERNELS, *, backward: bool
) -> Floats:
    """Fused attention: its products at the kernel's efficiency and its exponentials, which hide each other in part.

    One unit works on a block of queries alone, and with few heads on a chip the last blocks leave the others idle.
    Queries are read before a block's first product and results written after its last.
    """
    efficiency = chip.backward_efficiency if backward else chip.forward_efficiency
    whole = 1 + chip.blocked * work.masked_keys / work.keys
    filled = 1 + chip.blocked * (_filled_heads(work, backward=backward) - 1)
    products = work.matrix_flops * whole * filled / (chip.matrix_flops * efficiency)
    scores = work.queries * work.keys * whole * _passes(work)
    exponentials = kernels.exponents * scores / chip.exponentials_per_s
    blocks = work.queries / ATTENTION_BLOCK
    idle = (chip.units - 1) * np.minimum(kernels.tail[backward] * np.minimum(work.longest / blocks, 1.0), 1.0)
    units = (
        np.hypot(products, exponentials) * (1 + idle) + chip.blocked * kernels.block_s[backward] * blocks / chip.units
    )
    lanes, memory = work.vector_flops / chip.vector_flops, work.moved_bytes / chip.memory_bytes_per_s
    exposed = chip.blocked * kernels.exposed * np.minimum(units, memory)
    return np.maximum(np.maximum(units, lanes), memory) + exposed + chip.launch_s


def _filled_heads(work: AttentionWork, *, backward: bool) -> Floats:
    """Operations with heads filled up to whole steps, of those without; five products backward, two forward."""
    head_products, value_products = (3, 2) if backward else (1, 1)
    head, value = (np.ceil(dim / HEAD_STEP) * HEAD_STEP for dim in (work.head_dim, work.value_dim))
    filled = (head_products + _passes(work) - 1) * head + value_products * value
    return filled / (head_products * work.head_dim + value_products * work.value_dim)


def _passes(work: AttentionWork) -> Floats:
    """How often scores are computed: once for each part of the values whose sums fit a unit."""
    return np.ceil(work.value_dim / WIDEST_VALUES)


def scan_seconds(
    matrix_flops: Floats, vector_flops: Floats, moved_bytes: Floats, chip: AttentionUnits, *, backward: bool
) -> Floats:
    """Linear attention, state spaces and indexers: the slowest of products at attention's efficiency, lanes, memory."""
    efficiency = chip.backward_efficiency if backward else chip.forward_efficiency
    products, lanes = matrix_flops / (chip.matrix_flops * efficiency), vector_flops / chip.vector_flops
    return np.maximum(np.maximum(products, lanes), moved_bytes / chip.memory_bytes_per_s) + chip.launch_s
