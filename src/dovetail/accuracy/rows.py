"""Measured training runs as tasks: model, cluster, framework and plan of every usable row of a CSV file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from dovetail.accuracy.architecture import Architecture, read_architecture, uneven_heads
from dovetail.accuracy.measured import Metric, read_measurement, states_speed
from dovetail.accuracy.row_cluster import gbps_per_node, read_cluster
from dovetail.accuracy.row_configuration import configurations_of, says
from dovetail.accuracy.row_framework import framework_name, framework_of, vocabulary_multiple
from dovetail.accuracy.row_model import (
    model_of,
    padded,
    published_model,
    side_by_side,
    with_loads,
    with_tied_head,
)
from dovetail.accuracy.row_plan import read_plan, slices
from dovetail.accuracy.row_recompute import RecomputeReading
from dovetail.accuracy.table import TableRow, read_table
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.network import GRIDS
from dovetail.models import Job, Model
from dovetail.models.adapters import Adapters
from dovetail.models.job import Precision
from dovetail.plans.plan_file import Task

#: Columns a file must have; its other cells may stay empty.
NEEDED = ("id", "framework", "chip", "num_chips", "model", "seq_len", "global_batch", "tp", "pp", "recompute")
#: Optional columns.
OPTIONAL = (
    "source_family", "source", "tier", "chips_per_node", "inter_node_gbps_per_node",
    "layers", "hidden", "ffn_hidden", "gated_mlp", "heads", "kv_heads", "head_dim", "vocab",
    "experts", "top_k", "moe_other", "multi_token_prediction", "precision", "precision_as_written", "attention",
    "vp", "cp", "ep", "dp", "zero", "zero_group", "sequence_parallel", "micro_batch", "recompute_as_written", "offload",
    "step_time_s", "step_time_kind", "tokens_per_s_per_chip", "tokens_kind", "tflops_per_chip", "tflops_kind",
    "peak_memory_bytes", "memory_kind", "notes", "outcome", "train_kind", "optimizer", "memory_features",
    "memory_scope",
)  # fmt: skip

#: Tiers whose configuration is known well enough to score.
USABLE = ("A", "B")

PRECISIONS: Mapping[str, str] = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32",
    "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "fp4": "fp4",
}  # fmt: skip

#: Whose memory a source reports: Megatron's last rank writes its log, nanotron's first.
_SCOPES = {"last rank": -1, "logging rank": 0}

OUTCOMES: Mapping[str, str] = {"fits": "fits", "oom": "oom"}

MEMORY_KINDS: Mapping[str, str] = {"allocated": "allocated", "reserved": "reserved", "device": "device"}

#: What notes say where all experts were given equal loads.
FORCED = ("force-balanced", "forced load balance", "forced balance")
#: Of a run that was not balanced, and whose source does not say how far.
ASSUMED_LOADS = "the loads of experts are assumed"


@frozen
class MeasuredRun:
    """A run that can be predicted, and what was measured."""

    id: str
    family: str
    """sources that share authors, cluster and method"""
    tier: str
    framework: str
    """as the source calls it"""
    architecture: Architecture | str
    """the row's sizes, or the name of a published model: the same for all runs of a model"""
    task: Task
    step_time_s: float
    metric: Metric
    """the figure the step time was read from"""
    peak_memory_bytes: float | None
    memory_kind: str | None
    """allocated or reserved by the framework, or in use on the device"""
    assumptions: tuple[str, ...] = ()


@frozen
class MeasuredOutcome:
    """A run that fitted or ran out of memory, and its peak if it was measured."""

    id: str
    family: str
    task: Task
    outcome: str
    """fits or oom"""
    peak_memory_bytes: float | None
    memory_kind: str | None
    stage: int | None = None
    """whose peak it is: the first stage's (0) or the last one's (-1); None: the fullest one's"""


@frozen
class Refusal:
    """A usable row that cannot be predicted, and why."""

    id: str
    family: str
    reason: str


@frozen
class MeasuredRuns:
    """The runs of a file."""

    rows_read: int
    rows_used: int
    """of the tiers that are scored"""
    runs: tuple[MeasuredRun, ...]
    refused: tuple[Refusal, ...]
    outcomes: tuple[MeasuredOutcome, ...] = ()

    def refusing(self, answers: Iterable[object]) -> MeasuredRuns:
        """The same with the refusals among answers added."""
        refusals = tuple(answer for answer in answers if isinstance(answer, Refusal))
        return replace(self, refused=(*self.refused, *refusals))


def read_runs(*paths: Path | str) -> MeasuredRuns:
    """Every run of files: usable rows become runs, outcomes or both, or refusals; the others are only counted."""
    rows = [row for path in paths for row in read_table(path, NEEDED, (*NEEDED, *OPTIONAL))]
    usable = [row for row in rows if (row.text("tier") or USABLE[0]) in USABLE]
    runs: list[MeasuredRun] = []
    refused: list[Refusal] = []
    outcomes: list[MeasuredOutcome] = []
    for row in usable:
        try:
            if row.text("outcome"):
                outcomes.append(_outcome(row))
            if not row.text("outcome") or _is_timed(row):
                runs.append(_run(row))
        except InputError as error:
            refused.append(Refusal(_id(row), row.text("source_family"), str(error)))
    return MeasuredRuns(len(rows), len(usable), tuple(runs), tuple(refused), tuple(outcomes))


