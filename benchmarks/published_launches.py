"""Published launch configurations, read as their launch files would be: what they take, and the best single change.

`python benchmarks/published_launches.py [--seconds 40]`: the figures of runs that papers and benchmark tables publish,
as arguments of Megatron-LM and options of torchtitan; each is imported, estimated, and compared with the plan that a
search of so many seconds at most finds. Prints a table for docs/results/published-launches.md.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from importlib.resources import files
from typing import Any

import dovetail as dt
from dovetail.explanation.differences import compare
from dovetail.launch.targets import read_launch
from dovetail.plans.plan_file import Task, task_of
from dovetail.plans.words import degree_words
from dovetail.step.evaluate import evaluate

#: The runs: the family that published them, and what their name has in it.
MEGATRON = (
    ("narayanan", "145B"), ("narayanan", "1T"), ("korthikanti", "175B"), ("mt-nlg", "530B"), ("bloom", "BLOOM-176B"),
    ("megatron-bridge", "LLAMA3_70B"), ("mlperf", "GPT-3 175B"), ("mlperf", "Llama 3.1 405B"),
)  # fmt: skip
#: Runs by their id, and the recipe they start from.
TORCHTITAN = {"torchtitan-T1-8B-8g-FSDP": "llama3_8b", "torchtitan-a100-64g-llama3-70b-full": "llama3_70b"}

Row = dict[str, str]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="for each search")
    seconds = parser.parse_args().seconds
    print("| launch | chips | measured | estimated | best found | best single change | alone gains |")
    print("|---|---|---|---|---|---|---|")
    for row, text in launches():
        print(line(row, text, seconds), flush=True)


def launches() -> list[tuple[Row, str]]:
    """Rows of published runs, and the launch file that their figures make."""
    with files("dovetail.accuracy").joinpath("data/published_runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found: list[tuple[Row, str]] = []
    for family, name in MEGATRON:
        row = next(r for r in rows if r["source_family"] == family and name in r["model"])
        found.append((row, megatron_text(row)))
    for name, config in TORCHTITAN.items():
        row = next(r for r in rows if r["id"] == name)
        found.append((row, torchtitan_text(row, config)))
    return found


def megatron_text(row: Row) -> str:
    """The arguments behind pretrain_gpt.py."""
    gated = row["gated_mlp"] == "1"
    flags: dict[str, Any] = {
        "num-layers": row["layers"], "hidden-size": row["hidden"], "ffn-hidden-size": row["ffn_hidden"],
        "num-attention-heads": row["heads"], "kv-channels": row["head_dim"], "vocab-size": row["vocab"],
        "seq-length": row["seq_len"], "max-position-embeddings": row["seq_len"],
        "micro-batch-size": row["micro_batch"], "global-batch-size": row["global_batch"],
        "tensor-model-parallel-size": row["tp"], "pipeline-model-parallel-size": row["pp"],
        "context-parallel-size": row["cp"] or 1,
    }  # fmt: skip
    words = [f"--{name} {value}" for name, value in flags.items()]
    if row["kv_heads"] not in ("", row["heads"]):
        words.append(f"--group-query-attention --num-query-groups {row['kv_heads']}")
    if gated:
        words.append("--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope")
        words.append("--untie-embeddings-and-output-weights")
    layers, parts = int(row["layers"]), int(row["pp"]) * int(row["vp"] or 1)
    if int(row["vp"] or 1) > 1:
        words.append(f"--num-layers-per-virtual-pipeline-stage {layers // parts}")
    if layers % parts and (layers + 2) % parts == 0:
        words.append("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split")
    words.append("--fp16" if row["precision"] == "fp16" else "--bf16")
    words += ["--fp8-format hybrid"] if row["precision"] == "fp8" else []
    words += ["--use-distributed-optimizer"] if row["zero"] == "1" else []
    words += ["--sequence-parallel"] if row["sequence_parallel"] == "yes" else []
    if row["recompute"] == "full":
        words.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    elif row["recompute"] == "selective":
        words.append("--recompute-granularity selective")
    return "\n".join(words)


def torchtitan_text(row: Row, config: str) -> str:
    """Options of torchtitan's training script."""
    chips, t = int(row["num_chips"]), int(row["tp"])
    kind = {"full": "full", "selective": "selective"}.get(row["recompute"], "none")
    return "\n".join(
        [
            f"--module llama3 --config {config}",
            f"--training.seq_len {row['seq_len']} --training.local_batch_size {row['micro_batch']}",
            f"--training.global_batch_size {row['global_batch']}",
            f"--parallelism.data_parallel_shard_degree {chips // t} --parallelism.tensor_parallel_degree {t}",
            f"activation_checkpoint:{kind}",
        ]
    )


def line(row: Row, text: str, seconds: float) -> str:
    """One row of the table."""
    chips = int(row["num_chips"])
    reading = read_launch(text, row["id"], None, chips)
    assert not reading.unknown, f"{row['id']}: {reading.unknown}"
    document = {
        "job": dict(reading.job),
        "cluster": {"chip": row["chip"], "chips": chips, "framework": reading.framework},
        "plan": dict(reading.plan),
    }
    task = task_of(document, row["id"])
    ours = evaluate(task.plan, task.job, task.cluster, task.framework)
    answer = dt.plan(task.job, task.cluster, task.framework, time_limit_s=seconds, tie_margin=0.0)
    best = replace(task, plan=answer.plan)
    change, gain = best_change(task, best)
    who = f"{row['model']}, {row['source_family']}"
    plan = task.plan
    degrees = degree_words(plan)
    found = f"{answer.step_time_s:.3g} s ({1 - answer.step_time_s / ours.step_time_s:.0%} less)"
    if answer.certificate.status != "optimal":
        found += f", gap {answer.certificate.gap:.0%}"
    fits = "" if ours.fits else f", {ours.missing_bytes / 1e9:.3g} GB too large"
    cells = [f"{who}: {degrees}", f"{chips} {row['chip']}", f"{float(row['step_time_s']):.4g} s"]
    cells += [f"{ours.step_time_s:.4g} s{fits}", found, change, gain]
    return f"| {' | '.join(cells)} |"


def best_change(task: Task, best: Task) -> tuple[str, str]:
    """The single change towards the best plan that gains most and fits."""
    for each in compare(task, best).differences:
        if each.gain is not None and each.fits and each.gain > 0:
            pairs = [
                f"{name} {_shown(one)} → {_shown(two)}"
                for name, one, two in zip(each.fields, each.ours, each.other, strict=True)
                if one != two
            ]
            return ", ".join(pairs), f"{each.gain:.1%}"
    return "none alone", "-"


def _shown(value: object) -> str:
    text = "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


if __name__ == "__main__":
    main()
