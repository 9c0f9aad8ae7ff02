"""The allocator's replay against a straightforward implementation of the same rules, on random traces."""

from __future__ import annotations

import random

import pytest
from caching_allocator import replayed  # type: ignore[import-not-found]

from dovetail.memory.allocator import Event, replay

MIB = 2**20


def random_trace(seed: int) -> list[Event]:
    """Requests of all sizes on several streams, freed in any order."""
    draw = random.Random(seed)  # noqa: S311
    alive: list[int] = []
    events: list[Event] = []
    streams = draw.choice((1, 1, 2, 3))
    largest = draw.choice((2**10, MIB, 30 * MIB, 200 * MIB))
    sizes = [draw.randint(1, largest) for _ in range(draw.randint(1, 12))]
    for key in range(draw.randint(10, 200)):
        while alive and draw.random() < draw.choice((0.2, 0.45, 0.6)):
            events.append(Event(alive.pop(draw.randrange(len(alive))), 0))
        size = draw.choice(sizes) if draw.random() < 0.7 else draw.randint(1, largest)
        events.append(Event(key, size, draw.randrange(streams)))
        alive.append(key)
    return events


@pytest.mark.parametrize("expandable", [False, True])
def test_a_thousand_random_traces(expandable):
    retried = failed = 0
    for seed in range(1000):
        events = random_trace(seed)
        free = replay(events, expandable=expandable)
        draw = random.Random(seed)  # noqa: S311
        limits = [None, int(free.peak_reserved_bytes * draw.uniform(0.5, 1.0))]
        for limit in limits:
            ours = replay(events, expandable=expandable, limit_bytes=limit)
            peaks = (ours.peak_allocated_bytes, ours.peak_reserved_bytes, ours.retries, ours.failed_at)
            assert peaks == replayed(events, expandable=expandable, limit_bytes=limit), (seed, limit)
            retried += ours.retries > 0
            failed += ours.failed_at is not None
    # limits matter
    assert retried > 100
    assert 10 < failed < 990
