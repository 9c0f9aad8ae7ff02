"""`dovetail wafers`: the catalogue, one wafer's dies, links and memory, and whether it can be built."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson, doubts_facts, print_tiers
from dovetail.cli.output import check_target, print_facts, print_json, print_table, wrapped
from dovetail.cli.wafer_collectives import collectives
from dovetail.cli.wafer_facts import defects_lines, defects_text, store_text
from dovetail.errors import InputError, quoted
from dovetail.units import bytes_text, quantity_text, seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import Wafer
    from dovetail.hardware.silicon.wafer_check import Finding

app = typer.Typer(help="Wafers: list the catalogue, show one, what can be built of it and what its tiles can do.")
app.command("collectives")(collectives)


@app.command("list")
def list_wafers(as_json: AsJson = False) -> None:
    """List the wafers of the catalogue."""
    wafers = [dt.hardware.wafer(name) for name in dt.hardware.wafer_names()]
    if as_json:
        print_json([wafer_fields(wafer) for wafer in wafers])
        return
    rows = [
        (w.name, f"{w.rows} x {w.cols}", w.die.name, _memory(w), quantity_text(w.d2d_bytes_per_s, "B/s"), _broken(w))
        for w in wafers
    ]
    print_table(("wafer", "grid", "die", "memory", "D2D per edge", "infeasible"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A wafer of the catalogue, or the path of a wafer file.")],
    wafers: Annotated[int, typer.Option("--wafers", help="As a cluster of this many wafers.")] = 1,
    defects: Annotated[Path | None, typer.Option("--defects", help="Dead dies and links, from this file.")] = None,
    defect_rate: Annotated[
        float | None, typer.Option("--defect-rate", help="Draw dead dies: the probability of each, from 0 to 1.")
    ] = None,
    link_defect_rate: Annotated[
        float | None, typer.Option("--link-defect-rate", help="Draw dead links: the probability of each.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Which defects are drawn; 0 unless given.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the defects to this file (YAML or JSON).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one wafer: dies, links, memory, doubts, every physical rule about it, and what is dead."""
    from dovetail.hardware.defect_file import asked_defects

    wafer = dt.hardware.wafer(name)
    asked = asked_defects(wafer.rows, wafer.cols, defects, defect_rate, link_defect_rate, seed)
    wafer = wafer if asked is None else wafer.with_defects(asked)
    if out is not None:
        _write_defects(wafer, out, force=force)
    cluster = wafer.cluster(wafers)
    findings = _findings(wafer)
    if as_json:
        fields = {**wafer_fields(wafer), "findings": [asdict(finding) for finding in findings or ()]}
        print_json({**fields, "chips": cluster.chips, "tiers": [asdict(tier) for tier in cluster.tiers]})
        return
    print_facts(_facts(wafer))
    for line in defects_lines(wafer):
        typer.echo(line)
    print_tiers(cluster.tiers)
    if findings is None:
        typer.echo("its die names no technology, so we cannot estimate whether it can be built")
        return
    rows = [(f.rule, _verdict(f), f"{f.value:.3g}", f"{f.low:.3g} to {f.high:.3g}") for f in findings]
    print_table(("rule", "holds", "share of the limit", "low to high"), rows)
    print_facts([line for f in findings for line in wrapped(f.rule, f"{f.sentence} [{f.source}]")])


def wafer_fields(wafer: Wafer) -> dict[str, object]:
    """A wafer as JSON has it; of its die and integration the names."""
    fields = {**asdict(wafer), "die": wafer.die.name, "integration": wafer.integration.name}
    counts = {
        "dies": wafer.dies,
        "live_dies": len(wafer.live_dies()),
        "connected_dies": len(wafer.connected_dies()),
        "live_links": len(wafer.links()),
    }
    return {**fields, **counts, "doubts": dict(wafer.doubts)}


def _write_defects(wafer: Wafer, out: Path, *, force: bool) -> None:
    """A file that --defects reads back."""
    from dovetail.documents import to_yaml, write_text
    from dovetail.hardware.defect_file import defects_document

    if out.suffix not in (".yaml", ".yml", ".json"):
        raise InputError("--out", f"is {quoted(out.name)}", "it should end in .yaml, .yml or .json")
    check_target(out, force=force)
    document = defects_document(wafer.defects)
    write_text(out, json.dumps(document) + "\n" if out.suffix == ".json" else to_yaml(document))


def _findings(wafer: Wafer) -> tuple[Finding, ...] | None:
    from dovetail.hardware.silicon.wafer_check import check

    return check(wafer, dt.hardware.technology_of(wafer)) if wafer.die.technology else None


def _verdict(finding: Finding) -> str:
    other = "" if finding.certain else ", no at the high end" if finding.passes else ", yes at the low end"
    return ("yes" if finding.passes else "no") + other


def _broken(wafer: Wafer) -> str:
    return ", ".join(finding.rule for finding in _findings(wafer) or () if not finding.passes) or "nothing"


def _facts(wafer: Wafer) -> list[tuple[str, str]]:
    die = wafer.die
    peak = die.dense_flops.bf16 or die.dense_flops.fp16 or 0.0
    size = f"{wafer.die_width_mm:g} x {wafer.die_height_mm:g} mm"
    facts = [
        ("wafer", f"{wafer.name} ({wafer.title})"),
        ("grid", f"{wafer.rows} x {wafer.cols} dies of {size}, {wafer.gap_mm:g} mm apart ({wafer.integration.name})"),
        ("die", f"{die.name}: {quantity_text(peak, 'FLOPS')} of 16-bit peak, {die.vector_cores:,} cores"),
        ("memory", f"{_memory(wafer)} per die"),
        ("together", f"{quantity_text(wafer.dies * peak, 'FLOPS')}, {_memory(wafer, wafer.dies)}"),
        ("die to die", f"{quantity_text(wafer.d2d_bytes_per_s, 'B/s')} per edge, {seconds_text(wafer.d2d_latency_s)}"),
        ("off the wafer", quantity_text(wafer.edge_bytes_per_s, "B/s") if wafer.edge_bytes_per_s else ""),
        ("store", store_text(wafer.store_bytes, wafer.store_bytes_per_s)),
        ("power limit", quantity_text(wafer.power_limit_w, "W")),
        ("spare dies", f"{wafer.spare_dies}" if wafer.spare_dies else ""),
        ("defects", defects_text(wafer)),
        *wrapped("source", wafer.source),
        *doubts_facts(wafer.doubts),
    ]
    return [(label, text) for label, text in facts if text]


def _memory(wafer: Wafer, dies: int = 1) -> str:
    die = wafer.die
    sram = f"{bytes_text(dies * die.sram_bytes)} of SRAM"
    if not die.hbm_bytes:
        return sram
    return f"{bytes_text(dies * die.hbm_bytes)} of HBM at {quantity_text(dies * die.hbm_bytes_per_s, 'B/s')}, {sram}"
