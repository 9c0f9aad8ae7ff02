"""Compiled: rates of messages that share links max-min fairly.

No message could be faster without one that is no faster becoming slower. Rates are found by filling: all grow together
until a link is full, its messages stay at that rate, the others grow on (Bertsekas and Gallager, Data Networks, section
6.5.2). The rate of a message that loads its links differently is that of the link it loads most.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.compilation import compiled
from dovetail.simulation.network import Network


@compiled
def fill(
    messages: Ints, way: Ints, links: Ints, starts: Ints, link: Ints, part: Floats, free: Floats, load: Floats,
    rate: Floats,
) -> None:  # fmt: skip
    """Writes the fair rate of every one of `messages`, which are put in another order, to `rate`.

    Message k takes route way[k]: the entries starts[r] to starts[r + 1] of `link` and `part`. `links` are all they
    cross, with `free` bytes per second, which are used up; `load` is scratch of the same length.
    """
    load[links] = 0.0
    for message in messages:
        for entry in range(starts[way[message]], starts[way[message] + 1]):
            load[link[entry]] += part[entry]
    left = len(messages)
    while left > 0:
        full, level = -1, np.inf
        for each in links:
            # smaller loads are rounding of the parts taken off the link
            if load[each] > ROUNDING and max(free[each], 0.0) < level * load[each]:
                full, level = each, max(free[each], 0.0) / load[each]
        k = 0
        while k < left:
            message = messages[k]
            low, high = int(starts[way[message]]), int(starts[way[message] + 1])
            if not _crosses(link, low, high, full):
                k += 1
                continue
            rate[message] = level
            for entry in range(low, high):
                free[link[entry]] -= part[entry] * level
                load[link[entry]] -= part[entry]
            left -= 1
            messages[k], messages[left] = messages[left], message
        load[full] = 0.0


@compiled(inline="always")
def _crosses(link: Ints, low: int, high: int, full: int) -> bool:
    for entry in range(low, high):  # noqa: SIM110 - compiled code knows no generators
        if link[entry] == full:
            return True
    return False


def fair_rates(network: Network, routes: Ints) -> Floats:
    """Bytes per second of messages over these routes, all at once."""
    rate = np.zeros(len(routes))
    links = np.arange(len(network.bytes_per_s))
    fill(
        np.arange(len(routes)), np.asarray(routes, np.int64), links, network.starts, network.link, network.part,
        network.bytes_per_s.copy(), np.zeros(len(links)), rate,
    )  # fmt: skip
    return rate
