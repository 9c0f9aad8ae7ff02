"""What is saved and what is recomputed: none, selective (attention), full, or a list of operators and modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.graph import LayerGraph
from dovetail.profile.layer import WEIGHT_GATHER, LayerProfile
from dovetail.profile.modules import MODULES
from dovetail.profile.recompute_space import Choice, RecomputeSpace
from dovetail.profile.version import by_group

CHOICES = ("none", "selective", "full")


def _nothing() -> dict[str, Floats]:
    return {}


@dataclass(frozen=True, slots=True)
class Recompute:
    """Bytes saved per micro-batch and layer, and the seconds recomputation adds to the backward."""

    saved_bytes: Floats
    added_s: Floats
    #: bytes of recomputed tensors while one layer's backward runs
    workspace_bytes: Floats
    #: recomputed kernels
    added_kernels: Floats | float = 0.0
    #: recomputed collectives, by kind of group
    added_collective_s: Mapping[str, Floats] = field(default_factory=_nothing)

    def mixed(self, other: Recompute, share: float) -> Recompute:
        """The mean layer where a share of the layers does this and the rest the other."""
        mine, others = self.added_collective_s, other.added_collective_s
        none = np.zeros(())
        return Recompute(
            saved_bytes=share * self.saved_bytes + (1 - share) * other.saved_bytes,
            added_s=share * self.added_s + (1 - share) * other.added_s,
            workspace_bytes=np.maximum(self.workspace_bytes, other.workspace_bytes),
            added_kernels=share * self.added_kernels + (1 - share) * other.added_kernels,
            added_collective_s={
                name: share * mine.get(name, none) + (1 - share) * others.get(name, none)
                for name in (*mine, *(n for n in others if n not in mine))
            },
        )


def recompute(
    graph: LayerGraph,
    profile: LayerProfile,
    choice: str | Collection[str],
    operand_share: float = 1.0,
    *,
    stops_early: bool = False,
) -> Recompute:
    """The cost of a recompute choice for one layer.

    A list names operators, or modules of a framework. `operand_share` is the width in which matrix products save their
    inputs over the width in which these were written: below 1 where products run in fewer bits and save what they
    multiplied. A framework that `stops_early` recomputes of a whole layer only what leads to a tensor the backward
    needs: not the last product and the sum after it.
    """
    space = RecomputeSpace(graph, profile, operand_share)
    if choice == "none":
        return cost_of(space.choose(()), space, profile)
    if choice == "full":
        needed = cost_of(space.choose(space.operators), space, profile)
        return needed if stops_early else _whole_forward(needed, profile)
    names = ("core_attn",) if choice == "selective" else choice
    modules = [MODULES[name] for name in names if name in MODULES]
    dropped = {operator for module in modules if not module.whole for operator in module.operators(graph)}
    functions = [frozenset(module.operators(graph)) for module in modules if module.whole]
    return cost_of(space.choose(dropped.union(names), functions), space, profile)


def cost_of(choice: Choice, space: RecomputeSpace, profile: LayerProfile) -> Recompute:
    """Bytes, seconds and kernels of a choice."""
    exchanged = [profile.exchange_s[name] for name in choice.recomputed if name in profile.exchange_s]
    made = [space.versions[i].made_s for i in choice.remade]
    collectives = by_group((group, s) for parts in (*exchanged, *made) for group, s in parts.items())
    launched = summed(profile.kernels[name] for name in choice.recomputed)
    return Recompute(
        saved_bytes=summed(space.saved_bytes(i) for i in choice.saved),
        added_s=summed(profile.operator_s[name] for name in choice.recomputed),
        workspace_bytes=summed(space.saved_bytes(i) for i in choice.returned),
        added_kernels=launched + len(exchanged) + sum(1 for parts in made if parts),
        added_collective_s=collectives,
    )


def _whole_forward(needed: Recompute, profile: LayerProfile) -> Recompute:
    """Recomputes the whole forward, with the weights the backward gathers anyway (Chen et al. 2016)."""
    return replace(
        needed,
        added_s=profile.forward_s,
        added_kernels=profile.forward_kernels,
        added_collective_s={name: s for name, s in profile.forward_collective_s.items() if name != WEIGHT_GATHER},
    )
