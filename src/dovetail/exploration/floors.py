"""What candidates of a study cost whatever plan runs on them, as arrays: the floors of its objectives."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.least_work import least_work
from dovetail.cost.energy import NEEDED
from dovetail.exploration.objective import Floors, Prices, floors
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.silicon.power import mac_joules, vector_joules
from dovetail.hardware.wafer_design import WaferDesigns


def candidate_floors(study: ResolvedStudy, codes: Ints) -> Floors:
    """The floors of candidates."""
    count = len(codes)
    columns = {name: np.zeros(count) for name in ("chips", "area_mm2", "system_usd", "least_j", "idle_w")}
    for position, rows, designs in study.candidates(codes):
        chips = float(study.counts[position])
        columns["chips"][rows] = chips
        found = study.space.designs(designs)
        made = at_work = np.asarray(chips)
        if isinstance(found, WaferDesigns):
            made, at_work = chips * found.grid_dies, chips * found.planned_dies
        if "area" in study.objectives:
            # of one chip, or of all dies of a wafer with the room they have
            area = found.grid_dies * found.die_mm2 if isinstance(found, WaferDesigns) else None
            columns["area_mm2"][rows] = study.space.values("area_mm2", found) if area is None else area
        if "tokens_per_dollar" in study.objectives:
            columns["system_usd"][rows] = made * study.space.values("system_cost_usd", found)
        if "tokens_per_joule" in study.objectives:
            columns["least_j"][rows], watts = _energy(study, study.space, found)
            columns["idle_w"][rows] = at_work * watts
    return floors(study.objectives, Prices(**columns), study.tokens)


def _energy(study: ResolvedStudy, space: DesignSpace, designs: Designs) -> tuple[Floats, Floats]:
    """Joules of a weighted step that every plan spends on operations, and watts of a chip whatever runs.

    As `energy_rates` has it: by the technology, or where that gives no energies at peak power.
    """
    technology = space.formulas.technology
    chip = space.chip(0)
    if technology is None or chip.technology is None or any(getattr(technology, name) is None for name in NEEDED):
        return np.zeros(designs.shape), np.broadcast_to(space.values("peak_power_w", designs), designs.shape)
    shaped = designs
    if space.base.kind != "systolic":
        # chips without arrays are priced by the squarest that hold their products; nothing is cheaper than a square
        side = np.sqrt(designs.macs_per_core)
        shaped = designs.varied({"rows": side, "cols": side})
    numbers = Silicon(shaped, technology).numbers
    macs, lanes = _work(study)
    joules = macs * mac_joules(shaped, numbers) + lanes * vector_joules(shaped, numbers)
    leakage = space.values("area_mm2", designs) * numbers.leakage_w_per_mm2
    return np.broadcast_to(joules * (1 - TOLERANCE), designs.shape), np.broadcast_to(leakage, designs.shape)


def _work(study: ResolvedStudy) -> tuple[float, float]:
    """Multiply-accumulates and vector operations of a weighted step, at least."""
    macs = lanes = 0.0
    for job in study.jobs:
        work, sequences = least_work(job.job, None), job.weight * job.job.global_batch
        macs += sequences * sum(work.over_layers(work.matrix_flops.sum(axis=-1))) / 2
        lanes += sequences * sum(work.over_layers(work.vector_flops))
    return macs, lanes
