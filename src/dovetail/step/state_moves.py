"""Collectives of the state of weights: derived once for weights that are laid out alike, priced side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.frozen import frozen
from dovetail.graph.size import Size, Sizes, as_array, divided
from dovetail.graph.tensor import Element
from dovetail.layout import Collective, CollectiveKind, CollectivePhase, Layout, PlacedWeight, degree
from dovetail.layout.derive import gather_collectives, state_collectives, with_state_axes
from dovetail.layout.strategy import Strategy
from dovetail.profile.version import by_group
from dovetail.step.arrangements import Arrangements
from dovetail.step.profiles import Bucket, Pricing, group_name

#: What tells collectives of a layer apart that are not summed: the kind of group, what they do along which axes, and
#: whose bytes are widened.
_Alike = tuple[str, CollectiveKind, tuple[str, ...], str]


@frozen
class _Move:
    """A collective of one of several weights that are laid out alike."""

    collective: Collective
    alike: _Alike
    bucket: Bucket | None
    #: whether it moves the gradient, not the weight
    of_gradient: bool
    #: chips that have a shard each of what it moves
    shards: Size


@frozen
class Moves:
    """Where weights are that are laid out alike, where their state is, and what moves: by when it does."""

    use: Layout
    home: Layout
    step: tuple[_Move, ...]
    forward: tuple[_Move, ...]
    backward: tuple[_Move, ...]


class StateMoves:
    """The moves of the weights of all layers under one strategy with sharded state, derived from `base` without."""

    def __init__(self, together: Arrangements, base: Strategy, pricing: Pricing) -> None:
        self.together, self.pricing = together, pricing
        strategy, known = together.strategy, set(base.mesh.axes)
        self._stage = strategy.zero_stage
        self._zero = strategy.mesh.zero if strategy.zero_stage else ()
        self._axes = {axis: source if (source := _without_zero(axis)) in known else None for axis in strategy.mesh.axes}
        self._moves: dict[tuple[Layout, Layout | None], Moves] = {}

    def of(self, weight: PlacedWeight) -> Moves:
        """Those of a weight."""
        key = (weight.use, None if weight.gradient is None else weight.gradient[1])
        if key not in self._moves:
            self._moves[key] = self._derived(weight)
        return self._moves[key]

    def _derived(self, weight: PlacedWeight) -> Moves:
        weights = with_state_axes([weight], self._axes, self._zero)
        state = state_collectives(weights, self._stage)
        gathers = self._stage == 3
        forward = gather_collectives(weights, CollectivePhase.FORWARD) if gathers else []
        backward = gather_collectives(weights, CollectivePhase.BACKWARD) if gathers else []
        backward += [c for c in state if c.phase is CollectivePhase.BACKWARD]
        step = [c for c in state if c.phase is CollectivePhase.STEP]
        parts = (tuple(self._move(c, weight) for c in each) for each in (step, forward, backward))
        return Moves(weights[0].use, weights[0].home, *parts)

    def _move(self, collective: Collective, weight: PlacedWeight) -> _Move:
        user = collective.user if collective.user in self.pricing.widening else ""
        group = group_name(collective, self.together.axes)
        return _Move(
            collective,
            (group, collective.kind, collective.axes, user),
            self.pricing.bucket(collective),
            of_gradient=collective.tensor is not weight.tensor,
            shards=degree(collective.sharded_by, self.together.axis_sizes),
        )


#: A move of one weight, and its bytes on one chip.
Sent = tuple[_Move, Floats]


def sent(
    weights: Sequence[PlacedWeight], moves: Sequence[Moves], sizes: Sizes, widths: Mapping[Element, int]
) -> tuple[list[Sent], list[Sent], list[Sent]]:
    """What the weights of a layer move (`Collective.bytes`): at the end of a step, in a forward and in a backward."""
    parts: tuple[list[Sent], list[Sent], list[Sent]] = ([], [], [])
    for weight, of in zip(weights, moves, strict=True):
        for part, when in zip(parts, (of.step, of.forward, of.backward), strict=True):
            for move in when:
                tensor = weight.gradient[0] if move.of_gradient and weight.gradient else weight.tensor
                part.append((move, as_array(divided(tensor.bytes(sizes, widths), move.shards))))
    return parts


def launches(parts: Iterable[Sent]) -> int:
    """Kernels that moves take: one for each bucket."""
    return len({move.bucket or number for number, (move, _) in enumerate(parts)})


def seconds_by_group(
    lists: Sequence[Sequence[Sent]], together: Arrangements, pricing: Pricing, count: int
) -> list[dict[str, Floats]]:
    """Of each list of moves, seconds by kind of group; moves that differ in bytes alone are priced side by side."""
    asked = [_summed_alike(parts, count) for parts in lists]
    # what a bucket takes at the end of a step depends on its size
    alike: dict[tuple[CollectiveKind, tuple[str, ...], str, Bucket | None], list[tuple[int, _Alike]]] = {}
    for number, sizes in enumerate(asked):
        for key, (move, _) in sizes.items():
            alike.setdefault((*key[1:], move.bucket), []).append((number, key))
    seconds: dict[tuple[int, _Alike], Floats] = {}
    for (*_, bucket), places in alike.items():
        sizes = [asked[number][key][1] for number, key in places]
        ends, collective = np.cumsum([len(size) for size in sizes]), asked[places[0][0]][places[0][1]][0].collective
        stacked = np.concatenate(sizes)
        if bucket is None:
            took = pricing.seconds(together, collective, stacked)
        else:
            took = pricing.bucket_time(together, collective, stacked)[0].seconds
        for place, start, end in zip(places, [0, *ends[:-1]], ends, strict=True):
            seconds[place] = took[start:end].sum(axis=0)
    return [by_group((key[0], seconds[number, key]) for key in sizes) for number, sizes in enumerate(asked)]


def _summed_alike(parts: Sequence[Sent], count: int) -> dict[_Alike, tuple[_Move, Floats]]:
    """Bytes of moves that are alike: what is in a bucket as a sum, others below each other."""
    bytes_of: dict[_Alike, tuple[_Move, list[Floats]]] = {}
    for move, size in parts:
        bytes_of.setdefault(move.alike, (move, []))[1].append(size)
    return {
        key: (
            move,
            np.stack([np.broadcast_to(each, (count,)) for each in (sizes if move.bucket is None else [summed(sizes)])]),
        )
        for key, (move, sizes) in bytes_of.items()
    }


def _without_zero(axis: str) -> str:
    return "+".join(role for role in axis.split("+") if role != "zero")
