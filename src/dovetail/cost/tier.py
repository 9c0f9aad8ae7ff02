"""A network tier as arrays: what a collective needs of the links it crosses."""

from __future__ import annotations

from dovetail.arrays import Floats
from dovetail.frozen import frozen


@frozen
class GridAxis:
    """One axis of a mesh or torus."""

    #: which grid of the network it belongs to
    grid: int
    #: chips along it
    length: int
    wraps: bool


@frozen
class TierArrays:
    """One network tier as collectives see it; every field an array or a number."""

    #: bytes per second one chip can send, per direction
    bytes_per_s: Floats
    #: seconds per hop or message
    latency_s: Floats
    #: seconds any collective costs before the first byte
    launch_s: Floats
    #: part of the bandwidth large messages reach
    efficiency: Floats
    #: whether switches add up all-reduces (NVLink SHARP)
    in_network_reduction: bool = False
    #: an axis of a grid whose messages are routed along its links: `bytes_per_s` is then that of a chip's two links
    #: along it, and neighbours of a group lie `stride` chips apart
    grid: GridAxis | None = None
    stride: Floats | float = 1.0
    #: a tier that sends by the ports of the tier inside has the same name here
    ports: str | None = None
