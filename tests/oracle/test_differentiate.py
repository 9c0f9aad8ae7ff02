"""The derived backward against finite differences: each rule, whole layers, random chains."""

from __future__ import annotations

from functools import cache

import interpreter
import pytest
from gradient_check import check, check_phases, check_saved
from hypothesis import given
from hypothesis import strategies as st
from small_chains import chains
from small_graphs import CASES
from small_layers import LAYERS

from dovetail.graph import Kind, differentiate
from dovetail.graph.differentiate import RULES
from dovetail.graph.function import FUNCTIONS
from dovetail.models import load, model_graph, names


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_the_measured_gradient(name):
    check(CASES[name](), size=5.0 if "clamped" in name else 1.0)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_measured_gradient(name):
    for seed in range(2):
        check(LAYERS[name](), seed)


@given(graph=chains(), seed=st.integers(0, 2**32 - 1))
def test_a_random_chain_gives_the_measured_gradient(graph, seed):
    check(graph, seed, seq=4)


@cache
def _checked_functions():
    """Kind and function of every operator, forward and backward, of the small graphs."""
    forward = [case() for case in CASES.values()]
    backward = [differentiate(graph).graph for graph in forward]
    return frozenset((o.kind, o.function) for graph in (*forward, *backward) for o in graph.operators)


def test_every_rule_and_function_is_checked():
    assert {kind for kind, _ in _checked_functions()} >= set(RULES)
    assert {function for kind, function in _checked_functions() if kind is Kind.ELEMENTWISE} >= set(FUNCTIONS)


def test_the_interpreter_has_no_unchecked_rule():
    assert {interpreter.rule_key(*key) for key in _checked_functions()} == set(interpreter.RULES)


@pytest.mark.parametrize("fused", [True, False])
def test_published_models_use_only_what_is_checked(fused):
    for name in names():
        for graph in model_graph(load(name), fused_attention=fused).layers.values():
            backward = differentiate(graph)
            operators = (*graph.operators, *backward.graph.operators)
            assert {(o.kind, o.function) for o in operators} <= _checked_functions(), f"{name}: {graph.name}"
            check_saved(graph, backward)
            check_phases(backward)
