"""Times of messages whose answers are found by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dovetail.simulation.fair_share_kernels import fair_rates
from dovetail.simulation.network import Network, Routes
from dovetail.simulation.task_graph import TaskGraph, Timeline, run

Parts = dict[int, float]


def network_of(bytes_per_s: Sequence[float], messages: Sequence[Parts]) -> tuple[Network, list[int]]:
    routes = Routes()
    numbers = [routes.add(parts) for parts in messages]
    return routes.network(bytes_per_s), numbers


def rates_of(bytes_per_s: Sequence[float], messages: Sequence[Parts]) -> list[float]:
    network, numbers = network_of(bytes_per_s, messages)
    return fair_rates(network, np.array(numbers, np.int64)).tolist()


def played(
    bytes_per_s: Sequence[float],
    messages: Sequence[tuple[float, float, Parts]],
    needs: Sequence[tuple[int, int]] = (),
    rates: bool = False,
) -> Timeline:
    """Messages of (seconds before, bytes, parts), where no parts are no message, and who needs whom."""
    routes = Routes()
    numbers = [routes.add(parts) if parts else -1 for _, _, parts in messages]
    edges = np.array(needs, np.int64).reshape(-1, 2)
    seconds, sizes = (np.array([message[field] for message in messages], np.float64) for field in (0, 1))
    network = routes.network(bytes_per_s)
    graph = TaskGraph(seconds, sizes, np.array(numbers, np.int64), edges[:, 0].copy(), edges[:, 1].copy(), network)
    return run(graph, rates=rates)


def ends(bytes_per_s: Sequence[float], messages: Sequence[tuple[float, float, Parts]], *needs: tuple[int, int]):
    return played(bytes_per_s, messages, needs).end_s.tolist()


def test_routes_with_the_same_parts_are_one():
    routes = Routes()
    assert [routes.add(parts) for parts in ({0: 1.0, 2: 0.5}, {1: 1.0}, {2: 0.5, 0: 1.0}, {0: 1.0})] == [0, 1, 0, 2]
    network = routes.network([4.0, 5.0, 6.0])
    assert network.num_routes == 3
    assert network.starts.tolist() == [0, 2, 3, 4]
    assert network.link.tolist() == [0, 2, 1, 0]
    assert network.part.tolist() == [1.0, 0.5, 1.0, 1.0]
    assert network.bytes_per_s.tolist() == [4.0, 5.0, 6.0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_messages_on_one_link_get_equal_shares(count):
    assert rates_of([12.0], [{0: 1.0}] * count) == pytest.approx([12.0 / count] * count)
    assert ends([12.0], [(0.0, 6.0, {0: 1.0})] * count) == pytest.approx([6.0 * count / 12.0] * count)


def test_small_messages_on_one_link_leave_room_for_large_ones():
    sizes = [5.0, 1.0, 2.0, 9.0, 2.0]
    # sorted by size, each sends what it has more than the one before together with all larger ones
    after, sent, left = {}, 0.0, len(sizes)
    now = 0.0
    for size in sorted(sizes):
        now, sent, left = now + (size - sent) * left / 4.0, size, left - 1
        after[size] = now
    assert ends([4.0], [(0.0, size, {0: 1.0}) for size in sizes]) == pytest.approx([after[size] for size in sizes])
    # the largest never waits for an idle link
    assert max(after.values()) == pytest.approx(sum(sizes) / 4.0)


def test_a_message_over_a_slow_link_leaves_the_rest_of_a_shared_one():
    first, second = {0: 1.0, 1: 1.0}, {1: 1.0, 2: 1.0}
    assert rates_of([8.0, 8.0, 8.0], [first, second]) == pytest.approx([4.0, 4.0])
    assert rates_of([1.0, 8.0, 8.0], [first, second]) == pytest.approx([1.0, 7.0])
    assert rates_of([1.0, 8.0, 6.0], [first, second]) == pytest.approx([1.0, 6.0])
    # the second ends after 2 s, which does not help the first
    assert ends([1.0, 8.0, 8.0], [(0.0, 10.0, first), (0.0, 14.0, second)]) == pytest.approx([10.0, 2.0])
    # 5 bytes each after 1.25 s, then the rest of the second alone
    assert ends([8.0] * 3, [(0.0, 5.0, first), (0.0, 14.0, second)]) == pytest.approx([1.25, 1.25 + 9.0 / 8.0])


def test_messages_that_share_no_link_do_not_slow_each_other():
    messages = [(0.0, 6.0, {0: 1.0}), (0.0, 6.0, {1: 1.0}), (1.0, 8.0, {2: 1.0})]
    assert ends([1.0, 2.0, 4.0], messages) == pytest.approx([6.0, 3.0, 3.0])


@pytest.mark.parametrize("hops", [1, 2, 5, 20])
def test_a_parking_lot_of_equal_messages_is_shared_in_halves(hops):
    way = dict.fromkeys(range(hops), 1.0)
    shorts: list[Parts] = [{hop: 1.0} for hop in range(hops)]
    assert rates_of([10.0] * hops, [way, *shorts]) == pytest.approx([5.0] * (hops + 1))
    messages = [(0.0, 3.0, parts) for parts in [way, *shorts]]
    assert ends([10.0] * hops, messages) == pytest.approx([0.6] * (hops + 1))
    # links of 1, 2, 3...: the first holds the long one at a half, all others give their rest
    rising = [1.0 + hop for hop in range(hops)]
    assert rates_of(rising, [way, *shorts]) == pytest.approx([0.5, *(most - 0.5 for most in rising)])


@pytest.mark.parametrize(
    ("long", "shorts"), [(4.0, [1.0, 2.0, 3.0]), (2.0, [1.0, 2.0, 5.0]), (1.0, [2.0, 3.0]), (9.0, [1.0, 1.0, 8.0, 8.0])]
)
def test_a_parking_lot_of_unequal_messages(long, shorts):
    most = 10.0
    messages = [(0.0, long, dict.fromkeys(range(len(shorts)), 1.0))]
    messages += [(0.0, size, {hop: 1.0}) for hop, size in enumerate(shorts)]
    # the long one has half a link until the last short one ends, or all its life; a short one has half until either
    longest = min(max(shorts), long)
    expected = [(long + longest) / most, *((size + min(size, long)) / most for size in shorts)]
    assert ends([most] * len(shorts), messages) == pytest.approx(expected)


def test_a_message_that_begins_in_the_middle_of_another():
    # 4 of 10 bytes alone in 2 s; both at 1 from then on: 3 s for the second; the other has 3 left at 2
    timeline = played([2.0], [(0.0, 10.0, {0: 1.0}), (2.0, 3.0, {0: 1.0})], rates=True)
    assert timeline.start_s.tolist() == [0.0, 0.0]
    assert timeline.end_s.tolist() == pytest.approx([6.5, 5.0])
    changes = timeline.rates
    assert changes is not None
    found = sorted(zip(changes.at_s, changes.task, changes.bytes_per_s, strict=True))
    expected = [(0.0, 0, 2.0), (2.0, 0, 1.0), (2.0, 1, 1.0), (5.0, 0, 2.0), (5.0, 1, 0.0), (6.5, 0, 0.0)]
    assert np.array(found) == pytest.approx(np.array(expected))


def test_a_message_that_begins_when_another_ends_has_the_link_alone():
    both = [(0.0, 4.0, {0: 1.0}), (2.0, 6.0, {0: 1.0})]
    assert ends([2.0], both) == pytest.approx([2.0, 5.0])
    assert ends([2.0], [both[0], (0.0, 6.0, {0: 1.0})], (0, 1)) == pytest.approx([2.0, 5.0])


def test_messages_that_end_together_do_not_change_each_others_rates():
    timeline = played([7.0], [(0.3, 1.1, {0: 1.0})] * 9, rates=True)
    assert timeline.rates is not None
    # each begins and ends
    assert len(timeline.rates.at_s) == 18


def test_moments_a_trillionth_apart_are_two():
    apart = 1.0 + 1e-12
    assert len(set(ends([2.0, 2.0], [(1.0, 0.0, {}), (apart, 0.0, {})]))) == 2
    assert len(set(ends([2.0, 2.0], [(0.0, 2.0, {0: 1.0}), (0.0, 2.0 * apart, {1: 1.0})]))) == 2


def test_a_message_loads_a_link_by_its_part():
    # the second link is full at 2/3 of a byte per second each: 2/3 / 2 + 2/3 = 1
    assert rates_of([1.0, 1.0], [{0: 1.0, 1: 0.5}, {1: 1.0}]) == pytest.approx([2 / 3, 2 / 3])
    # held at 0.3 elsewhere, half of it is taken here
    assert rates_of([0.3, 1.0], [{0: 1.0, 1: 0.5}, {1: 1.0}]) == pytest.approx([0.3, 0.85])
    # 2 s at 2/3 each for the first; the other has 2/3 left and the link alone
    messages: list[tuple[float, float, Parts]] = [(0.0, 4 / 3, {0: 1.0, 1: 0.5}), (0.0, 2.0, {1: 1.0})]
    assert ends([1.0, 1.0], messages) == pytest.approx([2.0, 2.0 + 2 / 3])
    # two that load the same link differently have the same rate, not the same use of it
    assert rates_of([3.0], [{0: 1.0}, {0: 0.5}]) == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize(
    ("bytes_per_s", "parts", "rate"),
    [
        ([10.0], {0: 1.0}, 10.0),
        ([10.0, 4.0, 7.0], {0: 1.0, 1: 1.0, 2: 1.0}, 4.0),
        ([10.0, 4.0], {0: 1.0, 1: 0.25}, 10.0),
        ([10.0, 4.0], {0: 1.0, 1: 0.5}, 8.0),
        ([1e12, 2.0], {0: 1.0, 1: 1e-9}, 2e9),
        ([1e12, 2.0], {0: 1.0, 1: 1e-11}, 2e11),
    ],
)
def test_a_message_alone_takes_its_seconds_and_its_bytes_over_its_slowest_link(bytes_per_s, parts, rate):
    assert rates_of(bytes_per_s, [parts]) == pytest.approx([rate])
    timeline = played(bytes_per_s, [(1.5, 3.0 * rate, parts)])
    assert timeline.end_s.tolist() == pytest.approx([4.5])
    assert timeline.start_s.tolist() == [0.0]
    assert timeline.seconds == pytest.approx(4.5)
    # its wait ends, its rate is set, it ends
    assert timeline.events == 3


def test_a_task_begins_when_the_last_it_needs_has_ended():
    tasks: list[tuple[float, float, Parts]] = [
        (1.0, 0.0, {}), (0.0, 6.0, {0: 1.0}), (0.5, 4.0, {0: 1.0}), (0.0, 0.0, {}), (2.0, 0.0, {}),
    ]  # fmt: skip
    timeline = played([2.0], tasks, [(0, 2), (1, 2), (2, 3), (0, 4), (3, 4)])
    assert timeline.start_s.tolist() == pytest.approx([0.0, 0.0, 3.0, 5.5, 5.5])
    assert timeline.end_s.tolist() == pytest.approx([1.0, 3.0, 5.5, 5.5, 7.5])


def test_no_tasks_take_no_time():
    timeline = played([], [], rates=True)
    assert (len(timeline.start_s), len(timeline.end_s), timeline.seconds, timeline.events) == (0, 0, 0.0, 0)
    assert timeline.rates is not None
    assert len(timeline.rates.at_s) == 0
    assert rates_of([1.0], []) == []


def test_tasks_of_no_seconds_and_no_bytes_take_no_time():
    timeline = played([], [(0.0, 0.0, {})] * 3, [(2, 1), (1, 0)])
    assert timeline.end_s.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("needs", "waiting"), [([(0, 0)], 3), ([(0, 1), (1, 0)], 3), ([(1, 2), (2, 1)], 2), ([(0, 1), (1, 2), (2, 0)], 3)]
)
@pytest.mark.parametrize("size", [0.0, 2.0])
def test_tasks_that_wait_for_each_other_are_refused(needs, waiting, size):
    tasks: list[tuple[float, float, Parts]] = [(1.0, size, {0: 1.0})] * 3
    # what depends on the first waits too
    with pytest.raises(AssertionError, match=f"{waiting} of 3 tasks wait for each other"):
        played([1.0], tasks, [*needs, (0, 1), (0, 2)])


def test_playing_a_graph_leaves_it_as_it_is():
    network, (route,) = network_of([2.0], [{0: 1.0}])
    ints = np.array([0, 0]), np.array([1, 2])
    graph = TaskGraph(np.ones(3), np.array([4.0, 2.0, 2.0]), np.full(3, route), *ints, network)
    first, second = run(graph), run(graph)
    assert first.end_s.tolist() == second.end_s.tolist() == [3.0, 6.0, 6.0]
    assert (graph.seconds.tolist(), graph.bytes.tolist()) == ([1.0] * 3, [4.0, 2.0, 2.0])
    assert network.bytes_per_s.tolist() == [2.0]
