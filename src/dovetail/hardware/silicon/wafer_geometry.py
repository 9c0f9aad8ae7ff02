"""Where dies and memory of a wafer lie, what stands on their edges, and how far its wires go."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.hardware.integration import LinkNumbers
from dovetail.hardware.technology import Numbers
from dovetail.hardware.wafer_design import WaferDesigns

#: What a scanner exposes at once.
RETICLE_SHORT_MM = 26.0
RETICLE_LONG_MM = 33.0


def reticle_share(designs: WaferDesigns) -> Floats:
    """A die over the exposure field, on the side where it is nearer to the end; a die may lie either way."""
    width, height = designs.die_width_mm, designs.die_height_mm
    return np.maximum(np.minimum(width, height) / RETICLE_SHORT_MM, np.maximum(width, height) / RETICLE_LONG_MM)


def stack_columns(designs: WaferDesigns) -> tuple[Floats, Floats]:
    """Columns of HBM stacks east and west of a die: as many stacks in each as its height holds, the east one first."""
    columns = np.ceil(designs.hbm_stacks / _per_column(designs))
    east = np.ceil(columns / 2)
    return east, columns - east


def pitches_mm(designs: WaferDesigns) -> tuple[Floats, Floats]:
    """From one die to the next, along a row and along a column of the grid."""
    wafer = designs.wafer
    east, west = stack_columns(designs)
    columns = east + west
    along = designs.die_width_mm + wafer.gap_mm + columns * (wafer.stack_depth_mm + wafer.gap_mm)
    tall = np.where(columns > 0, np.maximum(designs.die_height_mm, wafer.stack_along_mm), designs.die_height_mm)
    return along, tall + wafer.gap_mm


def grid_share(designs: WaferDesigns) -> Floats:
    """The grid with its memory over the room of the wafer, on the side where it is nearer to the end."""
    wafer = designs.wafer
    along, down = pitches_mm(designs)
    width, height = designs.grid_cols * along - wafer.gap_mm, designs.grid_rows * down - wafer.gap_mm
    return np.maximum(width / wafer.width_mm, height / wafer.height_mm)


def shoreline_share(designs: WaferDesigns, numbers: Numbers, links: LinkNumbers) -> Floats:
    """Edge that interfaces need over what there is, on the fullest of: east, north or south, the wafer's rim.

    East and west edges have a link and the stacks there, the others a link; what leaves the wafer, to other wafers and
    to its store, does so over the outer edges of the dies at its rim.
    """
    link_mm = designs.link_port_bytes_per_s * links.link_shoreline_mm_per_byte_per_s
    east, _ = stack_columns(designs)
    stacks = np.minimum(designs.hbm_stacks, east * _per_column(designs))
    side = (link_mm + stacks * numbers.hbm_shoreline_mm) / designs.die_height_mm
    top = link_mm / designs.die_width_mm
    return np.maximum(np.maximum(side, top), off_wafer_mm(designs, numbers) / rim_mm(designs))


def rim_mm(designs: WaferDesigns) -> Floats:
    """The outer edges of the dies around the grid."""
    return 2 * (designs.grid_cols * designs.die_width_mm + designs.grid_rows * designs.die_height_mm)


def off_wafer_mm(designs: WaferDesigns, numbers: Numbers) -> Floats:
    """Edge that serial links to other wafers and those to the store need; a step may use both at once."""
    sent = designs.edge_bytes_per_s + designs.store_bytes_per_s
    return sent * numbers.link_shoreline_mm_per_byte_per_s


def wire_mm(designs: WaferDesigns) -> Floats:
    """The longest wire from centre to centre: of neighbouring dies, or of a die and its farthest stack."""
    wafer = designs.wafer
    along, down = pitches_mm(designs)
    east, _ = stack_columns(designs)
    beyond = east * (wafer.stack_depth_mm + wafer.gap_mm) - wafer.stack_depth_mm / 2
    to_stack = np.where(east > 0, designs.die_width_mm / 2 + beyond, 0.0)
    # a lone die has no neighbour along an axis of one
    between = np.maximum(np.where(designs.grid_cols > 1, along, 0.0), np.where(designs.grid_rows > 1, down, 0.0))
    return np.maximum(between, to_stack)


def _per_column(designs: WaferDesigns) -> Floats:
    """Stacks that stand along the height of a die; at least one, which then reaches beyond it."""
    return np.maximum(np.floor(designs.die_height_mm / designs.wafer.stack_along_mm), 1.0)
