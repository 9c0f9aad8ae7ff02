"""A caching allocator, replayed the plainest way: lists of blocks, read from end to end at every request.

Written from the rules alone, with nothing of `dovetail.memory`. A segment is a list of blocks by rising address;
what is allocated and what is reserved are sums over all blocks, taken anew after every change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum

MIB = 2**20
#: Size of the unmapped end of an expandable segment: whole pages of either kind, more than any trace asks for.
ENDLESS = 20 * MIB * 2**60


class State(Enum):
    """What a block's bytes are."""

    USED = "used"
    FREE = "free"
    UNMAPPED = "unmapped"


@dataclass
class Block:
    """A range of addresses; the key is that of the request in it, if one is."""

    address: int
    size: int
    state: State
    key: Hashable = None


@dataclass
class Segment:
    """Neighbouring blocks, of one pool."""

    stream: Hashable
    small: bool
    blocks: list[Block]

    def page(self) -> int:
        """What is mapped at once where segments expand."""
        return 2 * MIB if self.small else 20 * MIB

    def merge(self) -> None:
        """Make one block of neighbours that are both free, or both unmapped."""
        merged: list[Block] = []
        for block in self.blocks:
            if merged and block.state is not State.USED and merged[-1].state is block.state:
                merged[-1] = Block(merged[-1].address, merged[-1].size + block.size, block.state)
            else:
                merged.append(block)
        self.blocks = merged

    def replace(self, block: Block, parts: Iterable[Block]) -> None:
        """Put parts in the place of a block, without the empty ones."""
        position = self.position(block.address)
        self.blocks[position : position + 1] = [part for part in parts if part.size > 0]
        self.merge()

    def position(self, address: int) -> int:
        """Where in the list the block is that begins at an address."""
        return [block.address for block in self.blocks].index(address)

    def reach(self, block: Block) -> int:
        """The size of a free block with the unmapped one to its right."""
        position = self.position(block.address) + 1
        right = self.blocks[position] if position < len(self.blocks) else None
        return block.size + (right.size if right is not None and right.state is State.UNMAPPED else 0)


class LimitError(Exception):
    """New memory would not fit under the limit."""


