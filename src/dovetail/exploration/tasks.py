"""What the driver of a study asks of workers: a batch of candidates for one fidelity level, each complete in itself."""

from __future__ import annotations

from dovetail.arrays import Floats, Ints
from dovetail.exploration.free_plans import FreeStage
from dovetail.frozen import frozen


@frozen
class Range:
    """A range of designs of the space with one number of chips."""

    number: int
    position: int
    start: int
    stop: int
    front: Floats


@frozen
class CandidateBatch:
    """Candidates with lower bounds of their jobs' step times."""

    level: str
    number: int
    codes: Ints
    #: candidates × jobs
    least_s: Floats
    front: Floats


@frozen
class WarmStarts:
    """Find good candidates to start with: of a sample, or among those given with their bounds."""

    number: int
    codes: Ints | None = None
    #: candidates × jobs
    least_s: Floats | None = None


@frozen
class NextStart:
    """Search the candidate of the sample on which the plans found for another take least."""

    number: int
    code: int
    plans: tuple[str, ...]
    front: Floats


@frozen
class Leading:
    """The designs of a range with the lowest bounds."""

    number: int
    position: int
    start: int
    stop: int
    most: int


@frozen
class FreeBatch:
    """Candidates for one stage of the search of free mappings."""

    number: int
    stage: FreeStage
    codes: Ints
    #: candidates × jobs
    least_s: Floats
    front: Floats


@frozen
class Replay:
    """A candidate to simulate, with the model's best plan of every job if known."""

    number: int
    code: int
    plans: tuple[str, ...] = ()
    #: of free mappings: the proven lower bound of every job
    least_s: tuple[float, ...] = ()


Task = Range | CandidateBatch | WarmStarts | NextStart | Replay | Leading | FreeBatch
