"""What frameworks' own parsers make of a launch file; run by a Python that has them: TARGET FILE WORLD_SIZE.

Prints one line of JSON. Nothing of ours is imported: the file alone says what is launched.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

Degrees = dict[str, Any]


def torchtitan(path: str, world_size: int) -> Degrees:
    """The degrees torchtitan trains with, after the checks its trainer makes before it builds a model."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping

    sys.path.insert(0, str(Path(path).parent))
    config = ConfigManager().parse_args(["--module", Path(path).stem, "--config", "recipe"])
    parallelism, training = config.parallelism, config.training
    dims = ParallelDims.from_config(parallelism, world_size)
    model = config.model_spec.model
    model.update_from_config(config=config)
    copies = dims.dp_replicate * dims.dp_shard
    degrees = {
        "data_parallel": copies,
        "tensor_parallel": dims.tp,
        "pipeline_parallel": dims.pp,
        "context_parallel": dims.cp,
        "expert_parallel": dims.ep,
        "zero_group": dims.dp_shard * dims.cp,
        "sequence_parallel": dims.tp > 1 and parallelism.enable_sequence_parallel,
        "global_batch": training.global_batch_size,
        "seq_len": training.seq_len,
        "num_layers": len(model.layers),
        "policy": parallelism.fsdp_reshard_after_forward,
        "recompute": {"NoneType": "none", "FullAC.Config": "full", "SelectiveAC.Config": "selective"}[
            type(config.activation_checkpoint).__qualname__
        ],
    }
    micro = training.local_batch_size
    accumulation, rest = divmod(training.global_batch_size, training.local_batch_size * copies)
    assert not rest
    if dims.pp > 1:
        parts = parallelism.module_fqns_per_model_part
        held = _get_pp_rank_to_stage_indices_mapping(0, dims.pp, parallelism.pipeline_parallel_schedule, len(parts))
        micro = parallelism.pipeline_parallel_microbatch_size
        degrees["virtual_stages"] = len(held)
        degrees["layers_per_stage"] = [sum(name.startswith("layers.") for name in part) for part in parts]
        degrees["schedule"] = parallelism.pipeline_parallel_schedule
    degrees["micro_batch"] = micro
    degrees["num_microbatches"] = accumulation * training.local_batch_size // micro
    return degrees


def torchtitan_recipes(text: str, world_size: int) -> Degrees:
    """Options as recipes set them: a line of text is a module and a config."""
    del world_size
    from torchtitan.config import ConfigManager

    found: Degrees = {}
    for line in text.splitlines():
        module, name = line.split()
        config = ConfigManager().parse_args(["--module", module, "--config", name])
        options = {"activation_checkpoint": type(config.activation_checkpoint).__qualname__}
        for section in ("parallelism", "training", "compile"):
            for field, value in dataclasses.asdict(getattr(config, section)).items():
                options[f"{section}.{field}"] = value
        model = config.model_spec.model
        found[name] = {"options": options, "num_layers": len(model.layers), "max_seq_len": model.max_seq_len}
    return found


def _deepspeed_config(document: dict[str, Any], world_size: int) -> Any:
    """DeepSpeed's reading of a configuration in a process group of so many ranks, none of which exist."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    import deepspeed.comm.comm as communication
    from deepspeed.runtime.config import DeepSpeedConfig

    class Backend:
        """Asks the fake group; DeepSpeed's own backend would compile an operator first."""

        def is_initialized(self) -> bool:
            return True

        def get_rank(self, group: Any = None) -> int:
            return torch.distributed.get_rank(group)

        def get_world_size(self, group: Any = None) -> int:
            return torch.distributed.get_world_size(group)

    communication.cdb = Backend()
    return DeepSpeedConfig(document)


