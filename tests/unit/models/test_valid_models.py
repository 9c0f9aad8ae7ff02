"""Whatever combination of switches a model file may hold: it is refused, or it builds, counts and is written back."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from dovetail.documents import parse_document, validate
from dovetail.errors import InputError
from dovetail.models import Model, model_graph, summarise, to_yaml
from dovetail.models.assembly import Activation, NormKind

SIZE = st.sampled_from([1, 2, 3, 8])
FLAG = st.booleans()
NORM = st.sampled_from(get_args(NormKind))
ACTIVATION = st.sampled_from(get_args(Activation))
PARTS = st.sampled_from([1, 2, 4, 8])

Strategy = st.SearchStrategy[Any]


def part(required: dict[str, Strategy], **optional: Strategy) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


def kind(name: str, *sizes: str, required: dict[str, Strategy] | None = None, **optional: Strategy) -> Strategy:
    return part({"kind": st.just(name)} | dict.fromkeys(sizes, SIZE) | (required or {}), **optional)


INDEXER = part(
    {"heads": SIZE, "head_dim": SIZE, "top_k": SIZE},
    query_from=st.sampled_from(["hidden", "latent"]),
    query_norm=NORM,
    key_norm=NORM | st.none(),
    weighted=FLAG,
)
EIGHT = {"heads": st.just(8)}
MIXER = st.one_of(
    kind(
        "attention", "head_dim", required=EIGHT | {"kv_heads": PARTS}, value_dim=SIZE, causal=FLAG, window=SIZE,
        chunk=SIZE, rotary=FLAG, qkv_bias=FLAG, output_bias=FLAG, qk_norm=st.sampled_from(["head", "heads", "all"]),
        qk_norm_kind=NORM, value_norm=FLAG, key_is_value=FLAG, output_gate=st.sampled_from(["channel", "head"]),
        sinks=FLAG, indexer=INDEXER,
    ),
    kind(
        "latent_attention", "heads", "kv_rank", "nope_dim", "rope_dim", "value_dim", query_rank=SIZE, rotary=FLAG,
        bias=FLAG, norm=NORM, indexer=INDEXER,
    ),
    kind("gated_delta", "key_dim", "value_dim", required={"key_heads": PARTS, "value_heads": st.just(8)}, chunk=SIZE),
    kind("kimi_delta", "heads", "head_dim", conv_kernel=SIZE, full_rank_gate=FLAG, chunk=SIZE),
    kind("lightning", "heads", "head_dim", chunk=SIZE),
    kind(
        "state_space", "head_dim", "state", required=EIGHT, groups=PARTS, conv_kernel=SIZE, conv_bias=FLAG, bias=FLAG,
        chunk=SIZE,
    ),
)  # fmt: skip
DENSE = kind("dense", "size", activation=ACTIVATION, bias=FLAG)
MIXTURE = kind(
    "mixture", "size", required={"experts": st.just(8), "top_k": PARTS}, activation=ACTIVATION, bias=FLAG,
    router_bias=FLAG, router_scale=FLAG, correction_bias=FLAG, trained_correction=FLAG, renormalise=FLAG,
    score=st.sampled_from(["softmax", "sigmoid", "top_k_softmax", "hash"]), shared_size=SIZE, latent=SIZE,
    groups=PARTS, imbalance=st.floats(1, 4),
)  # fmt: skip
FEED_FORWARD = DENSE | MIXTURE | kind("dense_beside_mixture", required={"dense": DENSE, "mixture": MIXTURE})
SEQUENTIAL = part(
    {"mixer": MIXER},
    feed_forward=FEED_FORWARD,
    norm=NORM,
    norm_position=st.sampled_from(["before", "after", "around", "residual"]),
)
PARALLEL = part({"mixer": MIXER, "feed_forward": FEED_FORWARD, "parallel": st.just(True)}, shared_norm=FLAG)
EMBEDDING = part({}, positions=st.just(64), token_types=SIZE, width=SIZE, norm=NORM)
HEAD = part(
    {},
    tied=FLAG,
    bias=FLAG,
    norm=NORM | st.none(),
    transform=FLAG,
    transform_activation=ACTIVATION,
    softcap=st.just(30.0),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    blocks = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), SEQUENTIAL | PARALLEL, min_size=1))
    fields = part(
        {
            "name": st.just("any"), "hidden": SIZE, "vocab": SIZE, "max_seq_len": st.just(64),
            "blocks": st.just(blocks), "layers": st.just([{"blocks": sorted(blocks), "repeat": 2}]),
        },
        embedding=EMBEDDING,
        head=HEAD,
        dropout=FLAG,
        multi_token_prediction=part({"modules": SIZE, "block": st.sampled_from(sorted(blocks))}),
    )  # fmt: skip
    return draw(fields)


@given(document=documents(), seq_len=st.sampled_from([1, 7, 64]))
def test_a_model_file_is_refused_or_builds(document, seq_len):
    try:
        model = validate(Model, document, "any.yaml")
    except InputError:
        return
    summary = summarise(model, seq_len)
    assert 0 < summary.active_parameters <= summary.parameters
    assert 0 < summary.causal_flops_per_token <= summary.flops_per_token
    assert model_graph(model, fused_attention=False).parameters() == model_graph(model).parameters()
    assert validate(Model, parse_document(to_yaml(model), "written"), "written") == model
