"""Every layer class of a job under a plan, profiled on a cluster's chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.collective import CollectiveTime, tiered_time
from dovetail.cost.energy import RangedRates, energy_rates
from dovetail.cost.experts import fullest_load
from dovetail.cost.operators import ChipUnits
from dovetail.cost.tier import TierArrays
from dovetail.cost.units import way_arrays
from dovetail.frameworks import Buckets
from dovetail.frozen import frozen
from dovetail.graph import (
    OPTIMIZERS,
    Backward,
    DerivedSize,
    Element,
    Kind,
    LayerGraph,
    ModelGraph,
    Orthogonalized,
    Role,
    differentiate,
    orthogonalized,
)
from dovetail.graph.routing import EXPERT_TOKENS, ONE_GROUP, TOP_K, ExpertGroups
from dovetail.graph.size import SettledSizes, Size, as_array
from dovetail.hardware import Cluster
from dovetail.layout import Collective, CollectiveKind, CollectivePhase, PlacedLayer, Strategy, degree, place_layer
from dovetail.layout.axes import AtomicAxes
from dovetail.models import Job
from dovetail.plans.arrange import Arrangement
from dovetail.profile import WEIGHT_GATHER, Extent, LayerProfile, profile_layer, sizes_of_layers

if TYPE_CHECKING:
    from dovetail.cost.mesh.damage import DamagedGroups

#: The kind of group whose collectives bring updated weights to every replica (ZeRO-1 and 2).
UPDATED_WEIGHTS = "updated weights"
#: The kind of group that reduces gradients.
GRADIENTS = "data-parallel"


@frozen
class JobProfiles:
    """What the layers of a job cost under a plan; of several plans, arrays over them."""

    graph: ModelGraph
    layers: Mapping[str, LayerProfile]
    #: energies of the chip's technology, where it gives them
    rates: RangedRates | None


@frozen
class Arrangements:
    """Arrangements along the same axes, side by side: what differs between them is arrays, or a number for one."""

    axes: AtomicAxes
    strategy: Strategy
    axis_sizes: Mapping[str, Size]
    #: groups each axis joins along every way of the network, and their stride: ways × arrangements
    joins: Mapping[str, Floats]
    strides: Mapping[str, Floats]
    #: sequences of a micro-batch on all replicas
    batch: Size

    @staticmethod
    def of(arranged: Sequence[Arrangement], batches: Sequence[int], along: Arrangement | None = None) -> Arrangements:
        """Arrangements of plans and the sequences of their micro-batches.

        They are `along` the axes of another one, of which some may have one chip; else all along the same.
        """
        axes, strategy = (along or arranged[0]).axes, (along or arranged[0]).strategy
        assert along or all(each.strategy == strategy for each in arranged), "plans along the same axes"
        ways = {axis: (1,) * len(n) for axis, n in (along or arranged[0]).joins.items()}
        joins, strides = (
            {a: np.array([getattr(each, field).get(a, ways[a]) for each in arranged], np.float64).T for a in axes.sizes}
            for field in ("joins", "strides")
        )
        return Arrangements(
            axes,
            strategy,
            SettledSizes({a: _together([each.axes.sizes.get(a, 1) for each in arranged]) for a in axes.sizes}),
            {axis: n if len(arranged) > 1 else n[:, 0] for axis, n in joins.items()},
            {axis: n if len(arranged) > 1 else n[:, 0] for axis, n in strides.items()},
            _together(batches),
        )

    def taken(self, rows: Ints, times: Ints) -> Arrangements:
        """Some of them, each with so many times the sequences."""
        return Arrangements(
            self.axes,
            self.strategy,
            SettledSizes(
                {axis: np.broadcast_to(as_array(size), self._count)[rows] for axis, size in self.axis_sizes.items()}
            ),
            {axis: self._wide(n)[:, rows] for axis, n in self.joins.items()},
            {axis: self._wide(n)[:, rows] for axis, n in self.strides.items()},
            np.broadcast_to(as_array(self.batch), self._count)[rows] * times,
        )

    def _wide(self, by_way: Floats) -> Floats:
        return np.broadcast_to(by_way.T, (*self._count, by_way.shape[0])).T

    @property
    def _count(self) -> tuple[int, ...]:
        return (np.size(as_array(self.batch)),)


#: What a collective takes, and the ways its links are on.
Timed = tuple[CollectiveTime, list[int]]
#: Weights or gradients of a layer that travel together: their purpose, phase, kind and axes.
Bucket = tuple[str, CollectivePhase, CollectiveKind, tuple[str, ...]]


@frozen
class TokenRouting:
    """How a layer's tokens travel to its experts."""

    #: experts of one node that tokens can travel to together
    receivers: float = 1.0
    experts: float = 1.0
    groups: ExpertGroups = ONE_GROUP
    #: load of the fullest chip over the mean; None: not stated
    imbalance: float | None = 1.0

    @staticmethod
    def of(layer: LayerGraph, *, one_copy_per_node: bool) -> TokenRouting:
        """That of a layer; nothing is routed where it has no experts."""
        tokens, top_k, experts = (layer.sizes.get(dim) for dim in (EXPERT_TOKENS, TOP_K, "experts"))
        if not (isinstance(tokens, DerivedSize) and isinstance(top_k, int) and isinstance(experts, int)):
            return EVEN
        chosen = next(o.attributes for o in layer.operators if o.kind is Kind.ROUTING)
        groups = ExpertGroups(int(chosen["groups"]), int(chosen["top_groups"]))
        return TokenRouting(float(top_k if one_copy_per_node else 1), float(experts), groups, tokens.imbalance)

    def load(self, collective: Collective, axis_sizes: Mapping[str, Size]) -> Floats | float:
        """Bytes of the fullest chip over the mean."""
        if collective.kind is not CollectiveKind.ALL_TO_ALL or EXPERT_TOKENS not in collective.tensor.dims:
            return 1.0
        chips = as_array(degree(collective.axes, axis_sizes))
        return fullest_load(np.asarray(self.experts), self.experts / chips, self.imbalance)


