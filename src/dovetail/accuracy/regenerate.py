"""Fits everything that is fitted, from measurements to the files this version ships: `just calibrate`.

First the part models: matrix products, attention, then collectives. Their results are the priors of the fit on training
runs. Then the few numbers per chip generation and framework, once on all families and once without each. Every step is
deterministic.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from dovetail.accuracy.attention_timings import attention_report, fit_efficiencies, of_training, read_attention
from dovetail.accuracy.collective_timings import collective_report, fit_collectives, read_collectives
from dovetail.accuracy.fit import Fit, fit_families
from dovetail.accuracy.gemm_timings import fit_gemm, gemm_report, read_timings
from dovetail.accuracy.grouped_timings import balanced, fit_grouped, grouped_report, read_grouped
from dovetail.accuracy.left_out import write_left_out
from dovetail.accuracy.parameters import FITTED_OVERHEADS, Parameter, Prior
from dovetail.accuracy.predict import left_out_predictions, predict
from dovetail.accuracy.priors import shipped_priors
from dovetail.accuracy.published import published_runs, write_scoreboard_record
from dovetail.accuracy.rows import ASSUMED_LOADS, MeasuredRun, read_runs
from dovetail.accuracy.scoreboard import score
from dovetail.accuracy.step_error_fit import covered, fit_step_errors, left_out_runs, write_step_errors
from dovetail.cost.calibration import PRECISION_ROWS, calibration, shipped

SOURCE = Path(__file__).parents[1]

#: Families with more runs than the limit are thinned with this stride: a family counts once, however large.
LIMIT, STRIDE = 500, 12

#: Files of measured runs.
RUNS = ("training_runs.csv", "training_runs_2.csv")

#: Precisions of the calibration → the kernel of the measured products.
KERNELS = {"half": "bf16", "fp8": "fp8"}
#: A generation without measured products starts from those of another.
SIBLINGS = {"blackwell-ultra": "blackwell"}


def main(data: Path) -> None:
    """Regenerates the calibration from a folder with the measurements."""
    priors, launches = part_models(data)
    path = SOURCE / "cost" / "data" / "calibration.yaml"
    # numbers that are not fitted on runs are set before fitting the rest
    write_calibration(path, Fit({}, {}), priors, launches, {})
    shipped.cache_clear()
    calibration.cache_clear()
    runs = read_runs(*(data / name for name in RUNS)).runs
    sample = thinned(runs)
    families = sorted({run.family for run in sample})
    fitted, *folds = fit_families(sample, priors, [None, *families])
    write_calibration(path, fitted, priors, launches, chips_measured(runs))
    for name in FITTED_OVERHEADS:
        write_framework(SOURCE / "frameworks" / "data" / f"{name}.yaml", name, fitted, sample)
    write_left_out(SOURCE / "accuracy" / "data" / "left_out.yaml", dict(zip(families, folds, strict=True)))
    _say(f"\n{len(fitted.values)} numbers fitted on {len(sample)} of {len(runs)} runs of {len(families)} families:")
    for group, count in sorted(Counter(p.group for p in fitted.values).items()):
        _say(f"  {group:16s} {count}")


def record(data: Path) -> None:
    """Records errors by class of job, and the score that later versions must match.

    A separate run, since a process reads the fit's files once.
    """
    answers = predict(read_runs(*(data / name for name in RUNS)).runs)
    runs = left_out_runs(answers, left_out_predictions(answers))
    classes = fit_step_errors(runs)
    write_step_errors(SOURCE / "cost" / "data" / "step_errors.yaml", classes)
    _say("step errors: class of job, runs, measured over predicted that nine in ten are between, runs between")
    for of, (inside, count) in covered(classes, runs).items():
        found = next(each for each in classes if each.key == of)
        _say(f"  {found.words or 'all':70s} {count:5d} {found.low:6.3f} {found.high:6.3f} {inside / count:6.1%}")
    shipped_runs = published_runs()
    answers = predict(shipped_runs.runs)
    board = score(shipped_runs, answers, left_out_predictions(answers))
    write_scoreboard_record(SOURCE / "cost" / "data" / "scoreboard.yaml", board)


def part_models(data: Path) -> tuple[dict[Parameter, Prior], dict[str, float]]:
    """Priors updated from measured products, attention and collectives, and launch seconds per generation."""
    timings, _ = read_timings(data / "gemm_measured.csv.gz")
    products = fit_gemm(timings)
    _say("matrix products: chip, kernel, rows, time-weighted error, error with m of 1,024 or more, bias")
    for error in gemm_report(timings, products):
        large = "" if error.mape is None else f"{error.mape:7.1%}"
        what = f"{error.chip:10s} {error.kernel:10s} {error.rows:7d}"
        _say(f"  {what} {error.time_weighted:7.1%} {large} {error.bias:+7.1%}")
    attention = attention_efficiencies(data / "attention_measured.csv.gz")
    experts = [balanced(group) for group in read_grouped(data / "grouped_gemm_measured.csv.gz")]
    around = fit_grouped(experts, products)
    _say(f"experts, their products as batches of dense ones, the rest {around}: chip, kernel, rows, errors as above")
    for error in grouped_report(experts, products, around):
        what = f"{error.chip:10s} {error.kernel:10s} {error.rows:7d}"
        _say(f"  {what} {error.time_weighted:7.1%} {error.median:7.1%} {error.bias:+7.1%}")
    messages = read_collectives(data / "collectives.csv").timings
    links = fit_collectives(messages)
    _say("collectives: chip, operation, rows, error from 1 MiB on, bias")
    for line in _collective_lines(collective_report(messages, links)):
        _say(line)
    priors = dict(shipped_priors())
    for parameter, prior in shipped_priors().items():
        name, _, precision = parameter.name.partition(".")
        group = SIBLINGS.get(parameter.group, parameter.group)
        if name == "matrix" and (group, KERNELS.get(precision, "")) in products:
            fit = products[group, KERNELS[precision]]
            source = f"measured products ({fit.rows} rows, accuracy.gemm_timings)"
            priors[parameter] = replace(prior, value=fit.sustained, source=source)
        if (reached := of_training(attention.get(name, {}), parameter.group)) is not None:
            source = "measured kernels of cuDNN, or FlashAttention without those (accuracy.attention_timings)"
            priors[parameter] = replace(prior, value=reached, source=source)
        if name == "link" and parameter.group in links.generations:
            link = links.generations[parameter.group]
            source = f"nccl-tests inside a node ({link.rows} rows, accuracy.collective_timings)"
            priors[parameter] = replace(prior, value=link.link, source=source)
    return priors, {name: link.launch_s for name, link in links.generations.items()}


def attention_efficiencies(path: Path) -> dict[str, dict[str, float]]:
    """Forward and backward, by the names of their priors → generation and kernel → the part of the peak reached."""
    found: dict[str, dict[str, float]] = {}
    for name, timings in zip(("attention_forward", "attention_backward"), read_attention(path), strict=True):
        found[name] = fit_efficiencies(timings)
        _say(f"{name}: chip, rows, time-weighted error, bias; then by kernel, head size, keys and causal or not")
        for by in ((timings.chip,), (timings.kernel,), (timings.work.head_dim,), (timings.length,), (timings.causal,)):
            for error in attention_report(timings, found[name], by):
                _say(f"  {error.name:10s} {error.rows:7d} {error.time_weighted:7.1%} {error.bias:+7.1%}")
    return found


def _collective_lines(report: Sequence[Any]) -> list[str]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for error in report:
        if error.large is not None:
            groups.setdefault((error.chip, str(error.kind)), []).append(error)
    lines: list[str] = []
    for (chip, kind), errors in sorted(groups.items()):
        rows = sum(e.rows for e in errors)
        large = sum(e.large * e.rows for e in errors) / rows
        bias = sum(e.bias * e.rows for e in errors) / rows
        lines.append(f"  {chip:10s} {kind:15s} {rows:5d} {large:7.1%} {bias:+7.1%}")
    return lines


def thinned(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The runs to fit on: very large families are thinned, and loads of experts have to be known."""
    runs = [run for run in runs if ASSUMED_LOADS not in run.assumptions]
    counts = Counter(run.family for run in runs)
    seen: Counter[str] = Counter()
    sample: list[MeasuredRun] = []
    for run in runs:
        if counts[run.family] <= LIMIT or seen[run.family] % STRIDE == 0:
            sample.append(run)
        seen[run.family] += 1
    return sample


