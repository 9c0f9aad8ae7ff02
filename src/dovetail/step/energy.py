"""Energy of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.profile import Recompute
from dovetail.step.profiles import JobProfiles
from dovetail.step.stages import ChunkContent


def step_energy(
    plan: Plan,
    profiles: JobProfiles,
    contents: Sequence[ChunkContent],
    recomputed: Mapping[str, Recompute],
    cluster: Cluster,
    step_s: float,
) -> tuple[float | None, str]:
    """Joules of a step on all chips, and what the figure rests on."""
    if profiles.rates is None:
        power = cluster.chip.tdp_w
        return (None, "unknown: no TDP published") if power is None else (step_s * plan.chips * power, "TDP × time")
    total = 0.0
    for content in contents:
        for name, count in content.items():
            profile = profiles.layers[name]
            share = float(recomputed[name].added_s / profile.forward_s) if float(profile.forward_s) else 0.0
            microbatch = float(profile.forward_j) * (1 + min(share, 1.0)) + float(profile.backward_j)
            total += count * (plan.num_microbatches * microbatch + float(profile.step_j))
    idle = step_s * plan.chips * profiles.rates.leakage_w
    basis = f"operations, bytes and leakage at {profiles.rates.source}"
    return total * plan.chips / plan.pipeline_parallel + idle, basis