EVEN = TokenRouting()


@frozen
class Pricing:
    """What the collectives of arrangements cost on the ways of a cluster's network."""

    ways: tuple[TierArrays, ...]
    #: how much wider than the job's elements gradients are reduced, and updated weights gathered
    widening: Mapping[str, float]
    #: what is dead where the chips of the arrangements are, on a wafer
    damage: DamagedGroups | None = None
    #: how weights and gradients travel together; None: one by one
    buckets: Buckets | None = None
    #: bytes of the job's elements
    element_bytes: float = 2.0

    def layer_times(
        self,
        arrangements: Arrangements,
        collectives: Sequence[Collective],
        sizes: Sequence[Floats],
        routing: TokenRouting,
    ) -> list[Timed]:
        """All collectives of a layer; those of a bucket share its time as they share its bytes."""
        together: dict[Bucket, Floats] = {}
        for collective, size in zip(collectives, sizes, strict=True):
            bucket = self.bucket(collective)
            if bucket is not None:
                together[bucket] = together[bucket] + size if bucket in together else size
        timed: dict[Bucket, Timed] = {}
        alone = self._alone(arrangements, collectives, sizes, routing)
        times: list[Timed] = []
        for number, (collective, size) in enumerate(zip(collectives, sizes, strict=True)):
            bucket = self.bucket(collective)
            if bucket is not None and bucket not in timed:
                timed[bucket] = self.bucket_time(arrangements, collective, together[bucket])
            times.append(alone[number] if bucket is None else _part(timed[bucket], size / together[bucket]))
        return times

    def _alone(
        self,
        arrangements: Arrangements,
        collectives: Sequence[Collective],
        sizes: Sequence[Floats],
        routing: TokenRouting,
    ) -> dict[int, Timed]:
        """Those that travel alone, by number; what differs in bytes alone is timed side by side."""
        times, alike = dict[int, Timed](), dict[tuple[object, ...], list[int]]()
        for number, each in enumerate(collectives):
            if self.bucket(each) is None:
                widening, routed = self.widening.get(each.user, 1.0), EXPERT_TOKENS in each.tensor.dims
                alike.setdefault((each.kind, each.axes, widening, routed), []).append(number)
        one_network = all(np.ndim(n) == 0 for way in self.ways for n in (way.efficiency, way.launch_s, way.latency_s))
        for numbers in alike.values():
            first, several = collectives[numbers[0]], np.broadcast_arrays(*(sizes[number] for number in numbers))
            if len(numbers) == 1 or several[0].ndim != 1 or not one_network:
                times |= {n: self.time(arrangements, collectives[n], sizes[n], routing) for n in numbers}
                continue
            spent, used = self.time(arrangements, first, np.stack(several), routing)
            for place, number in enumerate(numbers):
                times[number] = CollectiveTime(spent.seconds[place], [busy[place] for busy in spent.busy_s]), used
        return times

    def bucket(self, collective: Collective) -> Bucket | None:
        """What a collective travels with; None: it travels alone."""
        purpose = None if self.buckets is None else purpose_of(collective)
        if purpose not in (GRADIENTS, UPDATED_WEIGHTS, WEIGHT_GATHER):
            return None
        return purpose, collective.phase, collective.kind, collective.axes

    def bucket_time(self, arrangements: Arrangements, collective: Collective, size: Floats) -> Timed:
        """What a layer has in a bucket: at the end of a step a part of one that holds more than a layer."""
        if self.buckets is None or collective.phase is not CollectivePhase.STEP:
            return self.time(arrangements, collective, size)
        chips = as_array(collective.group_size(arrangements.axis_sizes))
        whole = np.maximum(size, self.buckets.parameters(chips) * self.element_bytes)
        return _part(self.time(arrangements, collective, whole), size / whole)

    def seconds(
        self, arrangements: Arrangements, collective: Collective, size: Floats, routing: TokenRouting = EVEN
    ) -> Floats:
        """One collective; tokens travel to experts as the layer routes them."""
        return self.time(arrangements, collective, size, routing)[0].seconds

    def time(
        self, arrangements: Arrangements, collective: Collective, size: Floats, routing: TokenRouting = EVEN
    ) -> Timed:
        """One collective that travels alone."""
        joins: Floats = reduce(np.multiply, [arrangements.joins[axis] for axis in collective.axes])
        wide = size * self.widening.get(collective.user, 1.0) * routing.load(collective, arrangements.axis_sizes)
        used = [way for way, n in enumerate(joins) if np.any(n > 1)]
        groups = [(joins[way], self._with_stride(arrangements, collective, way)) for way in used]
        spent = tiered_time(collective.kind, groups, wide, receivers=routing.receivers, limit=routing.groups)
        if self.damage is not None:
            # of one arrangement; the first two ways are the rows and columns of a wafer
            along = {way: (int(n), int(tier.stride)) for way, (n, tier) in zip(used, groups, strict=True) if way < 2}
            factor = self.damage.factor(collective.kind, along.get(0, (1, 1)), along.get(1, (1, 1)))
            spent = CollectiveTime(spent.seconds * factor, [busy * factor for busy in spent.busy_s])
        return spent, used

    def _with_stride(self, arrangements: Arrangements, collective: Collective, way: int) -> TierArrays:
        """A way as a collective finds it: on a grid, with the distance between its neighbours."""
        if self.ways[way].grid is None:
            return self.ways[way]
        strides = [
            np.where(arrangements.joins[axis][way] > 1, arrangements.strides[axis][way], np.inf)
            for axis in collective.axes
        ]
        return replace(self.ways[way], stride=reduce(np.minimum, strides))


