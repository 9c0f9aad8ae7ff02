"""What a name stands for in the expressions of a design space, over many designs at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from dovetail.arrays import Floats
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.hardware.design import VARIABLES, Designs
from dovetail.hardware.design_space.expression import Expression
from dovetail.hardware.silicon import ESTIMATES, Silicon
from dovetail.hardware.silicon.wafer_estimate import WAFER_ESTIMATES, WaferSilicon
from dovetail.hardware.technology import End, Technology
from dovetail.hardware.wafer_design import WAFER_VARIABLES, WaferDesigns

#: Factors for quantities within expressions, such as 16 * MiB and, in bytes per second, 4 * TB.
UNITS: Mapping[str, float] = {
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "GB": 1e9, "TB": 1e12, "MHz": 1e6, "GHz": 1e9, "TFLOPS": 1e12,
}  # fmt: skip

#: Figures that follow from variables, and from which.
PROPERTIES: Mapping[str, tuple[Callable[[Designs], Floats], tuple[str, ...]]] = {
    "macs_per_core": (lambda d: d.macs_per_core, ("rows", "cols")),
    "macs_per_cycle": (lambda d: d.macs_per_cycle, ("tensor_cores", "rows", "cols")),
    "peak_flops": (lambda d: d.peak_flops("bf16"), ("tensor_cores", "rows", "cols", "clock_hz")),
    "hbm_bytes": (lambda d: d.hbm_bytes, ("hbm_stacks", "hbm_stack_bytes")),
    "hbm_bytes_per_s": (lambda d: d.hbm_bytes_per_s, ("hbm_stacks", "hbm_stack_bytes_per_s")),
    "link_bytes_per_s": (lambda d: d.link_bytes_per_s, ("link_ports", "link_port_bytes_per_s")),
}

#: The same for wafers.
WAFER_PROPERTIES: Mapping[str, tuple[Callable[[Designs], Floats], tuple[str, ...]]] = {
    "d2d_bytes_per_s": (lambda d: d.link_port_bytes_per_s, ("link_port_bytes_per_s",)),
    "grid_dies": (lambda d: _wafers(d).grid_dies, ("grid_rows", "grid_cols")),
    "die_mm2": (lambda d: _wafers(d).die_mm2, ("die_width_mm", "die_height_mm")),
    "wafer_flops": (
        lambda d: _wafers(d).wafer_flops,
        ("grid_rows", "grid_cols", "spare_dies", *PROPERTIES["peak_flops"][1]),
    ),
    "wafer_hbm_bytes": (
        lambda d: _wafers(d).wafer_hbm_bytes,
        ("grid_rows", "grid_cols", "spare_dies", *PROPERTIES["hbm_bytes"][1]),
    ),
    "wafer_sram_bytes": (
        lambda d: _wafers(d).wafer_sram_bytes,
        ("grid_rows", "grid_cols", "spare_dies", "vector_cores", "core_sram_bytes", "shared_sram_bytes"),
    ),
}
_EVERY_PROPERTY = {**PROPERTIES, **WAFER_PROPERTIES}

KNOWN = (*VARIABLES, *PROPERTIES, *ESTIMATES, *UNITS)
WAFER_KNOWN = (*KNOWN, *WAFER_VARIABLES, *WAFER_PROPERTIES, *WAFER_ESTIMATES)

#: Figures that need a technology.
SILICON = frozenset((*ESTIMATES, *WAFER_ESTIMATES))


def _wafers(designs: Designs) -> WaferDesigns:
    assert isinstance(designs, WaferDesigns), "names of wafers are refused where a space has none"
    return designs


@frozen
class Formulas:
    """The expressions of a space and what they may refer to."""

    derived: tuple[tuple[str, Expression], ...] = ()
    """variables computed from others, in order"""
    defined: dict[str, Expression] = field(default_factory=dict[str, Expression])
    """in the order of the file: each uses those above it"""
    references: Mapping[str, Designs] = field(default_factory=dict[str, Designs])
    technology: Technology | None = None
    end: End = "value"
    wafer: bool = False
    """designs are wafers, which have names of their own"""
    _attributes: dict[str, Floats] = field(default_factory=dict[str, Floats], compare=False)
    """figures of references that were asked for"""
    _uses: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]], compare=False)
    """of definitions, once found"""

    @property
    def names(self) -> tuple[str, ...]:
        """What an expression may name besides attributes of references."""
        return (*(WAFER_KNOWN if self.wafer else KNOWN), *self.defined)

    def check_names(self, expression: Expression, where: str) -> None:
        """Refuses a name nobody defines."""
        for name in expression.names:
            self.check_name(name, where)

    def check_name(self, name: str, where: str) -> None:
        """Refuses a name nobody defines, or one that needs a technology where there is none."""
        reference, dot, attribute = name.partition(".")
        figure = attribute if dot else name
        if dot and reference not in self.references:
            raise InputError(where, f"{quoted(reference)} is not a reference", one_of(self.references, reference))
        if dot and (figure not in self.names or self.uses(figure) & set(self.references)):
            figures = [n for n in self.names if not self.uses(n) & set(self.references)]
            raise InputError(where, f"{quoted(figure)} is not a figure of a reference", one_of(figures, figure))
        if not dot and name in self.references:
            raise InputError(where, f"{quoted(name)} is a whole design", f"name a figure, as {name}.rows")
        if figure not in self.names:
            raise InputError(where, f"{quoted(figure)} is not defined here", one_of(self.names, figure))
        if self.technology is None and self.uses(figure) & SILICON:
            raise InputError(where, f"{figure} needs a technology", "name one: the base has none")

    def uses(self, name: str) -> frozenset[str]:
        """The variables, silicon figures and references a name follows from."""
        if "." in name:
            return frozenset({name.partition(".")[0]})
        if name in self.defined:
            if name not in self._uses:
                inner = [self.uses(part) for part in self.defined[name].names]
                self._uses[name] = frozenset[str]().union(*inner)
            return self._uses[name]
        return frozenset(_EVERY_PROPERTY[name][1] if name in _EVERY_PROPERTY else {name} - UNITS.keys())

    def definitions(self, name: str) -> list[str]:
        """The definitions a definition follows from, in the order of the file."""
        needed = {name}
        for above in reversed(self.defined):
            if above in needed:
                needed.update(self.defined[above].names)
        return [above for above in self.defined if above in needed and above != name]

    def attribute(self, name: str) -> Floats:
        """A figure of a reference, `reference.figure`."""
        if name not in self._attributes:
            reference, _, figure = name.partition(".")
            self._attributes[name] = Scope(self.references[reference], self)(figure).reshape(())
        return self._attributes[name]

    def completed(self, designs: Designs, given: Mapping[str, object] | None = None) -> Designs:
        """Designs with the derived variables computed, except those that are given."""
        for name, expression in self.derived:
            if name not in (given or {}):
                designs = designs.varied({name: expression.number(Scope(designs, self))})
        return designs


class Scope:
    """Looks up names over designs; each value is computed when first asked for, and once."""

    def __init__(self, designs: Designs, formulas: Formulas) -> None:
        self.designs = designs
        self._formulas = formulas
        self._values: dict[str, Floats] = {}
        self._silicon: Silicon | None = None

    def __call__(self, name: str) -> Floats:
        """The value of a name, over the designs."""
        if name not in self._values:
            with np.errstate(all="ignore"):
                self._values[name] = self._value(name)
        return self._values[name]

    def _value(self, name: str) -> Floats:
        if "." in name:
            return self._formulas.attribute(name)
        if name in self.designs.variables:
            return self.designs.value(name)
        if name in UNITS:
            return np.asarray(UNITS[name])
        # before properties: spaces of chips may define what means something of wafers alone
        if name in self._formulas.defined:
            for above in self._formulas.definitions(name):
                # in the order of the file, so that a long chain of them is no deep one
                if above not in self._values:
                    self._values[above] = self._formulas.defined[above].number(self)
            return self._formulas.defined[name].number(self)
        if name in _EVERY_PROPERTY:
            return _EVERY_PROPERTY[name][0](self.designs)
        return np.asarray(getattr(self._estimate(), name))

    def parts(self) -> dict[str, dict[str, Floats]]:
        """Silicon figure → part → its value over the designs."""
        with np.errstate(all="ignore"):
            return self._estimate().parts()

    def _estimate(self) -> Silicon:
        if self._silicon is None:
            assert self._formulas.technology is not None
            technology, end = self._formulas.technology, self._formulas.end
            if isinstance(self.designs, WaferDesigns):
                self._silicon = WaferSilicon(self.designs, technology, end)
            else:
                self._silicon = Silicon(self.designs, technology, end)
        return self._silicon
