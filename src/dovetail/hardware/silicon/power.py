"""Power of a design, part by part, from the energy of each operation and byte, how busy the units are, and leakage."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.hardware.design import Designs
from dovetail.hardware.silicon.area import shared_bytes_per_s
from dovetail.hardware.technology import Numbers

#: Voltage has a floor: energy of logic does not fall below this part of that at the nominal clock. Assumed.
LEAST_ENERGY = 0.55

#: Bytes of a vector operation's registers: two operands and a result in float32.
VECTOR_OPERAND_BYTES = 12


@frozen
class Activity:
    """Part of the time that each kind of unit works at its peak."""

    matrix: float
    vector: float
    shared_sram: float
    memory: float
    links: float


#: What a design power has to hold: large products streamed from memory while links are busy. Assumed; chips sustain
#: some 0.7 to 0.85 of their matrix peak (docs/explanation/hardware.md, efficiencies), largely because of power.
PEAK = Activity(matrix=0.8, vector=0.25, shared_sram=0.5, memory=1.0, links=1.0)
#: A training step: half its time products, the rest between them. Assumed.
TYPICAL = Activity(matrix=0.5, vector=0.2, shared_sram=0.3, memory=0.5, links=0.3)


def logic_factor(designs: Designs, numbers: Numbers) -> Floats:
    """Energy of logic over that of its datapath at the nominal clock.

    Voltage grows about with the root of the clock, so energy grows with the clock and power with its square.
    """
    return np.maximum(designs.clock_hz / numbers.nominal_clock_hz, LEAST_ENERGY) * (1 + numbers.clock_energy_share)


def mac_joules(designs: Designs, numbers: Numbers) -> Floats:
    """One 16-bit multiply-accumulate with its operands: one serves a row of the array, the other a column."""
    operand_bytes = 2 * (1 / designs.rows + 1 / designs.cols)
    datapath = numbers.mac_energy_j + operand_bytes * numbers.core_sram_energy_j_per_byte
    return datapath * logic_factor(designs, numbers)


def vector_joules(designs: Designs, numbers: Numbers) -> Floats:
    """One float32 operation of a lane with its registers."""
    datapath = numbers.vector_energy_j + VECTOR_OPERAND_BYTES * numbers.core_sram_energy_j_per_byte
    return datapath * logic_factor(designs, numbers)


def link_joules_per_byte(designs: Designs, numbers: Numbers) -> float:
    """One byte over a chip's own links, both ends."""
    near, far = numbers.package_link_energy_j_per_byte, numbers.link_energy_j_per_byte
    return near if designs.base.link_reach == "package" else far


def power_parts(designs: Designs, numbers: Numbers, area_mm2: Floats, activity: Activity) -> dict[str, Floats]:
    """Watts of a package by part."""
    lanes = designs.vector_cores * designs.vector_lanes * designs.clock_hz
    return {
        "tensor": activity.matrix * designs.macs_per_cycle * designs.clock_hz * mac_joules(designs, numbers),
        "vector": activity.vector * lanes * vector_joules(designs, numbers),
        "shared memory": activity.shared_sram * shared_bytes_per_s(designs) * numbers.shared_sram_energy_j_per_byte,
        "memory": activity.memory * designs.hbm_bytes_per_s * numbers.hbm_energy_j_per_byte,
        "links": activity.links * designs.link_bytes_per_s * link_joules_per_byte(designs, numbers),
        "leakage": area_mm2 * numbers.leakage_w_per_mm2,
    }
