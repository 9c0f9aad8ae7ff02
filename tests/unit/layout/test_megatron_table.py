"""The `megatron` rule sends what the papers say, in kind, count and bytes.

Sizes are written as the papers write them: b sequences of s tokens on a chip's data-parallel share, h wide, two bytes
per number. Gathers state their result and scatters their input, as NCCL does.
"""

from fractions import Fraction

import pytest
from placed_layers import Traffic, exact, gpt, llama, mixture

from dovetail.graph import HALF_PRECISION, Role, parameters
from dovetail.graph.size import total
from dovetail.layout import CollectivePhase, Layout, Mesh, Strategy, local_bytes

B, S, H = 2, 96, 64
STREAM = 2 * B * S * H
TENSOR = Mesh(tensor=("t",))
BLOCKS = {
    "gpt": lambda: gpt(H, 8)["block"],
    "gpt, fused attention": lambda: gpt(H, 8, fused=True)["block"],
    "llama": lambda: llama()["block"],
}


def many(*parts):
    """The expected list, in the order `Traffic` has: (count, kind, axes, bytes) each."""
    expected = [(kind, axes, size) for count, kind, axes, size in parts for _ in range(count)]
    return sorted(expected)


def traffic(graph, strategy, axis_sizes, *, batch=B, seq=S):
    return Traffic(graph, strategy, axis_sizes, batch=batch, seq=seq)


# Tensor parallelism: Shoeybi et al. 2019, section 3; with sequence parallelism Korthikanti et al. 2022, section 4.2.2


@pytest.mark.parametrize("t", [2, 4, 8])
@pytest.mark.parametrize("block", BLOCKS)
def test_tensor_parallel_block(block, t):
    """g and f: an all-reduce per half in forward and one in backward."""
    found = traffic(BLOCKS[block](), Strategy(TENSOR), {"t": t})
    assert found.forward == many((2, "all_reduce", ("t",), STREAM))
    assert found.backward == many((2, "all_reduce", ("t",), STREAM))
    assert found.step == []


@pytest.mark.parametrize("t", [2, 4, 8])
@pytest.mark.parametrize("block", BLOCKS)
def test_sequence_parallel_block(block, t):
    """g and g-bar: a gather and a scatter per half; backward gathers each half's input again for its weights."""
    found = traffic(BLOCKS[block](), Strategy(TENSOR, sequence_parallel=True), {"t": t})
    gather, scatter = ("all_gather", ("t",), STREAM), ("reduce_scatter", ("t",), STREAM)
    assert found.forward == many((2, *gather), (2, *scatter))
    assert found.backward == many((4, *gather), (2, *scatter))
    # weights of norms and biases after a scatter see a part of the tokens: their gradients are summed at the end
    small = 6 if block.startswith("gpt") else 2
    assert found.step == many((small, "all_reduce", ("t",), 2 * H))


def test_embedding_and_head_are_cut_along_the_vocabulary():
    """Shoeybi et al. 2019, section 3: partial embeddings are reduced; the loss is computed on shards of the logits."""
    layers, t = llama(), {"t": 4}
    # maximum, target's logit and sum of exponentials per token, in float32
    statistics = ("all_reduce", ("t",), 3 * 4 * B * S)
    plain, sequence = Strategy(TENSOR), Strategy(TENSOR, sequence_parallel=True)
    embedding = traffic(layers["embedding"], plain, t)
    assert (embedding.forward, embedding.backward) == (many((1, "all_reduce", ("t",), STREAM)), [])
    head = traffic(layers["head"], plain, t)
    assert head.forward == [statistics]
    assert head.backward == many((1, "all_reduce", ("t",), STREAM))
    embedding = traffic(layers["embedding"], sequence, t)
    assert embedding.forward == many((1, "reduce_scatter", ("t",), STREAM))
    assert embedding.backward == many((1, "all_gather", ("t",), STREAM))
    head = traffic(layers["head"], sequence, t)
    assert head.forward == many((1, "all_gather", ("t",), STREAM), (1, *statistics))
    assert head.backward == many((1, "all_gather", ("t",), STREAM), (1, "reduce_scatter", ("t",), STREAM))


