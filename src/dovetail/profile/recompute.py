"""What is kept and what is computed again: none, selective (attention), full, or a list of operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.cost.shapes import Array, summed
from dovetail.graph import Kind, LayerGraph
from dovetail.profile.layer import WEIGHT_GATHER, LayerProfile

CHOICES = ("none", "selective", "full")


def _nothing() -> dict[str, Array]:
    return {}


@dataclass(frozen=True, slots=True)
class Recompute:
    """Bytes kept per microbatch and layer, seconds of operators and collectives added to the backward."""

    saved_bytes: Array
    added_s: Array
    #: bytes that exist again while one layer's backward runs
    workspace_bytes: Array
    #: collectives that run again, by kind of group
    added_collective_s: Mapping[str, Array] = field(default_factory=_nothing)

    def mixed(self, other: Recompute, share: float) -> Recompute:
        """The mean layer where a share of the layers does this and the rest the other; the workspace is one layer's."""
        mine, others = self.added_collective_s, other.added_collective_s
        none = np.zeros(())
        return Recompute(
            saved_bytes=share * self.saved_bytes + (1 - share) * other.saved_bytes,
            added_s=share * self.added_s + (1 - share) * other.added_s,
            workspace_bytes=np.maximum(self.workspace_bytes, other.workspace_bytes),
            added_collective_s={
                name: share * mine.get(name, none) + (1 - share) * others.get(name, none)
                for name in (*mine, *(n for n in others if n not in mine))
            },
        )


def recompute(
    graph: LayerGraph, profile: LayerProfile, choice: str | Collection[str], stream_in_bytes: Array
) -> Recompute:
    """The cost of a recompute choice for one layer."""
    everything = summed(profile.saved_bytes.values())
    none = np.zeros(())
    if choice == "none":
        return Recompute(everything, none, none)
    if choice == "full":
        # the layer's input is kept and its forward, collectives included, runs again (Chen et al. 2016), with the
        # weights the backward gathers anyway
        again = {name: s for name, s in profile.forward_collective_s.items() if name != WEIGHT_GATHER}
        return Recompute(stream_in_bytes, profile.forward_s, everything, again)
    names = attention_core(graph) if choice == "selective" else frozenset(choice)
    dropped = _dropped_tensors(graph, names)
    kept = {n: b for n, b in profile.saved_bytes.items() if n not in dropped}
    added = summed(s for n, s in profile.operator_s.items() if n in names)
    return Recompute(summed(kept.values()), added, everything - summed(kept.values()))


def attention_core(graph: LayerGraph) -> frozenset[str]:
    """The operators between queries, keys and values and the context: what Megatron calls selective.

    Korthikanti et al. 2022, section 5: large to keep, cheap to compute again.
    """
    return frozenset(o.name for o in graph.operators if "key_seq" in o.dims and o.kind is not Kind.INDEXER)


def _dropped_tensors(graph: LayerGraph, names: Collection[str]) -> frozenset[str]:
    """Tensors made by recomputed operators and kept for recomputed operators alone."""
    made = {o.tensor for operator in graph.operators if operator.name in names for o in operator.outputs}
    kept = {name for operator in graph.operators if operator.name not in names for name in operator.saves}
    return frozenset(made - kept)
