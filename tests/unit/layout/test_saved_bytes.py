"""What a chip keeps for the backward equals Korthikanti et al. 2022, equations 2 and 4, to the byte."""

from fractions import Fraction

import pytest
from placed_layers import exact, gpt, llama

from dovetail.graph import HALF_PRECISION, Role
from dovetail.graph.size import total
from dovetail.layout import Mesh, Strategy, local_bytes, place_layer

#: hidden, heads, seq, batch: models of Korthikanti et al. 2022, table 3, GPT-3, and one of odd sizes.
SHAPES = [(6144, 64, 2048, 4), (12288, 96, 2048, 1), (20480, 128, 2048, 1), (25600, 160, 2048, 1), (176, 8, 264, 3)]


def kept(graph, strategy, axis_sizes, batch, seq, *, statistics=False):
    sizes = graph.resolve(batch=batch, seq=seq)
    saved = place_layer(graph, strategy).saved
    parts = ((t, layout) for t, layout in saved if statistics or t.role is not Role.STATISTIC)
    return exact(total(local_bytes(t, layout, sizes, axis_sizes, HALF_PRECISION) for t, layout in parts))


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize(("h", "a", "s", "b"), SHAPES)
def test_tensor_parallel_is_equation_2(h, a, s, b, t):
    expected = s * b * h * (10 + Fraction(24, t) + Fraction(5 * a * s, h * t))
    assert kept(gpt(h, a)["block"], Strategy(Mesh(tensor=("t",))), {"t": t}, b, s) == expected


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize(("h", "a", "s", "b"), SHAPES)
def test_sequence_parallel_is_equation_4(h, a, s, b, t):
    expected = Fraction(s * b * h, t) * (34 + Fraction(5 * a * s, h))
    strategy = Strategy(Mesh(tensor=("t",)), sequence_parallel=True)
    assert kept(gpt(h, a)["block"], strategy, {"t": t}, b, s) == expected


@pytest.mark.parametrize("t", [2, 8])
@pytest.mark.parametrize(("h", "a", "s", "b"), SHAPES)
def test_dtensor_keeps_what_it_gathered(h, a, s, b, t):
    """The inputs of the two halves stay whole: 2·s·b·h bytes each, instead of a share of them."""
    expected = Fraction(s * b * h, t) * (30 + Fraction(5 * a * s, h)) + 4 * s * b * h
    strategy = Strategy(Mesh(tensor=("t",)), rule="dtensor", sequence_parallel=True)
    assert kept(gpt(h, a)["block"], strategy, {"t": t}, b, s) == expected


@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_data_and_context_axes_divide_everything(context, t):
    h, a, s, b, c, d = 64, 8, 240, 6, 5, 3
    mesh = Mesh(data=("d",), tensor=("t",), context=("c",))
    strategy = Strategy(mesh, sequence_parallel=True, context=context)
    # scores of the queries a chip has, to all keys
    expected = Fraction(s * b * h, t * c * d) * (34 + Fraction(5 * a * s, h))
    assert kept(gpt(h, a)["block"], strategy, {"t": t, "c": c, "d": d}, b, s) == expected


@pytest.mark.parametrize("rule", ["megatron", "dtensor"])
def test_a_ring_keeps_its_own_keys_alone(rule):
    """Streamed keys pass by; gathered ones DTensor keeps."""
    graph, sizes = llama()["block"], {"c": 4}
    ring = kept(graph, Strategy(Mesh(context=("c",)), rule=rule, context="ring"), sizes, 2, 32, statistics=True)
    whole = kept(graph, Strategy(Mesh(context=("c",)), rule=rule), sizes, 2, 32, statistics=True)
    keys_and_values = 2 * 2 * 2 * 32 * 32
    assert whole - ring == (0 if rule == "megatron" else Fraction(3, 4) * keys_and_values)


def test_ulysses_keeps_attention_on_both_sides_of_the_exchange():
    """Queries, keys, values as attention saw them; its output also as the projection saw it."""
    graph, sizes = llama()["block"], {"c": 4}
    ring = kept(graph, Strategy(Mesh(context=("c",)), context="ring"), sizes, 2, 32)
    ulysses = kept(graph, Strategy(Mesh(context=("c",)), context="ulysses"), sizes, 2, 32)
    assert ulysses - ring == Fraction(2 * 2 * 32 * 64, 4)
