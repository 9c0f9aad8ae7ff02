"""Clusters: chips of one kind and the network tiers between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware.chip import Chip
from dovetail.hardware.defects import DefectMap
from dovetail.hardware.fields import Doubts, DoubtTexts, Name, Text, doubts_of
from dovetail.hardware.network import MAX_CHIPS, Tier, TierSpec, check_nested, fit_tiers
from dovetail.hardware.network_file import ClusterNetwork, network_tiers


@frozen
class Store:
    """Memory off a wafer that it streams state or activations from: what one wafer's holds, and its rate either way."""

    bytes: float
    bytes_per_s: float


@frozen
class Cluster:
    """Chips and their tiers, innermost first; the last tier spans all of them, one chip has no tier."""

    name: str
    chip: Chip
    chips: int
    tiers: tuple[Tier, ...]
    source: str = ""
    doubts: Doubts = ()
    store: Store | None = None
    """of each wafer, where chips are dies of wafers that have one"""
    defects: tuple[DefectMap, ...] = ()
    """of each wafer; empty where nothing is dead"""

    def __post_init__(self) -> None:
        sizes = [1, *(tier.size for tier in self.tiers)]
        for inner, outer in pairwise(sizes):
            if outer <= inner or outer % inner:
                fix = "each size should be a multiple of the one before"
                raise InputError("cluster: tiers", f"have the sizes {sizes[1:]}", fix)
        if sizes[-1] != self.chips:
            fix = f"the last should span all {self.chips} chips"
            raise InputError("cluster: tiers", f"have the sizes {sizes[1:]}", fix)

    @property
    def factors(self) -> tuple[int, ...]:
        """How many groups of the tier inside make a group of each tier; their product is `chips`."""
        sizes = (1, *(tier.size for tier in self.tiers))
        return tuple(outer // inner for inner, outer in pairwise(sizes))

    def tier_of(self, group: int) -> Tier | None:
        """The innermost tier that holds a group of neighbouring chips; None for a single chip."""
        return None if group <= 1 else next((tier for tier in self.tiers if tier.size >= group), self.tiers[-1])


class ClusterSpec(Spec):
    """A cluster file; `chip` names a chip of the catalogue (or holds one, which is read before this)."""

    name: Name
    chip: Name
    chips: Annotated[int, Field(ge=1, le=MAX_CHIPS)]
    tiers: Annotated[tuple[TierSpec, ...], Field(strict=False, max_length=8)] | None = None
    """innermost first; left out: what the chip is sold with"""
    network: Text | None = None
    """instead of tiers: a network of the catalogue, or the path of a network file"""
    source: Text = ""
    doubts: DoubtTexts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> ClusterSpec:
        names = [tier.name for tier in self.tiers or ()]
        check_nested(names, [tier.chips() for tier in self.tiers or ()])
        if self.tiers is not None and self.network is not None:
            raise InputError("network", "cannot be combined with tiers", "give one of them")
        doubts_of(self.doubts, [*type(self).model_fields, *names])
        return self

    def cluster(self, chip: Chip, network: ClusterNetwork | None, chips: int | None, where: str) -> Cluster:
        """The cluster a file describes, with as many chips as asked for."""
        count = self.chips if chips is None else chips
        doubts = tuple(self.doubts.items())
        if network is not None:
            fitted = network_tiers(network, chip, count, f"{where}: chips")
            return Cluster(self.name, chip, count, fitted, self.source or network.source, doubts or network.doubts)
        tiers = chip.tiers if self.tiers is None else tuple(tier.tier() for tier in self.tiers)
        fitted = fit_tiers(tiers, count, f"{where}: chips", exact=self.tiers is not None and chips is None)
        return Cluster(self.name, chip, count, fitted, self.source, doubts)


def check_chips(chips: object) -> int:
    """A number of chips a caller gave."""
    if not isinstance(chips, int) or isinstance(chips, bool) or not 1 <= chips <= MAX_CHIPS:
        raise InputError("chips", f"is {chips!r:.60}", f"it should be a whole number from 1 to {MAX_CHIPS}")
    return chips
