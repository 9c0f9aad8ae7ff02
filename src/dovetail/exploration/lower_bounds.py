"""Lower bounds of a study's objectives for its candidates, whatever plan runs on them, as arrays."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.least_work import least_work
from dovetail.cost.energy import NEEDED, operation_joules, standing_watts
from dovetail.cost.units import OPERANDS
from dovetail.exploration.objective import ObjectiveBounds, Prices, objective_bounds
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.hardware.design import NARROW_RATES, Designs
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.wafer_design import WaferDesigns


def candidate_lower_bounds(study: ResolvedStudy, codes: Ints) -> ObjectiveBounds:
    """Lower bounds of the objectives of candidates."""
    count = len(codes)
    columns = {name: np.zeros(count) for name in ("chips", "area_mm2", "system_usd", "least_j", "idle_w")}
    for position, rows, designs in study.candidates(codes):
        chips = float(study.counts[position])
        columns["chips"][rows] = chips
        designs_here = study.space.designs(designs)
        made = at_work = np.asarray(chips)
        if isinstance(designs_here, WaferDesigns):
            made, at_work = chips * designs_here.grid_dies, chips * designs_here.planned_dies
        if "area" in study.objectives:
            # of one chip, or of all dies of a wafer including their margins
            area = designs_here.grid_dies * designs_here.die_mm2 if isinstance(designs_here, WaferDesigns) else None
            columns["area_mm2"][rows] = study.space.values("area_mm2", designs_here) if area is None else area
        if "tokens_per_dollar" in study.objectives:
            columns["system_usd"][rows] = made * study.space.values("system_cost_usd", designs_here)
        if "tokens_per_joule" in study.objectives:
            columns["least_j"][rows], watts = _energy(study, study.space, designs_here)
            columns["idle_w"][rows] = at_work * watts
    return objective_bounds(study.objectives, Prices(**columns), study.tokens)


def _energy(study: ResolvedStudy, space: DesignSpace, designs: Designs) -> tuple[Floats, Floats]:
    """Joules of a weighted step that every plan spends on operations, and watts of a chip whatever runs.

    As in `energy_rates`: from the technology, or at peak power if it gives no energies.
    """
    technology = space.formulas.technology
    chip = space.chip(0)
    if technology is None or chip.technology is None or any(getattr(technology, name) is None for name in NEEDED):
        return np.zeros(designs.shape), np.broadcast_to(space.values("peak_power_w", designs), designs.shape)
    shaped = designs
    if space.base.kind != "systolic":
        # chips without systolic arrays are priced as square ones: nothing is cheaper than a square
        side = np.sqrt(designs.macs_per_core)
        shaped = designs.varied({"rows": side, "cols": side})
    numbers = Silicon(shaped, technology).numbers
    standing = standing_watts(space.values("area_mm2", designs), numbers)
    peak = space.values("peak_power_w", designs)
    least = np.zeros(())
    for job in study.jobs:
        work, sequences = least_work(job.job, None), job.weight * job.job.global_batch
        macs = sequences * sum(work.over_layers(work.matrix_flops.sum(axis=-1))) / 2
        lanes = sequences * sum(work.over_layers(work.vector_flops))
        mac_j, lane_j = operation_joules(shaped, numbers)
        bits, _ = NARROW_RATES.get(job.job.precision, (16, 1.0))
        # a chip at its design power draws no more, and needs as long as its peak rate takes
        chip_s = 2 * macs / designs.peak_flops(OPERANDS[job.job.precision])
        spent = macs * mac_j * (bits / 16) + lanes * lane_j
        least = least + np.minimum(spent, np.maximum(peak - standing, 0.0) * chip_s)
    return (
        np.broadcast_to(least * (1 - TOLERANCE), designs.shape),
        np.broadcast_to(np.minimum(standing, peak), designs.shape),
    )
