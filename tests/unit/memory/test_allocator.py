"""The caching allocator's rules one by one, on traces small enough to follow by hand, and what holds for any trace."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.memory.allocator import CachingAllocator, Event, OutOfMemory, least_limit, replay

MIB = 2**20


def allocated_in_turn(allocator: CachingAllocator, *sizes: int) -> list[int]:
    """The addresses of requests under the keys 0, 1 and so on."""
    return [allocator.allocate(key, size) for key, size in enumerate(sizes)]


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)])
@pytest.mark.parametrize("expandable", [False, True])
def test_requests_are_rounded_up_to_512_bytes(size: int, rounded: int, expandable: bool):
    allocator = CachingAllocator(expandable=expandable)
    allocator.allocate(0, size)
    assert allocator.allocated_bytes == allocator.peak_allocated_bytes == rounded
    allocator.free(0)
    assert (allocator.allocated_bytes, allocator.peak_allocated_bytes) == (0, rounded)


@pytest.mark.parametrize(
    ("size", "segment", "pages"),
    [
        (1, 2 * MIB, 2 * MIB),
        (MIB, 2 * MIB, 2 * MIB),
        (MIB + 1, 20 * MIB, 20 * MIB),
        (10 * MIB - 512, 20 * MIB, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 20 * MIB),
        (10 * MIB + 1, 12 * MIB, 20 * MIB),
        (41 * MIB, 42 * MIB, 60 * MIB),
    ],
)
def test_size_of_new_segments_and_pages(size: int, segment: int, pages: int):
    assert replay([Event(0, size)]).peak_reserved_bytes == segment
    assert replay([Event(0, size)], expandable=True).peak_reserved_bytes == pages


@pytest.mark.parametrize("expandable", [False, True])
def test_streams_and_pools_share_no_blocks(expandable: bool):
    allocator = CachingAllocator(expandable=expandable)
    allocator.allocate(0, 20 * MIB, stream=0)
    allocator.free(0)
    allocator.allocate(1, 20 * MIB, stream=1)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.allocate(2, MIB, stream=0)
    assert allocator.reserved_bytes == 42 * MIB
    allocator.allocate(3, 20 * MIB, stream=0)
    assert allocator.reserved_bytes == 42 * MIB


def test_best_fit_is_the_smallest_block_then_the_lowest_address():
    allocator = CachingAllocator()
    addresses = allocated_in_turn(allocator, 30 * MIB, 12 * MIB, 10 * MIB, 12 * MIB)
    assert addresses == [0, 30 * MIB, 42 * MIB, 52 * MIB]
    for key in (3, 0, 2, 1):
        allocator.free(key)
    again = [allocator.allocate(key, 11 * MIB) for key in (4, 5, 6)]
    assert again == [30 * MIB, 52 * MIB, 0]
    assert allocator.reserved_bytes == 64 * MIB


def test_a_large_block_is_split_where_more_than_a_mebibyte_is_left_over():
    allocator = CachingAllocator()
    allocator.allocate(0, 20 * MIB)
    allocator.free(0)
    allocator.allocate(0, 19 * MIB)
    assert allocator.allocated_bytes == 20 * MIB
    allocator.free(0)
    allocator.allocate(0, 19 * MIB - 512)
    assert allocator.allocated_bytes == 19 * MIB - 512
    assert allocator.allocate(1, MIB + 1) == 19 * MIB - 512
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (20 * MIB, 20 * MIB)


def test_a_small_block_is_split_to_the_last_512_bytes():
    allocator = CachingAllocator()
    addresses = allocated_in_turn(allocator, MIB, MIB - 512, 1)
    assert addresses == [0, MIB, 2 * MIB - 512]
    assert allocator.allocated_bytes == allocator.reserved_bytes == 2 * MIB


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_freed_neighbours_merge(order: tuple[int, ...]):
    allocator = CachingAllocator()
    allocated_in_turn(allocator, 6 * MIB, 6 * MIB, 6 * MIB)
    for key in order:
        allocator.free(key)
    assert allocator.allocate(3, 20 * MIB) == 0
    assert allocator.reserved_bytes == 20 * MIB


def test_blocks_of_two_segments_do_not_merge():
    allocator = CachingAllocator()
    assert allocated_in_turn(allocator, 10 * MIB, 10 * MIB) == [0, 10 * MIB]
    allocator.free(0)
    allocator.free(1)
    assert allocator.allocate(2, 20 * MIB) == 20 * MIB
    assert allocator.reserved_bytes == 40 * MIB


def test_a_retry_releases_the_free_segments_of_all_streams_and_pools():
    allocator = CachingAllocator(limit_bytes=34 * MIB)
    allocator.allocate(0, 20 * MIB, stream=1)
    allocator.allocate(1, MIB, stream=2)
    allocator.allocate(2, 12 * MIB)
    assert (allocator.reserved_bytes, allocator.retries) == (34 * MIB, 0)  # as much as the limit is none over it
    for key in (0, 1):
        allocator.free(key)
    assert allocator.allocate(3, 22 * MIB) == 34 * MIB  # released addresses are not used a second time
    assert (allocator.reserved_bytes, allocator.retries) == (34 * MIB, 1)


def test_peaks_outlast_a_release():
    allocator = CachingAllocator(limit_bytes=30 * MIB)
    allocator.allocate(0, 20 * MIB)
    allocator.free(0)
    allocator.allocate(1, 12 * MIB, stream=1)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (12 * MIB, 12 * MIB)
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (20 * MIB, 20 * MIB)


def test_a_segment_with_a_block_in_use_is_not_released():
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    allocated_in_turn(allocator, 2 * MIB, 2 * MIB)
    allocator.free(0)
    with pytest.raises(OutOfMemory) as error:
        allocator.allocate(5, 30 * MIB - 1)
    assert (error.value.key, error.value.requested) == (5, 30 * MIB - 1)
    assert str(error.value) == "out of memory: 31457279 bytes for key 5"
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.retries) == (2 * MIB, 20 * MIB, 1)
    allocator.free(1)
    allocator.allocate(5, 30 * MIB - 1)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes, allocator.retries) == (30 * MIB, 30 * MIB, 2)


def test_an_expandable_segment_grows_by_whole_pages():
    allocator = CachingAllocator(expandable=True)
    assert allocated_in_turn(allocator, 15 * MIB, 25 * MIB, 2 * MIB) == [0, 15 * MIB, 40 * MIB]
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (42 * MIB, 60 * MIB)
    allocator.free(1)
    allocator.free(0)
    assert allocator.allocate(3, 40 * MIB) == 0
    assert allocator.reserved_bytes == 60 * MIB


def test_an_expandable_block_is_split_to_the_last_512_bytes():
    allocator = CachingAllocator(expandable=True)
    assert allocated_in_turn(allocator, 18 * MIB - 512, 2 * MIB, 1) == [0, 18 * MIB - 512, 20 * MIB << 24]
    assert allocator.allocated_bytes == 20 * MIB
    allocator.free(0)
    allocator.allocate(0, 17 * MIB)  # less than 1 MiB is left over
    assert allocator.allocated_bytes == 19 * MIB + 512


def test_best_fit_spares_the_block_at_the_open_end():
    allocator = CachingAllocator(expandable=True)
    assert allocated_in_turn(allocator, 10 * MIB, 4 * MIB) == [0, 10 * MIB]
    allocator.free(0)
    # 10 MiB are free at 0, and 6 MiB at 14 MiB, before pages that are not mapped yet
    assert allocator.allocate(2, 5 * MIB) == 0
    assert allocator.allocate(3, 6 * MIB) == 14 * MIB
    assert allocator.reserved_bytes == 20 * MIB


def with_two_holes() -> CachingAllocator:
    """Free at 16, 55 and 90 MiB: 4, 5 and 6 MiB; pages unmapped at 20 and 60 MiB, and from 100 MiB on."""
    allocator = CachingAllocator(expandable=True, limit_bytes=100 * MIB)
    allocated_in_turn(allocator, *(size * MIB for size in (16, 24, 15, 25, 10, 6, 4)))
    for key in (1, 3, 5):
        allocator.free(key)
    with pytest.raises(OutOfMemory):
        allocator.allocate(7, 200 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.retries) == (45 * MIB, 60 * MIB, 1)
    return allocator


def test_a_release_unmaps_pages_between_blocks_in_use():
    allocator = with_two_holes()
    allocator.allocate(8, 40 * MIB, stream=1)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (100 * MIB, 100 * MIB)


@pytest.mark.parametrize(
    ("size", "address"),
    [
        (3, 16),  # the next one, at 55 MiB, would reach further
        (5, 90),  # at 55 MiB, it would grow into the hole
        (6, 90),
    ],
)
def test_best_fit_spares_blocks_before_holes(size: int, address: int):
    allocator = with_two_holes()
    assert allocator.allocate(8, size * MIB) == address * MIB
    assert allocator.reserved_bytes == 60 * MIB


def test_best_fit_is_the_smaller_of_two_blocks_that_reach_as_far():
    allocator = CachingAllocator(expandable=True, limit_bytes=80 * MIB)
    allocated_in_turn(allocator, *(size * MIB for size in (16, 24, 10, 24, 6)))
    allocator.free(1)
    with pytest.raises(OutOfMemory):
        allocator.allocate(5, 200 * MIB)
    allocator.free(3)
    # 4 MiB are free at 16 MiB, before a hole of 20 MiB, and 24 MiB at 50 MiB
    assert allocator.allocate(5, 3 * MIB) == 16 * MIB


def test_a_hole_is_mapped_only_as_far_as_needed():
    allocator = CachingAllocator(expandable=True, limit_bytes=80 * MIB)
    allocated_in_turn(allocator, 16 * MIB, 44 * MIB, 20 * MIB)
    allocator.free(1)
    with pytest.raises(OutOfMemory):
        allocator.allocate(3, 200 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    assert [allocator.allocate(key, 12 * MIB) for key in (3, 4)] == [16 * MIB, 28 * MIB]
    assert allocator.reserved_bytes == 60 * MIB


@pytest.mark.parametrize(
    ("size", "address", "reserved"),
    [
        (7, 16, 80),
        (24, 16, 80),  # all of the first hole
        (25, 55, 80),  # all of the second one
        (26, 100, 100),
    ],
)
def test_holes_are_mapped_at_the_lowest_address_that_is_large_enough(size: int, address: int, reserved: int):
    allocator = with_two_holes()
    assert allocator.allocate(8, size * MIB) == address * MIB
    assert allocator.reserved_bytes == reserved * MIB
    assert allocator.retries == 1


def test_a_mapped_hole_merges_with_the_free_blocks_at_both_its_ends():
    allocator = with_two_holes()
    allocator.free(2)  # 15 MiB at 40 MiB
    assert allocator.allocate(8, 35 * MIB) == 16 * MIB
    assert allocator.reserved_bytes == 80 * MIB
    assert allocator.allocate(9, 9 * MIB) == 51 * MIB  # what is left over, up to 60 MiB
    assert allocator.reserved_bytes == 80 * MIB


def test_an_unmapped_block_merges_with_the_holes_next_to_it():
    allocator = with_two_holes()
    for key in (0, 2, 4, 6):
        allocator.free(key)
    with pytest.raises(OutOfMemory):
        allocator.allocate(8, 101 * MIB)
    assert allocator.reserved_bytes == 0
    assert allocator.allocate(8, 100 * MIB) == 0


def between_two_holes(limit_bytes: int) -> CachingAllocator:
    """Free at 20 MiB: one page, between one that is unmapped and the open end; 40 MiB in use on another stream."""
    allocator = CachingAllocator(expandable=True, limit_bytes=limit_bytes)
    allocated_in_turn(allocator, 30 * MIB, 5 * MIB, 25 * MIB)
    allocator.free(0)
    allocator.free(2)
    with pytest.raises(OutOfMemory):
        allocator.allocate(3, 1000 * MIB)
    allocator.allocate(3, 40 * MIB, stream=1)
    allocator.free(1)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (60 * MIB, 60 * MIB)
    return allocator


def test_several_holes_are_mapped_for_one_request():
    allocator = between_two_holes(100 * MIB)
    assert allocator.allocate(4, 45 * MIB) == 0
    assert (allocator.reserved_bytes, allocator.retries) == (100 * MIB, 1)


def test_holes_mapped_before_the_limit_is_reached_count_for_the_peak():
    allocator = between_two_holes(80 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.allocate(4, 45 * MIB)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (40 * MIB, 80 * MIB)
    assert allocator.retries == 2


def test_a_replay_ends_where_memory_does():
    events = [Event(0, 10 * MIB), Event(1, 12 * MIB), Event(0, 0), Event(2, 14 * MIB), Event(3, 16 * MIB), Event(1, 0)]
    ended = replay(events, limit_bytes=26 * MIB)
    assert (ended.peak_allocated_bytes, ended.peak_reserved_bytes) == (26 * MIB, 26 * MIB)
    assert (ended.retries, ended.failed_at) == (2, 4)
    through = replay(events, limit_bytes=42 * MIB)
    assert (through.peak_allocated_bytes, through.peak_reserved_bytes) == (42 * MIB, 42 * MIB)
    assert (through.retries, through.failed_at) == (1, None)
    unlimited = replay(events)
    assert (unlimited.peak_reserved_bytes, unlimited.retries, unlimited.failed_at) == (52 * MIB, 0, None)


def test_the_least_limit_counts_on_the_release_of_segments():
    events = [Event(0, 10 * MIB), Event(0, 0), Event(1, 12 * MIB)]
    assert replay(events).peak_reserved_bytes == 22 * MIB
    assert least_limit(events) == 12 * MIB
    assert least_limit(events, expandable=True) == 20 * MIB
    assert least_limit([]) == 0


def test_a_higher_limit_can_fail():
    sizes = [(0, 4), (0, 0), (1, 24), (1, 0), (2, 14), (3, 18), (4, 10)]
    events = [Event(key, size * MIB) for key, size in sizes]
    # 24 MiB release the first 20; 14 and 10 share them, beside 18
    assert replay(events, limit_bytes=42 * MIB).failed_at is None
    # 14 are put in the first 20 MiB, 18 in the 24: nothing is left to release for 10
    assert replay(events, limit_bytes=44 * MIB).failed_at == 6
    assert least_limit(events) == 54 * MIB


def test_traces_that_cannot_be_are_refused():
    allocator = CachingAllocator()
    allocator.allocate(0, 1)
    with pytest.raises(ValueError, match="key 0"):
        allocator.allocate(0, 1)
    with pytest.raises(ValueError, match="key 1"):
        allocator.allocate(1, -1)
    with pytest.raises(KeyError):
        allocator.free(1)


SIZES = st.one_of(
    st.integers(1, 2 * MIB),
    st.integers(1, 60).map(lambda size: size * MIB),
    st.integers(1, 60 * MIB),
)


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Requests of a few streams, each freed at some later time or never."""
    events: list[Event] = []
    live: list[int] = []
    for key in range(draw(st.integers(1, 40))):
        if live and draw(st.booleans()):
            events.append(Event(live.pop(draw(st.integers(0, len(live) - 1))), 0))
        else:
            events.append(Event(key, draw(SIZES), draw(st.integers(0, 1))))
            live.append(key)
    return events


