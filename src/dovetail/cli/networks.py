"""`dovetail networks`: ways to join any number of any chip, and one of them between the chips asked for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson, doubts_facts, print_tiers
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.errors import InputError
from dovetail.units import quantity_text, seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import ClusterNetwork
    from dovetail.hardware.network_file import NetworkTierSpec

app = typer.Typer(help="Networks: list the catalogue, show one between the chips you have.")


@app.command("list")
def list_networks(as_json: AsJson = False) -> None:
    """List the networks of the catalogue."""
    networks = [dt.hardware.network(name) for name in dt.hardware.network_names()]
    if as_json:
        print_json([network_fields(network) for network in networks])
        return
    rows = [(n.name, f"{n.domain_chips:,}", " / ".join(_size(t) for t in n.tiers), _kinds(n)) for n in networks]
    print_table(("network", "scale-up domain", "chips of each tier", "topology"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A network of the catalogue, or the path of a network file.")],
    chip: Annotated[str | None, typer.Option("--chip", help="Between chips of this kind.")] = None,
    chips: Annotated[int | None, typer.Option("--chips", help="Between this many of them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show one network: its tiers, and with --chip and --chips those between so many chips."""
    network = dt.hardware.network(name)
    if (chip is None) != (chips is None):
        missing, given = ("--chip", "--chips") if chip is None else ("--chips", "--chip")
        raise InputError(missing, "is missing", f"give it with {given}, or neither")
    cluster = None
    if chip is not None and chips is not None:
        cluster = dt.hardware.cluster_on(network, dt.hardware.chip(chip), chips)
    if as_json:
        tiers = [] if cluster is None else [asdict(tier) for tier in cluster.tiers]
        between = {"cluster": {"chip": chip, "chips": chips, "tiers": tiers}} if cluster else {}
        print_json({**network_fields(network), **between})
        return
    facts = [
        ("network", f"{network.name} ({network.title})"),
        ("scale-up domain", f"{network.domain_chips:,} chips"),
        *([("chips", f"{cluster.chips:,} x {cluster.chip.name}")] if cluster else []),
        *([("source", network.source)] if network.source else []),
        *doubts_facts(network.doubts),
    ]
    print_facts(facts)
    if cluster is not None:
        print_tiers(cluster.tiers)
        return
    print_table(("tier", "chips", "topology", "per chip", "latency", "notes"), [_row(tier) for tier in network.tiers])


def network_fields(network: ClusterNetwork) -> dict[str, object]:
    """A network as JSON: its file, and the chips of its innermost tier."""
    tiers = [{**dict(tier), "size": tier.chips()} for tier in network.tiers]
    fields = {**asdict(network), "tiers": tiers, "doubts": dict(network.doubts)}
    return {**fields, "domain_chips": network.domain_chips}


def _row(tier: NetworkTierSpec) -> tuple[str, ...]:
    rate, latency = tier.bytes_per_s, tier.latency_s
    return (
        tier.name,
        _size(tier),
        f"{tier.topology} {' x '.join(map(str, tier.shape))}".strip(),
        f"the chip's {rate}" if isinstance(rate, str) else quantity_text(rate, "B/s"),
        "the chip's" if latency is None else seconds_text(latency),
        f"{tier.oversubscription:g}:1" if tier.oversubscription > 1 else "",
    )


def _kinds(network: ClusterNetwork) -> str:
    tapers = [f" {tier.oversubscription:g}:1" if tier.oversubscription > 1 else "" for tier in network.tiers]
    return " / ".join(tier.topology + taper for tier, taper in zip(network.tiers, tapers, strict=True))


def _size(tier: NetworkTierSpec) -> str:
    return "any number" if tier.chips() == dt.hardware.MAX_CHIPS else f"{tier.chips():,}"
