"""Designs that another design within the limits beats in everything that counts: they need no bound of their own."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.hardware.design_space.space import DesignSpace

#: Of every chip: clock, memories and links.
_MORE_IS_FASTER = (
    "clock_hz", "hbm_stacks", "hbm_stack_bytes", "hbm_stack_bytes_per_s", "link_ports", "link_port_bytes_per_s",
)  # fmt: skip
#: Of chips that spread a product over cores by its tiles, where more matrix units make each core faster.
_MORE_IS_FASTER_ON_GPUS = ("tensor_cores", "vector_lanes", "shared_sram_bytes")


def faster_with_more(space: DesignSpace) -> tuple[str, ...]:
    """The variables of a space of which more never makes a step longer, whatever the plan.

    Rates, sizes and numbers of what works side by side on one operator. None where operators share the cores of a chip:
    what a schedule of them gains by more is not certain.
    """
    shares = space.base.shares_cores if space.shares_cores is None else space.shares_cores
    if space.wafer is not None or shares:
        return ()
    names = _MORE_IS_FASTER + (_MORE_IS_FASTER_ON_GPUS if space.base.kind == "gpu" else ())
    values = {name: column for axis in space.axes for name, column in axis.values.items()}
    # a chip without stacks streams from its SRAM, which may be faster than some
    bare = "hbm_stacks" in dict(space.formulas.derived) or bool((values.get("hbm_stacks", np.ones(1)) == 0).any())
    return tuple(name for name in space.variables if name in names and not (bare and name == "hbm_stacks"))


def unbeaten(space: DesignSpace, designs: Ints) -> Bools:
    """Which designs have no neighbour within the limits with more of one variable and the same of all others.

    A neighbour is at least as fast, whatever the plan.
    """
    names = faster_with_more(space)
    result = np.ones(len(designs), np.bool_)
    if space.formulas.derived:  # a neighbour would differ in what is derived too
        return result
    stride = space.size
    for axis in space.axes:
        stride //= len(axis)
        if len(axis.values) > 1 or next(iter(axis.values)) not in names:
            continue
        (values,) = axis.values.values()
        order = np.argsort(values)
        steps = np.zeros(len(axis), np.int64)
        steps[order[:-1]] = order[1:] - order[:-1]
        (rows,) = np.nonzero(result)
        step = steps[designs[rows] // stride % len(axis)]
        rows, step = rows[step != 0], step[step != 0]
        result[rows] = ~space.keeps(designs[rows] + step * stride)
    return result
