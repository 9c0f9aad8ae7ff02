"""Matmul FLOPs and parameters of our blocks equal what PyTorch counts on transformers' own modules."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch_blocks
from torch.utils.flop_counter import FlopCounterMode
from torch_blocks import BATCH, CASES, FUSED, SEQ, SMALL_MIXTURE, UNFUSED, Case, Counts

from dovetail.graph import LayerGraph, Phase, differentiate, matmul_flops, parameters

pytestmark = pytest.mark.torch

BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)


@cache
def counted(name: str, attention: str) -> Counts:
    """PyTorch's counts of one block."""
    case = CASES[name]
    stream, options = case.arguments()
    return torch_blocks.count(case.module(attention), stream, options)


def ours(graph: LayerGraph, batch: int = BATCH, seq: int = SEQ) -> tuple[object, object]:
    """Forward and backward matmul FLOPs of our block."""
    sizes = graph.resolve(batch=batch, seq=seq)
    backward = differentiate(graph).graph
    return matmul_flops(graph, sizes, (Phase.FORWARD,)), matmul_flops(backward, sizes, BACKWARD)


# Unfused: two products forward, four backward. Fused: PyTorch's formula counts five products backward (the
# scores again, then the gradients of V, P, Q and K), as `differentiate` does (FlashAttention, algorithm 4).
# Neither side leaves out masked pairs.
@pytest.mark.parametrize("attention", [UNFUSED, FUSED])
@pytest.mark.parametrize("name", CASES)
def test_matmul_flops_equal_torch(name: str, attention: str) -> None:
    theirs = counted(name, attention)
    forward, backward = ours(CASES[name].graph(fused=attention == FUSED))
    assert (forward, backward) == (theirs.forward, theirs.backward)
    assert isinstance(forward, int)
    assert isinstance(backward, int)


@pytest.mark.parametrize("name", CASES)
def test_parameters_equal_torch(name: str) -> None:
    assert parameters(CASES[name].graph(fused=True)) == counted(name, UNFUSED).parameters


@pytest.mark.parametrize("name", CASES)
def test_fused_attention_differs_by_one_product_backward(name: str) -> None:
    # the scores, computed a second time
    mixer = CASES[name].block["mixer"]
    head_dim = mixer.get("head_dim") or mixer["nope_dim"] + mixer["rope_dim"]
    scores = 2 * BATCH * mixer["heads"] * SEQ * SEQ * head_dim
    fused, unfused = counted(name, FUSED), counted(name, UNFUSED)
    assert (fused.forward, fused.backward) == (unfused.forward, unfused.backward + scores)


@pytest.mark.parametrize("attention", [UNFUSED, FUSED])
@pytest.mark.parametrize("name", CASES)
def test_every_matmul_seen_has_a_formula(name: str, attention: str) -> None:
    assert counted(name, attention).uncounted(torch_blocks.counter().flop_registry) == set()


def test_an_operator_without_a_formula_is_noticed() -> None:
    plain = FlopCounterMode(display=False).flop_registry
    missing = {o: f for o, f in plain.items() if o not in torch_blocks.FORMULAS}
    assert counted("mixtral-8x7b", UNFUSED).uncounted(missing) == {"aten._grouped_mm"}
    unnamed = [str(o) for o in plain if not torch_blocks.MATMUL_LIKE.search(str(o))]
    assert unnamed == [], "an operator PyTorch has a formula for is not recognised as a product"


def test_the_grouped_formula_costs_what_a_loop_over_experts_costs() -> None:
    """Run for real, with an uneven routing: PyTorch's own formulas count one product per expert."""
    batch, seq = 2, 37
    loop = count_on_cpu(SMALL_MIXTURE, "eager", batch, seq)
    grouped = count_on_cpu(SMALL_MIXTURE, "grouped_mm", batch, seq)
    assert {o.__name__ for o in grouped.operators - loop.operators} >= {"_grouped_mm"}
    assert (loop.forward, loop.backward) == (grouped.forward, grouped.backward)
    assert (loop.forward, loop.backward) == ours(SMALL_MIXTURE.graph(fused=False), batch, seq)


def count_on_cpu(case: Case, experts: str, batch: int, seq: int) -> Counts:
    """Counts of a block that really runs."""
    generator = torch.Generator().manual_seed(0)
    module = case.module(UNFUSED, experts=experts, device="cpu")
    stream, options = case.arguments("cpu", batch, seq)
    with torch.no_grad():
        for tensor in (stream, *module.parameters()):
            tensor.normal_(generator=generator)
    return torch_blocks.count(module, stream, options)
