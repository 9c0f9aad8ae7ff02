"""Sizes: exact for one shape however large, arrays for many shapes at once."""

from fractions import Fraction

import numpy as np
import pytest

from dovetail.documents import validate
from dovetail.graph import DerivedSize, Phase, differentiate, matmul_flops, saved_bytes
from dovetail.graph.size import as_array, resolve
from dovetail.models import Model, model_graph

HYBRID = {
    "name": "everything",
    "hidden": 256,
    "vocab": 1000,
    "blocks": {
        "window": {
            "mixer": {"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 32, "window": 48},
            "feed_forward": {"kind": "mixture", "experts": 6, "top_k": 2, "size": 64, "shared_size": 32},
        },
        "latent": {
            "mixer": {
                "kind": "latent_attention", "heads": 4, "query_rank": 24, "kv_rank": 16, "nope_dim": 8,
                "rope_dim": 4, "value_dim": 8, "indexer": {"heads": 2, "head_dim": 8, "top_k": 40},
            },
            "feed_forward": {"kind": "dense", "size": 128},
        },
        "scan": {"mixer": {"kind": "gated_delta", "key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 8}},
    },
    "layers": [{"blocks": ["window", "latent", "scan"], "repeat": 2}],
}  # fmt: skip


def test_derived_sizes_follow_each_other():
    dims = {"a": 4, "b": DerivedSize(("a", "seq"), ("c",)), "c": 3, "d": DerivedSize(("b",), at_most=5)}
    assert resolve(dims, {"batch": 1, "seq": 5})["b"] == Fraction(20, 3)
    assert resolve(dims, {"batch": 1, "seq": 5})["d"] == 5
    with pytest.raises(KeyError, match="follow from dims that have none"):
        resolve({"x": DerivedSize(("y",))}, {"batch": 1})


@pytest.mark.parametrize("causal", [False, True])
def test_arrays_give_what_single_shapes_give(causal):
    batches, lengths = [1, 2, 7, 16], [16, 48, 100, 4096]
    graph = model_graph(validate(Model, HYBRID, "test"))
    for layer in graph.layers.values():
        for one in (layer, differentiate(layer).graph):
            many = one.resolve(batch=np.array(batches, float), seq=np.array(lengths, float))
            got = as_array(matmul_flops(one, many, causal=causal)) + np.zeros(4)
            for position, (batch, seq) in enumerate(zip(batches, lengths, strict=True)):
                single = one.resolve(batch=batch, seq=seq)
                assert got[position] == pytest.approx(float(matmul_flops(one, single, causal=causal)), rel=1e-12)
            kept = as_array(saved_bytes(one, many)) + np.zeros(4)
            assert kept[1] == pytest.approx(float(saved_bytes(one, one.resolve(batch=2, seq=48))), rel=1e-12)


def test_a_ten_trillion_parameter_model_at_a_million_tokens_is_counted_exactly():
    block = {
        "mixer": {"kind": "attention", "heads": 128, "kv_heads": 8, "head_dim": 128},
        "feed_forward": {"kind": "mixture", "experts": 4096, "top_k": 16, "size": 2048},
    }
    document = {"name": "huge", "hidden": 8192, "vocab": 200_000, "blocks": {"moe": block}}
    graph = model_graph(validate(Model, document | {"layers": [{"blocks": ["moe"], "repeat": 48}]}, "huge"))
    experts = 48 * 4096 * 3 * 8192 * 2048
    attention = 48 * 8192 * (2 * 128 * 128 + 2 * 8 * 128)
    rest = 48 * (8192 * 4096 + 2 * 8192) + 2 * 200_000 * 8192 + 8192
    assert graph.parameters() == experts + attention + rest
    assert graph.parameters() > 9.5e12
    seq = 2**20
    layer = graph.layers["moe"]
    per_token = 2 * (16 * 3 * 8192 * 2048 + 8192 * (2 * 128 * 128 + 2 * 8 * 128) + 8192 * 4096) + 4 * 128 * 128 * seq
    # far beyond 64-bit integers, and not a unit off
    assert matmul_flops(layer, layer.resolve(batch=16384, seq=seq), (Phase.FORWARD,)) == 16384 * seq * per_token
    assert 16384 * seq * per_token > 2**63
