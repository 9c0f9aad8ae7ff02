"""The cluster of a measured run: its chip's own links inside, the row's network outside."""

from __future__ import annotations

import re
from dataclasses import replace

from dovetail import hardware
from dovetail.accuracy.table import TableRow
from dovetail.errors import InputError
from dovetail.hardware import Chip, Cluster, Tier
from dovetail.hardware.cluster import check_chips
from dovetail.hardware.network import GRIDS, fit_tiers

#: No node has more chips; a larger tier spans several nodes (a rack, a pod).
MAX_NODE = 16


def read_cluster(row: TableRow, slices: int) -> Cluster:
    """The cluster of the row's chips in slices; network bandwidth is the row's or the chip's, never fitted."""
    chip = hardware.chip(row.text("chip").casefold())
    chips = check_chips(row.needed("num_chips"))
    name = f"{chip.name}-{chips}"
    if chips == 1:
        return Cluster(name, chip, 1, ())
    if not chip.tiers:
        raise InputError("chip", f"{chip.name} has no links", "a run of several chips needs some")
    inner = _inner(chip.tiers[0], row, chips, slices)
    tiers = fit_tiers((inner, *_outer(chip, row)), chips, "num_chips")
    return Cluster(name, chip, chips, tiers)


def _inner(tier: Tier, row: TableRow, chips: int, slices: int) -> Tier:
    """The links of a node, of a rack where they reach beyond nodes, of a slice of a pod."""
    if tier.topology in GRIDS:
        in_slices = slices > 1 and chips % slices == 0
        return tier.resized(min(chips // slices, tier.size)) if in_slices else tier
    node = row.count("chips_per_node")
    if node is not None and node > max(MAX_NODE, tier.size):
        raise InputError("chips_per_node", f"is {node}", f"no node has more than {max(MAX_NODE, tier.size)} chips")
    return tier if node is None or node == 1 or tier.size > MAX_NODE else replace(tier, size=node)


def gbps_per_node(row: TableRow) -> float | None:
    """The number from the notes if they state it, else from the column."""
    stated = re.search(r"(\d[\d,]{1,6})\s?gbps/node", row.text("notes").casefold())
    rate = float(stated[1].replace(",", "")) if stated else 0.0
    return rate or row.number("inter_node_gbps_per_node")


def _outer(chip: Chip, row: TableRow) -> tuple[Tier, ...]:
    """Beyond the node; the row states the bandwidth of a whole node."""
    rate, node = gbps_per_node(row), row.count("chips_per_node")
    if rate is None or node is None:
        return chip.tiers[1:]
    bytes_per_s = rate * 1e9 / 8 / node
    if len(chip.tiers) > 1:
        return (*chip.tiers[1:-1], replace(chip.tiers[-1], bytes_per_s=bytes_per_s, oversubscription=1.0))
    fix = "the chip should have a second tier"
    raise InputError("inter_node_gbps_per_node", f"is given, and the latency beyond {chip.name}'s links is not", fix)