def assert_disjoint(blocks: dict[int, tuple[int, int]]) -> None:
    spans = sorted(blocks.values())
    assert all(start + size <= follower for (start, size), (follower, _) in pairwise(spans))


@given(events=traces(), expandable=st.booleans(), limit_bytes=st.integers(20, 200).map(lambda size: size * MIB))
def test_what_holds_after_every_event(events: list[Event], expandable: bool, limit_bytes: int):
    allocator = CachingAllocator(expandable=expandable, limit_bytes=limit_bytes)
    blocks: dict[int, tuple[int, int]] = {}
    refused: set[int] = set()
    for key, size, stream, *_ in events:
        before = allocator.allocated_bytes
        if size == 0:
            if key not in refused:
                allocator.free(key)
                assert before - allocator.allocated_bytes == blocks.pop(key)[1]
        else:
            try:
                address = allocator.allocate(key, size, stream)
            except OutOfMemory:
                refused.add(key)
                assert allocator.allocated_bytes == before
            else:
                blocks[key] = (address, allocator.allocated_bytes - before)
                assert size <= blocks[key][1] <= size + MIB + 511
        assert_disjoint(blocks)
        assert sum(size for _, size in blocks.values()) == allocator.allocated_bytes
        assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes <= limit_bytes
        assert allocator.allocated_bytes <= allocator.peak_allocated_bytes
    for key in blocks:
        allocator.free(key)
    with pytest.raises(OutOfMemory):
        allocator.allocate(-1, limit_bytes + 1)
    assert allocator.allocated_bytes == allocator.reserved_bytes == 0  # all merged, so all released


@given(events=traces(), expandable=st.booleans())
def test_the_least_limit_suffices_and_the_next_below_does_not(events: list[Event], expandable: bool):
    limit = least_limit(events, expandable=expandable)
    assert limit % (2 * MIB) == 0
    assert replay(events, expandable=expandable, limit_bytes=limit).failed_at is None
    assert replay(events, expandable=expandable, limit_bytes=limit - 2 * MIB).failed_at is not None
