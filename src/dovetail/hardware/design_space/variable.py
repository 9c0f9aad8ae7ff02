"""Variables of a design: what each is measured in, how far it may go, and how a file's value is read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dovetail.arrays import Bools, Floats
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.hardware.design import VARIABLES
from dovetail.hardware.wafer_design import WAFER_VARIABLES
from dovetail.units import parse

#: A word for a variable that files and people prefer, and its words for values.
DATAFLOW = "dataflow"
DATAFLOWS: Mapping[str, float] = {"weight": 0.0, "output": 1.0}


@frozen
class VariableBounds:
    """What a variable may be in a design somebody could build."""

    low: float
    high: float
    quantity: str | None = None
    """of dovetail.units; None: a whole number"""
    only: tuple[float, ...] = ()
    """the values there are, where not every one between the ends is"""

    @property
    def text(self) -> str:
        """For a sentence."""
        if self.only:
            return f"one of {', '.join(f'{value:g}' for value in self.only)}"
        if self.quantity is None:
            return f"a whole number from {self.low:,.0f} to {self.high:,.0f}"
        return f"from {self.low:g} to {self.high:g} {self.quantity}"

    def hold(self, values: Floats) -> Bools:
        """Where values lie within."""
        if self.only:
            return np.isin(values, self.only)
        inside = (values >= self.low) & (values <= self.high)
        return inside & (np.floor(values) == values) if self.quantity is None else inside


#: Rates of a memory or link that is there are above 0; sizes may be 0, which leaves the memory out, as no stacks do.
BOUNDS: Mapping[str, VariableBounds] = {
    "tensor_cores": VariableBounds(1, 4096),
    "rows": VariableBounds(2, 512),
    "cols": VariableBounds(2, 512),
    "output_stationary": VariableBounds(0, 1),
    "narrowest_bits": VariableBounds(4, 16, only=(4, 8, 16)),
    "vector_cores": VariableBounds(1, 4096),
    "vector_lanes": VariableBounds(1, 65536),
    "clock_hz": VariableBounds(1e8, 1e10, "hz"),
    "core_sram_bytes": VariableBounds(0, 2.0**30, "bytes"),
    "core_sram_bytes_per_s": VariableBounds(1e9, 1e16, "bytes_per_s"),
    "shared_sram_bytes": VariableBounds(0, 2.0**36, "bytes"),
    "shared_sram_bytes_per_s": VariableBounds(1e9, 1e16, "bytes_per_s"),
    "hbm_stacks": VariableBounds(0, 64),
    "hbm_stack_bytes": VariableBounds(2.0**20, 2.0**40, "bytes"),
    "hbm_stack_bytes_per_s": VariableBounds(1e9, 1e14, "bytes_per_s"),
    "link_ports": VariableBounds(1, 1024),
    "link_port_bytes_per_s": VariableBounds(0, 1e14, "bytes_per_s"),
    "dies": VariableBounds(1, 64),
    "grid_rows": VariableBounds(1, 256),
    "grid_cols": VariableBounds(1, 256),
    "die_width_mm": VariableBounds(1, 100, "mm"),
    "die_height_mm": VariableBounds(1, 100, "mm"),
    "edge_bytes_per_s": VariableBounds(0, 1e15, "bytes_per_s"),
    "power_limit_w": VariableBounds(1, 1e6, "w"),
    "spare_dies": VariableBounds(0, 4096),
    "store_bytes": VariableBounds(0, 1e18, "bytes"),
    "store_bytes_per_s": VariableBounds(0, 1e15, "bytes_per_s"),
}
assert tuple(BOUNDS) == (*VARIABLES, *WAFER_VARIABLES)

#: As files spell them.
WRITTEN = (*BOUNDS, DATAFLOW)


def variable_of(name: str, where: str) -> str:
    """The variable a file names."""
    if name not in WRITTEN:
        raise InputError(where, "is not a variable of a design", one_of(WRITTEN, name))
    return "output_stationary" if name == DATAFLOW else name


def read_value(name: str, value: object, where: str) -> float:
    """A value of a variable as a file writes it: a number in SI, a text with its unit, a word for the dataflow."""
    if name == DATAFLOW:
        if not isinstance(value, str) or value not in DATAFLOWS:
            raise InputError(where, f"is {quoted(value)}", f"it should be {' or '.join(DATAFLOWS)}")
        return DATAFLOWS[value]
    number = read_quantity(name, value, where)
    if not BOUNDS[name].hold(np.asarray(number)):
        raise InputError(where, f"is {quoted(value)}", f"{name} should be {BOUNDS[name].text}")
    return number


def read_quantity(name: str, value: object, where: str) -> float:
    """A number in the unit of a variable, within its bounds or not."""
    quantity = BOUNDS[name].quantity
    if quantity is not None:
        return parse(value, quantity, where)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**53:
        raise InputError(where, f"is {quoted(value)}", f"{name} should be {BOUNDS[name].text}")
    return float(value)


def is_power_of_two(number: float) -> bool:
    """Whether a number is one."""
    return number > 0 and math.frexp(number)[0] == 0.5