def chips_measured(runs: Sequence[MeasuredRun]) -> dict[str, set[str]]:
    """Precision row → chips with runs at it."""
    by_precision: dict[str, set[str]] = {}
    for run in runs:
        by_precision.setdefault(PRECISION_ROWS[run.task.job.precision], set()).add(run.task.cluster.chip.name)
    return by_precision


def write_calibration(
    path: Path,
    fitted: Fit,
    priors: Mapping[Parameter, Prior],
    launches: Mapping[str, float],
    measured: Mapping[str, set[str]],
) -> None:
    """Writes the efficiencies of every generation with their bases; the defaults of kinds stay."""
    document = shipped().model_dump(mode="json", exclude_none=True)
    for name, generation in document["generations"].items():
        generation["measured"] = {
            row: present
            for row, chips in sorted(measured.items())
            if (present := [c for c in generation["chips"] if c in chips])
        }
        for parameter in sorted(p for p in priors if p.group == name):
            field, _, precision = parameter.name.partition(".")
            figure = _figure(parameter, fitted, priors[parameter])
            if precision:
                generation[field][precision] = figure
            else:
                generation[field] = figure
        if name in launches:
            how = "fitted on nccl-tests inside a node (accuracy.collective_timings)"
            generation["collective_launch_s"] = {"value": float(f"{launches[name]:.3g}"), "how": how}
    head = (
        "# What generations of chips sustain: parts of a peak, at most 1, and seconds. Written by accuracy.regenerate\n"
        "# (`just calibrate`); docs/results/accuracy.md says how. A chip of no generation takes its kind's default.\n"
    )
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=118)
    path.write_text(head + text, encoding="utf-8")


