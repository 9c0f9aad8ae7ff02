"""Energy from operations, bytes and leakage, where a chip's technology gives what each takes."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail import hardware
from dovetail.arrays import Floats, summed
from dovetail.cost.operators import ChipUnits, PlacedWork, operator_bytes
from dovetail.errors import InputError
from dovetail.hardware import Chip
from dovetail.hardware.design import design_of
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.silicon.power import link_joules_per_byte, mac_joules, vector_joules


@dataclass(frozen=True, slots=True)
class EnergyRates:
    """Joules per multiply-accumulate, vector operation, byte from memory and byte over a link; watts whatever runs."""

    mac_j: float
    vector_j: float
    memory_j_per_byte: float
    link_j_per_byte: float
    leakage_w: float
    source: str


#: Coefficients without which a technology says nothing of energy.
NEEDED = (
    "mac_energy_j", "vector_energy_j", "core_sram_energy_j_per_byte", "shared_sram_energy_j_per_byte",
    "hbm_energy_j_per_byte", "link_energy_j_per_byte", "package_link_energy_j_per_byte", "nominal_clock_hz",
    "clock_energy_share", "leakage_w_per_mm2",
)  # fmt: skip


def energy_rates(chip: Chip) -> EnergyRates | None:
    """A chip's energies by the silicon model; None unless its technology gives all of them."""
    technology = hardware.technology(chip.technology) if chip.technology else None
    if technology is None or any(getattr(technology, name) is None for name in NEEDED):
        return None
    silicon = Silicon(design_of(chip), technology)
    designs, numbers = silicon.designs, silicon.numbers
    shared, core = numbers.shared_sram_energy_j_per_byte, numbers.core_sram_energy_j_per_byte
    # what comes from memory comes through the memory on the die
    memory = (shared if chip.shared_sram_bytes else core) + (numbers.hbm_energy_j_per_byte if chip.hbm_bytes else 0.0)
    try:
        area = float(silicon.area_mm2) if chip.area_mm2 is None else chip.area_mm2
    except InputError:  # the technology has no areas
        return None
    return EnergyRates(
        mac_j=float(mac_joules(designs, numbers)),
        vector_j=float(vector_joules(designs, numbers)),
        memory_j_per_byte=memory,
        link_j_per_byte=link_joules_per_byte(designs, numbers),
        leakage_w=area * numbers.leakage_w_per_mm2,
        source=technology.name,
    )


def operator_joules(work: PlacedWork, chip: ChipUnits, rates: EnergyRates) -> Floats:
    """Joules one chip spends on these operators."""
    moved = operator_bytes(work, chip)
    parts: list[Floats] = []
    for name, (matrix, vector) in work.flops.items():
        parts += (matrix / 2 * rates.mac_j, vector * rates.vector_j, moved[name] * rates.memory_j_per_byte)
    return summed(parts)