def _part(timed: Timed, part: Floats) -> Timed:
    spent, used = timed
    return CollectiveTime(spent.seconds * part, [busy * part for busy in spent.busy_s]), used


@frozen
class LayerPrice:
    """What the collectives of a layer cost under arrangements."""

    pricing: Pricing
    arrangements: Arrangements
    routing: TokenRouting = EVEN

    def seconds(self, collectives: Sequence[Collective], sizes: Sequence[Floats]) -> list[Floats]:
        """Of each of them."""
        times = self.pricing.layer_times(self.arrangements, collectives, sizes, self.routing)
        return [spent.seconds for spent, _ in times]

    def launches(self, collectives: Sequence[Collective]) -> int:
        """Kernels they take: one for each bucket."""
        return len({self.pricing.bucket(each) or number for number, each in enumerate(collectives)})


def pricing_of(
    job: Job,
    cluster: Cluster,
    efficiencies: Efficiencies,
    gradient_bytes: float,
    weight_bytes: float,
    buckets: Buckets | None,
    damage: DamagedGroups | None = None,
) -> Pricing:
    """Gradients are reduced `gradient_bytes` wide, updated weights gathered `weight_bytes` wide."""
    width = job.element_bytes()[Element.COMPUTE]
    widening = {"gradient": gradient_bytes / width, "updated": weight_bytes / width}
    return Pricing(way_arrays(cluster, efficiencies), widening, damage, buckets, width)


