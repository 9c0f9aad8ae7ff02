"""Hand-made rows of measured runs."""

from __future__ import annotations

import csv
from pathlib import Path

from dovetail.accuracy import MeasuredRun, MeasuredRuns, read_runs

#: A plain run: GPT of 8 layers on two nodes of A100.
PLAIN = {
    "id": "plain", "source_family": "ours", "tier": "A", "framework": "Megatron-LM", "chip": "a100-80gb",
    "chips_per_node": "8", "num_chips": "16", "inter_node_gbps_per_node": "800", "model": "GPT-small",
    "layers": "8", "hidden": "1024", "ffn_hidden": "4096", "gated_mlp": "0", "heads": "16", "kv_heads": "16",
    "head_dim": "64", "vocab": "50257", "seq_len": "1024", "precision": "fp16", "attention": "unfused",
    "tp": "2", "pp": "2", "dp": "4", "micro_batch": "2", "global_batch": "64", "recompute": "full",
    "step_time_s": "1.5", "step_time_kind": "reported",
}  # fmt: skip
MIXTURE = {
    "gated_mlp": "1", "experts": "32", "top_k": "4", "attention": "fused", "precision": "bf16",
    "moe_other": "expert_ffn=512 shared_ffn=1024 dense_layers=1 MLA(q_lora=256,kv_lora=128,qk=64+32,v=64)",
}  # fmt: skip


def read(tmp_path: Path, *rows: dict[str, str]) -> MeasuredRuns:
    """What a file of these rows holds, each given as what differs from the plain one."""
    full = [PLAIN | row for row in rows]
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in full for name in row)), restval="")
        writer.writeheader()
        writer.writerows(full)
    return read_runs(path)


def run(tmp_path: Path, **changes: str) -> MeasuredRun:
    found = read(tmp_path, changes)
    assert not found.refused, found.refused
    return found.runs[0]


def reason(tmp_path: Path, **changes: str) -> str:
    found = read(tmp_path, changes)
    assert not found.runs
    (refused,) = found.refused
    assert refused.id == "plain"
    assert refused.reason.isprintable()
    assert refused.reason.endswith(".")
    return refused.reason
