"""Runs of a made-up cluster: what the model says at known efficiencies, as rows and as what nccl-tests prints."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from small_runs import PLAIN, read

from dovetail import hardware
from dovetail.accuracy import MeasuredRuns, Prediction, predict
from dovetail.accuracy.collective_timings import CollectiveFit, CollectiveTiming, LinkFit, predicted_seconds
from dovetail.accuracy.user_chip import with_values
from dovetail.cost.calibration import calibration
from dovetail.hardware import Chip
from dovetail.layout import CollectiveKind

H100 = {"chip": "h100-sxm", "precision": "bf16", "attention": "fused", "inter_node_gbps_per_node": "3200"}
WIDE = {"layers": "4", "hidden": "8192", "ffn_hidden": "32768", "heads": "64", "kv_heads": "64", "head_dim": "128"}
LONG = {"seq_len": "32768", "global_batch": "16", "micro_batch": "1", "head_dim": "128", "heads": "8", "kv_heads": "8"}

#: Six runs that products, attention, memory and links take their parts of.
ROWS: tuple[dict[str, str], ...] = tuple(
    {"id": f"run {number}", **H100, **row}
    for number, row in enumerate(
        (
            {**WIDE, "tp": "1", "pp": "2", "dp": "8", "seq_len": "4096"},
            {**WIDE, "tp": "8", "pp": "1", "dp": "2", "seq_len": "4096", "recompute": "none"},
            {**LONG, "tp": "1", "pp": "1", "dp": "16"},
            {**LONG, "tp": "1", "pp": "1", "dp": "16", "recompute": "none"},
            {"tp": "1", "pp": "1", "dp": "16", "micro_batch": "4", "recompute": "none"},
            {"tp": "8", "pp": "1", "dp": "2", "micro_batch": "8"},
        )
    )
)

#: What the made-up chips sustain, of what is shipped: at most 1, whatever that is fitted to.
FACTORS = {
    "matrix.half": 0.85, "attention_forward": 0.85, "attention_backward": 0.85, "memory": 0.92, "link": 0.92,
}  # fmt: skip


def scaled(chip: str, factors: Mapping[str, float]) -> dict[str, float]:
    """Efficiencies that lie off those of a chip."""
    known = calibration(hardware.chip(chip), "bf16").efficiencies
    return {name: float(getattr(known, name.partition(".")[0])) * factor for name, factor in factors.items()}


TRUTH = scaled("h100-sxm", FACTORS)


def seconds(measured: MeasuredRuns, chip: Chip) -> list[float]:
    """What the model says of runs on another chip."""
    runs = [replace(r, task=replace(r.task, cluster=replace(r.task.cluster, chip=chip))) for r in measured.runs]
    return [answer.step_time_s for answer in predict(runs) if isinstance(answer, Prediction)]


def made(
    tmp_path: Path, truth: Mapping[str, float], rows: Sequence[dict[str, str]] = ROWS, chip: str = "h100-sxm"
) -> MeasuredRuns:
    """Runs that took what the model says at these efficiencies."""
    found = read(tmp_path, *({**row, "chip": chip} for row in rows))
    assert not found.refused, found.refused
    took = seconds(found, with_values(hardware.chip(chip), truth, ""))
    return replace(found, runs=tuple(replace(r, step_time_s=s) for r, s in zip(found.runs, took, strict=True)))


def write_made(path: Path, truth: Mapping[str, float], rows: Sequence[dict[str, str]] = ROWS) -> None:
    """The same as a file."""
    took = [run.step_time_s for run in made(path.parent, truth, rows).runs]
    full = [PLAIN | row | {"step_time_s": repr(s)} for row, s in zip(rows, took, strict=True)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in full for name in row)), restval="")
        writer.writeheader()
        writer.writerows(full)


def nccl_output(link: float, launch_s: float, network: float, hosts: int = 1) -> str:
    """What all_reduce_perf prints on nodes of eight H100 whose links sustain this, over an own network of 50 GB/s."""
    fit = CollectiveFit({"hopper": LinkFit(link, launch_s, 99)}, network)
    kind, chips = CollectiveKind.ALL_REDUCE, 8 * hosts
    sizes = [2**power for power in range(12, 33)]
    timings = [CollectiveTiming("h100-sxm", kind, chips, hosts, size, 1.0, 50e9) for size in sizes]
    lines = ["# Collective test starting: all_reduce_perf", "# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor)"]
    lines += [
        f"#  Rank {i} Group  0 Pid {i} on node{i // 8} device {i % 8} [0000:07:00] NVIDIA H100 80GB HBM3"
        for i in range(chips)
    ]
    for size, took in zip(sizes, predicted_seconds(timings, fit), strict=True):
        rate = size / took / 1e9
        cells = f"{took * 1e6:.6f} {rate:.2f} {2 * (chips - 1) / chips * rate:.2f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {cells} {cells}")
    return "\n".join(lines) + "\n"
