"""Technology, chips, network tiers, clusters, wafers, design spaces, and a catalogue of what people build and rent."""

from dovetail.hardware.catalogue import (
    chip,
    chip_names,
    cluster,
    cluster_from,
    cluster_names,
    cluster_on,
    integration,
    integration_names,
    listed_as,
    network,
    network_names,
    space,
    space_from,
    space_names,
    technology,
    technology_names,
    technology_of,
    wafer,
    wafer_from,
    wafer_names,
)
from dovetail.hardware.chip import Chip, ChipKind, Dataflow, Precision, Rates
from dovetail.hardware.cluster import Cluster, Store
from dovetail.hardware.defects import DefectMap
from dovetail.hardware.integration import Integration
from dovetail.hardware.network import MAX_CHIPS, Tier, Topology
from dovetail.hardware.network_file import ClusterNetwork, network_tiers
from dovetail.hardware.technology import Coefficient, Technology
from dovetail.hardware.wafer import Wafer

__all__ = [
    "MAX_CHIPS",
    "Chip",
    "ChipKind",
    "Cluster",
    "ClusterNetwork",
    "Coefficient",
    "Dataflow",
    "DefectMap",
    "Integration",
    "Precision",
    "Rates",
    "Store",
    "Technology",
    "Tier",
    "Topology",
    "Wafer",
    "chip",
    "chip_names",
    "cluster",
    "cluster_from",
    "cluster_names",
    "cluster_on",
    "integration",
    "integration_names",
    "listed_as",
    "network",
    "network_names",
    "network_tiers",
    "space",
    "space_from",
    "space_names",
    "technology",
    "technology_names",
    "technology_of",
    "wafer",
    "wafer_from",
    "wafer_names",
]
