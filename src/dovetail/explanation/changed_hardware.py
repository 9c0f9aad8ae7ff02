"""The same cluster with more or less of one thing: memory, bandwidth, FLOP/s, nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import MAX_CHIPS, Chip, Cluster, Rates
from dovetail.hardware.network import fit_tiers

#: What an explanation calls the knobs that are no links.
CAPACITY, BANDWIDTH, FLOPS = "memory capacity", "memory bandwidth", "matrix FLOP/s"


@frozen
class Knob:
    """One thing of a cluster that there can be more of."""

    name: str
    turned: Callable[[Cluster, float], Cluster]
    """the cluster with so many times as much of it"""


def knobs(cluster: Cluster) -> tuple[Knob, ...]:
    """Memory, matrix units, and the links of every tier."""
    links = tuple(
        Knob(f"{tier.name} bandwidth", lambda whole, factor, level=level: with_links(whole, level, factor))
        for level, tier in enumerate(cluster.tiers)
    )
    return (Knob(CAPACITY, with_memory), Knob(BANDWIDTH, _with_bandwidth), Knob(FLOPS, _with_flops), *links)


def with_memory(cluster: Cluster, factor: float) -> Cluster:
    """Chips with so many times the memory; one without HBM has its state in SRAM."""
    chip = cluster.chip
    if chip.hbm_bytes:
        return _with_chip(cluster, replace(chip, hbm_bytes=chip.hbm_bytes * factor))
    core, shared = chip.core_sram_bytes * factor, chip.shared_sram_bytes * factor
    return _with_chip(cluster, replace(chip, core_sram_bytes=core, shared_sram_bytes=shared))


def memory_changes_seconds(cluster: Cluster) -> bool:
    """Whether seconds depend on how much memory there is: those of SRAM do, in which products are blocked."""
    return not cluster.chip.hbm_bytes


def _with_bandwidth(cluster: Cluster, factor: float) -> Cluster:
    chip = cluster.chip
    if chip.hbm_bytes_per_s:
        return _with_chip(cluster, replace(chip, hbm_bytes_per_s=chip.hbm_bytes_per_s * factor))
    core, shared = chip.core_sram_bytes_per_s, chip.shared_sram_bytes_per_s
    changed = replace(
        chip,
        core_sram_bytes_per_s=None if core is None else core * factor,
        shared_sram_bytes_per_s=None if shared is None else shared * factor,
    )
    return _with_chip(cluster, changed)


def _with_flops(cluster: Cluster, factor: float) -> Cluster:
    if factor == 1:
        return cluster
    chip = cluster.chip
    rates = {field.name: getattr(chip.dense_flops, field.name) for field in fields(chip.dense_flops)}
    scaled = Rates(**{name: None if rate is None else rate * factor for name, rate in rates.items()})
    return _with_chip(cluster, replace(chip, dense_flops=scaled))


def _with_chip(cluster: Cluster, changed: Chip) -> Cluster:
    """The cluster with a changed chip, which sustains what its own does of its peaks."""
    return replace(cluster, chip=replace(changed, calibration=None, calibrated_as=cluster.chip))


def with_links(cluster: Cluster, level: int, factor: float) -> Cluster:
    """The links of one tier with so many times the bandwidth."""
    tiers = tuple(
        replace(tier, bytes_per_s=tier.bytes_per_s * factor) if position == level else tier
        for position, tier in enumerate(cluster.tiers)
    )
    return replace(cluster, tiers=tiers)


def with_chips(cluster: Cluster, chips: int) -> Cluster | None:
    """So many chips of the same kind in groups of the same sizes; None where its network does not reach as far."""
    if chips > MAX_CHIPS:
        return None
    inner = cluster.tiers[:-1]
    if inner and all(chips % tier.size == 0 for tier in inner):
        return replace(cluster, chips=chips, tiers=(*inner, cluster.tiers[-1].resized(chips)))
    try:
        return replace(cluster, chips=chips, tiers=fit_tiers(cluster.chip.tiers, chips, "chips"))
    except InputError:
        return None


def with_a_node(cluster: Cluster) -> Cluster | None:
    """One more group of the innermost tier, or of the least tier that leaves all inner ones full."""
    sizes = [tier.size for tier in cluster.tiers[:-1]] or [cluster.chips]
    for size in sizes:
        chips = cluster.chips + size
        if all(chips % inner == 0 for inner in sizes):
            return with_chips(cluster, chips)
    return None
