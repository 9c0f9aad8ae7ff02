"""What is kept and what is computed again: none, selective (attention), full, or a list of operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.cost.operators import runs_narrow
from dovetail.cost.shapes import Array, summed
from dovetail.graph import Kind, LayerGraph, Operator, Role
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
    #: kernels launched again
    added_kernels: Array | float = 0.0
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
    stream_in_bytes: Array,
    operand_share: float = 1.0,
    *,
    stops_early: bool = False,
) -> Recompute:
    """The cost of a recompute choice for one layer.

    `operand_share` is the width matrix products keep their inputs in, over the width they were written in: below 1
    where they multiply in fewer bits and keep what they multiplied. A framework that `stops_early` runs of a whole
    layer only what leads to a tensor the backward needs: not the last product and the sum behind it.
    """
    widths = _kept_widths(graph, operand_share)
    everything = summed(widths.get(name, 1.0) * size for name, size in profile.saved_bytes.items())
    none = np.zeros(())
    if choice == "none":
        return Recompute(everything, none, none)
    if choice == "full":
        # the layer's input is kept and its forward, collectives included, runs again (Chen et al. 2016), with the
        # weights the backward gathers anyway
        again = {name: s for name, s in profile.forward_collective_s.items() if name != WEIGHT_GATHER}
        if stops_early:
            _, repeated = _held(graph, [operator.name for operator in graph.operators], whole_region=False)
            added, launched = _repeated_cost(profile, repeated)
        else:
            added, launched = profile.forward_s, profile.forward_kernels
        return Recompute(stream_in_bytes, added, everything, launched, again)
    names = attention_core(graph) if choice == "selective" else frozenset(choice)
    held, repeated = _held(graph, names, whole_region=choice == "selective")
    sizes = {**profile.written_bytes, **profile.saved_bytes}
    kept = summed(widths.get(name, 1.0) * sizes.get(name, stream_in_bytes) for name in held)
    added, launched = _repeated_cost(profile, repeated)
    return Recompute(kept, added, np.maximum(everything - kept, 0.0), launched)


def _repeated_cost(profile: LayerProfile, names: Collection[str]) -> tuple[Array, Array]:
    """Seconds and kernels of operators that run again."""
    seconds = summed(s for name, s in profile.operator_s.items() if name in names)
    return seconds, summed(count for name, count in profile.kernels.items() if name in names)


def attention_core(graph: LayerGraph) -> frozenset[str]:
    """The operators between queries, keys and values and the context: what Megatron calls selective.

    Korthikanti et al. 2022, section 5: large to keep, cheap to compute again.
    """
    return frozenset(o.name for o in graph.operators if "key_seq" in o.dims and o.kind is not Kind.INDEXER)


def _held(graph: LayerGraph, names: Collection[str], *, whole_region: bool) -> tuple[list[str], frozenset[str]]:
    """Tensors that stay until the backward, and the operators that run again.

    What a listed operator wrote is dropped, whoever reads it, and what it reads is held instead, or computed again
    in its turn. A `whole_region` is one checkpointed function: what operators outside it keep of its results stays.
    """
    makers = {o.tensor: operator for operator in graph.operators for o in operator.outputs}
    outside = {name for operator in graph.operators if operator.name not in names for name in operator.saves}
    wanted = [name for operator in graph.operators for name in operator.saves]
    held: dict[str, None] = {}
    repeated: set[str] = set()
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        maker = makers.get(name)
        if maker is None or maker.name not in names or (whole_region and name in outside):
            held[name] = None
            continue
        repeated.add(maker.name)
        wanted += [o.tensor for o in maker.inputs if graph.tensors[o.tensor].role is not Role.WEIGHT]
    if whole_region:
        # such a function runs again as a whole, however little of it is missing
        repeated |= set(names)
    return [name for name in graph.tensors if name in held], frozenset(repeated)


def _kept_widths(graph: LayerGraph, operand_share: float) -> dict[str, float]:
    """Widths tensors are kept in, over the widths they are written in, where these differ.

    Experts' results are not kept to weigh them: frameworks weigh what goes into the last product instead, which is
    kept anyway. The input of a product is kept as it was multiplied, beside what other operators keep of it.
    """
    savers: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        for name in operator.saves:
            savers.setdefault(name, []).append(operator)
    makers = {o.tensor: operator for operator in graph.operators for o in operator.outputs}
    widths: dict[str, float] = {}
    for name, operators in savers.items():
        maker = makers.get(name)
        if maker is not None and maker.kind is Kind.CONTRACTION and all(o.kind is Kind.COMBINE for o in operators):
            widths[name] = 0.0
        elif operand_share < 1.0:
            products = [o for o in operators if runs_narrow(o, graph.tensors)]
            others = len(products) < len(operators)
            widths[name] = (1.0 if others else 0.0) + (operand_share if products else 0.0)
    return widths
