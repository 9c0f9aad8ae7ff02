"""Degrees become atomic axes: the chips of a stage on one ruler, split wherever a group ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.layout.mesh import Mesh


@frozen
class Degrees:
    """How many chips each kind of parallelism uses inside one pipeline stage."""

    tensor: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    #: chips that share one expert; the tensor degree by default
    expert_tensor: int | None = None
    #: chips that share one replica of the sharded state; data × context by default
    zero_group: int | None = None
    #: key heads: tensor parallelism beyond them shards query groups
    kv_heads: int = 2**20

    @property
    def chips(self) -> int:
        """Chips of a stage."""
        return self.tensor * self.context * self.data


@frozen
class AtomicAxes:
    """The mesh, each axis's size, and how many groups it joins in each network tier, innermost first."""

    mesh: Mesh
    sizes: Mapping[str, int]
    by_tier: Mapping[str, tuple[int, ...]]


def atomic_axes(degrees: Degrees, tier_sizes: Sequence[int]) -> AtomicAxes:
    """Neighbouring chips are tensor, then context, then data parallel (Megatron's tp-cp-dp order).

    On a ruler of chip counts tensor is [1, t], context [t, t·c], data [t·c, t·c·d]; experts are
    [e_t, e_t·e] from the expert-tensor degree on, so they fold over tensor axes when e_t < t; ZeRO is
    [t, t·z]. The ruler is split at every end, and each piece is an atomic axis.
    """
    t, c, d = degrees.tensor, degrees.context, degrees.data
    expert_tensor = t if degrees.expert_tensor is None else degrees.expert_tensor
    zero = c * d if degrees.zero_group is None else degrees.zero_group
    heads = _shared_heads(t, degrees.kv_heads)
    spans = {
        "heads": (1, heads),
        "group": (heads, t),
        "context": (t, t * c),
        "data": (t * c, degrees.chips),
        "expert_tensor": (1, expert_tensor),
        "expert": (expert_tensor, expert_tensor * degrees.expert),
        "zero": (t, t * zero),
    }
    ends = sorted({1, degrees.chips, *(end for span in spans.values() for end in span)})
    _check_chain(ends, degrees)
    members: dict[str, list[str]] = {kind: [] for kind in spans}
    sizes: dict[str, int] = {}
    by_tier: dict[str, tuple[int, ...]] = {}
    for low, high in pairwise(ends):
        kinds = [kind for kind, (start, end) in spans.items() if start <= low and high <= end]
        # named by its use, not by its size or place: degrees that differ only in those share one derivation
        axis = "+".join(kinds)
        assert axis not in sizes, f"{axis} appears twice in {degrees}"
        sizes[axis] = high // low
        by_tier[axis] = joined_by_tier(low, high, tier_sizes)
        for kind in kinds:
            members[kind].append(axis)
    tensor = (*members["heads"], *members["group"])
    mesh = Mesh(
        data=tuple(members["data"]),
        tensor=tensor,
        context=tuple(members["context"]),
        expert=tuple(members["expert"]) if degrees.expert > 1 else (),
        expert_tensor=tuple(members["expert_tensor"]),
        zero=tuple(members["zero"]),
        group=tuple(members["group"]),
    )
    return AtomicAxes(mesh, sizes, by_tier)


def _shared_heads(tensor: int, kv_heads: int) -> int:
    """The part of the tensor degree that shards key heads."""
    part = min(tensor, kv_heads)
    while tensor % part or kv_heads % part:
        part -= 1
    return part


def _check_chain(ends: Sequence[int], degrees: Degrees) -> None:
    if ends[-1] > degrees.chips:
        raise InputError(
            "plan: expert_parallel",
            f"needs {ends[-1]} chips of a stage that has {degrees.chips}",
            "expert_parallel × expert_tensor_parallel should divide data × context × tensor",
        )
    for low, high in pairwise(ends):
        if high % low:
            raise InputError(
                "plan: degrees",
                f"groups of {low} and {high} chips do not nest",
                "each degree should divide the next larger group",
            )


def joined_by_tier(low: int, high: int, tier_sizes: Sequence[int]) -> tuple[int, ...]:
    """How many groups the chips from low to high on the ruler join in each tier."""
    parts = [1] * len(tier_sizes)
    for tier, size in enumerate(tier_sizes[:-1]):
        # a tier that ends inside a group splits it where the sizes nest; otherwise the group is on the outer tier
        if low < size < high and size % low == 0 and high % size == 0:
            parts[tier] = size // low
            low = size
    parts[next((i for i, size in enumerate(tier_sizes) if high <= size), len(tier_sizes) - 1)] = high // low
    return tuple(parts)
