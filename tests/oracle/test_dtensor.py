"""Derived collectives equal PyTorch's in kind, count, bytes and group: DTensor and FSDP2.

A process group that only pretends stands for eight chips, so that no GPU is needed; a dispatch mode reads the bytes off
the collectives' own tensors. Forward, backward and the completion of partial gradients are compared apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch_layouts
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch_layouts import BATCH, SEQ, Block, Embedding, Head, Sent, Traffic, record, stream_input

from dovetail.documents import validate
from dovetail.graph import HALF_PRECISION, LayerGraph, Role
from dovetail.layout import CollectivePhase, Mesh, Strategy, degree, place_layer
from dovetail.models import Model, model_graph

pytestmark = pytest.mark.torch

CHIPS = 8
TENSOR, DATA = Mesh(tensor=("t",)), Mesh(data=("d",))


@pytest.fixture(scope="module", autouse=True)
def _process_group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=CHIPS, store=FakeStore())
    yield
    dist.destroy_process_group()


def torch_mesh(**axes: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def layers(*, bias: bool = False, fused: bool = False) -> Mapping[str, LayerGraph]:
    """The same block, embedding and head as this package builds them."""
    mixer = {
        "kind": "attention", "heads": torch_layouts.KV_HEADS * torch_layouts.GROUP,
        "kv_heads": torch_layouts.KV_HEADS, "head_dim": torch_layouts.HEAD_DIM, "rotary": False,
        "causal": False, "qkv_bias": bias, "output_bias": bias,
    }  # fmt: skip
    block = {"mixer": mixer, "feed_forward": {"kind": "dense", "size": torch_layouts.FFN, "bias": bias}}
    document = {
        "name": "one-block", "hidden": torch_layouts.HIDDEN, "vocab": torch_layouts.VOCAB,
        "blocks": {"block": block}, "layers": [{"blocks": ["block"]}],
    }  # fmt: skip
    return model_graph(validate(Model, document, "one-block"), fused_attention=fused).layers


def ours(
    graph: LayerGraph, strategy: Strategy, axis_sizes: Mapping[str, int], batch: int = BATCH
) -> dict[CollectivePhase, Counter[Sent]]:
    """Derived collectives by phase; a loss's statistics apart, since PyTorch exchanges them out of sight."""
    sizes = graph.resolve(batch=batch, seq=SEQ)
    found: dict[CollectivePhase, Counter[Sent]] = {phase: Counter() for phase in CollectivePhase}
    for c in place_layer(graph, strategy).collectives:
        if c.tensor.role is not Role.STATISTIC:
            size, chips = c.bytes(sizes, axis_sizes, HALF_PRECISION), degree(c.axes, axis_sizes)
            assert isinstance(size, int)
            assert isinstance(chips, int)
            found[c.phase][str(c.kind), size, chips] += 1
    return found


def assert_equal(theirs: Traffic, derived: Mapping[CollectivePhase, Counter[Sent]]) -> None:
    assert theirs.forward == derived[CollectivePhase.FORWARD]
    assert theirs.backward == derived[CollectivePhase.BACKWARD]
    assert theirs.gradients == derived[CollectivePhase.STEP]


def summed(sent: Counter[Sent]) -> dict[tuple[str, int], int]:
    """Bytes by kind and group: what is sent weight by weight, as one bucket."""
    total: Counter[tuple[str, int]] = Counter()
    for (kind, size, chips), count in sent.items():
        total[kind, chips] += size * count
    return dict(total)


