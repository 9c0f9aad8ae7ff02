"""What `dovetail plan` is asked beyond the job and the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dovetail.cli.defects import DefectOptions
from dovetail.frozen import frozen

if TYPE_CHECKING:
    from dovetail.search import Space

Objective = Literal["time", "cost", "energy"]
Strategy = Literal["named", "free"]


@frozen
class PlanRequest:
    """The options of `dovetail plan` that are not part of the question."""

    space: Space
    time_limit_s: float | None
    explain: bool
    ideal: bool
    out: Path | None
    tokens: float | None
    objective: Objective | None
    price_per_chip_hour: float | None
    simulate_top: int
    strategy: Strategy
    memory_limit_bytes: float | None
    fit_risk: float | None
    #: the simplest plan this close to the fastest is recommended
    tie_margin: float
    #: a plan file to hold against the answer
    covers: Path | None
    as_json: bool
    defects: DefectOptions
    #: a plan of the whole wafer to keep on the damaged one
    keep: Path | None
    #: whether stages may hold activations for each other
    lend: bool
