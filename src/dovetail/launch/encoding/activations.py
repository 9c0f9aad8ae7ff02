"""What blocks save and recompute: from a plan's choices to operators of an encoding, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeAlias

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, ModelGraph
from dovetail.layout.encoding import Activation, ActivationOverride, LayerInterval, OperatorEncoding, StageEncoding
from dovetail.plans.framework_limits import recomputed_blocks
from dovetail.plans.plan import Plan
from dovetail.profile.modules import MODULES
from dovetail.step.evaluate import is_block
from dovetail.step.facts import FrameworkFacts

#: A recompute choice of a plan: a word, or operators and modules.
RecomputeWords: TypeAlias = "str | tuple[str, ...]"


@frozen
class ChainLayers:
    """The layers of a model in their order, of which blocks follow the first."""

    graph: ModelGraph
    num_blocks: int

    @property
    def names(self) -> tuple[str, ...]:
        """The layer class of every layer."""
        return tuple(run.layer for run in self.graph.chain for _ in range(run.count))

    def blocks(self, interval: LayerInterval) -> range:
        """The blocks of an interval of layers, by number."""
        return range(max(interval.first - 1, 0), min(interval.end - 1, self.num_blocks))


def recomputed_operators(graph: LayerGraph, choice: RecomputeWords, facts: FrameworkFacts) -> frozenset[str]:
    """The operators of a layer that a choice recomputes where the backward needs them; of a module, all of its own."""
    names = [operator.name for operator in graph.operators]
    choice = facts.recomputed(choice)
    if choice == "none" or not is_block(graph):
        return frozenset()
    if choice == "full":
        return frozenset(names)
    listed = {operator for name in choice if name in MODULES for operator in MODULES[name].operators(graph)}
    return frozenset(listed.union(choice).intersection(names))


def block_choices(plan: Plan) -> tuple[RecomputeWords, ...]:
    """What every block recomputes; of a share, the first blocks of each stage."""
    if plan.recompute_by_block is not None:
        return tuple(choice for blocks, choice in plan.recompute_by_block for _ in range(blocks))
    if plan.recompute_share == 1:
        return (plan.recompute,) * sum(plan.layers_per_stage)
    some = round(recomputed_blocks(plan))
    return tuple(
        plan.recompute if number < some else "none" for size in plan.layers_per_stage for number in range(size)
    )


def with_activations(
    stage: StageEncoding, layers: ChainLayers, recomputed: Sequence[frozenset[str]], saved: Activation
) -> StageEncoding:
    """A stage whose blocks recompute these operators, by block, and save other outputs in this way.

    A layer class does what most of its layers on the stage do; the others are overrides.
    """
    names = layers.names
    numbers = [number for part in stage.layers for number in layers.blocks(part)]
    by_class: dict[str, list[frozenset[str]]] = {}
    for number in numbers:
        by_class.setdefault(names[number + 1], []).append(recomputed[number])
    usual = {name: max(dict.fromkeys(sets), key=sets.count) for name, sets in by_class.items()}
    classes = dict(stage.classes)
    for name in usual.keys() & classes.keys():
        classes[name] = {o: _with_policy(e, o in usual[name], saved) for o, e in classes[name].items()}
    overrides: list[ActivationOverride] = []
    for number in numbers:
        changed = usual[names[number + 1]] ^ recomputed[number]
        policies = {o: Activation.RECOMPUTE if o in recomputed[number] else saved for o in sorted(changed)}
        before = overrides[-1] if overrides else None
        if before is not None and before.layers.end == number + 1 and before.activation == policies:
            overrides[-1] = replace(before, layers=LayerInterval(before.layers.first, number + 2))
        elif policies:
            overrides.append(ActivationOverride(LayerInterval(number + 1, number + 2), policies))
    return replace(stage, classes=classes, overrides=tuple(overrides))


def _with_policy(operator: OperatorEncoding, is_recomputed: bool, saved: Activation) -> OperatorEncoding:
    return replace(operator, activation=Activation.RECOMPUTE if is_recomputed else saved)


def recompute_fields(stages: Sequence[StageEncoding], layers: ChainLayers, *, by_block: bool) -> dict[str, Any]:
    """The fields of a plan that recompute what an encoding does: runs of blocks, or one choice where all do the same.

    Plans of free layouts are `by_block` even then.
    """
    choices: dict[int, RecomputeWords] = {}
    for number, stage in enumerate(stages):
        for part in stage.layers:
            for block in layers.blocks(part):
                choices[block] = _choice(stage, block + 1, layers, f"stage {number}")
    listed = [choices.get(block, "none") for block in range(layers.num_blocks)]
    runs = [(choice, len(list(run))) for choice, run in groupby(listed)]
    if len(runs) == 1 and not by_block:
        return {"recompute": _document(runs[0][0])}
    return {"recompute_by_block": [{"blocks": blocks, "recompute": _document(choice)} for choice, blocks in runs]}


def _choice(stage: StageEncoding, layer: int, layers: ChainLayers, where: str) -> RecomputeWords:
    """What a layer recomputes, in words where there is one for it."""
    name = layers.names[layer]
    if name not in stage.classes:
        fix = f"encode every operator of {name} there"
        raise InputError(f"encoding: {where}", f"has a layer of {name} but not its operators", fix)
    policies: Mapping[str, Activation] = {o: e.activation for o, e in stage.classes[name].items()}
    for override in stage.overrides:
        if override.layers.first <= layer < override.layers.end:
            policies = {**policies, **override.activation}
    names = [operator.name for operator in layers.graph.layers[name].operators]
    recomputed = tuple(o for o in names if policies.get(o) is Activation.RECOMPUTE)
    return "none" if not recomputed else "full" if len(recomputed) == len(names) else recomputed


def _document(choice: RecomputeWords) -> str | list[str]:
    return choice if isinstance(choice, str) else list(choice)
