"""Vector operators: bytes over bandwidth against work over lanes."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen


@frozen
class VectorUnits:
    """What vector work needs to know of a chip; every field an array over chips."""

    #: operations per second of all lanes
    vector_flops: Floats
    memory_bytes_per_s: Floats
    launch_s: Floats


def vector_seconds(flops: Floats, moved_bytes: Floats, chip: VectorUnits) -> Floats:
    """An elementwise, normalising or data-moving kernel: the slower of its lanes and its memory."""
    return np.maximum(flops / chip.vector_flops, moved_bytes / chip.memory_bytes_per_s) + chip.launch_s
