"""A replay of PyTorch's CUDA caching allocator: what it reserves for a trace of allocations and frees.

The rules are those of PyTorch 2.x with its default settings, or with expandable segments:

- Requests are rounded up to 512 bytes. Up to 1 MiB they go to a small pool, above to a large one; a stream has both.
- Best fit: the smallest free block of the pool that is large enough, among equals the one at the lowest address.
- Without one, a new segment: 2 MiB in a small pool, 20 MiB for less than 10 MiB, else rounded up to 2 MiB. Segments lie
  one after the other; addresses that were released are not used a second time.
- A block is split where at least 512 bytes are left over, in a large pool where more than 1 MiB is. A request that is
  given a whole block is counted with the block's size.
- A freed block merges with the free blocks next to it in its segment.
- Where a new segment would exceed the limit, all segments without a block in use are released, and the request is
  tried once more before it is out of memory.

Expandable segments: every pool has one, which grows without end, in pages of 2 MiB (small pool) or 20 MiB.

- Best fit spares blocks that can grow: from the smallest on, by size and address, the next one is taken as long as it
  reaches less far, counting the unmapped block that follows it.
- Without a fit, pages are mapped at the lowest address where consecutive free and unmapped blocks are large enough. An
  unmapped block on the way is mapped as far as the request needs it, all or nothing: where the limit stops a later
  one, the earlier ones stay mapped up to the release.
- A block is split where at least 512 bytes are left over.
- A release unmaps the whole pages within free blocks, also between blocks in use, and leaves holes to map later.

Left out: `record_stream`, the garbage collection threshold, `max_split_size`, rounding to divisions of powers of two,
pools of graphs and of users, and the memory fraction: the limit is the memory of the device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dovetail.frozen import frozen

MIB = 2**20

#: Block sizes and addresses are multiples of it.
BLOCK_BYTES = 512
#: The largest request of a small pool, and what a large pool leaves unsplit.
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
#: From here on a request has a segment of its own size, in whole multiples of `SEGMENT_STEP_BYTES`.
OWN_SEGMENT_BYTES = 10 * MIB
SEGMENT_STEP_BYTES = 2 * MIB
#: The addresses of one expandable segment: more than any device has, in whole pages.
_RANGE_BYTES = LARGE_SEGMENT_BYTES << 24
#: Addresses are smaller, so that size and address in one number are in the order of both.
_ADDRESS_BITS = 64


class Event(NamedTuple):
    """One event of a trace: `bytes` to allocate under a key, or 0 to free it; and what asks for it."""

    key: int
    bytes: int
    stream: int = 0
    operator: str = ""
    phase: str = ""


class OutOfMemory(Exception):  # noqa: N818 (as frameworks name it)
    """A request that does not fit within the limit, even after all that is cached was released."""

    def __init__(self, key: int, requested: int) -> None:
        self.key = key
        self.requested = requested
        super().__init__(key, requested)

    def __str__(self) -> str:
        return f"out of memory: {self.requested} bytes for key {self.key}"


class _Block:
    """Consecutive addresses of a segment: in use, free, or unmapped (never both in use and unmapped)."""

    __slots__ = ("address", "in_use", "mapped", "next", "previous", "size")

    def __init__(self, address: int, size: int, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.mapped = mapped
        self.in_use = False
        self.previous: _Block | None = None
        self.next: _Block | None = None

    def reach(self) -> int:
        """What it can grow to: its size, and that of the next block if that is unmapped."""
        return self.size if self.next is None or self.next.mapped else self.size + self.next.size

    def shorten(self, size: int) -> _Block:
        """Splits the block after `size` bytes; returns the new block of the rest."""
        rest = _Block(self.address + size, self.size - size, self.mapped)
        self.size = size
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next = rest
        return rest


class _Pool:
    """The small or the large blocks of one stream."""

    def __init__(self, page_bytes: int, smallest_rest: int, unmapped: _Block | None) -> None:
        self.page_bytes = page_bytes
        #: what a split must leave over
        self.smallest_rest = smallest_rest
        #: free blocks by size and address, as one number
        self.free: list[int] = []
        self.free_blocks: dict[int, _Block] = {}
        #: unmapped blocks by address; the last has no end
        self.unmapped: list[int] = []
        self.unmapped_at: dict[int, _Block] = {}
        if unmapped is not None:
            self.insert(unmapped)

    def insert(self, block: _Block) -> None:
        """Adds a block that is not in use."""
        if block.mapped:
            place = block.size << _ADDRESS_BITS | block.address
            insort(self.free, place)
            self.free_blocks[place] = block
        else:
            insort(self.unmapped, block.address)
            self.unmapped_at[block.address] = block

    def remove(self, block: _Block) -> None:
        """Takes out a block that is to be used, mapped, unmapped or merged."""
        if block.mapped:
            place = block.size << _ADDRESS_BITS | block.address
            del self.free[bisect_left(self.free, place)]
            del self.free_blocks[place]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]
            del self.unmapped_at[block.address]

    def insert_merged(self, block: _Block) -> None:
        """Adds a block, merged with those next to it that are as it is."""
        before, after = block.previous, block.next
        if before is not None and not before.in_use and before.mapped == block.mapped:
            self.remove(before)
            block.address = before.address
            block.size += before.size
            block.previous = before.previous
            if before.previous is not None:
                before.previous.next = block
        if after is not None and not after.in_use and after.mapped == block.mapped:
            self.remove(after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.previous = block
        self.insert(block)

    def take_best_fit(self, size: int) -> _Block | None:
        """Takes out the free block to use for a request, if one is large enough."""
        free = self.free
        index = bisect_left(free, size << _ADDRESS_BITS)
        if index == len(free):
            return None
        best = self.free_blocks[free[index]]
        while (after := best.next) is not None and not after.mapped and index + 1 < len(free):
            larger = self.free_blocks[free[index + 1]]
            if larger.reach() >= best.reach():
                break
            best = larger
            index += 1
        del self.free_blocks[free.pop(index)]
        return best

    def lowest_run(self, size: int) -> _Block:
        """Where blocks that are free or unmapped, one after the other, have `size` bytes first."""
        for address in self.unmapped:
            start = self.unmapped_at[address]
            if start.previous is not None and not start.previous.in_use:
                start = start.previous
            block, left = start, size
            while block is not None and not block.in_use and left > 0:
                left -= block.size
                block = block.next
            if left <= 0:
                return start
        raise AssertionError("the last unmapped block has no end")

    def release_segments(self) -> int:
        """Drops the segments without a block in use; returns their bytes."""
        whole = [block for block in self.free_blocks.values() if block.previous is None and block.next is None]
        for block in whole:
            self.remove(block)
        return sum(block.size for block in whole)

    def unmap_pages(self) -> int:
        """Unmaps the whole pages within free blocks; returns their bytes."""
        unmapped = 0
        for block in list(self.free_blocks.values()):
            start = _round_up(block.address, self.page_bytes)
            end = block.address + block.size
            end -= end % self.page_bytes
            if start >= end:
                continue
            self.remove(block)
            pages = block
            if start > block.address:
                pages = block.shorten(start - block.address)
                self.insert(block)
            if pages.size > end - start:
                self.insert(pages.shorten(end - start))
            pages.mapped = False
            self.insert_merged(pages)
            unmapped += end - start
        return unmapped


class CachingAllocator:
    """One device's caching allocator; without a limit it never runs out of memory."""

    def __init__(self, *, expandable: bool = False, limit_bytes: int | None = None) -> None:
        #: blocks in use, whole: at least the rounded requests
        self.allocated_bytes = 0
        #: segments, or the mapped pages of expandable ones
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        #: requests that made it release what is cached
        self.retries = 0
        self._expandable = expandable
        self._limit_bytes = limit_bytes
        self._live: dict[int, tuple[_Pool, _Block]] = {}
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = 0

    def allocate(self, key: int, size: int, stream: int = 0) -> int:
        """Allocates `size` bytes under a key that is free; returns their address."""
        if size <= 0 or key in self._live:
            raise ValueError(f"key {key} cannot be given {size} bytes: it is live, or the size is not positive")
        rounded = _round_up(size, BLOCK_BYTES)
        pool = self._pools.get((stream, rounded <= SMALL_BYTES)) or self._new_pool(stream, rounded <= SMALL_BYTES)
        block = pool.take_best_fit(rounded)
        if block is None:
            block = self._new_memory(pool, rounded)
            if block is None:
                self.retries += 1
                self._release()
                block = self._new_memory(pool, rounded)
                if block is None:
                    raise OutOfMemory(key, size)
            pool.remove(block)
        block.in_use = True
        if block.size - rounded >= pool.smallest_rest:
            pool.insert(block.shorten(rounded))
        self._live[key] = (pool, block)
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:  # a call of `max` takes longer
            self.peak_allocated_bytes = self.allocated_bytes
        return block.address

    def free(self, key: int) -> None:
        """Frees what a key was given; it stays reserved."""
        pool, block = self._live.pop(key)
        self.allocated_bytes -= block.size
        block.in_use = False
        pool.insert_merged(block)

    def _new_pool(self, stream: int, small: bool) -> _Pool:
        page_bytes = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        smallest_rest = BLOCK_BYTES if small or self._expandable else SMALL_BYTES + 1
        unmapped = _Block(len(self._pools) * _RANGE_BYTES, _RANGE_BYTES, mapped=False) if self._expandable else None
        pool = self._pools[stream, small] = _Pool(page_bytes, smallest_rest, unmapped)
        return pool

    def _new_memory(self, pool: _Pool, size: int) -> _Block | None:
        """A free block from outside the pool, large enough for a request; none where the limit is reached."""
        return self._map_run(pool, size) if self._expandable else self._new_segment(pool, size)

    def _new_segment(self, pool: _Pool, size: int) -> _Block | None:
        segment_bytes = pool.page_bytes if size < OWN_SEGMENT_BYTES else _round_up(size, SEGMENT_STEP_BYTES)
        if not self._reserve(segment_bytes):
            return None
        block = _Block(self._next_address, segment_bytes)
        self._next_address += segment_bytes
        pool.insert(block)
        return block

    def _map_run(self, pool: _Pool, size: int) -> _Block | None:
        block = pool.lowest_run(size)
        if not block.mapped and not self._map(pool, block, size):
            return None
        while block.size < size:
            unmapped = block.next
            assert unmapped is not None
            if not self._map(pool, unmapped, size - block.size):
                return None
            block = unmapped  # merged with the block before it
        return block

    def _map(self, pool: _Pool, block: _Block, size: int) -> bool:
        """Maps the pages of the first `size` bytes of an unmapped block, or all of it; false where the limit is hit."""
        mapped_bytes = min(_round_up(size, pool.page_bytes), block.size)
        if not self._reserve(mapped_bytes):
            return False
        pool.remove(block)
        if mapped_bytes < block.size:
            pool.insert(block.shorten(mapped_bytes))
        block.mapped = True
        pool.insert_merged(block)
        return True

    def _reserve(self, size: int) -> bool:
        if self._limit_bytes is not None and self.reserved_bytes + size > self._limit_bytes:
            return False
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _release(self) -> None:
        for pool in self._pools.values():
            self.reserved_bytes -= pool.unmap_pages() if self._expandable else pool.release_segments()


