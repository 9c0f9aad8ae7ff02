"""Step times of equal chunks without transfers in closed form, where a schedule has one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dovetail.arrays import ROUNDING, Floats
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def closed_form(
    pipeline: Pipeline,
    forward_s: ArrayLike,
    input_gradient_s: ArrayLike,
    weight_gradient_s: ArrayLike,
    overlapped_s: ArrayLike | None = None,
) -> Floats:
    """The step time when every chunk takes these seconds per microbatch; NaN outside the form's range.

    Times are those of a chunk, so a stage of an interleaved pipeline takes `num_chunks` times as long. Ranges:
    interleaved m ≥ p; ZB-H1 m ≥ p and W ≤ min(F, B); DualPipe W ≤ min(F, B) and max(F, B + W) ≤ F&B ≤ F + B + W.
    """
    f, b, w = (np.asarray(part, np.float64) for part in (forward_s, input_gradient_s, weight_gradient_s))
    p, m = pipeline.num_stages, pipeline.num_microbatches
    whole = f + b + w
    short_weight = w <= np.minimum(f, b)
    match pipeline.schedule:
        case PipelineSchedule.GPIPE | PipelineSchedule.ONE_F_ONE_B:
            return (m + p - 1) * whole
        case PipelineSchedule.INTERLEAVED:
            # Narayanan et al. 2021, section 2.2.2: the bubble of 1F1B over v
            return np.where(m >= p, (m * pipeline.num_chunks + p - 1) * whole, np.nan)
        case PipelineSchedule.ZB_H1:
            # Qi et al. 2023, table 2
            return np.where((m >= p) & short_weight, m * whole + (p - 1) * (f + b - w), np.nan)
        case PipelineSchedule.DUAL_PIPE:
            pair = whole if overlapped_s is None else np.asarray(overlapped_s, np.float64)
            # The middle stages run m − p − 1 pairs, and p + 1 forwards and backwards alone.
            busy = (m - p - 1) * pair + (p + 1) * whole
            in_range = short_weight & (pair >= np.maximum(f, b + w)) & (pair <= whole * (1 + ROUNDING))
            return np.where(in_range, busy + _dual_pipe_bubble(p, f, b, w, pair), np.nan)


def published_dual_pipe_bubble(
    num_stages: int, overlapped_s: ArrayLike, backward_s: ArrayLike, weight_gradient_s: ArrayLike
) -> Floats:
    """What DualPipe's stages wait as published: DeepSeek-AI 2024, table 2, (p/2 − 1)(F&B + B − 3W), B a whole backward.

    Exact for the published order only where a forward takes as long as an input gradient, and not less than W.
    """
    pair, backward, weight = (np.asarray(part, np.float64) for part in (overlapped_s, backward_s, weight_gradient_s))
    return (num_stages // 2 - 1) * (pair + backward - 3 * weight)


def _dual_pipe_bubble(p: int, f: Floats, b: Floats, w: Floats, pair: Floats) -> Floats:
    """What the middle stages wait; ours, from the longest paths of the published order."""
    inner = p // 2 - 1
    return np.maximum(inner * (pair + f - 2 * w), inner * (pair + b - 2 * w) - f)
