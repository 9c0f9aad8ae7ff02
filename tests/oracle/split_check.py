"""Runs every operator of a graph in shards, along every dim it may be split along, and compares with the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from math import prod

import numpy as np
from gradient_check import BATCH, SEQ, given_values
from interpreter import execute, rule_key, run_sizes
from interpreter_call import Array
from split_choice import indexer, routing, routing_gradient
from split_cut import UPDATES, Cut, run
from split_scan import convolution, scan, scan_gradient
from split_statistics import (
    Exchanged,
    attention,
    loss,
    normalisation,
    normalisation_gradient,
    softmax,
    softmax_gradient,
)

from dovetail.graph import Kind, LayerGraph, Operator, differentiate
from dovetail.graph.optimizer import optimizer_step

RELATIVE = 1e-9
#: rounding where a sum cancels, as a part of the largest number read or written
ABSOLUTE = 1e-12

#: How shards that tell each other something arrive at the whole.
EXCHANGES: Mapping[tuple[Kind, str], Callable[[Cut], Exchanged]] = {
    (Kind.SOFTMAX, "softmax"): softmax,
    (Kind.SOFTMAX, "softmax.grad0"): softmax_gradient,
    (Kind.ATTENTION, "softmax"): attention,
    (Kind.NORMALISATION, "rms"): normalisation,
    (Kind.NORMALISATION, "rms.grad0"): normalisation_gradient,
    (Kind.NORMALISATION, "layer"): normalisation,
    (Kind.NORMALISATION, "layer.grad0"): normalisation_gradient,
    (Kind.LOSS, "cross_entropy"): loss,
    **{(Kind.ROUTING, f): routing for f in ("softmax", "sigmoid", "top_k_softmax")},
    **{(Kind.ROUTING, f"{f}.grad"): routing_gradient for f in ("softmax", "sigmoid", "top_k_softmax")},
    (Kind.INDEXER, "relu_top_k"): indexer,
    **{(Kind.LINEAR_ATTENTION, f): scan for f in ("gated_delta", "decay")},
    **{(Kind.LINEAR_ATTENTION, f"{f}.grad"): scan_gradient for f in ("gated_delta", "decay")},
    (Kind.STATE_SPACE, "ssd"): scan,
    (Kind.STATE_SPACE, "ssd.grad"): scan_gradient,
    **{(Kind.CONVOLUTION, f): convolution for f in ("causal", "causal.grad0", "causal.grad1")},
}


class Outcome(StrEnum):
    """What a dim was found to be."""

    WHOLE = "cannot be split"
    ALONE = "shards need nothing of each other"
    TOLD = "shards exchange what is stated"


#: What a dim of an operator of this kind and function was found to be.
Finding = tuple[Outcome, Kind, str, str]
Values = Mapping[str, Array]


def check_layer(graph: LayerGraph) -> list[Finding]:
    """Checks every operator, forward and backward."""
    rng = np.random.default_rng(0)
    sizes = run_sizes(graph, BATCH, SEQ)
    values = execute(graph, given_values(graph, sizes, rng, 1.0), sizes)
    backward = differentiate(graph)
    seeds = {seed: rng.standard_normal(values[name].shape) for name, seed in backward.seeds.items()}
    gradients = execute(backward.graph, values | seeds, sizes)
    return _findings(graph, values, sizes) + _findings(backward.graph, gradients, sizes)


def check_optimizer(graph: LayerGraph, name: str) -> list[Finding]:
    """Checks every update of an optimizer's step."""
    rng = np.random.default_rng(0)
    step = optimizer_step(graph, name)
    sizes = run_sizes(graph, BATCH, SEQ)
    values = {t.name: rng.standard_normal([sizes[d] for d in t.dims]) for t in step.tensors.values()}
    for operator in step.operators:
        results = UPDATES[operator.function](*(values[o.tensor] for o in operator.inputs))
        values |= {o.tensor: r for o, r in zip(operator.outputs, results, strict=True)}
    return _findings(step, values, sizes)


def _findings(graph: LayerGraph, values: Values, sizes: Mapping[str, int]) -> list[Finding]:
    return [
        (check(operator, dim, values, sizes), *_key(operator), dim)
        for operator in graph.operators
        for dim in operator.dims
        if sizes[dim] > 1
    ]


def _key(operator: Operator) -> tuple[Kind, str]:
    """Kind and function, as the interpreter has rules for them."""
    if operator.kind is Kind.OPTIMIZER:
        return operator.kind, operator.function
    return rule_key(operator.kind, operator.function)


def check(operator: Operator, dim: str, values: Values, sizes: Mapping[str, int]) -> Outcome:
    """Two shards along a dim, put together again as `split` says, are the whole."""
    split = operator.split(dim)
    if split is None:
        return Outcome.WHOLE
    where = f"{operator.kind} {operator.function} {operator.name}, {dim} split"
    cut = Cut(operator, split, sizes, tuple(values[o.tensor] for o in operator.inputs))
    if split.exchanges:
        shards, told = EXCHANGES[_key(operator)](cut)
        stated = sum(e.values * prod(sizes[d] for d in e.dims) for e in split.exchanges)
        assert told == stated, f"{where}: {told} numbers told, {stated} stated"
    else:
        shards = [run(cut, bound) for bound in cut.bounds]
    absolute = ABSOLUTE * max(float(np.abs(values[o.tensor]).max()) for o in (*operator.inputs, *operator.outputs))
    for operand, found in zip(operator.outputs, cut.join(shards), strict=True):
        message = f"{where}: {operand.tensor}"
        np.testing.assert_allclose(found, values[operand.tensor], rtol=RELATIVE, atol=absolute, err_msg=message)
    return Outcome.TOLD if split.exchanges else Outcome.ALONE
