"""What designs take in silicon: area by part, edge of the die, power, yield and money; what wafers can be built."""

from dovetail.hardware.silicon.estimate import ESTIMATES, Silicon
from dovetail.hardware.silicon.power import PEAK, TYPICAL, Activity

__all__ = [
    "ESTIMATES",
    "PEAK",
    "TYPICAL",
    "Activity",
    "Silicon",
]
