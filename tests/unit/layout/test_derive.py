"""Rules of the derivation that no published table shows."""

import pytest
from placed_layers import Traffic, layers, llama, mixture

from dovetail.graph import Element, LayerBuilder
from dovetail.layout import PARTIAL, CollectiveKind, CollectivePhase, Layout, Mesh, Strategy, place_layer
from dovetail.models.assembly import STREAM, normalise, project

B, S, H = 4, 96, 64
STREAM_BYTES = 2 * B * S * H
TENSOR = Mesh(tensor=("t",))


def traffic(graph, strategy, **axis_sizes):
    return Traffic(graph, strategy, axis_sizes, batch=B, seq=S)


def test_a_tensor_is_converted_from_where_it_is_cheapest():
    """A sum already scattered for one reader is gathered for the next, not reduced a second time."""
    builder = LayerBuilder("two readers", {"hidden": H, "ffn": 3 * H})
    wide = project(builder, "up", builder.input("x", STREAM), ("ffn",))
    narrow = project(builder, "down", wide, ("hidden",), over=("ffn",))
    normed = normalise(builder, "norm", narrow, "rms")
    again = project(builder, "again", narrow, ("ffn",))
    graph = builder.build(normed, again)
    placed = place_layer(graph, Strategy(TENSOR, sequence_parallel=True))
    kinds = [c.kind for c in placed.collectives if c.tensor.name == "down" and c.phase is CollectivePhase.FORWARD]
    assert kinds == [CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER]


@pytest.mark.parametrize("rule", ["megatron", "dtensor"])
def test_tensors_are_stated_as_written_not_as_kept(rule):
    placed = place_layer(llama()["block"], Strategy(TENSOR, rule=rule, sequence_parallel=True))
    assert placed.written["mixer_norm"] == Layout.of({"t": "seq"})
    kept = {t.name: layout for t, layout in placed.saved}
    assert kept["mixer_norm"] == (Layout.of({"t": "seq"}) if rule == "megatron" else Layout())


def test_replicas_send_each_other_nothing_of_what_is_made_of_weights():
    """A weight that is a product of two: its gradient stays a sum over replicas down to these, as data parallel
    frameworks leave it, and so does that of what a layer is handed that has no sequences."""
    builder = LayerBuilder("product of weights", {"hidden": H, "ffn": 3 * H, "rank": 8})
    stream, scales = builder.input("x", STREAM), builder.input("scales", ("hidden",))
    pair = (builder.weight("u", ("ffn", "rank")), builder.weight("v", ("rank", "hidden")))
    made = builder.contraction("made", *pair, ("ffn", "hidden"))
    wide = builder.contraction("wide", stream, made, (*STREAM[:2], "ffn"))
    doubled = builder.elementwise("doubled", "add", scales, scales)
    scaled = builder.elementwise("scaled", "multiply", stream, doubled)
    graph = builder.build(wide, scaled, scales)
    for zero in range(4):
        axes = Mesh(data=("d",), tensor=("t",), context=("c",), zero=("d",) if zero else ())
        placed = place_layer(graph, Strategy(axes, zero_stage=zero))
        of_state = {c for c in placed.collectives if c.user in ("gradient", "updated") or c.tensor.name in ("u", "v")}
        assert not [c for c in placed.collectives if "d" in c.axes and c not in of_state]
        gradients = {w.tensor.name: w.gradient[1] for w in placed.weights if w.gradient is not None}
        assert all(gradients[name]["d"] == gradients[name]["c"] == PARTIAL for name in ("u", "v"))


