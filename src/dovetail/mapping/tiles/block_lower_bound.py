"""The lower bound of a job's main block on the dies of a stage."""

from __future__ import annotations

from dovetail.mapping.tiles.floors import SkeletonFloors
from dovetail.mapping.tiles.pipeline_floor import PipelineFloor
from dovetail.mapping.tiles.tile_layers import TileLayers


def block_lower_bound(layers: TileLayers) -> PipelineFloor:
    """What the floors say of the skeleton of these layers."""
    floors = SkeletonFloors(layers.job, layers.cluster, layers.framework, {layers.skeleton.dies}, layers.skeleton.store)
    return floors.pipeline(layers.skeleton, layers.zero_stage)
