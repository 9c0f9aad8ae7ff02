"""Layers on stages: how many of each layer class every chunk of the pipeline holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.graph import ModelGraph
from dovetail.plans.pipeline_schedule import Pipeline
from dovetail.plans.plan import Plan

#: Layer class → how many of them a chunk holds.
ChunkContent = dict[str, int]
#: The chunks of one stage.
Stage = tuple[ChunkContent, ...]


def chunk_contents(graph: ModelGraph, plan: Plan, damaged: Sequence[int] = ()) -> tuple[ChunkContent, ...]:
    """By place along the model: embedding first, blocks as the plan says, head and prediction modules last.

    `damaged` says of every stage which kind of damage its tile has: 0 for none.
    """
    order = [run.layer for run in graph.chain for _ in range(run.count)]
    num_blocks = sum(plan.layers_per_stage)
    # the chain is one embedding, the blocks, then everything that reads the finished stream
    blocks, after = order[1 : 1 + num_blocks], order[1 + num_blocks :]
    if plan.recompute_by_block is not None:
        numbers = {choice: number for number, choice in enumerate(plan.recompute_choices)}
        choices = [numbers[choice] for count, choice in plan.recompute_by_block for _ in range(count)]
        blocks = [variant_name(layer, number) for layer, number in zip(blocks, choices, strict=True)]
    contents: list[ChunkContent] = []
    start = 0
    for count in plan.layers_per_stage:
        contents.append(dict(Counter(blocks[start : start + count])))
        start += count
    contents[0] = {order[0]: 1} | contents[0]
    for layer in after:
        contents[-1][layer] = contents[-1].get(layer, 0) + 1
    kinds = [damaged[place % len(damaged)] if damaged else 0 for place in range(len(contents))]
    return tuple(
        {damaged_name(name, kind): count for name, count in content.items()}
        for content, kind in zip(contents, kinds, strict=True)
    )


def damaged_name(name: str, kind: int) -> str:
    """What layers are called on tiles with a kind of damage."""
    return f"{name} [{kind}]" if kind else name


def class_of(name: str) -> str:
    """The layer class of a name in a chunk's content."""
    return name.split(" ", 1)[0]


def variant_name(layer: str, choice: int) -> str:
    """What blocks of a layer class are called that make this one of a plan's recompute choices."""
    return f"{layer} ({choice})"


class LayerVariant(NamedTuple):
    """A layer as a chunk has it: its class, what it recomputes, and the kind of damage of its tile."""

    layer: str
    recompute: str | tuple[str, ...]
    damage: int = 0


def layer_variants(
    graph: ModelGraph, plan: Plan, contents: Sequence[ChunkContent], damaged: Sequence[int] = ()
) -> dict[str, LayerVariant]:
    """Every name in the chunks' contents, and what it means."""
    variants = {layer: LayerVariant(layer, plan.recompute) for layer in graph.layers}
    if plan.recompute_by_block is not None:
        for number, choice in enumerate(plan.recompute_choices):
            variants |= {variant_name(layer, number): LayerVariant(layer, choice) for layer in graph.layers}
    for kind in sorted(set(damaged) - {0}):
        whole = {name: variant for name, variant in variants.items() if not variant.damage}
        variants |= {damaged_name(name, kind): variant._replace(damage=kind) for name, variant in whole.items()}
    used = {name for content in contents for name in content}
    return {name: variant for name, variant in variants.items() if name in used}


def stage_contents(contents: Sequence[ChunkContent], pipeline: Pipeline) -> tuple[Stage, ...]:
    """The chunks of every stage; DualPipe holds each chunk on two stages, one per direction."""
    places: list[list[int]] = pipeline.places().tolist()
    return tuple(tuple(contents[place] for place in of_stage) for of_stage in places)


def layer_counts(stage: Stage) -> dict[str, int]:
    """Layer class → how many of them a stage holds."""
    counts: Counter[str] = Counter()
    for content in stage:
        counts.update(content)
    return dict(counts)


def runs_per_chunk(pipeline: Pipeline) -> float:
    """Micro-batches that each chunk of a stage sees in a step; DualPipe sends half of them either way."""
    return pipeline.num_microbatches * pipeline.num_places / pipeline.places().size
