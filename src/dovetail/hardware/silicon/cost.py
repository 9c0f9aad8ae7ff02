"""Yield and money: what a package costs to make, and what stands around it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dovetail.arrays import Floats
from dovetail.hardware.design import Designs
from dovetail.hardware.silicon.area import CORE_PARTS
from dovetail.hardware.technology import Numbers

WAFER_MM = 300.0

#: Of one HBM stack on the package, 11 x 10 mm.
STACK_MM2 = 110.0


def dies_per_wafer(die_area_mm2: Floats) -> Floats:
    """Whole dies of a round wafer: its area over theirs, less what the rim cuts; a die of wafer size is one."""
    whole = math.pi * (WAFER_MM / 2) ** 2 / die_area_mm2
    return np.maximum(whole - math.pi * WAFER_MM / np.sqrt(2 * die_area_mm2), 1.0)


def die_yield(designs: Designs, numbers: Numbers, parts: Mapping[str, Floats]) -> Floats:
    """Part of the dies that work: negative binomial (Stapper 1983) over the area in which a defect is fatal.

    Dies of a base with spare cores lose none to defects in cores: there are far fewer of these than spares.
    """
    spare = designs.made("vector_cores") > 1
    fatal = sum((area for name, area in parts.items() if not (spare and name in CORE_PARTS)), np.zeros(()))
    alpha = numbers.defect_clustering
    return (1 + fatal / designs.dies * numbers.defects_per_mm2 / alpha) ** -alpha


def package_parts(designs: Designs, numbers: Numbers, die_area_mm2: Floats, working: Floats) -> dict[str, Floats]:
    """Dollars of a package that works, by part: known good dies, memory, package, and what bonding spoils of all."""
    made_die = numbers.wafer_price_usd / dies_per_wafer(die_area_mm2) + die_area_mm2 * numbers.die_test_usd_per_mm2
    placed = {
        "dies": designs.dies * made_die / working,
        "memory": designs.hbm_bytes * numbers.hbm_price_usd_per_byte,
        "package": (designs.dies * die_area_mm2 + designs.hbm_stacks * STACK_MM2) * numbers.package_price_usd_per_mm2,
    }
    whole = sum(placed.values(), np.zeros(()))
    return {**placed, "bonding": whole * (numbers.bond_yield ** -(designs.dies + designs.hbm_stacks) - 1)}


def system_parts(designs: Designs, numbers: Numbers, package_usd: Floats, power_w: Floats) -> dict[str, Floats]:
    """Dollars with a chip's part of host, board, network, power and cooling, by part."""
    # links on a wafer or in a package need no switches, cards and cables
    reaching = designs.link_bytes_per_s if designs.base.link_reach == "board" else np.zeros(())
    return {
        "chip": package_usd,
        "host and board": np.asarray(numbers.system_price_usd),
        "network": reaching * numbers.system_price_usd_per_byte_per_s,
        "power and cooling": power_w * numbers.system_price_usd_per_w,
    }
