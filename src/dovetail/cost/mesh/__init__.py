"""Collectives on a mesh of dies, damaged or not: algorithms, bounds, and groups that share links."""

from dovetail.cost.mesh.algorithms import ALGORITHMS
from dovetail.cost.mesh.bounds import lower_bound
from dovetail.cost.mesh.choose import best, collective, on_components
from dovetail.cost.mesh.collective import MeshCollective, MeshCollectiveKind, Spread, counted_loads
from dovetail.cost.mesh.grid import Die, DieMesh, Edge
from dovetail.cost.mesh.loads import DieGroup, concurrent_seconds, embedded, logical_ring, on_group, total_loads
from dovetail.cost.mesh.tilings import across_loads, across_tiles, tile_loads, tiles, tilings

__all__ = [
    "ALGORITHMS",
    "Die",
    "DieGroup",
    "DieMesh",
    "Edge",
    "MeshCollective",
    "MeshCollectiveKind",
    "Spread",
    "across_loads",
    "across_tiles",
    "best",
    "collective",
    "concurrent_seconds",
    "counted_loads",
    "embedded",
    "logical_ring",
    "lower_bound",
    "on_components",
    "on_group",
    "tile_loads",
    "tiles",
    "tilings",
    "total_loads",
]
