"""Quantiles of measured over predicted step time by class of job (split conformal), and how many runs they hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dovetail.accuracy.predict import Prediction
from dovetail.accuracy.rows import MeasuredRun
from dovetail.cost.calibration import PRECISION_ROWS, generation_of
from dovetail.cost.step_errors import ErrorClass, JobClass, Seen, merged_upward, scale_of
from dovetail.frozen import frozen
from dovetail.graph.routing import EXPERT_TOKENS

#: Classes with fewer runs are merged into the class they are part of; a class of any framework has what is left.
FEWEST_RUNS = 50
#: So few leave no run in a tail of 5 %.
FEWEST_LEFT = 20
COVERAGE = 0.9


@frozen
class LeftOutRun:
    """A run, its class, and measured over predicted step time without its family."""

    id: str
    of: JobClass
    ratio: float


def left_out_runs(answers: Iterable[object], left_out: Mapping[str, Prediction]) -> list[LeftOutRun]:
    """Every predicted run with what was predicted without its family."""
    predictions = [answer for answer in answers if isinstance(answer, Prediction)]
    seen = _seen([each.run for each in predictions])
    found: list[LeftOutRun] = []
    for each in predictions:
        task, predicted = each.run.task, left_out.get(each.run.id, each).step_time_s
        routed = any(EXPERT_TOKENS in o.dims for layer in task.job.graph().layers.values() for o in layer.operators)
        of = (seen[each.run.id], task.framework.name, routed, scale_of(task.plan.chips))
        found.append(LeftOutRun(each.run.id, of, each.run.step_time_s / predicted))
    return found


def fit_step_errors(runs: Sequence[LeftOutRun], coverage: float = COVERAGE) -> list[ErrorClass]:
    """Quantiles of every class with enough runs, and of smaller ones together where they are enough.

    Of a job no more may be known than whether its chip was fitted, so classes that say no framework are always there:
    of all their runs where too few are left.
    """
    classes: list[ErrorClass] = []
    left = list(runs)
    for level in range(len(merged_upward(runs[0].of))):
        by_class, rest = _by_class(runs, level), _by_class(left, level)
        for key, of_class in by_class.items():
            general = key[1] is None
            enough = len(rest.get(key, ())) >= (FEWEST_LEFT if general else FEWEST_RUNS)
            if enough or general:
                classes.append(_error_class(key, rest[key] if enough else of_class, coverage))
            if enough:
                left = [run for run in left if merged_upward(run.of)[level] != key]
    return sorted(classes, key=lambda each: str(each.key))


def _by_class(runs: Iterable[LeftOutRun], level: int) -> dict[JobClass, list[LeftOutRun]]:
    by_class: defaultdict[JobClass, list[LeftOutRun]] = defaultdict(list)
    for run in runs:
        by_class[merged_upward(run.of)[level]].append(run)
    return by_class


def _error_class(key: JobClass, runs: Sequence[LeftOutRun], coverage: float) -> ErrorClass:
    seen, framework, experts, scale = key
    low, high = conformal([run.ratio for run in runs], coverage)
    return ErrorClass(seen=seen, framework=framework, experts=experts, scale=scale, rows=len(runs), low=low, high=high)


def conformal(values: Sequence[float], coverage: float) -> tuple[float, float]:
    """Limits that a further value is between with at least this probability, and as often below as above.

    A prediction lies in its interval: where nearly all runs took longer, the lower limit is 1.
    """
    ordered, tail = sorted(values), (1 - coverage) / 2
    below = max(math.floor(tail * (len(ordered) + 1)), 1)
    return min(ordered[below - 1], 1.0), max(ordered[-below], 1.0)


def covered(classes: Sequence[ErrorClass], runs: Iterable[LeftOutRun]) -> dict[JobClass, tuple[int, int]]:
    """By class whose quantiles hold for them: runs between these, and all."""
    by_key = {each.key: each for each in classes}
    counts: dict[JobClass, tuple[int, int]] = {}
    for run in runs:
        key = next(key for key in merged_upward(run.of) if key in by_key)
        inside, of = counts.get(key, (0, 0))
        counts[key] = inside + (by_key[key].low <= run.ratio <= by_key[key].high), of + 1
    return counts


def write_step_errors(path: Path, classes: Sequence[ErrorClass]) -> None:
    """Writes them for `cost.step_errors`."""
    lines = [
        "# Quantiles of measured over predicted step time by class of job, of runs predicted without their family.",
        "# Written by accuracy.regenerate; classes of fewer than 50 runs are taken together.",
        f"coverage: {COVERAGE}",
        "classes:",
    ]
    for each in classes:
        fields = {name: value for name, value in each.model_dump().items() if value is not None}
        fields |= {"low": f"{each.low:.4f}", "high": f"{each.high:.4f}"}
        texts = (
            f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()
        )
        lines.append(f"  - {{{', '.join(texts)}}}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _seen(runs: Sequence[MeasuredRun]) -> dict[str, Seen]:
    """Run id → whether another family has runs of its generation at its precision."""
    families: defaultdict[tuple[str | None, str], set[str]] = defaultdict(set)
    keys = {run.id: (generation_of(run.task.cluster.chip.name), PRECISION_ROWS[run.task.job.precision]) for run in runs}
    for run in runs:
        families[keys[run.id]].add(run.family)
    return {run.id: "fitted" if len(families[keys[run.id]]) > 1 else "transfer" for run in runs}
