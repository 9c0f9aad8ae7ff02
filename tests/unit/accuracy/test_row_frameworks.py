"""Which framework a row names, what its notes switch on and off, and the network they state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_runs import MIXTURE, reason, run

from dovetail import frameworks
from dovetail.accuracy.row_framework import (
    EAGER_LOGITS_BYTES,
    PARALLEL_LOGITS_BYTES,
    framework_name,
    framework_of,
    overlap_fields,
)
from dovetail.accuracy.rows import MeasuredRun
from dovetail.accuracy.table import TableRow
from dovetail.frameworks import Framework
from dovetail.graph import DerivedSize
from dovetail.graph.routing import EXPERT_TOKENS


def row(framework: str, **cells: str) -> TableRow:
    return TableRow(2, {"framework": framework} | cells)


@pytest.mark.parametrize(
    ("framework", "cells", "name"),
    [
        ("Megatron-LM", {"attention": "fused"}, "megatron"),
        ("Megatron-LM", {}, "megatron"),
        ("Megatron-LM (2021)", {"attention": "unfused"}, "megatron-2022"),
        ("Megatron-LM (2022)", {"attention": "Unfused", "zero": "1"}, "megatron-2022"),
        ("Megatron-DeepSpeed", {"attention": "unfused", "zero": "0"}, "megatron-2022"),
        ("Megatron-DeepSpeed", {"attention": "unfused"}, "megatron-2022"),
        ("Megatron-DeepSpeed", {"attention": "unfused", "zero": "1"}, "deepspeed"),
        ("Megatron-DeepSpeed", {"attention": "fused", "zero": "0"}, "deepspeed"),
        ("Megatron-DeepSpeed (Habana)", {"attention": "fused", "zero": "0"}, "megatron"),
        ("DeepSpeed ZeRO-3", {"attention": "unfused", "zero": "3"}, "deepspeed"),
        ("InternEvo", {}, "megatron"),
        ("NeMo 25.04", {}, "megatron"),
        ("Megatron-Bridge / NeMo 26.04", {}, "megatron"),
        ("MegaScale", {}, "megatron"),
        ("torchtitan (FSDP2)", {"notes": "torch.compile; 8 nodes"}, "torchtitan"),
        ("torchtitan (FSDP2)", {"notes": "8 nodes"}, "fsdp"),
        ("torchtitan (FSDP2)", {"notes": "no compile, 8 nodes"}, "fsdp"),
        ("torchtitan (FSDP2)", {"notes": "without compilation"}, "fsdp"),
        ("PyTorch FSDP (fms-fsdp)", {"notes": "SDPA, Torch.Compile"}, "torchtitan"),
        ("PyTorch FSDP (fms-fsdp)", {}, "fsdp"),
        ("llm-foundry (Composer + PyTorch FSDP)", {"notes": "compile"}, "fsdp"),
        ("MaxText", {"attention": "unfused"}, "maxtext"),
        ("NeMo (DGX Cloud benchmarking v25.05)", {}, "megatron"),
        ("PyTorch NVIDIA Release 23.09", {}, "megatron"),
        ("MXNet NVIDIA Release 24.04 or PyTorch NVIDIA Release 24.04", {}, "megatron"),
        ("NVIDIA NGC Pytorch 25.04 HugeCTR Nemo 25.09, DGL 25.03", {}, "megatron"),
        ("PyTorch 2.8.0.dev20251001+rocm7.0.0.git64359f59, ROCm 7.0.0", {}, "megatron"),
        ("NeMo AutoModel", {}, "fsdp"),
        ("NeMo AutoModel", {"notes": "torch.compile"}, "torchtitan"),
        ("ModelLink", {}, "megatron"),
        ("MindSpeed-LLM 2.1", {}, "megatron"),
        ("Primus (Megatron), ROCm 7.1", {}, "megatron"),
        ("Primus", {}, "megatron"),
        ("Primus (torchtitan)", {}, "fsdp"),
        ("NeuronX Distributed", {}, "megatron"),
        ("Galvatron/LAER-MoE", {"notes": "compile"}, "fsdp"),
    ],
)
def test_the_framework_and_version_a_row_tells(framework, cells, name):
    assert framework_name(row(framework, **cells)) == name


@pytest.mark.parametrize("name", frameworks.names())
def test_names_of_the_catalogue_are_taken_as_they_are(name):
    assert framework_name(row(name)) == name
    assert framework_name(row(name.upper())) == name


def test_a_framework_nobody_knows_is_refused(refusal):
    assert "Abacus" in refusal(framework_name, row("Abacus 2"))


def without_launch_files(name: str) -> Framework:
    return replace(frameworks.load(name), launch=None)


def test_nothing_is_changed_that_a_row_does_not_say():
    for name in frameworks.names():
        assert framework_of(name, row(name)) == without_launch_files(name)


def test_recipes_of_nvidia_for_dense_models_overlap_tensor_parallelism():
    for framework in ("NeMo 25.04", "Megatron-Bridge / NeMo 26.04", "PyTorch NVIDIA Release 25.09"):
        dense, mixture = (overlap_fields("megatron", row(framework, tp="2", experts=e)) for e in ("", "64"))
        assert dense == {"overlap_tensor_parallel": True}
        assert mixture == {"overlap_tensor_parallel": False}
        assert overlap_fields("megatron", row(framework, tp="1")) == {}
    assert overlap_fields("megatron", row("Megatron-LM", tp="2")) == {"overlap_tensor_parallel": False}


@pytest.mark.parametrize("notes", ["AsyncTP on", "tp overlap, 8 nodes", "with TP overlap", "use-mc2; 8 nodes"])
def test_notes_switch_the_overlap_of_tensor_parallelism_on(notes):
    for name in ("megatron", "torchtitan", "fsdp"):
        found = overlap_fields(name, row("Megatron-Core MoE", tp="2", ep="8", experts="64", notes=notes))
        assert found.pop("overlap_tensor_parallel") is True
        assert found == ({"overlap_expert_parallel": False} if name == "megatron" else {})


def test_notes_switch_the_overlap_of_experts_on_and_single_copies_off():
    plain, overlapped, dispatched = (
        overlap_fields("megatron", row("Megatron-Core MoE", ep="8", experts="64", notes=notes))
        for notes in ("", "A2A overlap", "dispatcher A2A; NVLink4")
    )
    assert [f["overlap_expert_parallel"] for f in (plain, overlapped, dispatched)] == [False, True, False]
    assert [f.get("dispatcher") for f in (plain, overlapped, dispatched)] == [None, None, "alltoall"]


def test_what_a_framework_always_or_never_overlaps_is_left_to_it():
    for name in ("maxtext", "deepspeed", "ideal"):
        assert overlap_fields(name, row(name)) == {}


def test_pure_precision_reduces_in_bf16():
    plain, pure = (
        framework_of("fsdp", row("fsdp", precision_as_written=written))
        for written in ("bf16 / FSDP mixed_precision=DEFAULT", "bf16 / FSDP mixed_precision=PURE")
    )
    assert plain == without_launch_files("fsdp")
    for precision, state in plain.states:
        assert state.sharded_reduction == 0
        reduced = pure.state_bytes(precision)
        assert reduced.sharded_reduction == 2
        # it is accumulated as before
        assert (reduced.gradients, reduced.weights) == (state.gradients, state.weights)


@pytest.mark.parametrize(
    ("source", "logits"),
    [
        ("torchtitan paper, 2024", (EAGER_LOGITS_BYTES, PARALLEL_LOGITS_BYTES)),
        ("torchtitan benchmarks of 2025", None),
        ("elsewhere, 2024", None),
    ],
)
def test_losses_of_torchtitan_before_2025_ran_operator_by_operator(source, logits):
    for name in ("torchtitan", "fsdp"):
        found, known = framework_of(name, row("torchtitan", source=source)), frameworks.load(name)
        expected = logits or (known.logits_bytes, known.sharded_logits_bytes)
        assert (found.logits_bytes, found.sharded_logits_bytes) == expected
    assert framework_of("maxtext", row("MaxText", source=source)) == without_launch_files("maxtext")


@pytest.mark.parametrize("framework", ["llm-foundry", "Composer FSDP", "metaseq (FairScale FSDP)", "Galvatron"])
def test_trainers_with_fused_kernels_save_no_copies(framework):
    found = framework_of("fsdp", row(framework))
    assert (found.saved_copies, found.logits_bytes, found.sharded_logits_bytes) == ((), 4.0, None)


def test_a_read_run_has_its_framework_as_its_row_tells(tmp_path):
    found = run(tmp_path, framework="NeMo 25.04", attention="fused", precision="bf16").task
    assert (found.framework.name, found.plan.overlap_tensor_parallel) == ("megatron", True)
    cells = MIXTURE | {"framework": "Megatron-Core MoE", "notes": "dispatcher A2A", "ep": "8", "sequence_parallel": "1"}
    assert run(tmp_path, **cells).task.plan.dispatcher == "alltoall"
    assert "Abacus" in reason(tmp_path, framework="Abacus")


@pytest.mark.parametrize(
    ("notes", "column", "bytes_per_s"),
    [
        ("", "3200", 50e9),
        ("torch.compile; 400Gbps/node", "3200", 6.25e9),
        ("inter-node 800 Gbps/node", "", 12.5e9),
        ("800 GBPS/NODE", "1600", 12.5e9),
        ("400 Gbps per link", "3200", 50e9),  # not of a node
    ],
)
def test_what_notes_say_of_the_network_goes_before_the_column(tmp_path, notes, column, bytes_per_s):
    found = run(tmp_path, notes=notes, inter_node_gbps_per_node=column)
    assert found.task.cluster.tiers[1].bytes_per_s == pytest.approx(bytes_per_s)
    assert found.task.cluster.tiers[0].bytes_per_s == pytest.approx(300e9)


def test_an_expert_is_sharded_as_notes_say(tmp_path):
    whole, sharded = (run(tmp_path, **MIXTURE, ep="2", notes=notes) for notes in ("", "expert tensor parallel 2"))
    assert whole.task.plan.expert_tensor_parallel == 1
    assert sharded.task.plan.expert_tensor_parallel == 2


def loads(found: MeasuredRun) -> set[float | None]:
    tokens = [layer.sizes.get(EXPERT_TOKENS) for layer in found.task.job.graph().layers.values()]
    return {each.imbalance for each in tokens if isinstance(each, DerivedSize)}


def test_recipes_that_drop_tokens_load_experts_evenly(tmp_path):
    recipe = MIXTURE | {"model": "Grok-1 314B", "tp": "4", "dp": "2", "ep": "2"}
    dropped = run(tmp_path, **recipe, framework="NeMo (DGX Cloud benchmarking v24.11.1)")
    assert loads(dropped) == {1.0}
    assert dropped.task.plan.dispatcher == "alltoall"
    assert dropped.task.plan.expert_tensor_parallel == 4
    assert "the loads of experts are assumed" not in dropped.assumptions
    other = run(tmp_path, **recipe, framework="Megatron-LM")
    assert loads(other) == {None}
    assert other.task.plan.dispatcher is None
