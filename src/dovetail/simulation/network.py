"""Links and routes: what messages travel over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.frozen import frozen

#: Smaller parts would drown in the rounding of others.
SMALLEST_PART = 2 * ROUNDING


@frozen
class Network:
    """Directed links with their bytes per second, and fixed routes over them.

    A route has a part for each of its links: bytes that cross the link for every byte of the message. For a message
    from one chip to another all parts are 1; a collective is one message over all links it keeps busy, the busiest of
    them with part 1.
    """

    bytes_per_s: Floats
    #: route r has the entries starts[r] to starts[r + 1]
    starts: Ints
    link: Ints
    part: Floats

    def __post_init__(self) -> None:
        assert (np.isfinite(self.bytes_per_s) & (self.bytes_per_s > 0)).all(), "a link carries something"
        assert (np.diff(self.starts) > 0).all(), "a route has links"
        assert (self.part > SMALLEST_PART).all(), "a link carries a part that matters"

    @property
    def num_routes(self) -> int:
        """How many routes there are."""
        return len(self.starts) - 1


class Routes:
    """Routes as they are added, each once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[int, float], ...], int] = {}

    def add(self, parts: Mapping[int, float]) -> int:
        """The number of the route with these parts by link."""
        return self._numbers.setdefault(tuple(sorted(parts.items())), len(self._numbers))

    def network(self, bytes_per_s: Iterable[float]) -> Network:
        """The network with links of these rates and all routes added."""
        lengths = [len(route) for route in self._numbers]
        entries = [entry for route in self._numbers for entry in route]
        return Network(
            np.fromiter(bytes_per_s, np.float64),
            np.cumsum([0, *lengths]).astype(np.int64),
            np.array([link for link, _ in entries], np.int64),
            np.array([part for _, part in entries], np.float64),
        )