def _figure(parameter: Parameter, fitted: Fit, prior: Prior) -> dict[str, object]:
    if parameter not in fitted.values:
        figure: dict[str, object] = {"value": float(f"{prior.value:.3g}"), "how": f"not fitted on runs; {prior.source}"}
        return figure | ({"spread": prior.spread} if prior.unmeasured else {})
    spread = fitted.spreads[parameter]
    start = f"from {prior.value:.3g}, {prior.source}"
    return {"value": float(f"{fitted.values[parameter]:.3g}"), "how": f"fitted on runs, ± {spread:.1%}; {start}"}


def write_framework(path: Path, name: str, fitted: Fit, runs: Sequence[MeasuredRun]) -> None:
    """Writes the fitted overheads into a framework's file, each on its line, and leaves the rest unchanged."""
    families = sorted({run.family for run in runs if run.task.framework.name == name})
    text = path.read_text(encoding="utf-8")
    for field in FITTED_OVERHEADS[name]:
        parameter = Parameter(field, name)
        value, spread = fitted.values[parameter], fitted.spreads[parameter]
        how = f"on {', '.join(families)}; ± {spread:.0%}"
        low, high = value * 2.718 ** (-2 * spread), value * 2.718 ** (2 * spread)
        if field in ("exposed", "attention"):
            high = min(high, 1.0)
        line = (
            f"{field}: {{value: {value:.3g}, low: {low:.3g}, high: {high:.3g}, status: fitted,\n"
            f"  source: 'fitted by accuracy.regenerate {how}'}}\n"
        )
        text, changed = re.subn(rf"^{field}: \{{[^}}]*\}}\n", lambda _, line=line: line, text, flags=re.MULTILINE)
        assert changed == 1, f"{path.name} has no line for {field}"
    path.write_text(text, encoding="utf-8")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
