"""How full every link is while a simulated step runs."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.simulation.network import Network
from dovetail.simulation.task_graph import RateChanges, TaskGraph


@frozen
class LinkUse:
    """Links that are used, and when what they carry changed: from at_s[i] on, share[i] of their rate."""

    link: Ints
    #: the link at number i has the changes starts[i] to starts[i + 1]
    starts: Ints
    at_s: Floats
    share: Floats

    def __len__(self) -> int:
        return len(self.at_s)


def link_use(graph: TaskGraph, rates: RateChanges) -> LinkUse:
    """Rates of messages, added up for each link that their routes cross."""
    network = graph.network
    by_task = np.argsort(rates.task, kind="stable")
    task, rate = rates.task[by_task], rates.bytes_per_s[by_task]
    # the last change of every message is to 0, so each begins from there
    change, at = np.diff(rate, prepend=0.0), rates.at_s[by_task]
    route = graph.route[task]
    lengths = np.diff(network.starts)[route]
    entry = _spread(network, route, lengths)
    link = network.link[entry]
    at = np.repeat(at, lengths)
    change = np.repeat(change, lengths) * network.part[entry] / network.bytes_per_s[link]
    order = np.lexsort((at, link))
    link, at, change = link[order], at[order], change[order]
    first = np.append(True, link[1:] != link[:-1]) if len(link) else np.zeros(0, bool)
    level = np.cumsum(change)
    begins = np.nonzero(first)[0]
    base = np.append(0.0, level)[begins]
    level -= np.repeat(base, np.diff(np.append(begins, len(link))))
    # of several changes at one moment the last counts
    last = np.append((link[1:] != link[:-1]) | (at[1:] != at[:-1]), True) if len(link) else np.zeros(0, bool)
    used = link[begins]
    counts = np.bincount(np.searchsorted(used, link[last]), minlength=len(used))
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    # what is left of sums that cancel is no use
    return LinkUse(used, starts, at[last], np.maximum(np.round(level[last], 9), 0.0))


def averaged(use: LinkUse, until_s: float, windows: int) -> LinkUse:
    """The same in equal windows of time, the mean of each."""
    edges = np.linspace(0.0, until_s, windows + 1)
    shares: list[Floats] = []
    for low, high in zip(use.starts[:-1].tolist(), use.starts[1:].tolist(), strict=True):
        at = np.concatenate(([0.0], use.at_s[low:high], [until_s]))
        share = np.concatenate(([0.0], use.share[low:high]))
        carried = np.append(0.0, np.cumsum(share * np.diff(at)))
        shares.append(np.round(np.diff(np.interp(edges, at, carried)) / np.diff(edges), 9))
    links = len(use.link)
    starts = np.arange(links + 1) * windows
    share = np.concatenate([np.zeros(0), *shares])
    return LinkUse(use.link, starts, np.tile(edges[:-1], links), share)


def _spread(network: Network, route: Ints, lengths: Ints) -> Ints:
    """The entries of routes, one route after another."""
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.repeat(network.starts[route], lengths) + within