@dataclass
class Allocator:
    """All segments, in the order in which they were made."""

    expandable: bool
    limit_bytes: int | None
    segments: list[Segment] = field(default_factory=list[Segment])
    #: where the next segment begins that does not expand
    next_address: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    retries: int = 0

    def allocated(self) -> int:
        """Bytes of the blocks in use."""
        return sum(b.size for s in self.segments for b in s.blocks if b.state is State.USED)

    def reserved(self) -> int:
        """Bytes of the segments, or of their mapped pages."""
        return sum(b.size for s in self.segments for b in s.blocks if b.state is not State.UNMAPPED)

    def check_room(self, more: int) -> None:
        """Raise if so much more memory is over the limit."""
        if self.limit_bytes is not None and self.reserved() + more > self.limit_bytes:
            raise LimitError

    def note_peaks(self) -> None:
        """To call after every change that may raise a sum."""
        self.peak_allocated = max(self.peak_allocated, self.allocated())
        self.peak_reserved = max(self.peak_reserved, self.reserved())

    def pool(self, stream: Hashable, small: bool) -> list[Segment]:
        """The segments of one stream for small requests, or for large ones."""
        return [s for s in self.segments if s.stream == stream and s.small == small]

    def allocate(self, key: Hashable, requested: int, stream: Hashable) -> None:
        """Serve a request; LimitError if it runs out of memory."""
        rounded = rounded_up(requested, 512)
        small = rounded <= MIB
        taken = self.best_fit(rounded, stream, small)
        if taken is None:
            try:
                taken = self.new_memory(rounded, stream, small)
            except LimitError:
                self.retries += 1
                self.release()
                taken = self.new_memory(rounded, stream, small)
        segment, block = taken
        rest = block.size - rounded
        splits = rest >= 512 if small or self.expandable else rest > MIB
        size = rounded if splits else block.size
        used = Block(block.address, size, State.USED, key)
        segment.replace(block, [used, Block(block.address + size, block.size - size, State.FREE)])
        self.note_peaks()

    def best_fit(self, rounded: int, stream: Hashable, small: bool) -> tuple[Segment, Block] | None:
        """The smallest free block that suffices; where segments expand, a larger one that reaches less far."""
        fits = [
            (segment, block)
            for segment in self.pool(stream, small)
            for block in segment.blocks
            if block.state is State.FREE and block.size >= rounded
        ]
        fits.sort(key=lambda fit: (fit[1].size, fit[1].address))
        if not fits:
            return None
        at = 0
        if self.expandable:
            reaches = [segment.reach(block) for segment, block in fits]
            while at + 1 < len(fits) and reaches[at + 1] < reaches[at]:
                at += 1
        return fits[at]

    def new_memory(self, rounded: int, stream: Hashable, small: bool) -> tuple[Segment, Block]:
        """One attempt at a free block of new memory."""
        if self.expandable:
            return self.expanded(rounded, stream, small)
        return self.new_segment(rounded, stream, small)

    def new_segment(self, rounded: int, stream: Hashable, small: bool) -> tuple[Segment, Block]:
        """A segment that does not expand: one free block."""
        if small:
            size = 2 * MIB
        elif rounded < 10 * MIB:
            size = 20 * MIB
        else:
            size = rounded_up(rounded, 2 * MIB)
        self.check_room(size)
        block = Block(self.next_address, size, State.FREE)
        segment = Segment(stream, small, [block])
        self.segments.append(segment)
        self.next_address += size
        self.note_peaks()
        return segment, block

    def expanded(self, rounded: int, stream: Hashable, small: bool) -> tuple[Segment, Block]:
        """A free block made by mapping pages of the pool's segment; what is mapped before a failure stays so."""
        if not self.pool(stream, small):
            self.segments.append(Segment(stream, small, [Block(0, ENDLESS, State.UNMAPPED)]))
        (segment,) = self.pool(stream, small)
        current = place(segment, rounded)
        if current.state is State.UNMAPPED:
            current = self.mapped(segment, current, min(rounded, current.size))
        while current.size < rounded:
            right = segment.blocks[segment.position(current.address) + 1]
            assert right.state is State.UNMAPPED
            current = self.mapped(segment, right, min(rounded - current.size, right.size))
        return segment, current

    def mapped(self, segment: Segment, block: Block, size: int) -> Block:
        """Map the first bytes of an unmapped block; the free block they are then part of."""
        assert block.state is State.UNMAPPED
        assert block.address % segment.page() == 0
        size = rounded_up(size, segment.page())
        assert size <= block.size
        self.check_room(size)
        pages = Block(block.address, size, State.FREE)
        segment.replace(block, [pages, Block(block.address + size, block.size - size, State.UNMAPPED)])
        self.note_peaks()
        return next(b for b in segment.blocks if b.address <= block.address < b.address + b.size)

    def release(self) -> None:
        """Give back the memory of all pools that is free as a whole segment, or as a whole page."""
        if not self.expandable:
            self.segments = [s for s in self.segments if [b.state for b in s.blocks] != [State.FREE]]
            return
        for segment in self.segments:
            for block in [b for b in segment.blocks if b.state is State.FREE]:
                end = block.address + block.size
                first = rounded_up(block.address, segment.page())
                last = end // segment.page() * segment.page()
                if first < last:
                    left = Block(block.address, first - block.address, State.FREE)
                    pages = Block(first, last - first, State.UNMAPPED)
                    segment.replace(block, [left, pages, Block(last, end - last, State.FREE)])

    def free(self, key: Hashable) -> None:
        """End a request; KeyError if there is none of this key."""
        for segment in self.segments:
            for block in segment.blocks:
                if block.state is State.USED and block.key == key:
                    segment.replace(block, [Block(block.address, block.size, State.FREE)])
                    return
        raise KeyError(key)

    def is_live(self, key: Hashable) -> bool:
        """Whether a request of this key has a block."""
        return any(b.state is State.USED and b.key == key for s in self.segments for b in s.blocks)


def rounded_up(size: int, unit: int) -> int:
    """The least multiple of a unit that is not less."""
    return (size + unit - 1) // unit * unit


def place(segment: Segment, rounded: int) -> Block:
    """The first block from which free and unmapped neighbours suffice: an unmapped one, or the free one to its left."""
    for position, block in enumerate(segment.blocks):
        if block.state is not State.UNMAPPED:
            continue
        start = position - 1 if position > 0 and segment.blocks[position - 1].state is State.FREE else position
        total = 0
        for other in segment.blocks[start:]:
            if other.state is State.USED:
                break
            total += other.size
        if total >= rounded:
            return segment.blocks[start]
    raise AssertionError("the unmapped end always suffices")


def replayed(
    events: Iterable[tuple[Hashable, int, Hashable, *tuple[str, ...]]], *, expandable: bool, limit_bytes: int | None
) -> tuple[int, int, int, int | None]:
    """Peak allocated and peak reserved bytes, rounds of release and retry, and the event that ran out of memory.

    An event is a key, bytes and a stream: more than 0 bytes are allocated under the key, 0 bytes free it.
    """
    allocator = Allocator(expandable, limit_bytes)
    failed_at = None
    for index, (key, size, stream, *_) in enumerate(events):
        if size < 0 or (size > 0 and allocator.is_live(key)):
            raise ValueError(f"event {index}: {key!r}, {size} bytes")
        if size == 0:
            allocator.free(key)
            continue
        try:
            allocator.allocate(key, size, stream)
        except LimitError:
            failed_at = index
            break
    return allocator.peak_allocated, allocator.peak_reserved, allocator.retries, failed_at
