"""What tests ask of traced models: their counts, and what a step of them costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch_models
from transformers_configs import CONFIGS

import dovetail as dt
from dovetail.graph import Kind, ModelGraph, Operator, Phase, Unit, differentiate, flops, matmul_flops, saved_bytes
from dovetail.models import Model, from_torch
from dovetail.models.huggingface import import_config
from dovetail.models.traced import AnyModel, TracedModel
from dovetail.models.tracing import trace_document
from dovetail.plans.plan import PlanSpec, resolve_plan

#: Plans of 8 chips that shard otherwise and save otherwise.
PLANS: tuple[Mapping[str, Any], ...] = (
    {"tensor_parallel": 2, "micro_batch": 1},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True, "micro_batch": 2, "recompute": "full"},
)

_BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)


@cache
def traced_config(name: str) -> TracedModel:
    """The module that transformers builds for one of CONFIGS, traced."""
    return trace_document(CONFIGS[name], "config.json", name.replace("_", "-"))


@cache
def imported(name: str) -> Model:
    """The same by its description."""
    return import_config(CONFIGS[name], "config.json")


@cache
def traced_module(name: str, *, realistic: bool = False) -> TracedModel:
    """A module outside transformers, traced."""
    # what masks hold is known where they are not on meta
    module = torch_models.build(name, realistic=realistic, device="meta" if realistic else "cpu")
    return from_torch(module, module.example(2), name=name.replace("_", "-"))


def saved(graph: ModelGraph, batch: int, seq: int) -> float:
    """Bytes saved from forward to backward by all layers."""
    layers = graph.layers
    return sum(
        float(saved_bytes(layers[n], layers[n].resolve(batch=batch, seq=seq))) * c for n, c in graph.counts().items()
    )


def step_time_s(model: AnyModel, plan: Mapping[str, Any], seq_len: int) -> float:
    """Seconds of a step on 8 chips."""
    cluster = dt.hardware.cluster_on(dt.hardware.network("rail-optimised"), dt.hardware.chip("h100-sxm"), 8)
    job = dt.Job(model, seq_len, 16)
    resolved = resolve_plan(PlanSpec(**plan), chips=8, global_batch=16, num_layers=model.num_layers)
    return dt.evaluate(resolved, job, cluster).step_time_s


def products(graph: ModelGraph, batch: int, seq: int) -> tuple[float, float]:
    """Matrix FLOPs forward and backward; what a kernel computes a second time is left out."""
    forward = backward = 0.0
    for name, count in graph.counts().items():
        layer = graph.layers[name]
        sizes = layer.resolve(batch=batch, seq=seq)
        fused = [o for o in layer.reached() if o.kind is Kind.ATTENTION]
        again = sum(float(flops(replace(o, work=o.work[:1]), sizes, Unit.MATRIX)) for o in fused)  # its scores
        # PyTorch counts convolutions of single channels as products
        depthwise = sum(float(flops(o, sizes, Unit.VECTOR)) for o in layer.operators if o.kind is Kind.CONVOLUTION)
        forward += count * (float(matmul_flops(layer, sizes, (Phase.FORWARD,))) + depthwise)
        backward += count * 2 * depthwise
        backward += count * (float(matmul_flops(differentiate(layer).graph, sizes, _BACKWARD)) - again)
    return forward, backward


def products_one_by_one(
    graph: ModelGraph, batch: int, seq: int, *, merged: frozenset[str], written_out: bool
) -> tuple[list[float], list[float]]:
    """Matrix FLOPs of each product, attention and convolution, forward and backward.

    Products that a module merges are one, named by their fusion; attention that it writes out is two products forward
    and four backward; both gradients of a convolution are one operator.
    """
    passes: tuple[list[float], list[float]] = ([], [])
    for name, count in graph.counts().items():
        layer = graph.layers[name]
        sizes = layer.resolve(batch=batch, seq=seq)
        found: dict[tuple[bool, str], float] = {}
        for operator in (*layer.operators, *differentiate(layer).graph.operators):
            backward = operator.phase in _BACKWARD
            if operator.kind is Kind.ATTENTION:
                by_product = _products_of_attention(operator, sizes, backward=backward)
                passes[backward].extend((by_product if written_out else [sum(by_product)]) * count)
                continue
            label, _, tail = operator.fusion.removesuffix(".grad"), *operator.name.rpartition(".")[1:]
            if label not in merged:
                label = operator.name
            if backward and operator.kind is Kind.CONVOLUTION:
                label = operator.name.removesuffix(f".{tail}")
            elif backward and label in merged:
                label = f"{label}/{tail}"
            cost = float(flops(operator, sizes, Unit.MATRIX))
            found[backward, label] = found.get((backward, label), 0.0) + cost
        for (backward, _), cost in found.items():
            passes[backward].extend([cost] * count if cost else [])
    return sorted(passes[0]), sorted(passes[1])


def _products_of_attention(operator: Operator, sizes: Mapping[str, Any], *, backward: bool) -> list[float]:
    """Scores and weighted values, and backward two products for each; what a kernel computes again is left out."""
    work = [float(flops(replace(operator, work=(each,)), sizes, Unit.MATRIX)) for each in operator.work]
    scores, values = (cost for cost in work if cost)
    return [scores / 3, scores / 3, values / 2, values / 2] if backward else [scores, values]
