"""Part of a chip's cores, and many chips at once: the units that operator models take, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.cost.attention import AttentionUnits
from dovetail.cost.contraction import MatrixUnits
from dovetail.cost.operators import ChipUnits, Cores
from dovetail.cost.vector import VectorUnits

_Units = TypeVar("_Units", MatrixUnits, AttentionUnits, VectorUnits, Cores)


def lined_up(chips: Sequence[ChipUnits], rows: Ints) -> ChipUnits:
    """Chips of one kind along one axis, each as often as `rows` names it."""
    joined = together(chips)
    return replace(
        joined,
        matrix=_taken(joined.matrix, rows),
        half=_taken(joined.half, rows),
        attention=_taken(joined.attention, rows),
        vector=_taken(joined.vector, rows),
        cores=_taken(_columns([chip.cores for chip in chips]), rows),
    )


def _taken(units: _Units, rows: Ints) -> _Units:
    return replace(units, **{field.name: getattr(units, field.name)[rows, 0] for field in fields(units)})


def together(chips: Sequence[ChipUnits]) -> ChipUnits:
    """Chips of one kind along the first of two axes; the second is for parts of their cores."""
    first = chips[0]
    alike = {(chip.systolic, chip.narrow_bytes, chip.cast_bytes, chip.loss_bytes) for chip in chips}
    assert len(alike) == 1, "chips priced at once run a job in the same formats"
    return replace(
        first,
        matrix=_columns([chip.matrix for chip in chips]),
        half=_columns([chip.half for chip in chips]),
        attention=_columns([chip.attention for chip in chips]),
        vector=_columns([chip.vector for chip in chips]),
    )


def _columns(units: Sequence[_Units]) -> _Units:
    values = {field.name: [getattr(unit, field.name) for unit in units] for field in fields(units[0])}
    return replace(units[0], **{name: np.asarray(column, np.float64)[:, None] for name, column in values.items()})


def part_of(chip: ChipUnits, tensor_share: Floats, vector_share: Floats) -> ChipUnits:
    """A chip with a share of its matrix and vector units, and all of its memory bandwidth.

    Operators that run at once share that bandwidth; whoever schedules them sees to it.
    """

    def matrix(units: MatrixUnits) -> MatrixUnits:
        return replace(
            units,
            units=units.units * tensor_share,
            peak_flops=units.peak_flops * tensor_share,
            core_sram_bytes_per_s=units.core_sram_bytes_per_s * tensor_share,
        )

    attention = replace(
        chip.attention,
        matrix_flops=chip.attention.matrix_flops * tensor_share,
        vector_flops=chip.attention.vector_flops * vector_share,
        exponentials_per_s=chip.attention.exponentials_per_s * vector_share,
    )
    lanes = replace(chip.vector, vector_flops=chip.vector.vector_flops * vector_share)
    return replace(chip, matrix=matrix(chip.matrix), half=matrix(chip.half), attention=attention, vector=lanes)