def test_parallel_halves_are_reduced_once():
    """Partial sums of both halves are added first: one all-reduce per layer each way (GPT-J's parallel block)."""
    found = traffic(llama(parallel=True, shared_norm=True)["block"], Strategy(TENSOR), {"t": 4})
    assert found.forward == found.backward == many((1, "all_reduce", ("t",), STREAM))


def test_more_chips_than_key_heads():
    """Key heads along `t`, query groups along `g`: keys and their weights are the same along `g`."""
    mesh = Mesh(tensor=("t", "g"), group=("g",))
    for sequence in (False, True):
        found = traffic(llama()["block"], Strategy(mesh, sequence_parallel=sequence), {"t": 4, "g": 2})
        assert {axes for _, axes, _ in (*found.forward, *found.backward)} == {("g", "t")}
        assert {size for *_, size in (*found.forward, *found.backward)} == {STREAM}
        assert len(found.forward) == (4 if sequence else 2)
        assert len(found.backward) == (6 if sequence else 2)
        # each copy of a key head sums the gradients of its own queries
        keys = 2 * H * 4 * 8 // 4
        norms = [("all_reduce", ("g", "t"), 2 * H)] * 2 if sequence else []
        assert found.step == sorted([("all_reduce", ("g",), keys)] * 2 + norms)
        shares = {w.tensor.name: w.use for w in found.placed.weights}
        assert shares["key.weight"] == shares["value.weight"] == Layout.of({"t": "kv_heads"})
        assert shares["query.weight"] == Layout.of({"t": "kv_heads", "g": "group"})


# Context parallelism


CONTEXT = Mesh(context=("c",))


@pytest.mark.parametrize("c", [2, 8])
@pytest.mark.parametrize("kv_heads", [2, 8])
def test_context_parallel_gathers_keys_and_values(kv_heads, c):
    """Llama 3 report, section 3.3.2: K and V are gathered, small where heads share them; gradients are scattered."""
    found = traffic(llama(kv_heads=kv_heads)["block"], Strategy(CONTEXT), {"c": c})
    keys = 2 * B * S * kv_heads * 8
    assert found.forward == many((2, "all_gather", ("c",), keys))
    assert found.backward == many((2, "all_gather", ("c",), keys), (2, "reduce_scatter", ("c",), keys))


@pytest.mark.parametrize("c", [2, 8])
def test_ring_attention_passes_blocks_of_keys_and_values(c):
    """Liu et al. 2023, section 3: each step hands a block of K and one of V on; backward their gradients too."""
    found = traffic(llama()["block"], Strategy(CONTEXT, context="ring"), {"c": c})
    block = Fraction(2 * B * S * 4 * 8, c)
    assert found.forward == many((2, "permute", ("c",), block * c))
    assert found.backward == many((4, "permute", ("c",), block * c))
    around = [x for x in found.placed.collectives if x.phase is not CollectivePhase.STEP]
    assert all(x.streamed for x in around)


