"""The sharding rule against numbers: every operator, run in shards as `Operator.split` says, gives the whole.

A shard is given its part of the sharded operands and the replicated ones whole; sharded outputs are joined, partial
ones added, all others must agree. Where shards exchange something, they are told no more and no less than stated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import interpreter
import numpy as np
import pytest
from gradient_check import BATCH, SEQ, given_values
from small_graphs import CASES, TOKENS, start
from small_layers import LAYERS
from split_check import EXCHANGES, Outcome, check, check_layer, check_optimizer

from dovetail.graph import Exchange, Kind
from dovetail.graph.optimizer import OPTIMIZERS
from dovetail.graph.routing import ExpertGroups, routing


def _several_groups():
    """The second-best group of a shard may be closed by the best of another."""
    b = start("several groups")
    logits, bias = b.input("logits", (*TOKENS, "experts")), b.constant("bias", ("experts",))
    options = {"bias": bias, "renormalise": True, "groups": ExpertGroups(3, 2)}
    return b.build(routing(b, "y", "sigmoid", logits, "experts", **options)[0])


GRAPHS = {**CASES, "routing within two groups": _several_groups, **LAYERS}

#: Dims that must stay whole, under every name the graphs have for them; a gradient inherits them.
WHOLE = {
    # scores are complete before the softmax, and so is each query's choice; values share one log-sum-exp
    (Kind.ATTENTION, "softmax"): {"head_dim", "wide", "group", "value_dim", "narrow", "value", "selected"},
    # scores are complete before the relu
    (Kind.INDEXER, "relu_top_k"): {"index_dim", "narrow", "selected"},
    # pairs of the last dim are turned
    (Kind.ELEMENTWISE, "rotary"): {"head_dim", "rope_dim", "wide"},
    # the state is read before it is written
    (Kind.LINEAR_ATTENTION, "gated_delta"): {"key_dim", "wide"},
    # the skip D · x must be added once
    (Kind.STATE_SPACE, "ssd"): {"state", "wide"},
    (Kind.CONVOLUTION, "causal"): {"conv_kernel", "kernel"},
    (Kind.ROUTING, "softmax"): {"top_k"},
    (Kind.ROUTING, "sigmoid"): {"top_k"},
    (Kind.ROUTING, "top_k_softmax"): {"top_k"},
    (Kind.DISPATCH, "gather"): {"top_k"},
    (Kind.COMBINE, "weighted_sum"): {"top_k"},
    # a part of one dim becomes part of another
    (Kind.MOVEMENT, "concatenate"): {
        "both", "head_dim", "hidden", "joined", "narrow", "nope_dim", "rope_dim", "wide",
    },
    (Kind.MOVEMENT, "slice"): {"narrow", "wide"},
}  # fmt: skip


@cache
def layer_findings(name):
    return check_layer(GRAPHS[name]())


@cache
def optimizer_findings(name):
    return check_optimizer(LAYERS["DeepSeek-V3 block"](), name)


def findings():
    found = [f for name in GRAPHS for f in layer_findings(name)]
    return found + [f for name in OPTIMIZERS for f in optimizer_findings(name)]


@pytest.mark.parametrize("name", GRAPHS)
def test_shards_of_a_layer_make_the_whole(name):
    assert layer_findings(name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shards_of_an_update_need_nothing_of_each_other(name):
    whole = {Outcome.WHOLE} if name == "muon" else set()
    assert {outcome for outcome, *_ in optimizer_findings(name)} == {Outcome.ALONE} | whole


def test_muon_leaves_matrices_whole_and_experts_alone():
    found = [(outcome, dim) for outcome, _, name, dim in optimizer_findings("muon") if name == "muon"]
    assert {dim for outcome, dim in found if outcome is Outcome.ALONE} == {"experts"}
    assert {dim for outcome, dim in found if outcome is Outcome.WHOLE} >= {"hidden", "kv_heads", "expert_ffn"}


def test_every_kind_and_function_is_split():
    split = {(kind, function) for outcome, kind, function, _ in findings() if outcome is not Outcome.WHOLE}
    assert {kind for kind, _ in split} == set(Kind)
    assert split == set(interpreter.RULES) | {(Kind.OPTIMIZER, name) for name in OPTIMIZERS}


def test_every_exchange_is_made():
    assert {(kind, function) for outcome, kind, function, _ in findings() if outcome is Outcome.TOLD} == set(EXCHANGES)


def test_only_what_must_stay_whole_does():
    whole = {}
    for outcome, kind, function, dim in findings():
        # rows and columns of Muon's matrices have a test of their own
        if outcome is Outcome.WHOLE and function != "muon":
            whole.setdefault((kind, function.partition(".grad")[0]), set()).add(dim)
    assert whole == WHOLE


def _operator(case, name):
    """An operator of a small graph, with the values around it."""
    graph = CASES[case]()
    sizes = interpreter.run_sizes(graph, BATCH, SEQ)
    values = interpreter.execute(graph, given_values(graph, sizes, np.random.default_rng(0), 1.0), sizes)
    return next(o for o in graph.operators if o.name == name), values, sizes


@pytest.mark.parametrize(
    ("case", "name", "dim", "wrong"),
    [
        ("attention", "y", "wide", {"indivisible": ()}),
        ("attention", "y", "narrow", {"indivisible": ()}),
        ("attention", "y", "key_seq", {"exchanges": ()}),
        ("rms", "y", "wide", {"exchanges": ()}),
        ("layer", "y", "wide", {"exchanges": (Exchange("wide", ("batch", "seq", "heads"), 1),)}),
        ("convolution", "y", "seq", {"exchanges": ()}),
        ("ssd", "y", "seq", {"exchanges": ()}),
        ("ssd", "y", "wide", {"indivisible": ()}),
        ("gated_delta", "y", "wide", {"indivisible": ()}),
        ("elementwise rotary", "y", "wide", {"indivisible": ()}),
        ("mixture", "dispatch", "seq", {"regroups": ()}),
        ("mixture", "y", "batch", {"regroups": ()}),
    ],
)
def test_a_wrong_rule_is_noticed(case, name, dim, wrong):
    operator, values, sizes = _operator(case, name)
    check(operator, dim, values, sizes)
    with pytest.raises((AssertionError, ValueError)):
        check(replace(operator, **wrong), dim, values, sizes)
