"""Makes the formulas of a step callable inside compiled code; kernels import them from here."""

from __future__ import annotations

from dovetail.arrays import Number, choose
from dovetail.compilation import compilable
from dovetail.frameworks.parameter_bytes import frozen_bytes, state_bytes
from dovetail.step.formulas import (
    allocator_bytes,
    beyond_activations,
    exposed,
    exposed_at_least,
    offload_seconds,
    optimizer_seconds,
    optimizer_step_bytes,
    overlap_budget,
    tensor_capacity,
    transient_peak,
)


def _one_choice(condition: Number, value: Number, otherwise: Number) -> Number:
    # conditions are single ones in kernels, and arrays of one number would be slow
    return value if condition else otherwise


compilable(choose, within_kernels=_one_choice)
for _formula in (
    allocator_bytes, beyond_activations, exposed, exposed_at_least, frozen_bytes, offload_seconds, optimizer_seconds,
    optimizer_step_bytes, overlap_budget, state_bytes, tensor_capacity, transient_peak,
):  # fmt: skip
    compilable(_formula)

__all__ = [
    "allocator_bytes",
    "exposed",
    "frozen_bytes",
    "offload_seconds",
    "optimizer_seconds",
    "optimizer_step_bytes",
    "overlap_budget",
    "state_bytes",
    "tensor_capacity",
    "transient_peak",
]
