"""Fair rates against linear programs, and against what makes rates fair."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from fair_share_by_lp import Route, fair_rates_by_lp, faults
from random_task_graphs import random_parts
from slow_events import filled

from dovetail.simulation.fair_share_kernels import fair_rates
from dovetail.simulation.network import Routes

BATCHES, MORE_BATCHES, BATCH = 12, 100, 50


def rates_of(bytes_per_s: list[float], messages: list[Route]) -> np.ndarray:
    routes = Routes()
    numbers = [routes.add(message) for message in messages]
    return fair_rates(routes.network(bytes_per_s), np.array(numbers, np.int64))


def random_case(draw: np.random.Generator) -> tuple[list[float], list[Route]]:
    """Up to 8 links, equal or not, and 10 messages, of which some take the same route."""
    num_links = int(draw.integers(1, 9))
    equal, whole, scale = draw.random() < 0.3, draw.random() < 0.4, float(draw.choice([1.0, 1e11]))
    bytes_per_s = [scale * (1.0 if equal else float(draw.uniform(0.05, 1.0))) for _ in range(num_links)]
    routes: list[Route] = []
    for _ in range(draw.integers(1, 11)):
        new = random_parts(draw, num_links, lambda: 1.0 if whole else float(draw.uniform(0.01, 1.0)))
        routes.append(routes[draw.integers(len(routes))] if routes and draw.random() < 0.2 else new)
    return bytes_per_s, routes


def check(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(BATCH):
        bytes_per_s, routes = random_case(draw)
        rates = rates_of(bytes_per_s, routes)
        np.testing.assert_allclose(rates, fair_rates_by_lp(bytes_per_s, routes), rtol=1e-7, err_msg=f"seed {seed}")
        assert faults(bytes_per_s, routes, rates.tolist()) == []


@pytest.mark.parametrize("seed", range(BATCHES))
def test_rates_are_those_of_linear_programs(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(BATCHES, MORE_BATCHES))
def test_rates_are_those_of_linear_programs_for_many_more(seed):
    check(seed)


def test_large_networks_are_shared_fairly():
    draw = np.random.default_rng(1)
    for _ in range(10):
        bytes_per_s = (10 ** draw.uniform(9, 12, 100)).tolist()
        routes: list[Route] = [
            {int(link): float(10 ** draw.uniform(-3, 0)) for link in draw.permutation(100)[1:8]}
            | {int(draw.integers(100)): 1.0}
            for _ in range(300)
        ]
        assert faults(bytes_per_s, routes, rates_of(bytes_per_s, routes).tolist()) == []


def test_exact_filling_agrees_with_linear_programs():
    """What the slow simulation shares links by."""
    draw = np.random.default_rng(2)
    for _ in range(60):
        bytes_per_s, routes = random_case(draw)
        exact = filled(
            [Fraction(most) for most in bytes_per_s],
            [{link: Fraction(part) for link, part in route.items()} for route in routes],
        )
        by_lp = fair_rates_by_lp(bytes_per_s, routes)
        np.testing.assert_allclose([float(rate) for rate in exact], by_lp, rtol=1e-7)


def test_the_oracles_know_answers_found_by_hand():
    # one message holds two links half full, a third takes what it leaves
    assert fair_rates_by_lp([1.0, 2.0], [{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}]) == pytest.approx([0.5, 0.5, 1.5])
    # what loads a link by half counts by half
    assert fair_rates_by_lp([3.0], [{0: 1.0}, {0: 0.5}]) == pytest.approx([2.0, 2.0])
    assert faults([3.0], [{0: 1.0}, {0: 0.5}], [2.0, 2.0]) == []
    assert faults([3.0], [{0: 1.0}, {0: 0.5}], [1.0, 4.0]) == ["message 0 could be faster than 1.0"]
    assert faults([3.0], [{0: 1.0}], [3.1]) == ["link 0 carries 3.1 of 3.0"]
    assert faults([3.0], [{0: 1.0}], [2.9]) == ["message 0 could be faster than 2.9"]
