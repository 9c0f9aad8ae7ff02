"""The event engine against slow simulations, longest paths and what must hold of every timeline."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from fair_share_by_lp import faults
from random_task_graphs import real_graph, renumbered, round_graph, task_graph, tied_graph
from slow_events import routes_of, slow_run

from dovetail.simulation.network import Routes
from dovetail.simulation.task_graph import TaskGraph, Timeline, run

FEW, ALL = 400, 5000


def check_times(graph: TaskGraph, number: type, seed: int) -> None:
    timeline = run(graph)
    start_s, end_s = slow_run(graph, number)
    np.testing.assert_allclose(timeline.end_s, end_s, rtol=1e-9, atol=0, err_msg=f"seed {seed}")
    np.testing.assert_allclose(timeline.start_s, start_s, rtol=1e-9, atol=0, err_msg=f"seed {seed}")
    assert timeline.seconds == pytest.approx(max(end_s), rel=1e-9)


def test_times_are_those_of_an_exact_simulation():
    for seed in range(FEW):
        check_times(round_graph(seed), Fraction, seed)


def test_times_are_those_of_a_slow_simulation():
    for seed in range(FEW):
        check_times(real_graph(seed), float, seed)


@pytest.mark.slow
def test_times_are_those_of_slow_simulations_for_many_more():
    for seed in range(FEW, ALL):
        check_times(round_graph(seed), Fraction, seed)
        check_times(real_graph(seed), float, seed)


def test_the_slow_simulation_knows_an_answer_found_by_hand():
    routes = Routes()
    route = routes.add({0: 1.0})
    # the first is alone from 1 to 2, both send until 4, the second has 1.5 left; the last needs both
    tasks = [(1.0, 4.0, route), (2.0, 3.5, route), (0.5, 0.0, -1)]
    graph = task_graph(tasks, [(0, 2), (1, 2)], routes.network([2.0]))
    assert slow_run(graph) == ([0.0, 0.0, 4.75], [4.0, 4.75, 5.25])


def longest_paths(graph: TaskGraph) -> np.ndarray:
    """When each task ends if nothing is in its way, by relaxing all needs until nothing changes."""
    end_s = graph.seconds.copy()
    while True:
        start_s = np.zeros(len(graph))
        np.maximum.at(start_s, graph.after, end_s[graph.before])
        if np.array_equal(start_s + graph.seconds, end_s):
            return end_s
        end_s = start_s + graph.seconds


def test_without_messages_ends_are_longest_paths():
    for seed in range(40):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(1, 2001))
        seconds = draw.choice([0.0, 1.0, draw.uniform(0.1, 3)], count) * draw.choice([1.0, draw.uniform(0.1, 3)], count)
        position = np.sort(draw.integers(0, count, (draw.integers(0, 4 * count), 2)), axis=1)
        position = position[position[:, 0] < position[:, 1]]
        before, after = draw.permutation(count)[position].T
        graph = task_graph([(each, 0.0, -1) for each in seconds], np.column_stack([before, after]).tolist())
        timeline = run(graph)
        np.testing.assert_allclose(timeline.end_s, longest_paths(graph), rtol=1e-12)
        np.testing.assert_allclose(timeline.start_s, timeline.end_s - seconds, rtol=1e-9, atol=1e-9)


def check_rates(graph: TaskGraph, timeline: Timeline) -> None:
    """Every message sends its bytes between the end of its wait and its own, at rates that are fair at all times."""
    changes, routes = timeline.rates, routes_of(graph.network)
    assert changes is not None
    assert (np.diff(changes.at_s) >= 0).all()
    bytes_per_s = graph.network.bytes_per_s.tolist()
    sent = np.zeros(len(graph))
    rates: dict[int, float] = {}
    first_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    now = 0.0
    for i in range(len(changes.at_s)):
        at_s, task, rate = float(changes.at_s[i]), int(changes.task[i]), float(changes.bytes_per_s[i])
        if at_s > now:
            under_way = sorted(rates)
            used = [routes[graph.route[other]] for other in under_way]
            assert faults(bytes_per_s, used, [rates[other] for other in under_way]) == []
            for other, was in rates.items():
                sent[other] += was * (at_s - now)
            now = at_s
        if rate > 0:
            first_s.setdefault(task, at_s)
            rates[task] = rate
        else:
            del rates[task]
            last_s[task] = at_s
    assert rates == {}
    np.testing.assert_allclose(sent, graph.bytes, rtol=1e-9, atol=0)
    senders = [task for task in range(len(graph)) if graph.bytes[task]]
    assert sorted(first_s) == senders
    np.testing.assert_allclose([first_s[task] for task in senders], (timeline.start_s + graph.seconds)[senders], 1e-12)
    np.testing.assert_allclose([last_s[task] for task in senders], timeline.end_s[senders], 1e-12)


def test_bytes_are_kept_and_links_never_carry_too_much():
    for seed in range(80):
        for graph in (round_graph(seed), real_graph(seed)):
            check_rates(graph, run(graph, rates=True))
    large = [real_graph(1000, 600), round_graph(1001, 600), tied_graph(1002)]
    for graph in large:
        # more changes than the log has room for at first
        timeline = run(graph, rates=True)
        check_rates(graph, timeline)
    assert any(len(changes.at_s) > 1024 for changes in [run(graph, rates=True).rates for graph in large] if changes)


def test_a_log_of_rates_changes_nothing():
    graph = real_graph(7)
    timeline, logged = run(graph), run(graph, rates=True)
    assert timeline.rates is None
    np.testing.assert_array_equal(timeline.end_s, logged.end_s)
    assert timeline.events == logged.events


def check_order(graph: TaskGraph, draw: np.random.Generator) -> None:
    timeline = run(graph)
    for _ in range(4):
        numbers = draw.permutation(len(graph))
        ranked, moved = run(graph, ranks=numbers), run(renumbered(graph, numbers))
        for other in ((ranked.start_s, ranked.end_s), (moved.start_s[numbers], moved.end_s[numbers])):
            np.testing.assert_allclose(other[0], timeline.start_s, rtol=1e-12, atol=0)
            np.testing.assert_allclose(other[1], timeline.end_s, rtol=1e-12, atol=0)


def test_what_goes_first_at_the_same_moment_does_not_matter():
    draw = np.random.default_rng(3)
    for seed in range(40):
        check_order(tied_graph(seed), draw)
        check_order(round_graph(seed), draw)


def test_tied_graphs_have_many_ties_and_rates_that_change():
    for seed in range(40):
        graph = tied_graph(seed)
        timeline = run(graph, rates=True)
        # four chips of each kind
        assert len(np.unique(np.round(timeline.end_s, 9))) <= len(graph) / 4
        assert timeline.rates is not None
        assert len(timeline.rates.at_s) > 2 * np.count_nonzero(graph.bytes)
