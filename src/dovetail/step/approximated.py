"""How much of a step's operator time lies in operators of a traced model that stand for something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.graph import ModelGraph
from dovetail.models.traced import Approximation
from dovetail.profile import LayerProfile
from dovetail.profile.backward_nodes import forward_operator, longest_first
from dovetail.step.stages import ChunkContent, class_of


def approximated_share(
    approximated: Sequence[Approximation],
    graph: ModelGraph,
    profiles: Mapping[str, LayerProfile],
    contents: Sequence[ChunkContent],
) -> float:
    """The part of forward and backward operator seconds, over all layers; without recompute and collectives."""
    names = {(each.layer, each.operator) for each in approximated}
    if not names:
        return 0.0
    inside = total = 0.0
    counts: Counter[str] = Counter()
    for content in contents:
        counts.update(content)
    for variant, count in counts.items():
        layer = class_of(variant)
        forward = longest_first(operator.name for operator in graph.layers[layer].operators)
        for operator, seconds in profiles[variant].operator_s.items():
            spent = count * float(np.ravel(seconds)[0])
            total += spent
            inside += spent * ((layer, forward_operator(operator, forward)) in names)
    return inside / total if total else 0.0
