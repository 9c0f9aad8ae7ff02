"""What designs take in silicon: area by part, edge of the die, power, yield and money; what wafers can be built."""

from dovetail.hardware.silicon.estimate import ESTIMATES, Silicon
from dovetail.hardware.silicon.power import PEAK, TYPICAL, Activity
from dovetail.hardware.silicon.wafer_check import RULES, Finding, check
from dovetail.hardware.silicon.wafer_estimate import WAFER_ESTIMATES, WaferSilicon

__all__ = [
    "ESTIMATES",
    "PEAK",
    "RULES",
    "TYPICAL",
    "WAFER_ESTIMATES",
    "Activity",
    "Finding",
    "Silicon",
    "WaferSilicon",
    "check",
]
