"""One rule answers every sharding question: what a split of each dim does, read off the operators."""

from fractions import Fraction

import numpy as np
import pytest

from dovetail.graph import Compressed, DerivedSize, GraphError, Kind, LayerBuilder, Mask, Role, Span, verify
from dovetail.graph.attention import attention
from dovetail.graph.mask import Mask as MaskClass
from dovetail.graph.size import as_array
from dovetail.models import load, model_graph


def operators(name, layer, **options):
    graph = model_graph(load(name), **options).layers[layer]
    return graph, {o.name: o for o in graph.operators}


def split(operator, dim):
    result = operator.split(dim)
    assert result is not None, f"{operator.name} cannot be split along {dim}"
    return result


@pytest.fixture
def llama():
    graph, named = operators("llama-3.1-70b", "full")
    return graph, named


def test_column_split_needs_no_communication(llama):
    _, named = llama
    cut = split(named["mlp.up"], "ffn")
    assert cut.partial == ()
    assert cut.replicated == ("feed_forward_norm",)
    assert set(cut.sharded) == {"mlp.up.weight", "mlp.up"}


def test_row_split_leaves_partial_sums(llama):
    _, named = llama
    assert split(named["mlp.down"], "ffn").partial == ("mlp.down",)
    assert split(named["output"], "kv_heads").partial == ("output",)


def test_grouped_heads_split_past_the_kv_heads(llama):
    _, named = llama
    # splitting the group replicates keys and values: tensor parallel beyond kv_heads
    cut = split(named["attention"], "group")
    assert set(cut.replicated) == {"key_rotary", "value"}
    assert cut.partial == ()
    assert split(named["attention"], "kv_heads").replicated == ()


def test_sequence_split_of_keys_exchanges_statistics(llama):
    _, named = llama
    cut = split(named["attention"], "key_seq")
    assert cut.partial == ()
    assert {e.values for e in cut.exchanges} == {1, 2}
    assert set(cut.replicated) == {"query_rotary"}
    assert named["attention"].split("head_dim") is None


def test_norm_over_a_split_dim_exchanges_statistics(llama):
    _, named = llama
    assert split(named["mixer_norm"], "hidden").exchanges[0].dims == ("batch", "seq")
    assert split(named["mixer_norm"], "seq").exchanges == ()


def test_vocabulary_split_of_the_lookup_is_partial():
    _, named = operators("llama-3.1-70b", "embedding")
    assert split(named["embedded"], "vocab").partial == ("embedded",)
    _, named = operators("llama-3.1-70b", "head")
    assert [e.values for e in split(named["loss"], "vocab").exchanges] == [3]
    assert split(named["loss"], "batch").partial == ("loss",)


def test_experts_split_and_tokens_regroup():
    graph, named = operators("mixtral-8x7b", "full")
    dispatch, combine = named["dispatch"], named["combine"]
    assert "dispatch" in split(dispatch, "batch").sharded  # a token shard is a shard of expert_tokens
    assert split(dispatch, "batch").partial == ()
    assert split(dispatch, "experts").replicated == ("feed_forward_norm", "gates.choice")
    assert split(combine, "experts").partial == ("combine",)
    assert dispatch.split("top_k") is None
    sizes = graph.resolve(batch=4, seq=4096)
    assert sizes["expert_tokens"] == 4 * 4096 * 2 / 8


