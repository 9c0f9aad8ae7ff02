"""Seconds of the end of a step: reductions, weights updated in shards, the optimizer, and waits for hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.frozen import frozen
from dovetail.plans.pipeline_schedule import Pipeline
from dovetail.step.formulas import UpdateRates, exposed, offload_seconds, optimizer_seconds, overlap_budget
from dovetail.step.profiles import UPDATED_WEIGHTS, JobProfiles
from dovetail.step.stages import Stage, layer_counts
from dovetail.step.times import LayerTimes, Overlaps


@frozen
class EndOfStep:
    """Seconds once a step: reduction, updated weights, optimizer, and what chips wait for their hosts; × stages."""

    parts: Floats

    def slowest(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Those of the stage that takes longest for them together."""
        slowest = np.argmax(self.parts.sum(axis=0), axis=0)[None]
        reduction, gathering, update, offload = (np.take_along_axis(part, slowest, axis=0)[0] for part in self.parts)
        return reduction, gathering, update, offload

    @property
    def update_s(self) -> list[float]:
        """By stage, the optimizer and waits for its host."""
        return [float(np.ravel(each)[0]) for each in self.parts[2] + self.parts[3]]


def end_of_step(
    profiles: JobProfiles,
    stages: Sequence[Stage],
    layers: Mapping[str, LayerTimes],
    overlaps: Overlaps,
    pipeline: Pipeline,
    parameters: Floats,
    rates: UpdateRates,
) -> EndOfStep:
    """What a step adds to its micro-batches, by stage: reduction, gathering of weights updated in shards, optimizer.

    `parameters` are those of each stage (`stage_parameters`). Reductions can hide behind the last micro-batch's
    backward, gatherings behind the next step's first forward.
    """
    none: Floats = np.zeros(())
    sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, overlaps.min_overlap_s
    by_stage: list[tuple[Floats, ...]] = []
    for stage, (*_, home, vectors) in zip(stages, parameters.tolist(), strict=True):
        reduction = gathering = backward = forward = flops = none
        for name, count in layer_counts(stage).items():
            collectives, times = profiles.layers[name].step_collective_s, layers[name]
            updated = collectives.get(UPDATED_WEIGHTS, none)
            reduction = reduction + count * (summed(collectives.values()) - updated)
            gathering = gathering + count * updated
            backward = backward + count * (times.input_gradient_s + times.weight_gradient_s)
            forward = forward + count * times.forward_s
            flops = flops + count * profiles.layers[name].update.flops
        behind = overlap_budget(backward, *sizes)
        reduced = exposed(reduction, overlaps.gradient_reduction, behind)
        gathered = exposed(gathering, overlaps.updated_weights, overlap_budget(forward, *sizes))
        update = optimizer_seconds(home, rates, vectors, flops)
        by_stage.append((reduced, gathered, update, offload_seconds(home, rates, behind, pipeline.num_microbatches)))
    return EndOfStep(np.stack([np.stack(np.broadcast_arrays(*part)) for part in zip(*by_stage, strict=True)]))
