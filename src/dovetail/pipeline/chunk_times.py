"""How long one micro-batch takes on every chunk, for one plan or many."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkKind
from dovetail.plans.pipeline_schedule import Pipeline


@frozen
class ChunkTimes:
    """Seconds that one micro-batch takes on every chunk; leading axes are plans.

    The last axis is the chunk's place along the model (stage i for plain schedules). A transfer delays what needs
    it and leaves both stages free; time that a stage itself spends on sending belongs to its chunks. The last axis
    of `transfer_s` is the link; a plain number is the time of every link. `overlapped_s` is DualPipe's: a forward
    at a place joined with the backward at the mirrored place, as long as both one after the other unless given.
    """

    forward_s: ArrayLike
    input_gradient_s: ArrayLike
    weight_gradient_s: ArrayLike
    transfer_s: ArrayLike = 0.0
    overlapped_s: ArrayLike | None = None

    def columns(self, pipeline: Pipeline) -> Columns:
        """The same numbers as arrays of places (or links) × plans, checked against the pipeline."""
        places = pipeline.num_places
        given = [self.forward_s, self.input_gradient_s, self.weight_gradient_s, self.transfer_s]
        parts: list[Floats] = [np.asarray(part, np.float64) for part in given]
        if parts[3].ndim == 0:
            parts[3] = np.full(pipeline.num_links, parts[3])
        widths = [places, places, places, pipeline.num_links]
        if self.overlapped_s is not None:
            parts.append(np.asarray(self.overlapped_s, np.float64))
            widths.append(places)
        for part, width in zip(parts, widths, strict=True):
            assert part.ndim > 0, "a time for every chunk"
            assert part.shape[-1] == width, f"{part.shape[-1]} times for {width} chunks or links of {pipeline}"
        plans = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
        whole = [np.broadcast_to(part, (*plans, part.shape[-1])) for part in parts]
        arrays = [np.ascontiguousarray(part.reshape(math.prod(plans), part.shape[-1]).T) for part in whole]
        forward, of_input, of_weight, transfer = arrays[:4]
        backward = of_input + of_weight
        overlapped = arrays[4] if self.overlapped_s is not None else forward + backward[::-1]
        return Columns(plans, forward, of_input, of_weight, backward, overlapped, transfer)


@frozen
class Columns:
    """Times as arrays of places (transfers: links) × plans."""

    plans: tuple[int, ...]
    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats
    backward: Floats
    overlapped: Floats
    transfer: Floats

    def work(self) -> Floats:
        """Durations in rows: place r of work kind k is row k × places + r, joined pairs come after the kinds."""
        kinds = {
            WorkKind.FORWARD: self.forward,
            WorkKind.BACKWARD: self.backward,
            WorkKind.INPUT_GRADIENT: self.input_gradient,
            WorkKind.WEIGHT_GRADIENT: self.weight_gradient,
        }
        return np.concatenate([*(kinds[kind] for kind in WorkKind), self.overlapped])