def deepspeed(text: str, world_size: int) -> Degrees:
    """The degrees DeepSpeed's configuration means, after the checks of its engine that need no model."""
    config = _deepspeed_config(json.loads(text), world_size)
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config

    document = json.loads(text)
    tensor = max(config.tensor_parallel_config.autotp_size, 1)
    context = document.get("sequence_parallel_size", 1)
    experts = config.expert_parallel_config
    validate_autoep_config(experts, world_size, 1, tensor, context, zero_stage=config.zero_optimization_stage)
    copies = world_size // (tensor * context)
    return {
        "data_parallel": copies,
        "tensor_parallel": tensor,
        "context_parallel": context,
        "expert_parallel": experts.autoep_size if experts.enabled else 1,
        "zero_stage": int(config.zero_optimization_stage),
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "num_microbatches": config.gradient_accumulation_steps,
        # without an engine DeepSpeed counts every chip of a tensor-parallel group
        "global_batch": config.train_batch_size // tensor,
        "precision": "bf16" if config.bfloat16_config.enabled else "fp16" if config.float16_config.enabled else "fp32",
    }


def deepspeed_keys(text: str, world_size: int) -> Degrees:
    """The top-level keys DeepSpeed's parser asks a configuration for."""
    asked: set[str] = set()

    class Watched(dict[str, Any]):
        """A configuration that keeps what it was asked for."""

        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            asked.add(key)
            return super().__getitem__(key)

        def __contains__(self, key: object) -> bool:
            asked.add(str(key))
            return super().__contains__(key)

        def keys(self) -> Any:
            return self

        def __copy__(self) -> Watched:
            return Watched(self)

    _deepspeed_config(Watched(json.loads(text)), world_size)
    from deepspeed.runtime.config import _REMOVED_TOP_LEVEL_CONFIG_KEYS
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    zero = DeepSpeedZeroConfig.model_fields
    aliases = {field.alias for field in zero.values() if field.alias}
    return {"asked": sorted(asked - set(_REMOVED_TOP_LEVEL_CONFIG_KEYS)), "zero": sorted({*zero, *aliases})}


def accelerate(path: str, world_size: int) -> Degrees:
    """The degrees accelerate's launcher hands to its processes."""
    from accelerate import ParallelismConfig
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    config = load_config_from_file(path)
    arguments = launch_command_parser().parse_args(["--config_file", path, "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    os.environ |= prepare_multi_gpu_env(arguments)
    degrees: Any = ParallelismConfig()
    plugin = FullyShardedDataParallelPlugin()
    assert config.num_processes == degrees.total_size == world_size
    assert plugin.fsdp_version == 2
    return {
        "data_parallel": degrees.dp_replicate_size * degrees.dp_shard_size,
        "tensor_parallel": degrees.tp_size,
        "context_parallel": degrees.cp_size,
        "zero_group": degrees.dp_shard_size * degrees.cp_size,
        "zero_stage": 3 if plugin.reshard_after_forward else 2,
        "recompute": "full" if plugin.activation_checkpointing else "none",
        "precision": {"no": "fp32"}.get(config.mixed_precision, config.mixed_precision),
    }


#: What megatron-core calls the degrees of a plan.
MEGATRON = {
    "data_parallel": "data_parallel_size",
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
    "expert_tensor_parallel": "expert_tensor_parallel_size",
    "sequence_parallel": "sequence_parallel",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "num_layers": "num_layers",
}


def megatron(text: str, world_size: int) -> Degrees:
    """The degrees megatron-core's configuration classes take from arguments."""
    from parse_megatron import parse

    found = parse(text, world_size)
    degrees = {ours: found[theirs] for ours, theirs in MEGATRON.items()}
    degrees["virtual_stages"] = found["virtual_pipeline_model_parallel_size"] or 1
    if found["layers_per_stage"] is not None:
        degrees["layers_per_stage"] = found["layers_per_stage"]
    return degrees


def main() -> None:
    """Prints what the target's parser made of the file."""
    target, path, world_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    text = Path(path).read_text(encoding="utf-8")
    match target:
        case "torchtitan":
            found = torchtitan(path, world_size)
        case "torchtitan-recipes":
            found = torchtitan_recipes(text, world_size)
        case "deepspeed":
            found = deepspeed(text, world_size)
        case "deepspeed-keys":
            found = deepspeed_keys(text, world_size)
        case "accelerate":
            found = accelerate(path, world_size)
        case "megatron":
            found = megatron(text, world_size)
        case _:
            raise SystemExit(f"no parser for {target}")
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
