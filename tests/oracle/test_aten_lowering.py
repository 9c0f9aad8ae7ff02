"""Blocks traced at ATen level fit the IR as it is: every node has a place, and counts come out the same."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from aten_lowering import (
    LeftOverError,
    Lowering,
    Names,
    is_forward,
    operator_name,
    trace,
    traced_flops,
)
from aten_rules import RULES
from torch_blocks import BATCH, CASES, FUSED, SEQ, UNFUSED

from dovetail.graph import (
    DerivedSize,
    Kind,
    Phase,
    Unit,
    active_parameters,
    differentiate,
    flops,
    matmul_flops,
    parameters,
    verify,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]

BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)

_STREAM = (("batch",), ("seq",), ("hidden",))
_TABLE = (("batch",), ("seq",), ("head_dim",))
_SIZES = {
    "hidden": 4096,
    "kv_heads": 8,
    "group": 4,
    "head_dim": 128,
    "value_dim": 128,
    "key_seq": DerivedSize(("seq",)),
}
_ATTENTION = {
    "input_layernorm.weight": (("hidden",),),
    "post_attention_layernorm.weight": (("hidden",),),
    "self_attn.q_proj.weight": (("kv_heads", "group", "head_dim"), ("hidden",)),
    "self_attn.k_proj.weight": (("kv_heads", "head_dim"), ("hidden",)),
    "self_attn.v_proj.weight": (("kv_heads", "value_dim"), ("hidden",)),
    "self_attn.o_proj.weight": (("hidden",), ("kv_heads", "group", "value_dim")),
}

#: All that is told to the lowering about a block.
NAMES = {
    "llama-3.1-8b": Names(
        {**_SIZES, "ffn": 14336},
        {
            **_ATTENTION,
            "mlp.gate_proj.weight": (("ffn",), ("hidden",)),
            "mlp.up_proj.weight": (("ffn",), ("hidden",)),
            "mlp.down_proj.weight": (("hidden",), ("ffn",)),
        },
        (_STREAM, _TABLE, _TABLE, ()),
    ),
    "mixtral-8x7b": Names(
        {
            **_SIZES,
            "experts": 8,
            "top_k": 2,
            "halves": 2,
            "expert_ffn": 14336,
            "expert_tokens": DerivedSize(("batch", "seq", "top_k"), ("experts",)),
        },
        {
            **_ATTENTION,
            "mlp.gate.weight": (("experts",), ("hidden",)),
            "mlp.experts.gate_up_proj": (("experts",), ("halves", "expert_ffn"), ("hidden",)),
            "mlp.experts.down_proj": (("experts",), ("hidden",), ("expert_ffn",)),
        },
        (_STREAM, _TABLE, _TABLE, ()),
        active={"mlp.experts.gate_up_proj": Fraction(2, 8), "mlp.experts.down_proj": Fraction(2, 8)},
    ),
}

each_block = pytest.mark.parametrize("name", NAMES)
each_attention = pytest.mark.parametrize("attention", [UNFUSED, FUSED])


@cache
def traced(name: str, attention: str) -> Any:
    """The block's forward and backward; unfused attention is given its causal mask as a tensor."""
    case = CASES[name]
    stream, options = case.arguments()
    if attention == UNFUSED:
        options["attention_mask"] = torch.zeros(BATCH, 1, SEQ, SEQ, dtype=torch.bfloat16, device="meta")
    return trace(case.module(attention), stream, options)


@cache
def lowered(name: str, attention: str) -> Lowering:
    return Lowering(traced(name, attention), NAMES[name], RULES, batch=BATCH, seq=SEQ)


@each_attention
@each_block
def test_no_traced_node_is_left_over(name: str, attention: str) -> None:
    nodes = [n for n in traced(name, attention).nodes if n.op != "output"]
    forward = [n for n in nodes if is_forward(n)]
    lowering = lowered(name, attention)
    assert set(lowering.consumed) == set(forward)
    emitted = {operator for operators in lowering.consumed.values() for operator in operators}
    assert emitted == {o.name for o in lowering.graph.operators}
    # a backward node bears the number of the forward node it is the gradient of; a division in place (of the
    # gates) leaves its number to the gradient and takes the next one when it is made functional
    partners = {n.meta["seq_nr"] for n in forward}
    partners |= {n.meta["seq_nr"] - 1 for n in forward if operator_name(n) == "div"}
    assert [n for n in nodes if not is_forward(n) and n.meta["seq_nr"] not in partners] == []