def test_statistics_are_cut_as_the_tokens_are():
    mesh = Mesh(data=("d",), tensor=("t",), context=("c",))
    found = traffic(llama()["head"], Strategy(mesh), d=2, t=4, c=3)
    assert found.forward == [("all_reduce", ("t",), 3 * 4 * B * S // (2 * 3))]


def test_a_norm_over_cut_heads_exchanges_its_statistics():
    """Queries and keys normalised over all heads: a sum of squares per token each, in forward and in backward."""
    mixer = {"kind": "attention", "heads": 8, "kv_heads": 4, "head_dim": 8, "qk_norm": "all"}
    found = traffic(llama(mixer=mixer)["block"], Strategy(TENSOR), t=4)
    statistic, stream = ("all_reduce", ("t",), 4 * B * S), ("all_reduce", ("t",), STREAM_BYTES)
    assert found.forward == found.backward == sorted([statistic, statistic, stream, stream])


def test_a_state_is_handed_on_once():
    """Linear attention along a cut sequence: each chip hands its state to the next, in one hop."""
    mixer = {"kind": "lightning", "heads": 8, "head_dim": 8}
    found = traffic(llama(mixer=mixer)["block"], Strategy(Mesh(context=("c",))), c=4)
    assert found.forward == [("permute", ("c",), 4 * B * 8 * 8 * 8)]
    # backward hands the state on again, and its gradient back
    assert found.backward == [("permute", ("c",), 2 * 4 * B * 8 * 8 * 8)]
    assert not any(c.streamed for c in found.placed.collectives)


def test_latents_are_gathered_instead_of_heads():
    """Latent attention with sequence parallelism: what is narrow is computed on shards, then gathered."""
    mixer = {
        "kind": "latent_attention", "heads": 8, "query_rank": 24, "kv_rank": 16,
        "nope_dim": 8, "rope_dim": 4, "value_dim": 8,
    }  # fmt: skip
    found = traffic(llama(mixer=mixer)["block"], Strategy(TENSOR, sequence_parallel=True), t=4)
    gathered = sorted(size for kind, _, size in found.forward if kind == "all_gather")
    assert gathered == [2 * B * S * width for width in (4, 16, 24, H)]


def test_keys_are_chosen_for_a_chips_own_queries():
    """Sparse attention under Ulysses: the indexer has no heads to cut, so it keeps its part of the sequence."""
    mixer = {
        "kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 8,
        "indexer": {"heads": 2, "head_dim": 8, "top_k": 16},
    }  # fmt: skip
    placed = place_layer(llama(mixer=mixer)["block"], Strategy(Mesh(context=("c",)), context="ulysses"))
    cuts = {p.operator.name: p.shards for p in placed.forward}
    assert (cuts["index"], cuts["attention"]) == ({"c": "seq"}, {"c": "kv_heads"})


def test_shared_experts_are_a_dense_feed_forward():
    mesh = Mesh(data=("d",), tensor=("t",), expert=("d", "t"))
    strategy = Strategy(mesh, sequence_parallel=True)
    alone, shared = (traffic(mixture(**o)["block"], strategy, d=2, t=4) for o in ({}, {"shared_size": 48}))
    stream = STREAM_BYTES // 2
    assert shared.forward == sorted(
        [*alone.forward, ("all_gather", ("t",), stream), ("reduce_scatter", ("t",), stream)]
    )


def test_a_sum_and_an_exchange_at_once():
    """Experts cut along `t`, tokens replicated along it: what goes back is scattered first, gathered afterwards."""
    mesh = Mesh(data=("d",), tensor=("t",), expert=("d",), expert_tensor=("t",))
    placed = place_layer(mixture()["block"], Strategy(mesh))
    back = [c for c in placed.collectives if c.tensor.name == "expert.down" and c.phase is CollectivePhase.FORWARD]
    assert [(c.kind, c.axes, c.sharded_by) for c in back] == [
        (CollectiveKind.REDUCE_SCATTER, ("t",), ("d",)),
        (CollectiveKind.ALL_TO_ALL, ("d",), ("d", "t")),
        (CollectiveKind.ALL_GATHER, ("t",), ("d",)),
    ]


def test_statistics_are_float32():
    placed = place_layer(layers({"feed_forward": {"kind": "dense", "size": 96}}, H)["head"], Strategy(TENSOR))
    (exchange,) = [c for c in placed.collectives if c.values > 1]
    assert (exchange.tensor.element, exchange.values) == (Element.FLOAT32, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": ("a",), "tensor": ("a",)},
        {"data": ("a",), "expert": ("b",)},
        {"data": ("a",), "expert": ("a",), "expert_tensor": ("a",)},
        {"tensor": ("a",), "zero": ("a",)},
        {"data": ("a",), "group": ("a",)},
    ],
)
def test_a_mesh_is_consistent(wrong):
    with pytest.raises(AssertionError):
        Mesh(**wrong)


def test_versions_of_a_tensor_say_how_they_are_made_and_who_reads_them():
    """A layer that is called like one of its operators: handing a result on is no reading of it."""
    builder = LayerBuilder("down", {"hidden": H, "ffn": 3 * H})
    normed = normalise(builder, "norm", builder.input("x", STREAM), "rms")
    wide = project(builder, "up", normed, ("ffn",))
    graph = builder.build(project(builder, "down", wide, ("hidden",), over=("ffn",)))
    found = {
        (v.tensor.name, v.layout): v for v in place_layer(graph, Strategy(TENSOR, sequence_parallel=True)).versions
    }
    cut, partial, whole = Layout.of({"t": "seq"}), Layout.of({"t": PARTIAL}), Layout()
    assert [c.kind for c in found["norm", whole].collectives] == [CollectiveKind.ALL_GATHER]
    assert (found["norm", whole].made_of, found["norm", whole].gathered) == (cut, True)
    assert (found["norm", whole].readers, found["norm", cut].readers) == (("up",), ())
    assert (found["norm", whole].saved, found["norm", cut].saved) == (False, True)
    assert found["down", partial].made_of is None
    assert [c.kind for c in found["down", cut].collectives] == [CollectiveKind.REDUCE_SCATTER]
    assert (found["down", cut].gathered, found["down", cut].readers) == (False, ())
    assert "norm.weight" not in {name for name, _ in found}