@frozen
class AllocatorReplay:
    """What a trace made the allocator do; `failed_at` is the event that ran out of memory, if one did."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    failed_at: int | None


def replay(events: Sequence[Event], *, expandable: bool = False, limit_bytes: int | None = None) -> AllocatorReplay:
    """Replays a trace, up to the first event that runs out of memory."""
    allocator = CachingAllocator(expandable=expandable, limit_bytes=limit_bytes)
    failed_at = None
    for index, (key, size, stream, _, _) in enumerate(events):
        if size == 0:
            allocator.free(key)
            continue
        try:
            allocator.allocate(key, size, stream)
        except OutOfMemory:
            failed_at = index
            break
    return AllocatorReplay(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, allocator.retries, failed_at)


def least_limit(events: Sequence[Event], *, expandable: bool = False) -> int:
    """A limit, a multiple of 2 MiB, with which a trace runs through, and does not with 2 MiB less.

    The search bisects between the most that is live at once and what is reserved without a limit. A trace may fail with
    a higher limit than one it runs through with (segments are released later, and blocks land elsewhere), so that the
    answer is not always the smallest such limit.
    """
    step = SEGMENT_STEP_BYTES
    low = _round_up(_peak_live_bytes(events), step) // step
    high = replay(events, expandable=expandable).peak_reserved_bytes // step
    while low < high:
        middle = (low + high) // 2
        if replay(events, expandable=expandable, limit_bytes=middle * step).failed_at is None:
            high = middle
        else:
            low = middle + 1
    return high * step


def _peak_live_bytes(events: Iterable[Event]) -> int:
    """The most that rounded requests have at once: no allocator reserves less."""
    live: dict[int, int] = {}
    current = peak = 0
    for key, size, *_ in events:
        if size == 0:
            current -= live.pop(key)
        else:
            live[key] = _round_up(size, BLOCK_BYTES)
            current += live[key]
            peak = max(peak, current)
    return peak


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