def profile_job(
    arrangements: Arrangements,
    job: Job,
    chip: ChipUnits,
    pricing: Pricing,
    rates: RangedRates | None = None,
    *,
    one_copy_per_node: bool,
    extent: Extent = "step",
) -> JobProfiles:
    """Profiles of every layer class of the job, under arrangements along the same axes."""
    graph, widths = job.graph(), job.element_bytes()

    def group_of(collective: Collective) -> str:
        return group_name(collective, arrangements.axes)

    layers: dict[str, LayerProfile] = {}
    at = sizes_of_layers(graph.layers, arrangements.axis_sizes, widths, batch=arrangements.batch, seq=job.seq_len)
    for name, layer in graph.layers.items():
        placed = placed_layer(layer, arrangements.strategy)
        routing = TokenRouting.of(layer, one_copy_per_node=one_copy_per_node)
        price = LayerPrice(pricing, arrangements, routing)
        matrices, energy = matrices_of(layer, job), rates is not None
        costs = (chip, price, group_of, matrices)
        layers[name] = profile_layer(layer, placed, at[name], *costs, energy=energy, extent=extent)
    return JobProfiles(graph, layers, rates)


def matrices_of(layer: LayerGraph, job: Job) -> Mapping[str, Orthogonalized] | None:
    """The weights of a layer that the job's optimizer takes as matrices; None where it updates all weights alike."""
    return _matrices(_Key(layer.name, id(layer), layer)) if OPTIMIZERS[job.optimizer].others else None


def rates_of(cluster: Cluster) -> RangedRates | None:
    """Energies of the cluster's chips, where their technology is known."""
    return energy_rates(cluster.chip)


def _together(values: Sequence[int]) -> Size:
    """One number as it is, several as an array."""
    return values[0] if len(values) == 1 else np.array(values, np.float64)


@frozen
class _Key:
    """A layer graph as a cache key: graphs are built once per model and shared, so identity serves."""

    name: str
    identity: int
    graph: LayerGraph

    def __hash__(self) -> int:
        return hash((self.name, self.identity))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.graph is self.graph


def placed_layer(layer: LayerGraph, strategy: Strategy) -> PlacedLayer:
    """A layer under a strategy, derived once."""
    return _placed(_Key(layer.name, id(layer), layer), strategy)


@lru_cache(maxsize=4096)
def _placed(key: _Key, strategy: Strategy) -> PlacedLayer:
    return place_layer(key.graph, strategy.of(key.graph), _backward(key))


@lru_cache(maxsize=1024)
def _matrices(key: _Key) -> Mapping[str, Orthogonalized]:
    return orthogonalized(key.graph)


@lru_cache(maxsize=1024)
def _backward(key: _Key) -> Backward:
    return differentiate(key.graph)


def group_name(collective: Collective, axes: AtomicAxes) -> str:
    """Which parallelism a collective belongs to, for the breakdown."""
    mesh, used = axes.mesh, set(collective.axes)
    purpose = purpose_of(collective)
    if purpose is not None:
        return purpose
    if used <= set(mesh.tensor):
        return "tensor-parallel"
    if used <= set(mesh.context):
        return "context-parallel"
    return "expert-parallel"


def purpose_of(collective: Collective) -> str | None:
    """The parallelism of collectives that belong to one whichever axes they use; None: the axes say it."""
    if collective.user == "gradient":
        return GRADIENTS
    if collective.user == "updated":
        return UPDATED_WEIGHTS
    if collective.tensor.role is Role.WEIGHT:
        return WEIGHT_GATHER
    if collective.kind is CollectiveKind.ALL_TO_ALL and EXPERT_TOKENS in collective.tensor.dims:
        # tokens on their way to experts and back, whichever chips have these
        return "expert-parallel"
    return None
