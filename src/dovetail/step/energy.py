"""Energy of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dovetail.cost.energy import RangedRates
from dovetail.hardware import Cluster
from dovetail.layout import CollectivePhase
from dovetail.plans.plan import Plan
from dovetail.profile import Recompute
from dovetail.step.power import Ranged
from dovetail.step.profiles import JobProfiles
from dovetail.step.stages import ChunkContent

#: Of the design power, the least that a chip without energies draws in training: TPU v3 drew 245 to 310 W of 450 with
#: its host (Patterson et al., Carbon Emissions and Large Neural Network Training, 2021, table 4), some 140 W without.
LEAST_SHARE = 0.3


def step_energy(
    plan: Plan,
    profiles: JobProfiles,
    contents: Sequence[ChunkContent],
    recomputed: Mapping[str, Recompute],
    cluster: Cluster,
    step_s: float,
) -> tuple[Ranged | None, str]:
    """Joules of a step into the boards of all chips, and what the figure rests on; no chip draws more than its TDP."""
    power, chip_s = cluster.chip.tdp_w, step_s * plan.chips
    if profiles.rates is None:
        if power is None:
            return None, "unknown: no TDP published"
        return Ranged(chip_s * power, LEAST_SHARE * chip_s * power, chip_s * power), "TDP × time"
    counts = _counts(plan, profiles, contents, recomputed)
    joules = ranged_joules(profiles.rates, counts, chip_s)
    basis = f"operations, bytes and standing power at {profiles.rates.source}"
    if power is None or joules.value <= chip_s * power:
        return (joules if power is None else joules.at_most(chip_s * power)), basis
    return joules.at_most(chip_s * power), f"{basis}, at most TDP × time"


def ranged_joules(rates: RangedRates, counts: Mapping[str, float], chip_s: float) -> Ranged:
    """Joules with the ends that the sources of the rates leave: each coefficient's own part, squared and added."""
    value = rates.rates.joules(counts, chip_s)
    ends = [(first.joules(counts, chip_s), second.joules(counts, chip_s)) for first, second in rates.ends]
    below = math.hypot(*(value - min(value, *pair) for pair in ends))
    above = math.hypot(*(max(value, *pair) - value for pair in ends))
    return Ranged(value, value - below, value + above)


def _counts(
    plan: Plan, profiles: JobProfiles, contents: Sequence[ChunkContent], recomputed: Mapping[str, Recompute]
) -> dict[str, float]:
    """Operations and bytes of a step on all chips."""
    total: dict[str, float] = {}
    for content in contents:
        for name, count in content.items():
            profile = profiles.layers[name]
            share = float(recomputed[name].added_s / profile.forward_s) if float(profile.forward_s) else 0.0
            times = {
                CollectivePhase.FORWARD: plan.num_microbatches * (1 + min(share, 1.0)),
                CollectivePhase.BACKWARD: plan.num_microbatches,
                CollectivePhase.STEP: 1,
            }
            for phase, counts in profile.energy_counts.items():
                for kind, number in counts.items():
                    total[kind] = total.get(kind, 0.0) + count * times[phase] * float(number)
    return {kind: number * plan.chips / plan.pipeline_parallel for kind, number in total.items()}
