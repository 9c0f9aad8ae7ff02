"""Chips and clusters back into files: what these modules read gives the same chip or cluster again."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from dovetail.hardware.catalogue import chip as chip_named
from dovetail.hardware.catalogue import chip_names
from dovetail.hardware.chip import Chip, ChipSpec
from dovetail.hardware.cluster import Cluster
from dovetail.hardware.host import USUAL_HOST
from dovetail.hardware.network import MAX_CHIPS, Tier


def chip_document(chip: Chip) -> dict[str, Any]:
    """The fields of a chip file, in SI numbers; those that say nothing are left out."""
    document: dict[str, Any] = {}
    for name, spec in ChipSpec.model_fields.items():
        value: Any = getattr(chip, name)
        if value is not None and value != () and (spec.is_required() or value != spec.default):
            document[name] = _plain(value)
    document["dense_flops"] = {name: _plain(rate) for name, rate in chip.dense_flops.published().items()}
    on_die = {name: _plain(made) for name, made in asdict(chip.on_die).items() if made is not None}
    document.pop("on_die", None)
    if on_die:
        document["on_die"] = on_die
    document.pop("host", None)
    if chip.host != USUAL_HOST:
        document["host"] = {name: _plain(value) for name, value in asdict(chip.host).items()}
    if chip.tiers:
        document["tiers"] = [_tier(tier) for tier in chip.tiers]
    if chip.doubts:
        document["doubts"] = dict(chip.doubts)
    if chip.calibration is not None:
        document["calibration"] = {"values": dict(chip.calibration.values), "source": chip.calibration.source}
    if chip.calibrated_as is not None:
        document["calibrated_as"] = _name_or_document(chip.calibrated_as)
    return document


def _name_or_document(chip: Chip) -> str | dict[str, Any]:
    """A chip of the catalogue by its name, another in full."""
    listed = chip.name in chip_names() and chip_named(chip.name) == chip
    return chip.name if listed else chip_document(chip)


def cluster_document(cluster: Cluster, name: str, source: str = "") -> dict[str, Any]:
    """The fields of a cluster file that holds its chip, and serves other numbers of chips too."""
    document = {
        "name": name,
        "chip": chip_document(cluster.chip),
        "chips": cluster.chips,
        "tiers": [_tier(tier) for tier in _reaching(cluster)],
        "source": source,
    }
    return {field: value for field, value in document.items() if value not in ("", [])}


def tier_documents(cluster: Cluster) -> list[dict[str, Any]]:
    """The tiers of just this cluster, as its file would have them."""
    return [_tier(tier) for tier in cluster.tiers]


def _reaching(cluster: Cluster) -> list[Tier]:
    """The cluster's tiers, the outermost as far as the chip's own goes, then those it does not reach."""
    tiers = list(cluster.tiers)
    positions = {tier.name: position for position, tier in enumerate(cluster.chip.tiers)}
    if not tiers or tiers[-1].name not in positions:
        return tiers or list(cluster.chip.tiers)
    sold = cluster.chip.tiers[positions[tiers[-1].name]]
    grown = replace(tiers[-1], size=sold.size, shape=sold.shape, topology=sold.topology)
    beyond = [tier for tier in cluster.chip.tiers[positions[sold.name] + 1 :] if tier.size > sold.size]
    return [*tiers[:-1], grown, *beyond]


def _tier(tier: Tier) -> dict[str, Any]:
    usual = {field.name: field.default for field in fields(Tier)}
    document = {name: _plain(value) for name, value in asdict(tier).items() if value != usual[name]}
    if tier.size == MAX_CHIPS:
        del document["size"]
    if tier.topology != "torus":
        # a mesh that a torus was cut to wraps nowhere
        document.pop("wrap_multiple", None)
    return document


def _plain(value: Any) -> Any:
    """Whole numbers without a point, lists for tuples."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    return int(value) if isinstance(value, float) and value.is_integer() else value
