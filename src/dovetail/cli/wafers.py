"""`dovetail wafers`: the catalogue, one wafer's dies, links and memory, and whether it can be built."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson, doubts_facts, print_tiers, quantity_text
from dovetail.cli.output import print_facts, print_json, print_table, wrapped
from dovetail.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import Wafer
    from dovetail.hardware.silicon import Finding

app = typer.Typer(help="Wafers: list the catalogue, show one and what can be built of it.")


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
    as_json: AsJson = False,
) -> None:
    """Show one wafer: dies, links, memory, doubts, and every physical rule about it."""
    wafer = dt.hardware.wafer(name)
    cluster = wafer.cluster(wafers)
    findings = _findings(wafer)
    if as_json:
        fields = {**wafer_fields(wafer), "findings": [asdict(finding) for finding in findings or ()]}
        print_json({**fields, "chips": cluster.chips, "tiers": [asdict(tier) for tier in cluster.tiers]})
        return
    print_facts(_facts(wafer))
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
    return {**fields, "dies": wafer.dies, "live_dies": len(wafer.live_dies()), "doubts": dict(wafer.doubts)}


def _findings(wafer: Wafer) -> tuple[Finding, ...] | None:
    from dovetail.hardware.silicon import check

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
        ("store", _store(wafer)),
        ("power limit", quantity_text(wafer.power_limit_w, "W")),
        ("spare dies", f"{wafer.spare_dies}" if wafer.spare_dies else ""),
        ("defects", _defects(wafer)),
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


def _store(wafer: Wafer) -> str:
    if not wafer.store_bytes:
        return ""
    return f"{bytes_text(wafer.store_bytes)} at {quantity_text(wafer.store_bytes_per_s, 'B/s')}"


def _defects(wafer: Wafer) -> str:
    dead, links = len(wafer.defects.dead_dies), len(wafer.defects.dead_links)
    if not dead and not links:
        return ""
    return f"{dead} dead dies, {links} dead links; {len(wafer.connected_dies())} dies reach each other"