def _run(row: TableRow) -> MeasuredRun:
    _check_modelled(row, time=True)
    task, recompute = _task(row)
    measured = read_measurement(row, task.job, task.cluster.chips, task.plan.recompute)
    memory = row.number("peak_memory_bytes")
    return MeasuredRun(
        id=_id(row),
        family=row.text("source_family"),
        tier=row.text("tier") or USABLE[0],
        framework=row.text("framework"),
        architecture=read_architecture(row) or task.job.model.name,
        task=task,
        step_time_s=measured.step_time_s,
        metric=measured.metric,
        peak_memory_bytes=memory,
        memory_kind=_memory_kind(row),
        assumptions=tuple(filter(None, (recompute.assumption, uneven_heads(row), *_assumed(row, task.cluster)))),
    )


def _outcome(row: TableRow) -> MeasuredOutcome:
    outcome = row.choice("outcome", OUTCOMES, "")
    _check_modelled(row, time=False)
    task, _ = _task(row)
    memory = row.number("peak_memory_bytes")
    family, scope = row.text("source_family"), row.text("memory_scope").casefold()
    stage = next((stage for words, stage in _SCOPES.items() if words in scope), None)
    return MeasuredOutcome(_id(row), family, task, outcome, memory, _memory_kind(row), stage)


def _task(row: TableRow) -> tuple[Task, RecomputeReading]:
    """What ran, and how its recompute was read."""
    framework = framework_name(row)
    as_run = framework_of(framework, row)
    cluster = read_cluster(row, slices(row))
    job = _job(row, read_architecture(row), framework)
    plan, recompute = read_plan(row, job, cluster, framework)
    return Task(job, cluster, as_run, plan), recompute


def _check_modelled(row: TableRow, *, time: bool) -> None:
    """Refuses runs of which state leaves the chip; of outcomes only where no configuration says what stays."""
    if _offloads(row) and (time or not says(row, "offload")):
        raise InputError("offload", f"is {quoted(row.text('offload'))}", "runs that offload state are left out")
    if "tiled mlp" in row.text("memory_features").casefold():
        raise InputError("memory_features", "has a tiled MLP", "runs that compute a layer in tiles are left out")
    if row.text("train_kind").casefold() == "adapter":
        raise InputError("train_kind", "is adapter", "it should be full, lora or qlora")


def _is_timed(row: TableRow) -> bool:
    """Whether a run that has an outcome is one whose step time is predicted too."""
    return states_speed(row) and row.text("outcome").casefold() == "fits" and not _offloads(row)


def _offloads(row: TableRow) -> bool:
    return row.text("offload").casefold() not in ("", "none", "no")


def _memory_kind(row: TableRow) -> str | None:
    return None if row.number("peak_memory_bytes") is None else row.choice("memory_kind", MEMORY_KINDS, "device")


def _job(row: TableRow, sizes: Architecture | None, framework: str) -> Job:
    seq_len = row.needed("seq_len")
    attention = row.choice("attention", {"fused": "fused", "unfused": "unfused"}, "fused")
    attention = next((each.attention for each in configurations_of(row) if each.attention), attention)
    model = _model(row, sizes, seq_len, attention)
    even = any(words in row.text("notes") for words in FORCED) or any(each.balanced for each in configurations_of(row))
    loads = [1.0] if even else []
    loads += [each.imbalance for each in configurations_of(row) if each.imbalance]
    if loads:
        model = with_loads(model, loads[-1])
    return Job(
        padded(model, vocabulary_multiple(framework, row.count("tp") or 1)),
        seq_len=seq_len,
        global_batch=_global_batch(row),
        precision=cast("Precision", row.choice("precision", PRECISIONS, "bf16")),
        fused_attention=attention == "fused",
        adapters=_adapters(row),
    )


def _global_batch(row: TableRow) -> int:
    """Sequences a step; where only an outcome is told, one micro-batch of every replica."""
    at_once = (row.count("micro_batch") or 0) * (row.count("dp") or 1)
    if row.text("outcome") and not row.text("global_batch") and at_once:
        return at_once
    return row.needed("global_batch")


def _adapters(row: TableRow) -> Adapters | None:
    """LoRA's, where a row trains adapters: those of its configuration, in the base that the row names."""
    kind = row.text("train_kind").casefold()
    if kind not in ("lora", "qlora"):
        return None
    stated = [each.adapters for each in configurations_of(row) if each.adapters is not None]
    if not stated:
        raise InputError("train_kind", f"is {kind}", "rank and targets of its adapters are not known")
    return stated[-1].model_copy(update={"base": "nf4" if kind == "qlora" else "bf16"})


def _model(row: TableRow, sizes: Architecture | None, seq_len: int, attention: str) -> Model:
    if sizes is None:
        return published_model(row.text("model"))
    # dropout went out of use when fused attention came in
    dropout = next(
        (each.dropout for each in configurations_of(row) if each.dropout is not None), attention == "unfused"
    )
    model = model_of(sizes, seq_len, dropout=dropout)
    features = row.text("memory_features").casefold()
    if "untied" in features or "tied embeddings" in features or "embeddings tied" in row.text("notes"):
        model = with_tied_head(model, tied="untied" not in features)
    # sizes MaxText makes from a number of parameters go with its own block
    return side_by_side(model) if "get_individual_scales" in row.text("notes") else model


def _assumed(row: TableRow, cluster: Cluster) -> list[str]:
    stated = gbps_per_node(row) or len(cluster.tiers) < 2 or cluster.tiers[0].topology in GRIDS
    network = [] if stated else ["the network is the chip's standard one"]
    loads = [ASSUMED_LOADS] if any(each.imbalance for each in configurations_of(row)) else []
    return [*network, *loads] if row.text("attention") else [*network, *loads, "attention kernels are fused"]


def _id(row: TableRow) -> str:
    return row.text("id") or f"line {row.line}"
