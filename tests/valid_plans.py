"""Plan files that are right, one for each kind of plan; tests change one field of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from dovetail import frameworks
from dovetail.plans.plan_file import Task, task_of

Document = dict[str, Any]

_MIXER = {"kind": "attention", "heads": 16, "kv_heads": 8, "head_dim": 64}


def model(layers: int, *, mixer: Document | None = None, feed_forward: Document | None = None) -> Document:
    """A small model of equal blocks."""
    block = {"mixer": mixer or _MIXER, "feed_forward": feed_forward or {"kind": "dense", "size": 4096}}
    return {
        "name": "small", "hidden": 1024, "vocab": 32000,
        "blocks": {"block": block}, "layers": [{"blocks": ["block"], "repeat": layers}],
    }  # fmt: skip


EXPERTS = {"kind": "mixture", "experts": 16, "top_k": 4, "size": 512, "shared_size": 512}
GPT = model(8, mixer=_MIXER | {"kv_heads": 16, "rotary": False}) | {
    "embedding": {"positions": 2048},
    "max_seq_len": 2048,
}

CHIP: Document = {
    "name": "mine", "kind": "gpu", "year": 2025, "node": "N4", "technology": "5nm", "clock_hz": "1.83 GHz",
    "tensor_cores": 528, "macs_per_core": 512, "dense_flops": {"bf16": "989 TFLOPS"}, "vector_cores": 132,
    "vector_lanes": 128, "hbm_bytes": "80 GiB", "hbm_bytes_per_s": "3.35 TB/s",
}  # fmt: skip

TIERS = [
    {"name": "inside", "size": 8, "topology": "switch", "bytes_per_s": "450 GB/s", "latency_s": "1 us"},
    {"name": "outside", "size": 32, "topology": "switch", "bytes_per_s": "50 GB/s", "latency_s": "5 us"},
]

PLAN_FILES: dict[str, Document] = {
    "dense": {
        "job": {
            "model": model(8), "seq_len": 2048, "global_batch": 64, "precision": "bf16", "optimizer": "adamw",
            "attention": "fused",
        },
        "cluster": {"chip": "h100-sxm", "chips": 32, "framework": "megatron"},
        "plan": {
            "data_parallel": 4, "tensor_parallel": 4, "pipeline_parallel": 2, "sequence_parallel": True,
            "zero_stage": 1, "micro_batch": 2, "recompute": "selective", "pipeline_schedule": "1f1b",
        },
    },
    "sharded": {
        "job": {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 64},
        "cluster": {"name": "hgx-h100", "chips": 32, "framework": "torchtitan"},
        "plan": {"zero_stage": 3, "zero_group": 8, "recompute": "full"},
    },
    "mixture": {
        "job": {"model": model(8, feed_forward=EXPERTS), "seq_len": 4096, "global_batch": 64},
        "cluster": {"chip": "h100-sxm", "chips": 64, "framework": "megatron"},
        "plan": {
            "tensor_parallel": 4, "pipeline_parallel": 2, "expert_parallel": 8, "expert_tensor_parallel": 1,
            "sequence_parallel": True,
        },
    },
    "context": {
        "job": {"model": "llama-3-8b", "seq_len": 131072, "global_batch": 8},
        "cluster": {"name": "eos", "chips": 128},
        "plan": {
            "tensor_parallel": 8, "context_parallel": 8, "context_kind": "ring", "sequence_parallel": True,
            "recompute": "full", "recompute_share": 0.5, "zero_stage": 1, "zero_group": 16,
        },
    },
    "uneven": {
        "job": {"model": GPT, "seq_len": 2048, "global_batch": 32, "attention": "unfused", "precision": "fp16"},
        "cluster": {"chip": "a100-80gb", "chips": 8, "framework": "ideal"},
        "plan": {
            "tensor_parallel": 2, "pipeline_parallel": 4, "layers_per_stage": [1, 3, 3, 1],
            "pipeline_schedule": "zb_h1", "recompute": ["mixer_norm", "mlp.activation"],
        },
    },
    "interleaved": {
        "job": {"model": model(16), "seq_len": 2048, "global_batch": 64, "precision": "fp8"},
        "cluster": {"chip": "h100-sxm", "chips": 16},
        "plan": {"pipeline_parallel": 4, "virtual_stages": 2, "pipeline_schedule": "interleaved", "micro_batch": 2},
    },
    "described": {
        "job": {"model": model(8), "seq_len": 2048, "global_batch": 64, "optimizer": "sgd"},
        "cluster": {"chip": CHIP, "chips": 32, "tiers": TIERS, "framework": "deepspeed"},
        "plan": {"tensor_parallel": 8, "zero_stage": 2},
    },
    "two ways": {
        "job": {"model": model(8), "seq_len": 2048, "global_batch": 64},
        "cluster": {"chip": "h800-sxm", "chips": 8, "framework": "ideal"},
        "plan": {"pipeline_parallel": 4, "pipeline_schedule": "dualpipe"},
    },
}  # fmt: skip


def costed(document: Document) -> Task:
    """The task of a file for the cost model, which has figures for what its framework does not run too."""
    task = task_of(with_changes(document, cluster={"framework": "ideal"}), "case.yaml")
    return replace(task, framework=frameworks.load(document["cluster"]["framework"]))


def with_changes(document: Document, **parts: Document) -> Document:
    """A copy with fields of `job`, `cluster` and `plan` replaced; None takes a field out."""
    document = copy.deepcopy(document)
    for part, fields in parts.items():
        merged = document.get(part, {}) | fields
        document[part] = {name: value for name, value in merged.items() if value is not None}
    return document
