"""What training frameworks can run and what they keep in memory, as data."""

from dovetail.frameworks.buckets import Buckets
from dovetail.frameworks.catalogue import load, names
from dovetail.frameworks.framework import (
    Availability,
    ContextParallel,
    Framework,
    FrameworkOverlaps,
    PipelineSchedule,
    Recompute,
    UnevenStages,
)
from dovetail.frameworks.parameter_bytes import ParameterBytes
from dovetail.frameworks.state import Allowance, StateBytes

__all__ = [
    "Allowance",
    "Availability",
    "Buckets",
    "ContextParallel",
    "Framework",
    "FrameworkOverlaps",
    "ParameterBytes",
    "PipelineSchedule",
    "Recompute",
    "StateBytes",
    "UnevenStages",
    "load",
    "names",
]