def test_scan_hands_its_state_on():
    _, named = operators("qwen3-next-80b-a3b", "linear_sparse")
    exchange = split(named["attention"], "seq").exchanges[0]
    assert exchange.passed_on
    assert set(exchange.dims) == {"batch", "key_heads", "key_group", "key_dim", "value_dim"}
    assert split(named["query_conv"], "seq").exchanges[0].values == 3


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        (Mask(causal=False), lambda q, k: True),
        (Mask(causal=True), lambda q, k: k <= q),
        (Mask(True, Span.WINDOW, 5), lambda q, k: q - 5 < k <= q),
        (Mask(True, Span.CHUNK, 5), lambda q, k: k <= q and q // 5 == k // 5),
    ],
)
def test_mask_coverage_equals_counting_pairs(mask: MaskClass, pairs):
    for seq in (1, 4, 5, 12, 17):
        counted = sum(pairs(q, k) for q in range(seq) for k in range(seq))
        assert mask.coverage({"key_seq": seq}, causal=True) * seq * seq == counted


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_chunk_is_shorter(causal: bool):
    lengths = range(1, 23)
    mask = Mask(causal, Span.CHUNK, 5)
    counted = [sum(q // 5 == k // 5 and (k <= q or not causal) for q in range(n) for k in range(n)) for n in lengths]
    assert [mask.coverage({"key_seq": n}, causal=causal) * n * n for n in lengths] == counted
    many = np.array(lengths, dtype=np.float64)
    assert as_array(mask.coverage({"key_seq": many}, causal=causal)) * many * many == pytest.approx(np.array(counted))


def test_full_count_ignores_the_future_but_not_the_span():
    assert Mask(True).coverage({"key_seq": 8192}, causal=False) == 1
    assert Mask(True, Span.WINDOW, 1024).coverage({"key_seq": 8192}, causal=False) == 1 / 8
    assert Mask(True, Span.TOP_K, 2048).coverage({"key_seq": 1024}, causal=False) == 1


@pytest.mark.parametrize(("top_k", "most"), [(3, 3), (None, 5)])
def test_compressed_keys_are_seen_beside_those_of_the_window(top_k: int | None, most: int):
    """Twenty tokens in a window of five, and five keys of four tokens each."""
    mask = Mask(True, Span.WINDOW, 5, compressed=Compressed(Fraction(1, 5), top_k))
    counted = sum(min(q + 1, 5) + min(q // 4 + 1, most) for q in range(20))
    assert mask.coverage({"key_seq": 25}, causal=True) * 20 * 25 == counted
    many = np.array([25.0])
    assert as_array(mask.coverage({"key_seq": many}, causal=True)) * 20 * 25 == pytest.approx(counted)


def small_attention():
    builder = LayerBuilder("small", {"heads": 2, "head_dim": 4, "key_seq": DerivedSize(("seq",))})
    x = builder.input("x", ("batch", "seq", "heads", "head_dim"))
    value = builder.use(x, seq="key_seq", head_dim="head_dim")
    attention(builder, "out", (x, builder.use(x, seq="key_seq"), value), Mask(True), scale=0.5)
    return builder


def test_verify_refuses_broken_graphs():
    builder = small_attention()
    builder.tensor("never_written", ("batch",))
    with pytest.raises(GraphError, match="never_written"):
        builder.build("out")


def test_verify_refuses_reading_before_writing():
    builder = LayerBuilder("wrong", {"hidden": 4})
    builder.tensor("later", ("batch", "hidden"))
    builder.elementwise("early", "gelu", "later")
    with pytest.raises(GraphError, match="before it is written"):
        builder.build("early")


def test_verify_refuses_a_rename_to_another_size():
    builder = LayerBuilder("wrong", {"a": 4, "b": 5, "c": 3})
    x = builder.input("x", ("batch", "a"))
    w = builder.weight("w", ("b", "c"))
    builder.contraction("y", builder.use(x, a="b"), w, ("batch", "c"))
    with pytest.raises(GraphError, match="of another size"):
        builder.build("y")


def test_verify_refuses_a_broadcasting_contraction():
    builder = LayerBuilder("wrong", {"a": 4, "b": 5})
    x = builder.input("x", ("batch", "a"))
    w = builder.weight("w", ("a",))
    builder.contraction("y", x, w, ("batch", "b"))
    with pytest.raises(GraphError, match="broadcasts"):
        builder.build("y")


def test_every_operator_names_its_saved_tensors_among_its_own():
    graph, _ = operators("deepseek-v3", "sparse")
    verify(graph)
    assert {t.role for t in graph.saved()} <= {Role.ACTIVATION, Role.STATISTIC, Role.INDEX, Role.MASK}
    assert {o.kind for o in graph.operators} >= {Kind.CONTRACTION, Kind.ATTENTION, Kind.ROUTING, Kind.DISPATCH}
