"""Power of a step for each chip: its board, with hosts and network, and with what cools them; each with a range."""

from __future__ import annotations

import math

from dovetail.frozen import frozen
from dovetail.hardware import Coefficient


@frozen
class Ranged:
    """A figure between the ends that its sources leave, taken as independent of each other."""

    value: float
    low: float
    high: float

    def times(self, factor: Coefficient | float) -> Ranged:
        """With a factor that has ends of its own, or none."""
        if not isinstance(factor, Coefficient):
            return Ranged(self.value * factor, self.low * factor, self.high * factor)
        value = self.value * factor.value
        low = math.hypot(factor.value * (self.value - self.low), self.value * (factor.value - factor.low))
        high = math.hypot(factor.value * (self.high - self.value), self.value * (factor.high - factor.value))
        return Ranged(value, value - low, value + high)

    def plus(self, other: Coefficient) -> Ranged:
        """With something that does not depend on it."""
        value = self.value + other.value
        low = math.hypot(self.value - self.low, other.value - other.low)
        high = math.hypot(self.high - self.value, other.high - other.value)
        return Ranged(value, value - low, value + high)

    def at_most(self, limit: float) -> Ranged:
        """No end above a limit."""
        return Ranged(min(self.value, limit), min(self.low, limit), min(self.high, limit))


#: What stands around a chip, in proportion to it: supplies, fans, switches inside and outside of nodes.
AROUND = Coefficient(
    1.2, 1.1, 1.3,
    "supplies of 94 %, fans of 5 to 10 %, switches and cables of 5 to 10 % of a node of eight GPUs; low: no fans",
    "memory",
)  # fmt: skip
#: And by the chip: processors and memory of the host, network cards.
HOST = Coefficient(
    80, 50, 150,
    "W: two processors of 200 to 350 W with their memory and eight network cards of 25 W for eight chips, or one "
    "processor for four",
    "memory",
)  # fmt: skip
#: A data centre over what computes in it.
COOLING = Coefficient(
    1.2, 1.08, 1.5,
    "power usage effectiveness: 1.2 of OLMo 2 7B (arXiv:2501.00656, table 19); low: PaLM's 1.08 (arXiv:2204.02311); "
    "high: about the mean of the Uptime Institute's surveys, recalled",
    "read",
)  # fmt: skip


@frozen
class StepPower:
    """Watts for each chip, on average over a step."""

    chip: Ranged
    #: with its part of hosts and network; None on a wafer
    system: Ranged | None
    #: with cooling
    facility: Ranged | None


def step_power(energy_j: Ranged, chip_s: float, *, hosted: bool) -> StepPower:
    """Power of a step's energy over so many seconds of chips."""
    chip = energy_j.times(1 / chip_s)
    system = chip.times(AROUND).plus(HOST) if hosted else None
    return StepPower(chip, system, None if system is None else system.times(COOLING))
