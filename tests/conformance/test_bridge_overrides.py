"""Overrides of Megatron-Bridge name fields that its configuration classes have, read from their sources.

Importing them needs Transformer Engine and a GPU; DOVETAIL_BRIDGE names a folder with the unpacked wheels of
megatron-bridge and megatron-core.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dovetail import models
from dovetail.errors import InputError
from dovetail.launch.targets import EXPORTERS
from dovetail.plans.plan_file import task_of

FOLDER = os.environ.get("DOVETAIL_BRIDGE")
#: A part of the configuration → classes whose fields it has.
CLASSES = {
    "model": (
        "ModelParallelConfig",
        "TransformerConfig",
        "MLATransformerConfig",
        "GPTModelProvider",
        "MLAModelProvider",
    ),
    "train": ("TrainingConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "dist": ("DistributedInitConfig",),
    "optimizer": ("OptimizerConfig",),
    "checkpoint": ("CheckpointConfig",),
    "comm_overlap": ("CommOverlapConfig",),
    "dataset": ("GPTDatasetConfig",),
}


def overrides(names: Iterable[str]) -> Iterator[str]:
    """Keys that are written, over models and some plans."""
    plans = (
        {"zero_stage": 1, "micro_batch": 1, "recompute": "full"},
        {"zero_stage": 3, "micro_batch": 1, "recompute": "none"},
        {"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 1, "recompute": ["core_attn"]},
        {"pipeline_parallel": 2, "virtual_stages": 2, "zero_stage": 1, "expert_parallel": 4, "cuda_graphs": True},
    )
    for name in names:
        for plan in plans:
            job = {"model": name, "seq_len": min(2048, models.load(name).max_seq_len), "global_batch": 64}
            cluster = {"chip": "h100-sxm", "chips": 16, "framework": "megatron"}
            try:
                task = task_of({"job": job, "cluster": cluster, "plan": plan}, name)
                text = EXPORTERS["bridge"].export(task).text
            except InputError:
                continue
            yield from (line.partition("=")[0] for line in text.splitlines())


def fields(folder: Path) -> dict[str, set[str]]:
    """Fields of classes by the names of the classes."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        with warnings.catch_warnings():
            # of their texts
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign | ast.AugAssign)
                         and isinstance(each.target, ast.Name)}  # fmt: skip
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                found[node.name] = found.get(node.name, set()) | names | methods
    return found


def test_overrides_are_keys_and_values():
    keys = set(overrides(("deepseek-v3", "llama-3.1-8b")))
    assert {key.partition(".")[0] for key in keys} <= {*CLASSES, "mixed_precision"}
    assert {"model.layernorm_epsilon", "model.rotary_base", "model.moe_router_topk_scaling_factor"} <= keys


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="DOVETAIL_BRIDGE names no folder with the wheels")
def test_overrides_are_fields_of_the_configuration():
    assert FOLDER is not None
    known = fields(Path(FOLDER))
    missing = {
        key
        for key in set(overrides(models.names())) - {"mixed_precision"}
        if not any(key.partition(".")[2] in known.get(each, ()) for each in CLASSES[key.partition(".")[0]])
    }
    assert missing == set()
