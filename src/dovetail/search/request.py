"""What a search may be asked besides the question: limits, and what else the answer should have."""

from __future__ import annotations

from typing import TypedDict

from dovetail.frozen import frozen
from dovetail.search.progress import Listener


class SearchKeywords(TypedDict, total=False):
    """The same as keywords of `plan`."""

    time_limit_s: float | None
    below_s: float
    simulate_top: int
    on_progress: Listener | None
    memory_limit_bytes: float | None
    fit_risk: float | None
    tie_margin: float | None
    keep_tables: bool


@frozen(kw_only=True)
class SearchRequest:
    """How a search is run."""

    #: seconds, from when its tables stand
    time_limit_s: float | None = None
    #: only plans below this are of interest
    below_s: float = float("inf")
    #: how many leading plans are replayed
    simulate_top: int = 0
    #: told a few times a second how far the search is; where it returns True the search ends
    on_progress: Listener | None = None
    #: bytes of a chip that plans may take; None: so many that a plan runs out of memory with `fit_risk` alone
    memory_limit_bytes: float | None = None
    #: None: 2 %
    fit_risk: float | None = None
    #: recommends the simplest plan this close to the fastest; None: the fastest alone is searched
    tie_margin: float | None = None
    #: whether the answer keeps the tables of the search, with which an explanation goes on; they are large
    keep_tables: bool = False
