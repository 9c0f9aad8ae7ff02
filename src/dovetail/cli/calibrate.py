"""`dovetail calibrate`: fits a user's cluster to a handful of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dovetail as dt
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.errors import InputError
from dovetail.units import seconds_text

if TYPE_CHECKING:
    from dovetail.accuracy import MeasuredRuns
    from dovetail.accuracy.user_chip import Number, UserChipFit
    from dovetail.accuracy.user_timings import TimedNumbers
    from dovetail.hardware import Chip

#: How many refused rows the view lists; JSON has all of them.
SHOWN = 5
NO_GAIN = "on runs it has not seen, the fit is no better than the shipped numbers: keep those, or measure more"
ONE_CONFIGURATION = "one configuration cannot be cross-validated: measure another to know how good the fit is"


def calibrate(
    runs: Annotated[Path | None, typer.Argument(help="A CSV file of step times, as `dovetail validate` reads.")] = None,
    gemm: Annotated[Path | None, typer.Option("--gemm", help="A CSV file of timed matrix products.")] = None,
    nccl: Annotated[list[Path] | None, typer.Option("--nccl", help="Output of nccl-tests; repeatable.")] = None,
    chip: Annotated[
        str | None, typer.Option("--chip", help="The chip to calibrate, if the files have several.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the chip and cluster files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Fit your chips and cluster to step times, timed matrix products or nccl-tests, and write them as files."""
    if runs is None and gemm is None and not nccl:
        fix = "give a CSV file of step times, --gemm or --nccl"
        raise InputError("dovetail calibrate", "has no measurements to fit", fix)
    from dovetail import accuracy
    from dovetail.accuracy.user_chip import fit_timings, fit_user_chip

    measured = None if runs is None else accuracy.read_runs(runs)
    shipped = _chip(chip, measured, runs)
    targets = _targets(shipped, out, force=force)
    timed = _timed(shipped, gemm, nccl or [], measured)
    fit = fit_timings(shipped, timed) if measured is None else fit_user_chip(shipped, measured, str(runs), timed)
    files = _write(fit, *targets)
    if as_json:
        print_json(fields(fit, files))
    else:
        _print(fit, str(runs), files)


def fields(fit: UserChipFit, files: Sequence[str]) -> dict[str, Any]:
    """The JSON fields others rely on; ratios are fractions."""
    unseen = fit.cross_validated
    return {
        "chip": fit.chip.name,
        "rows": {
            "read": fit.rows_read,
            "used": fit.before.rows if fit.before else 0,
            "refused": [{"id": r.id, "reason": r.reason} for r in fit.refused],
        },
        "parameters": {
            name: {
                "before": n.before,
                "after": n.after,
                "rests_on": n.rests_on,
                "written": n.measured,
                "spread": n.spread,
            }
            for name, n in fit.numbers.items()
        },
        "before": asdict(fit.before) if fit.before else None,
        "after": asdict(fit.after) if fit.after else None,
        "cross_validated": {**asdict(unseen), "folds": fit.folds} if unseen else None,
        "timings": {t.what: {"rows": t.rows, "before": t.before, "after": t.after} for t in fit.timed},
        "better_than_before": fit.worth_it,
        "files": list(files),
    }


def _chip(name: str | None, measured: MeasuredRuns | None, runs: Path | None) -> Chip:
    from dovetail.accuracy.user_chip import chip_to_calibrate

    if name is not None:
        return dt.hardware.chip(name)
    if measured is None:
        raise InputError("--chip", "is missing", "without step times, say which chip was timed")
    return chip_to_calibrate(measured, str(runs))


def _timed(chip: Chip, gemm: Path | None, nccl: Sequence[Path], measured: MeasuredRuns | None) -> list[TimedNumbers]:
    from dovetail.accuracy.user_chip import network_of
    from dovetail.accuracy.user_timings import collective_numbers, product_numbers

    products = [product_numbers(gemm, chip)] if gemm is not None else []
    network = None if measured is None else network_of(chip, measured)
    return products + ([collective_numbers(nccl, chip, network)] if nccl else [])


def _targets(chip: Chip, out: Path, *, force: bool) -> tuple[Path, Path]:
    """The files to write, checked before anything is fitted."""
    if not out.is_dir():
        raise InputError(str(out), "is not a folder", "name an existing one")
    targets = (out / f"{chip.name}-calibrated.yaml", out / f"{chip.name}-calibrated-cluster.yaml")
    for path in targets:
        if path.exists() and not force:
            raise InputError(str(path), "already exists", "name another folder with --out or add --force")
    return targets


def _write(fit: UserChipFit, chip_path: Path, cluster_path: Path) -> list[str]:
    from dovetail.documents import to_yaml
    from dovetail.hardware.write import chip_document, cluster_document

    texts = {chip_path: to_yaml(chip_document(fit.chip))}
    if fit.cluster is not None:
        source = "the tiers of the largest cluster measured" if fit.before else ""
        document = cluster_document(fit.cluster, cluster_path.stem, source)
        texts[cluster_path] = to_yaml(document)
    for path, text in texts.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(str(path), f"cannot be written ({error.strerror})", "name another folder") from None
    return [str(path) for path in texts]


def _print(fit: UserChipFit, runs: str, files: Sequence[str]) -> None:
    facts = [("chip", f"{fit.chip.name} ({fit.chip.title})"), *_run_facts(fit, runs)]
    facts += [(t.what, f"{t.rows:,} timed; {t.before:.1%} off before, {t.after:.1%} after") for t in fit.timed]
    print_facts(facts)
    sure = fit.before is not None
    rows = [_row(name, number, sure=sure) for name, number in fit.numbers.items()]
    print_table(("number", "before", "after", *(["uncertainty"] if sure else []), "source"), rows)
    if fit.before is not None and fit.worth_it is not True:
        typer.echo(f"warning: {ONE_CONFIGURATION if fit.worth_it is None else NO_GAIN}")
    for refusal in fit.refused[:SHOWN]:
        typer.echo(f"refused {refusal.id}: {refusal.reason}")
    if len(fit.refused) > SHOWN:
        typer.echo(f"and {len(fit.refused) - SHOWN:,} more: see --json")
    for path in files:
        typer.echo(f"wrote {path}")


def _run_facts(fit: UserChipFit, runs: str) -> list[tuple[str, str]]:
    before, after, unseen = fit.before, fit.after, fit.cross_validated
    if before is None or after is None:
        return []
    ignored = fit.rows_read - before.rows - len(fit.refused)
    others = f", {ignored:,} of another chip or tier" if ignored else ""
    facts = [
        ("runs", f"{runs}: {before.rows:,} used, {len(fit.refused):,} refused{others}"),
        ("before", f"step-time MAPE {before.mape:.1%}, bias {before.bias:+.1%}"),
        ("after", f"step-time MAPE {after.mape:.1%} on the runs it was fitted on, bias {after.bias:+.1%}"),
    ]
    if unseen is not None:
        each = "each configuration" if fit.folds == fit.configurations else f"one part in {fit.folds}"
        facts.append(("unseen", f"step-time MAPE {unseen.mape:.1%} with {each} left out (cross-validated)"))
    return facts


def _row(name: str, number: Number, *, sure: bool) -> tuple[str, ...]:
    spread = ["" if number.spread is None else f"{number.spread:.0%}"] if sure else []
    return (name, _value(name, number.before), _value(name, number.after), *spread, number.rests_on)


def _value(name: str, value: float) -> str:
    return seconds_text(value) if name.endswith("_s") else f"{value:.3f}"
