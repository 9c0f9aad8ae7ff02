"""The measured value of a run: the metric its source reported, as seconds per step."""

from __future__ import annotations

from typing import Literal

from dovetail.accuracy.table import TableRow
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph.count import matmul_flops
from dovetail.graph.operator import Phase
from dovetail.models import Job
from dovetail.models.model import HEAD

Metric = Literal["step time", "tokens per second", "FLOPS", "derived step time"]


@frozen
class Measurement:
    """Seconds of one step, and the figure they come from."""

    step_time_s: float
    metric: Metric


def read_measurement(row: TableRow, job: Job, chips: int, recompute: str | tuple[str, ...]) -> Measurement:
    """A reported step time, else reported tokens, else reported FLOPS, else a derived step time."""
    step, tokens = row.number("step_time_s"), row.number("tokens_per_s_per_chip")
    if step is not None and row.text("step_time_kind").casefold() in ("", "reported"):
        return Measurement(step, "step time")
    if tokens is not None and row.text("tokens_kind").casefold().startswith(("reported", "measured")):
        return Measurement(job.tokens_per_step / (tokens * chips), "tokens per second")
    tera = row.number("tflops_per_chip")
    if tera is not None:
        flops = _counted_flops(row.text("tflops_kind").casefold(), job, recompute)
        if flops is not None:
            return Measurement(flops / (tera * 1e12 * chips), "FLOPS")
    if step is not None:
        return Measurement(step, "derived step time")
    if tokens is not None:
        return Measurement(job.tokens_per_step / (tokens * chips), "tokens per second")
    fix = "give step_time_s, tokens_per_s_per_chip, or tflops_per_chip with a kind"
    raise InputError("step_time_s", "is empty, as is every other speed", fix)


def states_speed(row: TableRow) -> bool:
    """Whether the source reports how fast the run was."""
    return any(row.text(column) for column in ("step_time_s", "tokens_per_s_per_chip", "tflops_per_chip"))


def _counted_flops(kind: str, job: Job, recompute: str | tuple[str, ...]) -> float | None:
    """FLOPs of a step as the source counts them; None if its way of counting is unknown."""
    if "flops" not in kind:
        return None
    graph = job.graph()
    causal = "causal" in kind
    forward = float(graph.forward_flops(job.global_batch, job.seq_len, causal=causal))
    if "hardware" not in kind:
        return 3 * forward if "model" in kind else None
    if recompute == "none":
        return 3 * forward
    if recompute != "full":
        return None
    # blocks are recomputed, the head is not (Narayanan et al. 2021, eq. 3)
    head = graph.layers[HEAD]
    sizes = head.resolve(batch=job.global_batch, seq=job.seq_len)
    return 4 * forward - float(matmul_flops(head, sizes, (Phase.FORWARD,), causal=causal))
