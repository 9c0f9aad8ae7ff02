"""`dovetail export`: a plan as the launch file of a training framework, or its simulated step as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.output import check_target, print_json
from dovetail.cli.simulate import trace_fields, trace_text, write_trace
from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.plans.plan_file import Task

Target = Literal[
    "megatron", "bridge", "torchtitan", "deepspeed", "accelerate", "maxtext", "encoding", "perfetto", "chakra"
]
Ranks = Literal["distinct", "all"]
StartKind = Literal["script", "slurm", "skypilot", "kubernetes"]


def export(
    plan: Annotated[Path, typer.Argument(help="A plan file: job, cluster and plan in YAML.")],
    to: Annotated[
        Target,
        typer.Option(
            "--to", help="The framework to write for; encoding: of a wafer; perfetto, chakra: a trace of a step."
        ),
    ],
    release: Annotated[str | None, typer.Option("--release", help="Of Megatron-LM: 0.19 (default) or 0.16.")] = None,
    start: Annotated[StartKind | None, typer.Option("--as", help="Write a file that starts it on the cluster.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the file here; default: standard output.")] = None,
    ranks: Annotated[Ranks | None, typer.Option("--ranks", help="Chakra: one rank per stage, or all ranks.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: target, version, as, name, text, notes, out.")
    ] = False,
) -> None:
    """Write a plan as a framework's launch file; a plan the framework cannot run is refused with the reason."""
    if to in ("encoding", "perfetto", "chakra") and start is not None:
        what = "an encoding" if to == "encoding" else "a trace"
        raise InputError("--as", f"cannot be combined with --to {to}", f"leave it out, {what} is not started")
    if to == "chakra":
        from dovetail.cli.export_chakra import export_chakra

        export_chakra(plan, out, ranks or "distinct", force=force, as_json=as_json)
        return
    if ranks is not None:
        raise InputError("--ranks", f"cannot be combined with --to {to}", "leave it out, it is for --to chakra")
    if to == "perfetto":
        _export_trace(plan, out, force=force, as_json=as_json)
        return
    from dovetail.documents import write_text
    from dovetail.launch.targets import EXPORTERS
    from dovetail.plans.plan_file import load_task

    task = load_task(plan)
    exporter = EXPORTERS[to]
    launch = exporter.export(task, release)
    if start is not None:
        from dovetail.launch.starting.start_file import started

        launch = started(start, launch, to, task.cluster, exporter.version_of(release))
    notes = (*launch.by_hand, *launch.notes)
    if out is not None:
        check_target(out, force=force)
        write_text(out, launch.text)
    if as_json:
        written = None if out is None else str(out)
        fields = {
            "target": to,
            "version": exporter.version_of(release),
            "as": start,
            "name": launch.name,
            "text": launch.text,
        }
        print_json({**fields, "notes": list(notes), "out": written})
        return
    typer.echo(launch.text.rstrip() if out is None else f"wrote {out} for {exporter.version_of(release)}")
    for note in notes:
        typer.echo(note, err=True)


def _export_trace(plan: Path, out: Path | None, *, force: bool, as_json: bool) -> None:
    """The simulated step of a plan; too long for a terminal, so always a file."""
    if out is None:
        raise InputError("--out", "is missing", "name a file for the trace")
    check_target(out, force=force)
    from dovetail.plans.plan_file import load_task
    from dovetail.simulation.simulate import simulate

    task: Task = load_task(plan)
    trace = write_trace(simulate(task.plan, task.job, task.cluster, task.framework, rates=True), out)
    if as_json:
        print_json({"target": "perfetto", "version": "Trace Event Format", **trace_fields(trace), "out": str(out)})
    else:
        typer.echo(f"wrote {out}: {trace_text(trace)}")
