"""`dovetail clusters`: the catalogue, one cluster's chips and network tiers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson, doubts_facts, print_tiers
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.units import bytes_text, quantity_text

if TYPE_CHECKING:
    from dovetail.hardware import Cluster

app = typer.Typer(help="Clusters: list the catalogue, show one.")


@app.command("list")
def list_clusters(as_json: AsJson = False) -> None:
    """List the clusters of the catalogue."""
    clusters = [dt.hardware.cluster(name) for name in dt.hardware.cluster_names()]
    if as_json:
        print_json([cluster_fields(cluster) for cluster in clusters])
        return
    rows = [(c.name, c.chip.name, f"{c.chips:,}", _groups(c), _rates(c)) for c in clusters]
    print_table(("cluster", "chip", "chips", "chips of each tier", "GB/s per chip"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A cluster or chip of the catalogue, or the path of a cluster file.")],
    chips: Annotated[int | None, typer.Option("--chips", help="Use this many chips instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show one cluster: chips, network tiers and doubts."""
    cluster = dt.hardware.cluster(name, chips)
    if as_json:
        print_json(cluster_fields(cluster))
        return
    chip = cluster.chip
    peak = quantity_text(cluster.chips * (chip.dense_flops.bf16 or chip.dense_flops.fp16 or 0.0), "FLOPS")
    memory = bytes_text(cluster.chips * chip.memory_bytes)
    print_facts(
        [
            ("cluster", cluster.name),
            ("chips", f"{cluster.chips:,} x {chip.name} ({chip.title})"),
            (
                "together",
                f"{peak} of 16-bit peak, {memory} of memory",
            ),
            *([("source", cluster.source)] if cluster.source else []),
            *doubts_facts(cluster.doubts),
        ]
    )
    print_tiers(cluster.tiers)


def cluster_fields(cluster: Cluster) -> dict[str, object]:
    """A cluster as JSON, with the name of its chip."""
    fields = {**asdict(cluster), "chip": cluster.chip.name, "doubts": dict(cluster.doubts)}
    return {**fields, "factors": list(cluster.factors)}


def _groups(cluster: Cluster) -> str:
    return " / ".join(f"{tier.size:,}" for tier in cluster.tiers)


def _rates(cluster: Cluster) -> str:
    return " / ".join(f"{tier.bytes_per_s / 1e9:g}" for tier in cluster.tiers)
