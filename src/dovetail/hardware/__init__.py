"""Technology, chips, network tiers, clusters and design spaces, and the catalogue of those people build and rent."""

from dovetail.hardware.catalogue import (
    chip,
    chip_names,
    cluster,
    cluster_from,
    cluster_names,
    space,
    space_from,
    space_names,
    technology,
    technology_names,
)
from dovetail.hardware.chip import Chip, ChipKind, Dataflow, Precision, Rates
from dovetail.hardware.cluster import Cluster
from dovetail.hardware.network import MAX_CHIPS, Tier, Topology
from dovetail.hardware.technology import Coefficient, Technology

__all__ = [
    "MAX_CHIPS",
    "Chip",
    "ChipKind",
    "Cluster",
    "Coefficient",
    "Dataflow",
    "Precision",
    "Rates",
    "Technology",
    "Tier",
    "Topology",
    "chip",
    "chip_names",
    "cluster",
    "cluster_from",
    "cluster_names",
    "space",
    "space_from",
    "space_names",
    "technology",
    "technology_names",
]
