"""Networks of the catalogue and of files: tiers for any number of any chip, with rates of their own or of the chip."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware.chip import Chip
from dovetail.hardware.fields import Doubts, DoubtTexts, Name, Seconds, SomeBytesPerS, Text, doubts_of
from dovetail.hardware.network import Ports, Tier, TierShapeSpec, check_nested, fit_tiers


class NetworkTierSpec(TierShapeSpec):
    """A tier of a network file."""

    bytes_per_s: Annotated[Ports | SomeBytesPerS, Field(union_mode="left_to_right")]
    """a rate, or `links` or `network`: that of the chip's own links, or of the outermost tier it is sold with"""
    latency_s: Seconds | None = None
    """left out: that of the chip's tier"""
    in_network_reduction: bool | None = None
    """left out: whether the switches of the chip's tier do"""

    @model_validator(mode="after")
    def _complete(self) -> NetworkTierSpec:
        if self.latency_s is None and not isinstance(self.bytes_per_s, str):
            raise InputError("latency_s", "is missing", "a tier with a rate of its own has a latency of its own")
        return self

    def tier(self, chip: Chip, where: str) -> Tier:
        """The tier as chips of a kind have it."""
        like = _chip_tier(chip, self.bytes_per_s, where) if isinstance(self.bytes_per_s, str) else None
        rate = self.bytes_per_s if isinstance(self.bytes_per_s, float) else like.bytes_per_s if like else 0.0
        latency_s = self.latency_s if self.latency_s is not None else like.latency_s if like else 0.0
        adds = like is not None and like.in_network_reduction and like.topology == self.topology == "switch"
        return Tier(
            name=self.name,
            size=self.chips(),
            topology=self.topology,
            bytes_per_s=rate,
            latency_s=latency_s,
            shape=self.shape,
            wrap_multiple=self.wrap_multiple,
            oversubscription=self.oversubscription,
            in_network_reduction=adds if self.in_network_reduction is None else self.in_network_reduction,
            routed=self.routed,
            ports=self.bytes_per_s if isinstance(self.bytes_per_s, str) else None,
        )


@frozen
class ClusterNetwork:
    """A way to join any number of any chip."""

    name: str
    title: str
    tiers: tuple[NetworkTierSpec, ...]
    """innermost first"""
    source: str = ""
    doubts: Doubts = ()

    @property
    def domain_chips(self) -> int:
        """Chips of the innermost tier: the scale-up domain, where it is full."""
        return self.tiers[0].chips()

    @property
    def takes_links(self) -> bool:
        """Whether the innermost tier has the rate of the chip's own links."""
        return self.tiers[0].bytes_per_s == "links"


class NetworkSpec(Spec):
    """A network file."""

    name: Name
    title: Text = ""
    tiers: Annotated[tuple[NetworkTierSpec, ...], Field(strict=False, min_length=1, max_length=8)]
    """innermost first; the last reaches every chip"""
    source: Text = ""
    doubts: DoubtTexts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> NetworkSpec:
        check_nested([tier.name for tier in self.tiers], [tier.chips() for tier in self.tiers])
        doubts_of(self.doubts, [*type(self).model_fields, *(tier.name for tier in self.tiers)])
        return self

    def network(self) -> ClusterNetwork:
        """The network a file describes."""
        return ClusterNetwork(self.name, self.title or self.name, self.tiers, self.source, tuple(self.doubts.items()))


def network_tiers(network: ClusterNetwork, chip: Chip, chips: int, where: str = "chips") -> tuple[Tier, ...]:
    """The tiers of a network between that many chips.

    Groups of the innermost tier must be two thirds full, as in any cluster; those further out are taken as large as
    equal groups can be, and not at all where there are none.
    """
    tiers = tuple(tier.tier(chip, f"network {network.name}: {tier.name}") for tier in network.tiers)
    return fit_tiers(tiers, chips, where, filled=1)


def _chip_tier(chip: Chip, rate: Ports, where: str) -> Tier:
    if rate == "links" and chip.tiers:
        return chip.tiers[0]
    if rate == "network" and len(chip.tiers) > 1:
        return chip.tiers[-1]
    what = "links" if rate == "links" else "network beyond its links"
    raise InputError(where, f"takes the rate of the chip's {rate}, and {chip.name} has no {what}", "give a rate")
