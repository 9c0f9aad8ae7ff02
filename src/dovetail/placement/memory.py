"""Memory of one chip by part and stage: what training keeps, and what exists for a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats, largest, summed
from dovetail.placement.stages import ChunkContent
from dovetail.profile import LayerProfile, Recompute

Parts = dict[str, Floats]

#: Parts that are there from the first step to the last.
STATE = ("weights", "gradients", "optimizer")


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes per parameter: of what every chip uses, and of what one copy of the sharded state keeps."""

    weight: float
    #: of a weight kept in shards only (ZeRO 3)
    sharded_weight: float
    gradient: float
    optimizer: float
    #: of accumulated gradients where there is a pipeline, if that differs
    pipeline_gradient: float | None = None
    #: of what the optimizer makes of its gradients for the update
    step_copy: float = 0.0
    #: of the layer at work: weight gradients that have not joined the accumulated ones yet
    layer_gradient: float = 0.0
    #: sharded weights are gathered, and their gradients reduced, one by one instead of layer by layer
    by_weight: bool = False


def stage_parameters(contents: Sequence[ChunkContent], profiles: Mapping[str, LayerProfile]) -> tuple[Floats, Floats]:
    """Parameters one chip of a stage uses, and those its state is kept of; tied weights count once."""
    used, home = np.zeros(()), np.zeros(())
    tied: set[str] = set()
    for name, number in ((name, number) for content in contents for name, number in content.items()):
        profile = profiles[name]
        used = used + number * profile.parameters
        home = home + number * profile.home_parameters
        for weight, shared in profile.tied_parameters.items():
            again = number if weight in tied else number - 1
            used = used - again * shared.parameters
            home = home - again * shared.home_parameters
            tied.add(weight)
    return used, home


def stage_memory(
    contents: Sequence[ChunkContent],
    profiles: Mapping[str, LayerProfile],
    kept: Mapping[str, Recompute],
    in_flight: Sequence[float],
    parameter_bytes: ParameterBytes,
    zero_stage: int,
    loss_bytes: Mapping[str, Floats] | None = None,
) -> Parts:
    """Bytes of one stage that holds these chunks; `in_flight` is microbatches per chunk at the worst moment.

    `loss_bytes` is what the loss of a layer holds at once. The loss is over before the backward of a layer begins,
    so a stage needs room for the larger of the two moments, not for both.
    """
    names = sorted({name for content in contents for name in content})
    activations = summed(
        flight * number * kept[name].saved_bytes
        for content, flight in zip(contents, in_flight, strict=True)
        for name, number in content.items()
    )
    none = np.zeros(())
    loss = largest((loss_bytes or {}).get(n, none) for n in names)
    workspace = largest(kept[n].workspace_bytes for n in names)
    transient = largest(profiles[n].transient_bytes for n in names if n not in (loss_bytes or {}))
    gradients = layer_gradients(names, profiles, parameter_bytes, zero_stage)
    in_loss = loss > workspace + transient + gradients
    used, home = stage_parameters(contents, profiles)
    parts = {**state_bytes(used, home, parameter_bytes, zero_stage), "activations": activations}
    parts["recompute workspace"] = np.where(in_loss, 0.0, workspace)
    parts["transient"] = np.where(in_loss, 0.0, transient)
    parts["layer gradients"] = np.where(in_loss, 0.0, gradients)
    parts["loss"] = np.where(in_loss, loss, 0.0)
    if zero_stage == 3:
        parts["gathered weights"] = gathered_parameters(names, profiles, by_weight=parameter_bytes.by_weight) * (
            parameter_bytes.weight
        )
    # activations are gone when the optimizer runs: its copies need room only beyond theirs
    step = (home if zero_stage >= 1 else used) * parameter_bytes.step_copy
    moment = summed(part for name, part in parts.items() if name not in STATE)
    parts["optimizer step"] = np.maximum(step - moment, 0.0)
    return parts


def gathered_parameters(names: Sequence[str], profiles: Mapping[str, LayerProfile], *, by_weight: bool) -> Floats:
    """Parameters that are whole at once: what is at work and what is fetched ahead."""
    if not by_weight:
        return 2 * largest(profiles[n].parameters for n in names)
    # a weight that embedding and head share is fetched once
    own = [profiles[n].largest_weight for n in names if not profiles[n].tied_parameters]
    shared = [profiles[n].largest_weight for n in names if profiles[n].tied_parameters]
    sizes = np.sort(np.stack(np.broadcast_arrays(*own, *own, *shared[:1])), axis=0)
    return np.asarray(sizes[-2:].sum(axis=0))


def state_bytes(used: Floats, home: Floats, parameter_bytes: ParameterBytes, zero_stage: int) -> Parts:
    """What is there from the first step to the last: no plan runs without it."""
    return {
        "weights": home * parameter_bytes.sharded_weight if zero_stage == 3 else used * parameter_bytes.weight,
        "gradients": (home if zero_stage >= 2 else used) * parameter_bytes.gradient,
        "optimizer": (home if zero_stage >= 1 else used) * parameter_bytes.optimizer,
    }


def layer_gradients(
    names: Sequence[str], profiles: Mapping[str, LayerProfile], parameter_bytes: ParameterBytes, zero_stage: int
) -> Floats:
    """Weight gradients of the layer at work.

    Sharded gradients are whole until they are reduced. Accumulated ones are written in place by grouped products of
    experts, while products every token uses have a gradient of their own first.
    """
    whole = zero_stage >= 2
    if whole and parameter_bytes.by_weight:
        return largest(profiles[n].largest_weight for n in names) * parameter_bytes.layer_gradient
    sizes = [profiles[n].parameters if whole else profiles[n].dense_parameters for n in names]
    return largest(sizes) * parameter_bytes.layer_gradient
