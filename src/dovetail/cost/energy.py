"""What takes energy in a step, where a chip's technology says how much, with what the sources leave open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dovetail import hardware
from dovetail.arrays import Floats, summed
from dovetail.cost.operators import ChipUnits, PlacedWork, operator_bytes, runs_narrow
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph.tensor import Element
from dovetail.hardware import Chip, Coefficient, Technology
from dovetail.hardware.design import Designs, design_of
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.silicon.power import link_joules_per_byte, logic_factor, mac_joules, vector_joules
from dovetail.hardware.technology import Numbers

#: Coefficients without which a technology says nothing of energy.
NEEDED = (
    "mac_energy_j", "vector_energy_j", "core_sram_energy_j_per_byte", "shared_sram_energy_j_per_byte",
    "hbm_energy_j_per_byte", "link_energy_j_per_byte", "package_link_energy_j_per_byte", "nominal_clock_hz",
    "clock_energy_share", "leakage_w_per_mm2",
)  # fmt: skip

#: What a running chip takes beyond the datapaths of the silicon model; of all nodes alike.
RUNNING = {
    "register_bytes": Coefficient(
        0.875, 0.53, 1.125,
        "bytes a GPU's registers give and take for each multiply-accumulate: an mma of 16 x 8 x 16 reads 768 bytes of "
        "operands and reads and writes 512 of sums for 2,048 (PTX ISA); low: wgmma, operands from shared memory; "
        "high: AMD's mfma of 32 x 32 x 8",
        "derived",
    ),
    "at_work": Coefficient(
        3.0, 2.0, 4.0,
        "standing power of a chip that works over that of one asleep: clocks and instructions, caches awake, leakage "
        "at 60 to 70 degrees. From figures under light loads less an estimate of their bytes: 2.6 of an H100 (267 W, "
        "the least of vLLM runs on api.serialalice.pt), 3.8 of an A100 (291 W, chuyishang/inference-energy on GitHub), "
        "2.6 of a TPU v4 (121 W at least, Jouppi et al., ISCA 2023, recalled); chosen after 2.0 gave too little on "
        "published runs",
        "derived",
    ),
    "delivery": Coefficient(
        1.1, 1.06, 1.15, "power into a board over what its chips take: voltage regulators of 87 to 94 %", "memory"
    ),
}  # fmt: skip


@frozen
class EnergyRates:
    """Joules of each operation and byte into a chip's board, and watts whatever runs."""

    macs: float
    lanes: float
    memory_bytes: float
    link_bytes: float
    standing_w: float

    def joules(self, counts: Mapping[str, float], chip_s: float) -> float:
        """Of so many operations and bytes in so many seconds of chips."""
        return sum(number * getattr(self, name) for name, number in counts.items()) + chip_s * self.standing_w


@frozen
class RangedRates:
    """The rates of a chip, and with each coefficient at its low and high end, the others at their values."""

    rates: EnergyRates
    ends: tuple[tuple[EnergyRates, EnergyRates], ...]
    source: str


def energy_rates(chip: Chip) -> RangedRates | None:
    """A chip's energies by its technology; None unless it gives all of them."""
    technology = hardware.technology(chip.technology) if chip.technology else None
    if technology is None or any(getattr(technology, name) is None for name in NEEDED):
        return None
    design = design_of(chip)
    try:
        area = float(Silicon(design, technology).area_mm2) if chip.area_mm2 is None else chip.area_mm2
    except InputError:  # the technology has no areas
        return None
    ends: list[tuple[EnergyRates, EnergyRates]] = []
    for name in NEEDED:
        coefficient: Coefficient = getattr(technology, name)
        low, high = (
            replace(technology, **{name: replace(coefficient, value=end)})
            for end in (coefficient.low, coefficient.high)
        )
        ends.append((_rates(design, low, area, _value), _rates(design, high, area, _value)))
    for name in RUNNING:
        low, high = (_moved(name, end) for end in ("low", "high"))
        ends.append((_rates(design, technology, area, low), _rates(design, technology, area, high)))
    return RangedRates(_rates(design, technology, area, _value), tuple(ends), technology.name)


Running = Callable[[str], float]


def _value(name: str) -> float:
    return RUNNING[name].value


def _moved(moved: str, end: str) -> Running:
    return lambda name: getattr(RUNNING[name], end) if name == moved else RUNNING[name].value


def _rates(design: Designs, technology: Technology, area_mm2: float, running: Running) -> EnergyRates:
    chip, numbers = design.base, technology.numbers()
    shared, core = numbers.shared_sram_energy_j_per_byte, numbers.core_sram_energy_j_per_byte
    # what comes from memory comes through the memory on the die
    memory = (shared if chip.shared_sram_bytes else core) + (numbers.hbm_energy_j_per_byte if chip.hbm_bytes else 0.0)
    macs, lanes = operation_joules(design, numbers, running)
    delivery = running("delivery")
    return EnergyRates(
        macs=float(macs),
        lanes=float(lanes),
        memory_bytes=delivery * memory,
        link_bytes=delivery * link_joules_per_byte(design, numbers),
        standing_w=float(standing_watts(np.asarray(area_mm2), numbers, running)),
    )


def operation_joules(designs: Designs, numbers: Numbers, running: Running = _value) -> tuple[Floats, Floats]:
    """Joules of a 16-bit multiply-accumulate and of an operation of a vector lane of running chips."""
    register_bytes = running("register_bytes") if designs.base.kind == "gpu" else 0.0
    registers = register_bytes * numbers.core_sram_energy_j_per_byte * logic_factor(designs, numbers)
    delivery = running("delivery")
    return delivery * (mac_joules(designs, numbers) + registers), delivery * vector_joules(designs, numbers)


def standing_watts(area_mm2: Floats, numbers: Numbers, running: Running = _value) -> Floats:
    """Watts of a chip that works, whatever runs on it."""
    return running("delivery") * running("at_work") * numbers.leakage_w_per_mm2 * area_mm2


def operator_counts(work: PlacedWork, chip: ChipUnits) -> dict[str, Floats]:
    """What takes energy of these operators on one chip; products count by the width of what they multiply."""
    moved, width = operator_bytes(work, chip), work.widths[Element.COMPUTE]
    narrow = {p.operator.name for p in work.operators if runs_narrow(p.operator, work.tensors)}
    macs: list[Floats] = []
    for name, (matrix, _) in work.flops.items():
        operand_bytes = chip.narrow_bytes if chip.narrow_bytes and name in narrow else width
        macs.append(matrix / 2 * (operand_bytes / HALF_BYTES))
    lanes = summed(vector for _, vector in work.flops.values())
    return {"macs": summed(macs), "lanes": lanes, "memory_bytes": summed(moved.values())}


#: Of an operand of half precision, whose product the technologies give the energy of.
HALF_BYTES = 2
