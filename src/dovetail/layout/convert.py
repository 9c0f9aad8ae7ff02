"""From one layout to another: the cheapest sequence of collectives."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from dovetail.frozen import frozen
from dovetail.layout.layout import PARTIAL, Layout


class CollectiveKind(StrEnum):
    """What a group of chips does together."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "permute"


@frozen
class ConversionStep:
    """One collective of a conversion, along axes, and the layouts before and after it."""

    kind: CollectiveKind | None  # None: a slice, which costs nothing
    axes: tuple[str, ...]
    before: Layout
    after: Layout


#: Steps that shrink the local tensor come first, those that grow it last: the bytes of every step are proportional to
#: the local tensor, so by an exchange argument no other order is cheaper.
_ORDER = (
    None,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
)

#: What an axis does in one step: its placement before and after.
_Change = tuple[str | None, str | None]


@lru_cache(maxsize=65536)
def convert(before: Layout, after: Layout) -> tuple[ConversionStep, ...]:
    """The steps from one layout to another; axes that change alike move in one collective.

    No path of single-axis collectives moves fewer bytes per chip, as long as axes that replicate the tensor before and
    after take no part: each replica could reduce a piece and gather the others', which no framework does. Which shard
    of a dim a chip has is left open, so a mere reordering is not a step.
    """
    moves: dict[_Change, list[str]] = {}
    for axis, change in _changes(before, after):
        moves.setdefault(change, []).append(axis)
    steps: list[ConversionStep] = []
    current = before
    for kind in _ORDER:
        for (old, new), axes in moves.items():
            if _kind(old, new) is kind:
                moved = _moved(current, axes, new)
                steps.append(ConversionStep(kind, tuple(axes), current, moved))
                current = moved
    assert current == after
    return tuple(steps)


def _changes(before: Layout, after: Layout) -> list[tuple[str, _Change]]:
    """What each axis does, in one step or two."""
    axes = sorted({a for a, _ in (*before.placements, *after.placements)})
    changes = [(a, (before[a], after[a])) for a in axes if before[a] != after[a]]
    exchanged = [new for _, (old, new) in changes if _kind(old, new) is CollectiveKind.ALL_TO_ALL]
    if not exchanged:
        return changes
    # an all-reduce is a reduce-scatter and an all-gather: exchanges in between then move one shard
    result: list[tuple[str, _Change]] = []
    for axis, (old, new) in changes:
        if _kind(old, new) is CollectiveKind.ALL_REDUCE:
            result += [(axis, (PARTIAL, exchanged[0])), (axis, (exchanged[0], None))]
        else:
            result.append((axis, (old, new)))
    return result


def _kind(old: str | None, new: str | None) -> CollectiveKind | None:
    if old is None:
        assert new != PARTIAL, "a whole tensor is never made partial"
        return None
    if old == PARTIAL:
        return CollectiveKind.ALL_REDUCE if new is None else CollectiveKind.REDUCE_SCATTER
    assert new != PARTIAL, "a shard is never made partial"
    return CollectiveKind.ALL_GATHER if new is None else CollectiveKind.ALL_TO_ALL


def _moved(layout: Layout, axes: list[str], placement: str | None) -> Layout:
    placements = {a: p for a, p in layout.placements if a not in axes}
    return Layout.of(placements | (dict.fromkeys(axes, placement) if placement is not None else {}))
