"""Area of a design's dies, part by part, and the edge its interfaces need."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.hardware.design import Designs
from dovetail.hardware.technology import Numbers

#: What a scanner exposes at once, 26 x 33 mm.
RETICLE_MM2 = 26.0 * 33.0

#: Parts that come with a core: the ones a die can have spares of.
CORE_PARTS = ("tensor", "vector", "core memory")


def area_parts(designs: Designs, numbers: Numbers) -> dict[str, Floats]:
    """Square millimetres of all dies of a package by part, units that are switched off included."""
    shared = designs.made("shared_sram_bytes") * designs.shared_sram_bytes
    stacks = designs.made("hbm_stacks") * designs.hbm_stacks
    parts = {
        "tensor": _tensor(designs, numbers),
        "vector": _vector(designs, numbers),
        "core memory": _core_memory(designs, numbers),
        "shared memory": shared * numbers.sram_area_mm2_per_byte,
        "network on chip": noc_bytes_per_s(designs) * numbers.noc_area_mm2_per_byte_per_s,
        "memory interface": stacks * (numbers.hbm_phy_area_mm2 + numbers.hbm_controller_area_mm2),
        "links": _links(designs, numbers),
        "host": np.asarray(numbers.host_area_mm2 if designs.base.link_reach == "board" else 0.0),
    }
    whole = sum(parts.values(), np.zeros(()))
    return {**parts, "other": numbers.other_area_share * whole}


def shoreline_mm(designs: Designs, numbers: Numbers) -> Floats:
    """Millimetres of a die's edge that its memory and links stand on."""
    stacks = designs.made("hbm_stacks") * designs.hbm_stacks * numbers.hbm_shoreline_mm
    near, far = numbers.package_link_shoreline_mm_per_byte_per_s, numbers.link_shoreline_mm_per_byte_per_s
    links = _made_links(designs) * (near if designs.base.link_reach == "package" else far)
    return (stacks + links + 2 * die_to_die_bytes_per_s(designs) * near) / designs.dies


def noc_bytes_per_s(designs: Designs) -> Floats:
    """What the network on chip carries: shared memory, memory and links at once."""
    return shared_bytes_per_s(designs) + designs.hbm_bytes_per_s + designs.link_bytes_per_s


def shared_bytes_per_s(designs: Designs) -> Floats:
    """Bandwidth of the shared memory; where nobody says, what all matrix units take in, two bytes a row and cycle."""
    taken = 2 * designs.tensor_cores * designs.rows * designs.clock_hz
    bandwidth = np.where(np.isinf(designs.shared_sram_bytes_per_s), taken, designs.shared_sram_bytes_per_s)
    return np.where(designs.shared_sram_bytes > 0, bandwidth, 0.0)


def die_to_die_bytes_per_s(designs: Designs) -> Floats:
    """What the dies of a package exchange: the memory of all, read evenly by each."""
    return designs.hbm_bytes_per_s * (designs.dies - 1) / designs.dies


def _tensor(designs: Designs, numbers: Numbers) -> Floats:
    narrow = 1 + numbers.narrow_mac_share * np.log2(16 / np.minimum(designs.narrowest_bits, 16))
    units = designs.macs_per_cycle * numbers.mac_area_mm2 * narrow
    base = designs.base
    if base.dense_flops.fp64:
        # as many float64 units beside the 16-bit ones as the base has
        each = base.dense_flops.fp64 / (2 * base.clock_hz * base.macs_per_cycle)
        units = units + each * designs.macs_per_cycle * numbers.double_area_mm2
    return designs.made("vector_cores") * units


def _vector(designs: Designs, numbers: Numbers) -> Floats:
    if designs.base.kind == "gpu":
        core = numbers.gpu_core_area_mm2 + designs.vector_lanes * numbers.gpu_lane_area_mm2
    else:
        core = designs.vector_lanes * numbers.vector_lane_area_mm2
    return designs.made("vector_cores") * designs.vector_cores * core


def _core_memory(designs: Designs, numbers: Numbers) -> Floats:
    cells = (designs.core_sram_bytes + designs.base.register_bytes) * numbers.core_sram_area_mm2_per_byte
    bandwidth = np.where(np.isinf(designs.core_sram_bytes_per_s), 0.0, designs.core_sram_bytes_per_s)
    ports = bandwidth * numbers.core_port_area_mm2_per_byte_per_s
    return designs.made("vector_cores") * designs.vector_cores * (cells + ports)


def _made_links(designs: Designs) -> Floats:
    return designs.made("link_ports") * designs.link_bytes_per_s


def _links(designs: Designs, numbers: Numbers) -> Floats:
    near, far = numbers.package_link_area_mm2_per_byte_per_s, numbers.link_area_mm2_per_byte_per_s
    outward = _made_links(designs)
    # both ends of what crosses between dies stand in this package
    between = 2 * die_to_die_bytes_per_s(designs)
    return outward * (near if designs.base.link_reach == "package" else far) + between * near
