"""The closed forms of the literature come out of the graph exactly, as integers."""

from fractions import Fraction

import pytest

from dovetail.documents import validate
from dovetail.graph import Phase, differentiate, matmul_flops, saved_bytes
from dovetail.graph.size import total
from dovetail.models import Model, model_graph

#: hidden, heads, layers, seq, batch, vocabulary: GPT shapes of Narayanan et al. 2021, table 1, and GPT-3.
SHAPES = [
    (2304, 24, 24, 2048, 512, 51200),
    (4096, 32, 36, 2048, 512, 51200),
    (6144, 48, 40, 2048, 1024, 51200),
    (8192, 64, 48, 2048, 1536, 51200),
    (12288, 96, 96, 2048, 1536, 51200),
    (20480, 128, 105, 2048, 2520, 51200),
    (25600, 160, 128, 2048, 3072, 51200),
    (768, 12, 12, 1000, 7, 50257),
]


def gpt(hidden, heads, layers, seq, vocab):
    attention = {
        "kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": hidden // heads,
        "rotary": False, "qkv_bias": True, "output_bias": True,
    }  # fmt: skip
    block = {
        "mixer": attention,
        "feed_forward": {"kind": "dense", "size": 4 * hidden, "activation": "gelu", "bias": True},
        "norm": "layer",
    }
    document = {
        "name": "gpt", "hidden": hidden, "vocab": vocab, "max_seq_len": seq, "dropout": True,
        "embedding": {"positions": seq}, "blocks": {"block": block},
        "layers": [{"blocks": ["block"], "repeat": layers}], "head": {"tied": True, "norm": "layer"},
    }  # fmt: skip
    return model_graph(validate(Model, document, "gpt"), fused_attention=False)


def step_flops(graph, batch, seq, *, recompute):
    parts = []
    for name, count in graph.counts().items():
        layer = graph.layers[name]
        sizes = layer.resolve(batch=batch, seq=seq)
        forward = matmul_flops(layer, sizes, (Phase.FORWARD,))
        backward = matmul_flops(differentiate(layer).graph, sizes, (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT))
        again = forward if recompute and name == "block" else 0
        parts += [forward, backward, again] * count
    return total(parts)


@pytest.mark.parametrize(("h", "a", "layers", "s", "b", "v"), SHAPES)
def test_step_flops_are_narayanan_equation_3(h, a, layers, s, b, v):
    graph = gpt(h, a, layers, s, v)
    with_recompute = 96 * b * s * layers * h * h * (1 + Fraction(s, 6 * h) + Fraction(v, 16 * layers * h))
    without = 72 * b * s * layers * h * h * (1 + Fraction(s, 6 * h) + Fraction(v, 12 * layers * h))
    assert step_flops(graph, b, s, recompute=True) == with_recompute
    assert step_flops(graph, b, s, recompute=False) == without


@pytest.mark.parametrize(("h", "a", "layers", "s", "b", "v"), SHAPES)
def test_saved_bytes_are_korthikanti_equation_1(h, a, layers, s, b, v):
    layer = gpt(h, a, layers, s, v).layers["block"]
    sizes = layer.resolve(batch=b, seq=s)
    assert saved_bytes(layer, sizes, statistics=False) == s * b * h * (34 + Fraction(5 * a * s, h))


@pytest.mark.parametrize(("h", "a", "layers", "s", "b", "v"), SHAPES)
def test_parameters_are_the_closed_form(h, a, layers, s, b, v):
    # 12 h² and 13 h a layer; tables; the final norm (Narayanan et al. 2021, eq. 2, with every bias)
    assert gpt(h, a, layers, s, v).parameters() == layers * (12 * h * h + 13 * h) + (v + s) * h + 2 * h


def test_input_and_weight_gradients_are_apart():
    layer = gpt(512, 8, 2, 128, 1000).layers["block"]
    sizes = layer.resolve(batch=2, seq=128)
    backward = differentiate(layer).graph
    forward = matmul_flops(layer, sizes)
    projections = 24 * 2 * 128 * 512 * 512
    # every projection costs its forward once per gradient; scores have two input gradients and no weight
    assert matmul_flops(backward, sizes, (Phase.WEIGHT_GRADIENT,)) == projections
    assert matmul_flops(backward, sizes, (Phase.INPUT_GRADIENT,)) == 2 * forward - projections
