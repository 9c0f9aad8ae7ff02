"""Process group, meshes, tensor parallelism, recomputation and FSDP2 of a case, all of them PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._functorch.partitioners import get_default_op_list
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from memory_oracle.case import Case
from memory_oracle.models import Decoder


@contextmanager
def meshes(case: Case) -> Iterator[tuple[DeviceMesh, DeviceMesh | None]]:
    """The data-parallel and tensor-parallel meshes of rank 0 on a process group that sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=case.shards * case.tensor_parallel, store=FakeStore())
    # FSDP joins the two meshes while it wraps; meshes are real tensors, so that is done outside fake mode.
    original = DeviceMesh.__dict__["_concatenate"]

    def concatenate(*args: Any, **options: Any) -> Any:
        with unset_fake_temporarily():
            return original.__func__(*args, **options)

    DeviceMesh._concatenate = staticmethod(concatenate)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        if case.tensor_parallel == 1:
            yield init_device_mesh("cpu", (case.shards,), mesh_dim_names=("dp",)), None
        else:
            shape = (case.shards, case.tensor_parallel)
            both = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
            yield both["dp"], both["tp"]
    finally:
        DeviceMesh._concatenate = original  # pyright: ignore[reportAttributeAccessIssue]
        dist.destroy_process_group()


class Replicated(ParallelStyle):
    """Keeps a module whole on every rank; its parameters join the mesh so that the optimizer may treat all as one."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh, case: Case) -> None:
    """torchtitan's plan for Llama."""
    between = Shard(1) if case.sequence_parallel else Replicate()
    norm = SequenceParallel if case.sequence_parallel else Replicated
    sharded = case.vocab_parallel_loss
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "norm": norm(),
            "output": ColwiseParallel(
                input_layouts=between,
                output_layouts=Shard(-1) if sharded else Replicate(),
                use_local_output=not sharded,
            ),
        },
    )
    for layer in model.layers:
        plan: dict[str, ParallelStyle] = {
            "attention_norm": norm(),
            # one conversion for all projections, so that the backward sums their gradients before it reduces them
            "attention": PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(Replicate(), None)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=between),
            "ffn_norm": norm(),
            "feed_forward": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=between),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(layer, mesh, plan)


def saved_operators() -> set[Any]:
    """What torchtitan's selective recomputation saves, with the CPU's name of flash attention."""
    aten, collectives = torch.ops.aten, torch.ops._c10d_functional
    costly = cast("Iterable[Any]", get_default_op_list().compute_intensive_ops)
    return {operator.default for operator in costly} | {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten.linear.default,
        aten.max.default,
        aten.topk.default,
        collectives.reduce_scatter_tensor.default,
        collectives.all_to_all_single.default,
    }


def selective_contexts() -> Any:
    """Saves the costly operators but every second matrix product, as torchtitan does."""
    saved, products = saved_operators(), {False: 0, True: 0}

    def policy(ctx: Any, func: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        if func is torch.ops.aten.mm.default:
            products[ctx.is_recompute] += 1
            if products[ctx.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if func in saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply_recompute(model: Decoder, case: Case) -> None:
    """Checkpoints every block. The state of random numbers, of which a block draws none, is not kept."""
    if case.recompute == "none":
        return
    options: dict[str, Any] = {"preserve_rng_state": False, "early_stop": case.early_stop}
    if case.recompute == "op_sac":
        options["context_fn"] = selective_contexts
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer, **options)


def apply_fsdp(model: Decoder, mesh: DeviceMesh, case: Case) -> None:
    """bf16 parameters, fp32 reduction; which modules share a unit is `case.wrapping`."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    wrap = partial(fully_shard, mesh=mesh, mp_policy=policy)
    separate = case.wrapping == "separate"
    if separate:
        embeddings: list[nn.Module] = [part for part in (model.tok_embeddings, model.positions) if part is not None]
        wrap(embeddings, reshard_after_forward=case.reshard_after_forward)
        wrap([model.norm, model.output], reshard_after_forward=False)
    for number, layer in enumerate(model.layers):
        last = number == case.layers - 1
        wrap(layer, reshard_after_forward=case.reshard_after_forward and (separate or not last))
    wrap(model, reshard_after_forward=not separate)