@each_attention
@each_block
def test_the_lowered_graph_holds_its_invariants(name: str, attention: str) -> None:
    graph = lowered(name, attention).graph
    verify(graph, {"batch": BATCH, "seq": SEQ})
    verify(differentiate(graph).graph)


@each_attention
@each_block
def test_parameters_equal_the_module_and_the_model(name: str, attention: str) -> None:
    graph, model = lowered(name, attention).graph, CASES[name].graph(fused=attention == FUSED)
    assert parameters(graph) == sum(p.numel() for p in CASES[name].module(attention).parameters())
    assert parameters(graph) == parameters(model)
    assert active_parameters(graph) == active_parameters(model)


@each_attention
@each_block
def test_matmul_flops_equal_the_trace_and_the_model(name: str, attention: str) -> None:
    graph, model = lowered(name, attention).graph, CASES[name].graph(fused=attention == FUSED)
    costs = traced_flops(traced(name, attention).nodes)
    sizes = {"batch": BATCH, "seq": SEQ}
    for causal in (False, True):
        counts = [
            (
                matmul_flops(g, g.resolve(**sizes), (Phase.FORWARD,), causal=causal),
                matmul_flops(differentiate(g).graph, g.resolve(**sizes), BACKWARD, causal=causal),
            )
            for g in (graph, model)
        ]
        assert counts[0] == counts[1]
        if not causal:
            assert counts[0] == (
                sum(cost for node, cost in costs.items() if is_forward(node)),
                sum(cost for node, cost in costs.items() if not is_forward(node)),
            )


@each_attention
@each_block
def test_each_operator_costs_what_its_traced_nodes_cost(name: str, attention: str) -> None:
    """Operator by operator, forward and derived backward, found through the forward node a gradient names."""
    lowering = lowered(name, attention)
    sizes = lowering.graph.resolve(batch=BATCH, seq=SEQ)
    costs = traced_flops(traced(name, attention).nodes)
    owner = {n.meta["seq_nr"]: lowering.consumed[n][0] for n in costs if is_forward(n)}
    theirs: Counter[tuple[str, bool]] = Counter()
    for node, cost in costs.items():
        theirs[owner[node.meta["seq_nr"]], is_forward(node)] += cost
    ours: Counter[tuple[str, bool]] = Counter()
    for operator in (*lowering.graph.operators, *differentiate(lowering.graph).graph.operators):
        forward = operator.phase is Phase.FORWARD
        (base,) = [n for n in owner.values() if f"{operator.name}.".startswith(f"{n}.")] or [""]
        cost = flops(operator, sizes, Unit.MATRIX)
        assert isinstance(cost, int)
        ours[base, forward] += cost
    assert +ours == theirs


def test_a_block_lowers_to_the_operators_of_its_model() -> None:
    """Same kinds in the same numbers, but for what a module computes in pieces."""
    kinds = Counter(o.kind for o in lowered("mixtral-8x7b", FUSED).graph.operators)
    model = Counter(o.kind for o in CASES["mixtral-8x7b"].graph(fused=True).operators)
    # one product for gate and up, cut in two; silu and its product with up apart
    assert kinds - model == {Kind.MOVEMENT: 2, Kind.ELEMENTWISE: 1}
    assert model - kinds == {Kind.CONTRACTION: 1}


def test_an_unknown_node_is_an_error() -> None:
    class Changed(torch.nn.Module):
        def __init__(self, block: torch.nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, stream: torch.Tensor, **options: Any) -> torch.Tensor:
            return torch.erf(self.block(stream, **options))

    case = CASES["llama-3.1-8b"]
    stream, options = case.arguments()
    graph = trace(Changed(case.module(FUSED)), stream, options)
    names = NAMES["llama-3.1-8b"]
    inside = Names(names.sizes, {f"block.{k}": v for k, v in names.parameters.items()}, names.inputs)
    with pytest.raises(LeftOverError, match="erf"):
        Lowering(graph, inside, RULES, batch=BATCH, seq=SEQ)


def test_a_value_used_beyond_its_pattern_is_an_error() -> None:
    graph = traced("llama-3.1-8b", FUSED)
    rsqrt = next(n for n in graph.nodes if operator_name(n) == "rsqrt")
    add = next(n for n in reversed(graph.nodes) if operator_name(n) == "add" and is_forward(n))
    kept = add.args
    add.args = (rsqrt, kept[1])
    try:
        with pytest.raises(LeftOverError, match="beyond its pattern"):
            Lowering(graph, NAMES["llama-3.1-8b"], RULES, batch=BATCH, seq=SEQ)
    finally:
        add.args = kept
