"""Memory of one chip by part and stage: what training keeps, and what exists for a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.cost.shapes import Array, summed
from dovetail.placement.stages import ChunkContent
from dovetail.profile import LayerProfile, Recompute

Parts = dict[str, Array]


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes per parameter: of what every chip uses, and of what one copy of the sharded state keeps."""

    weight: float
    #: of a weight kept in shards only (ZeRO 3)
    sharded_weight: float
    gradient: float
    optimizer: float


def stage_parameters(contents: Sequence[ChunkContent], profiles: Mapping[str, LayerProfile]) -> tuple[Array, Array]:
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
) -> Parts:
    """Bytes of one stage that holds these chunks; `in_flight` is microbatches per chunk at the worst moment."""
    names = sorted({name for content in contents for name in content})
    used, home = stage_parameters(contents, profiles)
    activations = summed(
        flight * number * kept[name].saved_bytes
        for content, flight in zip(contents, in_flight, strict=True)
        for name, number in content.items()
    )
    largest = np.max([profiles[n].parameters for n in names], axis=0)
    parts: Parts = {
        "weights": home * parameter_bytes.sharded_weight if zero_stage == 3 else used * parameter_bytes.weight,
        "gradients": (home if zero_stage >= 2 else used) * parameter_bytes.gradient,
        "optimizer": (home if zero_stage >= 1 else used) * parameter_bytes.optimizer,
        "activations": activations,
        "recompute workspace": np.max([kept[n].workspace_bytes for n in names], axis=0),
        "transient": np.max([profiles[n].transient_bytes for n in names], axis=0),
    }
    if zero_stage == 3:
        # the layer at work and the one fetched ahead are whole
        parts["gathered weights"] = 2 * largest * parameter_bytes.weight
    return parts