@pytest.mark.parametrize("c", [2, 8])
def test_ulysses_exchanges_sequence_for_heads(c):
    """Jacobs et al. 2023, section 3.2: Q, K, V and the output, N·h/P each per link; the same again in backward."""
    found = traffic(llama(kv_heads=8)["block"], Strategy(CONTEXT, context="ulysses"), {"c": c})
    assert found.forward == many((4, "all_to_all", ("c",), STREAM // c))
    assert found.backward == many((4, "all_to_all", ("c",), STREAM // c))


def test_ulysses_beyond_the_key_heads_gathers_keys():
    """Query groups along `g`: queries are exchanged, the few keys are needed by every chip."""
    mesh = Mesh(context=("g",), group=("g",))
    found = traffic(llama()["block"], Strategy(mesh, context="ulysses"), {"g": 2})
    keys = 2 * B * S * 4 * 8
    assert found.forward == many((2, "all_to_all", ("g",), STREAM // 2), (2, "all_gather", ("g",), keys))


def test_axes_compose():
    """Every axis divides what another one sends."""
    mesh = Mesh(data=("d",), tensor=("t",), context=("c",))
    found = traffic(llama()["block"], Strategy(mesh, sequence_parallel=True), {"d": 2, "t": 4, "c": 3})
    stream, keys = STREAM // (2 * 3), 2 * B * S * 4 * 8 // (2 * 4)
    gather, scatter = ("all_gather", ("t",), stream), ("reduce_scatter", ("t",), stream)
    assert found.forward == many((2, *gather), (2, *scatter), (2, "all_gather", ("c",), keys))
    again = [(2, "all_gather", ("c",), keys), (2, "reduce_scatter", ("c",), keys)]
    assert found.backward == many((4, *gather), (2, *scatter), *again)
    # gradients are summed along every axis that cuts tokens, weights being cut along `t`
    matrices = 2 * (2 * H * H + 2 * H * 32 + 3 * H * 3 * H) // 4
    assert sum(size for _, axes, size in found.step if axes == ("c", "d")) == matrices
    assert [size for _, axes, size in found.step if axes == ("c", "d", "t")] == [2 * H] * 2


# Mixtures: tokens go to top_k experts and come back, in forward and in backward (Lepikhin et al. 2020)


K = 4


def test_expert_parallel_sends_tokens_there_and_back():
    found = traffic(mixture(top_k=K)["block"], Strategy(Mesh(data=("d",), expert=("d",))), {"d": 8}, batch=8 * B)
    tokens = B * S
    assert found.forward == found.backward == many((2, "all_to_all", ("d",), tokens * K * H * 2))
    # experts have their weights to themselves: nothing to reduce
    assert not [c for c in found.placed.collectives if "expert" in c.tensor.name and c.phase is CollectivePhase.STEP]


def test_expert_groups_smaller_than_the_data_group():
    mesh = Mesh(data=("e", "d"), expert=("e",))
    found = traffic(mixture(top_k=K)["block"], Strategy(mesh), {"e": 4, "d": 2}, batch=8 * B)
    assert found.forward == many((2, "all_to_all", ("e",), B * S * K * H * 2))
    experts = [
        c for c in found.placed.collectives if c.tensor.name.startswith("expert") and c.phase is CollectivePhase.STEP
    ]
    assert [c.axes for c in experts] == [("d",)] * 3
    assert sum(found.bytes(c) for c in experts) == 2 * 3 * 16 * H * 24 // 4


def test_experts_cut_along_tensor_axes():
    """Megatron's expert tensor parallelism: exchanged shards are gathered for an expert's columns, then scattered."""
    mesh = Mesh(data=("d",), tensor=("t",), expert=("d",), expert_tensor=("t",))
    found = traffic(mixture(top_k=K)["block"], Strategy(mesh, sequence_parallel=True), {"d": 4, "t": 2}, batch=4 * B)
    exchanged = ("all_to_all", ("d",), B * S * K * H * 2 // 2)
    gather, scatter = ("all_gather", ("t",), B * S * K * H * 2), ("reduce_scatter", ("t",), B * S * K * H * 2)
    attention = [(1, "all_gather", ("t",), STREAM), (1, "reduce_scatter", ("t",), STREAM)]
    assert found.forward == many((2, *exchanged), (1, *gather), (1, *scatter), *attention)
    again = [(2, "all_gather", ("t",), STREAM), (1, "reduce_scatter", ("t",), STREAM)]
    assert found.backward == many((2, *exchanged), (1, *gather), (1, *scatter), *again)


def test_a_bias_of_an_expert_is_added_to_shards():
    """GPT-OSS: after the scatter, as a dense block adds it; never to a sum not yet complete."""
    mesh = Mesh(data=("d",), tensor=("t",), expert=("d",), expert_tensor=("t",))
    axes, strategy = {"d": 4, "t": 2}, Strategy(mesh, sequence_parallel=True)
    plain, biased = (traffic(mixture(bias=b)["block"], strategy, axes, batch=4 * B) for b in (False, True))
    assert plain.forward == biased.forward
    assert plain.backward == biased.backward


def test_experts_folded_over_tensor_axes():
    """Experts spread over data and tensor axes: each chip has its tokens, so one exchange over both is all."""
    mesh = Mesh(data=("d",), tensor=("t",), expert=("d", "t"))
    found = traffic(mixture(top_k=K)["block"], Strategy(mesh, sequence_parallel=True), {"d": 4, "t": 2}, batch=4 * B)
    attention = [(1, "all_gather", ("t",), STREAM), (1, "reduce_scatter", ("t",), STREAM)]
    assert found.forward == many((2, "all_to_all", ("d", "t"), B * S * K * H * 2 // 2), *attention)
    shares = {w.tensor.name: w.use for w in found.placed.weights}
    assert shares["expert.up.weight"] == Layout.of({"d": "experts", "t": "experts"})


def test_experts_folded_where_tokens_are_replicated():
    """Without sequence parallelism a tensor axis picks the tokens of its own experts, and sums are reduced."""
    mesh = Mesh(data=("d",), tensor=("t",), expert=("d", "t"))
    found = traffic(mixture(top_k=K)["block"], Strategy(mesh), {"d": 4, "t": 2}, batch=4 * B)
    exchanged = ("all_to_all", ("d",), B * S * K * H * 2 // 2)
    assert found.forward == many((2, *exchanged), (2, "all_reduce", ("t",), STREAM))
    # backward also sums the gradients of the gate values
    gates = ("all_reduce", ("t",), 2 * B * S * K)
    assert found.backward == many((2, *exchanged), (2, "all_reduce", ("t",), STREAM), (1, *gates))


# ZeRO: Rajbhandari et al. 2020, section 7: volumes in units of the parameters Ψ


def volume(found):
    """Numbers sent per chip in one step of one microbatch, (n−1)/n taken for 1; an all-reduce is two passes."""
    sent = [(found.bytes(c), 2 if c.kind == "all_reduce" else 1) for c in found.placed.collectives]
    return sum(size * passes for size, passes in sent) / 2


@pytest.mark.parametrize(
    ("stage", "kept", "expected"), [(0, False, 2), (1, False, 2), (2, False, 2), (3, False, 3), (3, True, 2)]
)
@pytest.mark.parametrize("block", BLOCKS)
def test_zero_volumes(block, stage, kept, expected):
    graph = BLOCKS[block]()
    psi = parameters(graph)
    strategy = Strategy(Mesh(data=("d",), zero=("d",)), zero_stage=stage, keep_gathered=kept)
    found = traffic(graph, strategy, {"d": 8})
    assert volume(found) == expected * psi
    # sharded gradients cannot wait for the last microbatch
    reductions = {c.phase for c in found.placed.collectives if c.tensor.role is Role.WEIGHT_GRADIENT}
    assert reductions == {CollectivePhase.BACKWARD if stage >= 2 else CollectivePhase.STEP}
    share = [local_bytes(w.tensor, w.home, found.sizes, {"d": 8}, HALF_PRECISION) for w in found.placed.weights]
    assert exact(total(share)) == (Fraction(2 * psi, 8) if stage else 2 * psi)


def test_hybrid_sharding():
    """Shards over `z` of z·r chips: what is scattered inside is reduced across, 1/z of it."""
    graph = llama()["block"]
    psi = parameters(graph)
    strategy = Strategy(Mesh(data=("z", "r"), zero=("z",)), zero_stage=3)
    found = traffic(graph, strategy, {"z": 8, "r": 4})
    by_kind = {}
    for c in found.placed.collectives:
        by_kind.setdefault((str(c.phase), str(c.kind), c.axes), []).append(found.bytes(c))
    assert {key: sum(sizes) for key, sizes in by_kind.items()} == {
        ("forward", "all_gather", ("z",)): 2 * psi,
        ("backward", "all_gather", ("z",)): 2 * psi,
        ("backward", "reduce_scatter", ("z",)): 2 * psi,
        ("backward", "all_reduce", ("r",)): Fraction(2 * psi, 8),
    }


def test_experts_are_sharded_where_they_are_replicated():
    """ZeRO over all data axes: experts spread along `e` are sharded along `d` alone."""
    mesh = Mesh(data=("e", "d"), expert=("e",), zero=("e", "d"))
    found = traffic(mixture()["block"], Strategy(mesh, zero_stage=3), {"e": 4, "d": 2})
    homes = {w.tensor.name: w.home for w in found.placed.weights}
    assert homes["expert.up.weight"] == Layout.of({"e": "experts", "d": "/"})
    assert homes["router.weight"] == Layout.of({"e": "/", "d": "/"})
    axes = {c.axes for c in found.placed.collectives if c.tensor.name.startswith("expert.up.weight")}
    assert axes == {("d",)}
