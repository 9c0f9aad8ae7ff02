"""What is saved and what is recomputed: none, selective (attention), full, or a list of operators and modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph
from dovetail.profile.backward_peak import BackwardPeak
from dovetail.profile.layer import WEIGHT_GATHER, LayerProfile
from dovetail.profile.modules import MODULES
from dovetail.profile.recompute_space import Choice, RecomputeSpace
from dovetail.profile.saving import PLANNED, Saving
from dovetail.profile.version import by_group

CHOICES = ("none", "selective", "full")
#: Blocks whose activations are on chips where the rest is elsewhere: the one at work, and one on its way.
BLOCKS_ON_CHIP = 2


def _nothing() -> dict[str, Floats]:
    return {}


@frozen
class Recompute:
    """Bytes saved per micro-batch and layer, and the seconds recomputation adds to the backward."""

    saved_bytes: Floats
    added_s: Floats
    #: bytes of recomputed tensors that the backward reads
    workspace_bytes: Floats
    #: bytes beyond the saved ones at the fullest moment of the layer's backward: recomputed tensors and gradients
    working_bytes: Floats
    #: recomputed kernels
    added_kernels: Floats | float = 0.0
    #: recomputed collectives, by kind of group
    added_collective_s: Mapping[str, Floats] = field(default_factory=_nothing)
    #: bytes that go to the host in the forward and come back in the backward
    offloaded_bytes: Floats | float = 0.0

    def bytes(self) -> tuple[Floats | float, ...]:
        """What a micro-batch saves, takes beyond that in its backward, and leaves on the host."""
        return self.saved_bytes, self.working_bytes, self.offloaded_bytes

    def offloaded(self) -> Recompute:
        """The same where the host holds what a block saves: its own is on the chip while it works, and the next one's.

        The buffer for two blocks counts as working bytes.
        """
        working = self.working_bytes + BLOCKS_ON_CHIP * self.saved_bytes
        return replace(
            self, saved_bytes=0.0 * self.saved_bytes, working_bytes=working, offloaded_bytes=self.saved_bytes
        )

    def mixed(self, other: Recompute, share: Floats | float) -> Recompute:
        """The mean layer where a share of the layers does this and the rest the other."""
        whole = np.asarray(share) == 1
        mine, others = self.added_collective_s, other.added_collective_s
        none = np.zeros(())
        return Recompute(
            saved_bytes=share * self.saved_bytes + (1 - share) * other.saved_bytes,
            added_s=share * self.added_s + (1 - share) * other.added_s,
            workspace_bytes=np.where(
                whole, self.workspace_bytes, np.maximum(self.workspace_bytes, other.workspace_bytes)
            ),
            working_bytes=np.where(whole, self.working_bytes, np.maximum(self.working_bytes, other.working_bytes)),
            added_kernels=share * self.added_kernels + (1 - share) * other.added_kernels,
            added_collective_s={
                name: share * mine.get(name, none) + (1 - share) * others.get(name, none)
                for name in (*mine, *(n for n in others if n not in mine))
            },
            offloaded_bytes=share * self.offloaded_bytes + (1 - share) * other.offloaded_bytes,
        )


def recompute(
    graph: LayerGraph, profile: LayerProfile, choice: str | Collection[str], saving: Saving = PLANNED
) -> Recompute:
    """The cost of a recompute choice for one layer; a list names operators, or modules of a framework."""
    return RecomputeMenu(graph, profile, saving).cost(choice)


class RecomputeMenu:
    """What recompute choices of one layer cost; what they have in common is found once."""

    def __init__(self, graph: LayerGraph, profile: LayerProfile, saving: Saving = PLANNED) -> None:
        self.space = RecomputeSpace(graph, profile, saving)
        self._graph, self._profile, self._saving = graph, profile, saving
        self._backward = BackwardPeak(self.space, profile, saving) if saving.frees_by_operator else None
        self._named: dict[str | tuple[str, ...], Recompute] = {}
        self._known: dict[tuple[Choice, bool], Recompute] = {}

    def cost(self, choice: str | Collection[str]) -> Recompute:
        """That of a choice, as in `recompute`."""
        named = choice if isinstance(choice, str) else tuple(choice)
        if named not in self._named:
            self._named[named] = self._cost(named)
        return self._named[named]

    def _cost(self, choice: str | tuple[str, ...]) -> Recompute:
        chosen, when_read = choose(self.space, self._graph, choice)
        if (chosen, when_read) not in self._known:
            self._known[chosen, when_read] = self.cost_of(chosen, when_read=when_read)
        cost = self._known[chosen, when_read]
        if choice == "full" and not self._saving.stops_early:
            cost = _whole_forward(cost, self._profile)
        return cost.offloaded() if self._saving.offloads else cost

    def cost_of(self, choice: Choice, *, when_read: bool = False) -> Recompute:
        """Bytes, seconds and kernels; `when_read`, tensors are recomputed one by one as the backward reads them."""
        space, profile = self.space, self._profile
        exchanged = [profile.exchange_s[name] for name in choice.recomputed if name in profile.exchange_s]
        made = [space.versions[i].made_s for i in choice.remade]
        collectives = by_group((group, s) for parts in (*exchanged, *made) for group, s in parts.items())
        launched = summed(profile.kernels[name] for name in choice.recomputed)
        again = set(choice.recomputed)
        inner = [size for name, size in space.inner_bytes.items() if name in again]
        stored = [size for name, size in space.inner_bytes.items() if name not in again]
        workspace = summed([*(space.saved_bytes(i) for i in choice.returned), *inner])
        working = workspace + profile.transient_bytes
        if self._backward is not None:
            working = self._backward.bytes(choice, when_read=when_read)
        return Recompute(
            saved_bytes=summed([*(space.saved_bytes(i) for i in choice.saved), *stored]),
            added_s=summed(profile.operator_s[name] for name in choice.recomputed),
            workspace_bytes=workspace,
            working_bytes=working,
            added_kernels=launched + len(exchanged) + sum(1 for parts in made if parts),
            added_collective_s=collectives,
        )


def choose(space: RecomputeSpace, graph: LayerGraph, choice: str | Collection[str]) -> tuple[Choice, bool]:
    """What is saved and recomputed, and whether tensors are recomputed one by one as the backward reads them."""
    if choice in ("none", "full"):
        return space.choose(space.operators if choice == "full" else ()), False
    names = ("core_attn",) if choice == "selective" else choice
    modules = [MODULES[name] for name in names if name in MODULES]
    dropped = {operator for module in modules if not module.whole for operator in module.operators(graph)}
    functions = [frozenset(module.operators(graph)) for module in modules if module.whole]
    results = {operator for module in modules for operator in module.results(graph)}
    chosen = space.choose(dropped.union(names), functions, results)
    return chosen, not any(module.policy for module in modules)


def _whole_forward(needed: Recompute, profile: LayerProfile) -> Recompute:
    """Recomputes the whole forward, with the weights the backward gathers anyway (Chen et al. 2016)."""
    return replace(
        needed,
        added_s=profile.forward_s,
        added_kernels=profile.forward_kernels,
        added_collective_s={name: s for name, s in profile.forward_collective_s.items() if name != WEIGHT_GATHER},
    )
