"""What is proven of an answer: status, lower bound and gap, decided here for every search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.arrays import TOLERANCE
from dovetail.frozen import frozen
from dovetail.search.answer import Certificate

Status = Literal["optimal", "feasible", "infeasible"]


@frozen
class Proof:
    """How good an answer is proven to be."""

    status: Status
    #: None where it is proven that nothing fits
    lower_bound_s: float | None
    #: None without an answer
    gap: float | None


@dataclass(slots=True)
class Counts:
    """Plans by what became of them; each counts once, with its best stage partition."""

    counted: int = 0
    infeasible: int = 0
    evaluated: int = 0
    #: may be faster, and were not looked at before the search ended
    open: int = 0

    @property
    def pruned(self) -> int:
        """The rest: a bound says that they are no faster than the best."""
        return self.counted - self.infeasible - self.evaluated - self.open


def status_of(*, answered: bool, proven: bool) -> Status:
    """The status of an answer, or of a search that ended without one."""
    if not proven:
        return "feasible"
    return "optimal" if answered else "infeasible"


def proof(best_s: float | None, open_s: float) -> Proof:
    """What follows if all plans but the best (None: none found) take `open_s` or longer; infinite: nothing is open."""
    if best_s is None:
        closed = open_s == float("inf")
        return Proof(status_of(answered=False, proven=closed), None if closed else open_s, None)
    proven = open_s >= best_s * (1 - TOLERANCE)
    bound = best_s if proven else open_s
    return Proof(status_of(answered=True, proven=proven), bound, 1 - bound / best_s)


def certificate(
    best_s: float | None,
    open_s: float,
    space: tuple[Mapping[str, Any], str],
    counts: Counts,
    *,
    time: Literal["modelled", "simulated"] = "modelled",
    memory_limit_bytes: float | None = None,
) -> Certificate:
    """The certificate of the best of a space, given as data and as a sentence.

    What is not open, evaluated or proven not to fit was pruned. The space is that of plans that take at most
    `memory_limit_bytes` of a chip.
    """
    proven = proof(best_s, open_s)
    return Certificate(
        proven.status,
        proven.lower_bound_s,
        proven.gap,
        *space,
        counts.counted,
        counts.pruned,
        counts.infeasible,
        counts.evaluated,
        counts.open,
        time,
        memory_limit_bytes,
    )
