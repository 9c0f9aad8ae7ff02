"""Energy from operations and bytes, where a technology gives both; leakage and clocks are not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.cost.contraction import off_chip_bytes
from dovetail.cost.operators import local_sizes
from dovetail.cost.shapes import Array, gemm_of, summed
from dovetail.graph import Kind, Tensor, Unit, bytes_read, bytes_written, flops
from dovetail.graph.size import Size, Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.hardware import Technology
from dovetail.layout import PlacedOperator


@dataclass(frozen=True, slots=True)
class EnergyRates:
    """Joules per multiply-accumulate, vector operation, byte from memory and byte over a link."""

    mac_j: float
    vector_j: float
    memory_j_per_byte: float
    link_j_per_byte: float
    source: str


def energy_rates(technology: Technology) -> EnergyRates | None:
    """A technology's energies; None unless it gives those of products, vectors and memory."""
    mac, vector, memory = technology.mac_energy_j, technology.vector_energy_j, technology.hbm_energy_j_per_byte
    if mac is None or vector is None or memory is None:
        return None
    link = technology.link_energy_j_per_byte
    return EnergyRates(mac.value, vector.value, memory.value, link.value if link is not None else 0.0, technology.name)


def operator_joules(
    operators: Sequence[PlacedOperator],
    tensors: Mapping[str, Tensor],
    sizes: Sizes,
    axis_sizes: Mapping[str, Size],
    buffer_bytes: Array,
    widths: Mapping[Element, int],
    rates: EnergyRates,
) -> Array:
    """Joules one chip spends on these operators."""
    parts: list[Array] = []
    for placed in operators:
        operator = placed.operator
        local = local_sizes(placed, sizes, axis_sizes)
        matrix = as_array(flops(operator, local, Unit.MATRIX, causal=True))
        vector = as_array(flops(operator, local, Unit.VECTOR, causal=True))
        if operator.kind is Kind.CONTRACTION:
            moved = off_chip_bytes(gemm_of(operator, local), buffer_bytes, widths[Element.COMPUTE])
        else:
            moved = as_array(bytes_read(operator, tensors, local, widths)) + as_array(
                bytes_written(operator, tensors, local, widths)
            )
        parts += [matrix / 2 * rates.mac_j, vector * rates.vector_j, moved * rates.memory_j_per_byte]
    return summed(parts)
