"""`dovetail export`: a plan as the launch file of a training framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import dovetail as dt
from dovetail.cli.output import check_target, print_json

Target = Literal["megatron", "torchtitan", "deepspeed", "accelerate", "maxtext"]


def export(
    plan: Annotated[Path, typer.Argument(help="A plan file: job, cluster and plan in YAML.")],
    to: Annotated[Target, typer.Option("--to", help="The framework to write for.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the launch file here; default standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --out replace a file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: target, version, text, notes, out.")] = False,
) -> None:
    """Writes a plan as the framework's own launch file; what the framework cannot run is refused, with the reason."""
    from dovetail.documents import write_text
    from dovetail.report.launch.targets import EXPORTERS

    task = dt.evaluation.load_task(plan)
    exporter = EXPORTERS[to]
    launch = exporter.export(task)
    if out is not None:
        check_target(out, force=force)
        write_text(out, launch.text)
    if as_json:
        written = None if out is None else str(out)
        fields = {"target": to, "version": exporter.version, "name": launch.name, "text": launch.text}
        print_json({**fields, "notes": list(launch.notes), "out": written})
        return
    typer.echo(launch.text.rstrip() if out is None else f"written {out} for {exporter.version}")
    for note in launch.notes:
        typer.echo(note, err=True)
