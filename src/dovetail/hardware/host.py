"""Hosts of chips: the link to one, and its memory, which its chips share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dovetail.documents import Spec
from dovetail.frozen import frozen
from dovetail.hardware.fields import SomeBytes, SomeBytesPerS


@frozen
class Host:
    """What a chip reaches of its host; where a file does not say, two CPUs with PCIe 5 and eight chips."""

    link_bytes_per_s: float = 50e9
    """that copies reach each way between one chip and its host's memory"""
    bytes: float = 2e12
    """memory of one host"""
    bytes_per_s: float = 200e9
    """that an optimizer reaches on it; assumed, about half of what the channels of two CPUs have"""
    chips: int = 8
    """that share one host"""

    def chip_bytes(self, chips: int) -> float:
        """A chip's share of the memory, in a cluster of so many."""
        return self.bytes / min(self.chips, chips)

    def chip_bytes_per_s(self, chips: int) -> float:
        """A chip's share of the memory's rate, in a cluster of so many."""
        return self.bytes_per_s / min(self.chips, chips)


#: Where nothing is known of a chip's host.
USUAL_HOST = Host()


class HostSpec(Spec):
    """The host of a chip as a file has it."""

    link_bytes_per_s: SomeBytesPerS = USUAL_HOST.link_bytes_per_s
    bytes: SomeBytes = USUAL_HOST.bytes
    bytes_per_s: SomeBytesPerS = USUAL_HOST.bytes_per_s
    chips: Annotated[int, Field(ge=1, le=4096)] = USUAL_HOST.chips

    def host(self) -> Host:
        """The same for use."""
        return Host(**dict(self))
