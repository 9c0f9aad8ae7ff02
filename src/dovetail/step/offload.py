"""The optimizer's step by its rates, on the chip or on its host, and what a host's memory holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.operators import ChipUnits
from dovetail.hardware import Cluster
from dovetail.pipeline.in_flight import peak_saved_by_stage
from dovetail.plans.pipeline_schedule import Pipeline
from dovetail.profile import Recompute
from dovetail.step.facts import FrameworkFacts
from dovetail.step.formulas import UpdateRates
from dovetail.step.stages import ChunkContent


def update_rates(facts: FrameworkFacts, chip: ChipUnits, cluster: Cluster) -> UpdateRates:
    """What the optimizer takes for each parameter that a chip owns.

    State is streamed once; iterations on matrices run at the rate of large products in half precision. A host that has
    the state streams it instead, at the chip's share of its memory's rate (CPU Adam, Ren et al. 2021).
    """
    if "optimizer" in facts.offload:
        host = cluster.chip.host
        return UpdateRates(
            facts.host.update_bytes / host.chip_bytes_per_s(cluster.chips),
            down_s=facts.streamed.gradients / host.link_bytes_per_s,
            up_s=facts.streamed.weights / host.link_bytes_per_s,
            each_microbatch=facts.host.adds_gradients,
        )
    memory = chip.vector.memory_bytes_per_s
    if not facts.stored_bytes.vector_state:
        return UpdateRates(facts.update_bytes / memory)
    flops = chip.half.peak_flops * chip.half.sustained
    return UpdateRates(facts.update_bytes / memory, 2 * facts.stored_bytes.vector_state / memory, 1 / flops)


def single_rates(rates: UpdateRates) -> UpdateRates:
    """The same as plain numbers, for kernels."""
    *seconds, each = rates
    return UpdateRates(*(float(np.ravel(each_s)[0]) for each_s in seconds), each_microbatch=bool(each))


def with_host(facts: FrameworkFacts, cluster: Cluster) -> FrameworkFacts:
    """The figures with what activations take to the host and back, where they go there."""
    if "activations" not in facts.offload:
        return facts
    rate = 1 / cluster.chip.host.link_bytes_per_s
    return replace(facts, overlaps=replace(facts.overlaps, offload_s_per_byte=rate))


def host_state_bytes(facts: FrameworkFacts) -> float:
    """Bytes that a host holds for each parameter whose state a chip would have."""
    if "optimizer" not in facts.offload:
        return 0.0
    return facts.streamed.optimizer + (facts.streamed.gradients if facts.host.adds_gradients else 0.0)


def host_bytes(
    facts: FrameworkFacts,
    home: Floats,
    pipeline: Pipeline,
    contents: Sequence[ChunkContent],
    recomputed: Mapping[str, Recompute],
) -> float:
    """What a host holds at most for one of its chips, `home` being the parameters whose state chips of a stage have."""
    if not facts.offload:
        return 0.0
    saved = [
        sum(float(np.ravel(recomputed[name].offloaded_bytes)[0]) * count for name, count in content.items())
        for content in contents
    ]
    return float((home * host_state_bytes(facts) + peak_saved_by_stage(pipeline, np.array(saved))).max())
