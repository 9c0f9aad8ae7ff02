"""`dovetail export --to chakra`: a simulated step as Chakra execution traces, the workload format of ASTRA-sim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dovetail.cli.output import print_json
from dovetail.errors import InputError
from dovetail.units import bytes_text

if TYPE_CHECKING:
    from dovetail.simulation.chakra_trace import ChakraTraces, RankChoice


def export_chakra(plan: Path, out: Path | None, ranks: RankChoice, *, force: bool, as_json: bool) -> None:
    """Writes a folder: a trace for each rank, the process groups, and an index."""
    if out is None:
        raise InputError("--out", "is missing", "name a folder for the traces")
    _check_folder(out, force=force)
    from dovetail.plans.plan_file import load_task
    from dovetail.simulation.chakra_format import VERSION
    from dovetail.simulation.chakra_trace import PREFIX, chakra_traces

    task = load_task(plan)
    traces = chakra_traces(task.plan, task.job, task.cluster, task.framework, ranks)
    for stale in out.glob(f"{PREFIX}.*.et"):
        stale.unlink()
    traces.write(out)
    if as_json:
        print_json({
            "target": "chakra",
            "version": f"Chakra {VERSION}",
            "files": [file.name for file in traces.files],
            "nodes": traces.num_nodes,
            "bytes_per_group": {str(group): sent for group, sent in traces.bytes_per_group.items()},
            "out": str(out),
        })  # fmt: skip
    else:
        _print(traces, out)


def _print(traces: ChakraTraces, out: Path) -> None:
    """What was written, and how to read it."""
    from dovetail.simulation.chakra_trace import GROUPS_FILE, INDEX_FILE, PREFIX

    chips, files = traces.ranks.plan.chips, len(traces.files)
    sent = bytes_text(sum(traces.bytes_per_group.values()))
    groups = len(traces.bytes_per_group)
    typer.echo(f"wrote {out}: traces of {files} of {chips} ranks, {traces.num_nodes:,} nodes")
    typer.echo(f"{groups} process {'group' if groups == 1 else 'groups'}, {sent} of collectives: see {INDEX_FILE}")
    if files < chips:
        typer.echo("the other ranks do the same work; ASTRA-sim reads a trace of every rank: --ranks all")
    else:
        groups_file = out / GROUPS_FILE
        typer.echo(f"ASTRA-sim: --workload-configuration={out / PREFIX} --comm-group-configuration={groups_file}")


def _check_folder(out: Path, *, force: bool) -> None:
    """Refuses what is not a folder, and one with files in it that may not be overwritten."""
    if not out.parent.is_dir():
        raise InputError(str(out), "is in a folder that does not exist", "name a folder in an existing folder")
    if out.exists() and not out.is_dir():
        raise InputError(str(out), "is a file", "name a folder for the traces")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise InputError(str(out), "is a folder with files in it", "name another folder or add --force")