def only(sent: Counter[Sent], chips: int) -> Counter[Sent]:
    return Counter({key: n for key, n in sent.items() if key[2] == chips})


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("local", [True, False], ids=["local attention", "attention of DTensors"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "tensor and sequence"])
@pytest.mark.parametrize("chips", [2, 8])
def test_tensor_parallel(chips: int, sequence: bool, local: bool, bias: bool) -> None:
    mesh = torch_mesh(rest=CHIPS // chips, tensor=chips)["tensor"]
    block = Block(bias=bias).to(torch.bfloat16)
    torch_layouts.tensor_parallel(block, mesh, sequence=sequence, local=local)
    x = stream_input(mesh if sequence else None)
    theirs = record(lambda: block(x), block.parameters())
    strategy = Strategy(TENSOR, rule="dtensor", sequence_parallel=sequence)
    for fused in (True, False):
        assert_equal(theirs, ours(layers(bias=bias, fused=fused)["block"], strategy, {"t": chips}))


def test_megatron_gathers_again_what_dtensor_keeps() -> None:
    graph, chips = layers()["block"], {"t": CHIPS}
    dtensor = ours(graph, Strategy(TENSOR, rule="dtensor", sequence_parallel=True), chips)
    megatron = ours(graph, Strategy(TENSOR, rule="megatron", sequence_parallel=True), chips)
    stream = 2 * BATCH * SEQ * torch_layouts.HIDDEN
    assert megatron[CollectivePhase.BACKWARD] - dtensor[CollectivePhase.BACKWARD] == Counter(
        {("all_gather", stream, CHIPS): 2}
    )
    assert dtensor[CollectivePhase.BACKWARD] - megatron[CollectivePhase.BACKWARD] == Counter()


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "tensor and sequence"])
def test_embedding(sequence: bool) -> None:
    mesh = torch_mesh(tensor=CHIPS)
    stream = Shard(1) if sequence else Replicate()
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    module = parallelize_module(Embedding().to(torch.bfloat16), mesh, {"table": style})
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    theirs = record(lambda: module(tokens), module.parameters())
    strategy = Strategy(TENSOR, rule="dtensor", sequence_parallel=sequence)
    assert_equal(theirs, ours(layers()["embedding"], strategy, {"t": CHIPS}))


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "tensor and sequence"])
def test_head(sequence: bool) -> None:
    mesh = torch_mesh(tensor=CHIPS)
    stream = Shard(1) if sequence else Replicate()
    logits = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)
    styles: dict[str, ParallelStyle] = {"logits": logits}
    if sequence:
        styles["norm"] = SequenceParallel()
    module = parallelize_module(Head().to(torch.bfloat16), mesh, styles)
    x, labels = stream_input(mesh if sequence else None), torch.zeros(BATCH * SEQ, dtype=torch.int64)
    with loss_parallel():
        theirs = record(
            lambda: nn.functional.cross_entropy(module(x).float().flatten(0, 1), labels), module.parameters()
        )
    strategy = Strategy(TENSOR, rule="dtensor", sequence_parallel=sequence)
    assert_equal(theirs, ours(layers()["head"], strategy, {"t": CHIPS}))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_data_parallel(bias: bool) -> None:
    mesh = torch_mesh(data=CHIPS)
    block = distribute_module(Block(bias=bias).to(torch.bfloat16), mesh)
    x = DTensor.from_local(stream_input().detach(), mesh, [Shard(0)]).requires_grad_()
    theirs = record(lambda: block(x), block.parameters())
    derived = ours(layers(bias=bias)["block"], Strategy(DATA, rule="dtensor"), {"d": CHIPS}, BATCH * CHIPS)
    assert_equal(theirs, derived)
    assert len(list(block.parameters())) == derived[CollectivePhase.STEP].total()


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("kept", [False, True], ids=["resharded", "kept"])
def test_fully_sharded(kept: bool, bias: bool) -> None:
    """One unit per block: our collectives weight by weight are, summed, FSDP2's of the unit."""
    mesh, count = torch_mesh(data=CHIPS), 2
    module = fully_sharded(*(Block(bias=bias) for _ in range(count)), mesh=mesh, kept=kept)
    x = stream_input()
    theirs = record(lambda: module(x), module.parameters())
    strategy = Strategy(Mesh(data=("d",), zero=("d",)), zero_stage=3, keep_gathered=kept)
    derived = ours(layers(bias=bias)["block"], strategy, {"d": CHIPS})
    assert theirs.forward.total() == count
    assert theirs.backward.total() == count if kept else 2 * count
    assert summed(theirs.forward) == times(summed(derived[CollectivePhase.FORWARD]), count)
    assert summed(theirs.backward) == times(summed(derived[CollectivePhase.BACKWARD]), count)
    assert theirs.gradients == derived[CollectivePhase.STEP] == Counter()


def test_hybrid_sharded() -> None:
    """Weights sharded over 4 of 8 chips: gradients are scattered inside, what is left is reduced across."""
    module = fully_sharded(Block(), mesh=torch_mesh(across=2, inside=4), kept=False)
    x = stream_input()
    theirs = record(lambda: module(x), module.parameters())
    strategy = Strategy(Mesh(data=("inside", "across"), zero=("inside",)), zero_stage=3)
    derived = ours(layers()["block"], strategy, {"inside": 4, "across": 2})
    assert summed(theirs.forward) == summed(derived[CollectivePhase.FORWARD])
    assert summed(theirs.backward) == summed(derived[CollectivePhase.BACKWARD])
    assert {kind for kind, *_ in theirs.backward} == {"all_gather", "reduce_scatter", "all_reduce"}


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "tensor and sequence"])
def test_fully_sharded_and_tensor_parallel(sequence: bool) -> None:
    """Two axes at once: activations move along the tensor axis, shards of shards of weights along the data axis."""
    mesh, chips = torch_mesh(data=2, tensor=4), {"d": 2, "t": 4}
    block = Block().to(torch.bfloat16)
    torch_layouts.tensor_parallel(block, mesh["tensor"], sequence=sequence)
    module = fully_sharded(block, mesh=mesh["data"], kept=False)
    x = stream_input(mesh["tensor"] if sequence else None)
    theirs = record(lambda: module(x), module.parameters())
    strategy = Strategy(
        Mesh(data=("d",), tensor=("t",), zero=("d",)), rule="dtensor", sequence_parallel=sequence, zero_stage=3
    )
    derived = ours(layers()["block"], strategy, chips, BATCH * chips["d"])
    for phase, sent in ((CollectivePhase.FORWARD, theirs.forward), (CollectivePhase.BACKWARD, theirs.backward)):
        assert summed(only(sent, 2)) == summed(only(derived[phase], 2))
        assert only(sent, 4) - NORMS == only(derived[phase], 4) - OUR_NORMS
    assert theirs.gradients == derived[CollectivePhase.STEP] == Counter()
    # the one difference: partial gradients of norms; PyTorch reduces them whole, then scatters, we the other way round
    if sequence:
        assert theirs.backward & NORMS == NORMS
        assert derived[CollectivePhase.BACKWARD] & OUR_NORMS == OUR_NORMS


#: Gradients of the two norms' weights along the tensor axis: whole, and half of them.
NORMS = Counter({("all_reduce", 2 * torch_layouts.HIDDEN, 4): 2})
OUR_NORMS = Counter({("all_reduce", torch_layouts.HIDDEN, 4): 2})


def fully_sharded(*blocks: nn.Module, mesh: DeviceMesh, kept: bool) -> nn.Module:
    """A unit per block; the root holds no weight of its own."""
    module = nn.Sequential(*blocks).to(torch.bfloat16)
    for block in module:
        fully_shard(block, mesh=mesh, reshard_after_forward=not kept)
    fully_shard(module, mesh=mesh, reshard_after_forward=not kept)
    return module


def times(sums: Mapping[tuple[str, int], int], count: int) -> dict[tuple[str, int], int]:
    return {key: size * count for key, size in sums.items()}
