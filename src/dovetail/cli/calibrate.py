"""`dovetail calibrate`: a user's own cluster fitted from a handful of measurements."""

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

#: Of the rows that are refused the view names a few; JSON has all.
SHOWN = 5
NO_GAIN = "a fit without a run predicts it no better than the shipped numbers: keep those, or measure more"
ONE_CONFIGURATION = "one configuration cannot be cross-validated: measure another to know what the fit is worth"


def calibrate(
    runs: Annotated[Path | None, typer.Argument(help="A CSV file of step times, as `dovetail validate` reads.")] = None,
    gemm: Annotated[Path | None, typer.Option("--gemm", help="A CSV file of timed matrix products.")] = None,
    nccl: Annotated[list[Path] | None, typer.Option("--nccl", help="What nccl-tests printed; may be repeated.")] = None,
    chip: Annotated[str | None, typer.Option("--chip", help="The chip to calibrate, where files have several.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder the chip and cluster files go to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Fit your own chips and cluster from step times, timed products or nccl-tests; write them as files."""
    if runs is None and gemm is None and not nccl:
        fix = "give a CSV file of step times, --gemm or --nccl"
        raise InputError("dovetail calibrate", "has nothing to fit on", fix)
    from dovetail import accuracy
    from dovetail.accuracy.user_chip import fit_timings, fit_user_chip

    measured = None if runs is None else accuracy.read_runs(runs)
    known = _chip(chip, measured, runs)
    targets = _targets(known, out, force=force)
    timed = _timed(known, gemm, nccl or [], measured)
    found = fit_timings(known, timed) if measured is None else fit_user_chip(known, measured, str(runs), timed)
    files = _write(found, *targets)
    if as_json:
        print_json(fields(found, files))
    else:
        _print(found, str(runs), files)


def fields(found: UserChipFit, files: Sequence[str]) -> dict[str, Any]:
    """The JSON fields others rely on; ratios are fractions."""
    unseen = found.cross_validated
    return {
        "chip": found.chip.name,
        "rows": {
            "read": found.rows_read,
            "used": found.before.rows if found.before else 0,
            "refused": [{"id": r.id, "reason": r.reason} for r in found.refused],
        },
        "parameters": {
            name: {
                "before": n.before,
                "after": n.after,
                "rests_on": n.rests_on,
                "written": n.measured,
                "spread": n.spread,
            }
            for name, n in found.numbers.items()
        },
        "before": asdict(found.before) if found.before else None,
        "after": asdict(found.after) if found.after else None,
        "cross_validated": {**asdict(unseen), "folds": found.folds} if unseen else None,
        "timings": {t.what: {"rows": t.rows, "before": t.before, "after": t.after} for t in found.timed},
        "better_than_before": found.worth_it,
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
        raise InputError(str(out), "is no folder", "name one that exists")
    targets = (out / f"{chip.name}-calibrated.yaml", out / f"{chip.name}-calibrated-cluster.yaml")
    for path in targets:
        if path.exists() and not force:
            raise InputError(str(path), "exists already", "name another folder with --out or add --force")
    return targets


def _write(found: UserChipFit, chip_path: Path, cluster_path: Path) -> list[str]:
    from dovetail.documents import to_yaml
    from dovetail.hardware.write import chip_document, cluster_document

    texts = {chip_path: to_yaml(chip_document(found.chip))}
    if found.cluster is not None:
        source = "the tiers of the largest cluster measured" if found.before else ""
        document = cluster_document(found.cluster, cluster_path.stem, source)
        texts[cluster_path] = to_yaml(document)
    for path, text in texts.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(str(path), f"cannot be written ({error.strerror})", "name another folder") from None
    return [str(path) for path in texts]


def _print(found: UserChipFit, runs: str, files: Sequence[str]) -> None:
    facts = [("chip", f"{found.chip.name} ({found.chip.title})"), *_run_facts(found, runs)]
    facts += [(t.what, f"{t.rows:,} timed; {t.before:.1%} off before, {t.after:.1%} after") for t in found.timed]
    print_facts(facts)
    sure = found.before is not None
    rows = [_row(name, number, sure=sure) for name, number in found.numbers.items()]
    print_table(("number", "before", "after", *(["unsure by"] if sure else []), "rests on"), rows)
    if found.before is not None and found.worth_it is not True:
        typer.echo(f"careful: {ONE_CONFIGURATION if found.worth_it is None else NO_GAIN}")
    for refusal in found.refused[:SHOWN]:
        typer.echo(f"refused {refusal.id}: {refusal.reason}")
    if len(found.refused) > SHOWN:
        typer.echo(f"and {len(found.refused) - SHOWN:,} more; --json has all")
    for path in files:
        typer.echo(f"written {path}")


def _run_facts(found: UserChipFit, runs: str) -> list[tuple[str, str]]:
    before, after, unseen = found.before, found.after, found.cross_validated
    if before is None or after is None:
        return []
    apart = found.rows_read - before.rows - len(found.refused)
    others = f", {apart:,} of another chip or tier" if apart else ""
    facts = [
        ("runs", f"{runs}: {before.rows:,} used, {len(found.refused):,} refused{others}"),
        ("before", f"{before.mape:.1%} off (MAPE of step times), bias {before.bias:+.1%}"),
        ("after", f"{after.mape:.1%} off on the runs it was fitted on, bias {after.bias:+.1%}"),
    ]
    if unseen is not None:
        each = "each configuration" if found.folds == found.configurations else f"one part in {found.folds}"
        facts.append(("unseen", f"{unseen.mape:.1%} off where {each} is left out (cross-validated)"))
    return facts


def _row(name: str, number: Number, *, sure: bool) -> tuple[str, ...]:
    spread = ["" if number.spread is None else f"{number.spread:.0%}"] if sure else []
    return (name, _value(name, number.before), _value(name, number.after), *spread, number.rests_on)


def _value(name: str, value: float) -> str:
    return seconds_text(value) if name.endswith("_s") else f"{value:.3f}"
