"""The memory a plan may take of a chip: the one place that decides it for search, partition, bounds and mapping."""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Chip
from dovetail.units import bytes_text


def memory_limit(chip: Chip, framework: Framework, asked_bytes: float | None = None) -> float:
    """Bytes a searched plan may take: those asked for, or the usable ones less the framework's reserve.

    A plan that is given may take all that is usable.
    """
    return chip.usable_bytes * (1 - framework.memory_reserve) if asked_bytes is None else asked_bytes


def check_memory_limit(chip: Chip, asked_bytes: float | None, where: str) -> None:
    """Refuses a limit that no program can reach."""
    if asked_bytes is not None and not 0 < asked_bytes <= chip.usable_bytes:
        fix = f"it should be more than 0 and at most what programs get of {chip.name}, {bytes_text(chip.usable_bytes)}"
        raise InputError(where, f"is {bytes_text(asked_bytes)}", fix)
