"""One layer class under one layout on one chip: time by phase, collectives, saved bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np

from dovetail.arrays import Floats, largest, largest_two, summed
from dovetail.cost.energy import operator_counts
from dovetail.cost.operators import ChipUnits, PlacedWork, kernel_counts, operator_seconds
from dovetail.frozen import frozen
from dovetail.graph import DerivedSize, Kind, LayerGraph, Orthogonalized, Phase, Role
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import as_array
from dovetail.layout import Collective, CollectiveKind, CollectivePhase, PlacedLayer, PlacedWeight
from dovetail.profile.backward_nodes import BackwardNode, Lifetime, backward_nodes
from dovetail.profile.layer_sizes import LayerSizes, VersionSizes
from dovetail.profile.version import Version, by_group, exchanges, profile_versions

#: The kind of group whose collectives gather sharded weights (ZeRO-3).
WEIGHT_GATHER = "weight-gather"


#: How much of a layer is profiled: all; a micro-batch, without what happens once a step; or the seconds of that alone,
#: without the memory of its backward.
Extent = Literal["step", "micro-batch", "seconds"]


class CollectivePrice(Protocol):
    """What the collectives of a layer cost."""

    def seconds(self, collectives: Sequence[Collective], sizes: Sequence[Floats]) -> list[Floats]:
        """Of each of them, with its bytes on one chip."""
        ...

    def launches(self, collectives: Sequence[Collective]) -> int:
        """Kernels they take together."""
        ...


@frozen
class LayerPrices:
    """What work and collectives of a layer are priced with."""

    chip: ChipUnits
    collectives: CollectivePrice
    #: the kind of group of a collective
    group_of: Callable[[Collective], str]
    #: as in `update_work`
    matrices: Mapping[str, Orthogonalized] | None = None
    #: whether what takes energy is counted
    energy: bool = False


@frozen
class TiedParameters:
    """Parameters of a weight that several layers use, on one chip."""

    parameters: Floats
    home_parameters: Floats
    #: whether they have a gradient
    trained: bool = True

    @property
    def trained_parameters(self) -> Floats:
        """Those with a gradient."""
        return self.parameters if self.trained else np.zeros(())

    @property
    def trained_home_parameters(self) -> Floats:
        """Those with a gradient and optimizer state, as they are stored."""
        return self.home_parameters if self.trained else np.zeros(())


@frozen
class UpdateWork:
    """What a chip updates of a layer where matrices of blocks have an optimizer of their own; else nothing."""

    #: untied trained parameters of other weights whose state the chip stores
    vectors: Floats
    #: FLOPs of the optimizer's iterations on matrices
    flops: Floats


@frozen
class LayerProfile:
    """What one layer costs per micro-batch and per step; arrays over plans or chips."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    #: collectives of a micro-batch's forward and backward, by kind of group ("tensor", "context", ...)
    forward_collective_s: Mapping[str, Floats]
    backward_collective_s: Mapping[str, Floats]
    step_collective_s: Mapping[str, Floats]
    #: operator → seconds, forward and backward
    operator_s: Mapping[str, Floats]
    #: operator → kernels it launches, and those of each direction with its collectives
    kernels: Mapping[str, Floats]
    forward_kernels: Floats
    backward_kernels: Floats
    #: the tensors of the forward, in every layout they take
    versions: tuple[Version, ...]
    #: the backward, operator by operator
    nodes: tuple[BackwardNode, ...]
    lifetimes: tuple[Lifetime, ...]
    #: operator → seconds of the statistics its shards exchange in the forward, by kind of group
    exchange_s: Mapping[str, Mapping[str, Floats]]
    #: parameters of one chip: those it computes with, and those it stores where weights are sharded
    parameters: Floats
    home_parameters: Floats
    #: those it gathers where weights are sharded
    gathered_parameters: Floats
    #: those that have a gradient and optimizer state
    trained_parameters: Floats
    trained_home_parameters: Floats
    #: parameters of each other weight, which is not trained
    frozen_weights: tuple[Floats, ...]
    #: operator → bytes of the copies of 4-bit weights it multiplies
    dequantized_bytes: Mapping[str, tuple[Floats, ...]]
    #: trained parameters of one chip that every token uses: all but routed experts
    dense_parameters: Floats
    #: parameters of the largest weight, as used, and of the next
    largest_weight: Floats
    second_weight: Floats
    #: trained parameters of the largest weight
    largest_trained: Floats
    #: parameters of tied weights: a chip with several of the layers stores them once
    tied_parameters: Mapping[str, TiedParameters]
    update: UpdateWork
    #: the largest tensor that is not saved
    transient_bytes: Floats
    #: logits of one chip
    logits: Floats
    #: 1 where a chip has a shard of the vocabulary, else 0
    sharded_vocabulary: Floats
    #: bytes of the residual stream between layers
    stream_bytes: Floats
    #: operations and bytes of one chip that take energy, where it is asked for: of each phase, by kind
    energy_counts: Mapping[CollectivePhase, Mapping[str, Floats]]


def profile_layer(
    graph: LayerGraph,
    placed: PlacedLayer,
    sizes: LayerSizes,
    prices: LayerPrices,
    extent: Extent = "step",
) -> LayerProfile:
    """The cost of every operator and collective of a layer on one chip."""
    works, price = layer_works(graph, placed, sizes), prices.collectives
    forward, backward = (_operator_seconds(each, prices.chip) for each in works.values())
    phase_of = {p.operator.name: p.operator.phase for p in placed.backward}
    collectives = [c for c in placed.collectives if extent == "step" or c.phase is not CollectivePhase.STEP]
    took = price.seconds(collectives, [sizes.collective_bytes(c) for c in collectives])
    priced = [(c, prices.group_of(c), seconds) for c, seconds in zip(collectives, took, strict=True)]
    by_phase = {phase: by_group((g, s) for c, g, s in priced if c.phase is phase) for phase in CollectivePhase}
    launched = kernel_counts(replace(works[CollectivePhase.FORWARD], operators=(*placed.forward, *placed.backward)))
    used, home = _parameters(placed, sizes)
    trained = [number for number, weight in enumerate(placed.weights) if not weight.tensor.frozen]
    sent = [sizes.sent(weight, weight.use) for weight in placed.weights]
    first, second = largest_two(sent)
    logits, copies = _logits(placed, sizes), sizes.dequantized(placed)
    of_versions = VersionSizes.of(placed, sizes)
    nodes, lifetimes = ((), ()) if extent == "seconds" else backward_nodes(placed, of_versions)
    # what a loss needs is counted by its logits
    counted = logits.any() or extent == "seconds"
    return LayerProfile(
        forward_s=summed(forward.values()),
        input_gradient_s=summed(s for n, s in backward.items() if phase_of[n] is not Phase.WEIGHT_GRADIENT),
        weight_gradient_s=summed(s for n, s in backward.items() if phase_of[n] is Phase.WEIGHT_GRADIENT),
        forward_collective_s=by_phase[CollectivePhase.FORWARD],
        backward_collective_s=by_phase[CollectivePhase.BACKWARD],
        step_collective_s=by_phase[CollectivePhase.STEP],
        operator_s={**forward, **backward},
        kernels=launched,
        forward_kernels=_kernels(placed, launched, price, CollectivePhase.FORWARD),
        backward_kernels=_kernels(placed, launched, price, CollectivePhase.BACKWARD),
        versions=profile_versions(placed, of_versions, priced),
        nodes=nodes,
        lifetimes=lifetimes,
        exchange_s=exchanges(placed, priced),
        parameters=summed(used),
        home_parameters=summed(home),
        gathered_parameters=summed(sent),
        trained_parameters=summed(used[i] for i in trained),
        trained_home_parameters=summed(home[i] for i in trained),
        frozen_weights=tuple(n for n, weight in zip(sent, placed.weights, strict=True) if weight.tensor.frozen),
        dequantized_bytes=_dequantized(placed, copies),
        dense_parameters=summed(used[i] for i in trained if placed.weights[i].tensor.active_share == 1),
        largest_weight=first,
        second_weight=second,
        largest_trained=largest(used[i] for i in trained),
        tied_parameters=_tied(placed, sizes),
        update=update_work(placed.weights, home, prices.matrices),
        transient_bytes=np.zeros(()) if counted else _transient(placed, of_versions) + largest(copies.values()),
        logits=logits,
        sharded_vocabulary=_sharded_vocabulary(placed, sizes),
        stream_bytes=summed(sizes.bytes(tensor, layout) for tensor, layout in placed.handed_on),
        energy_counts=_energy_counts(placed, works, sizes, prices.chip) if prices.energy else {},
    )


def layer_works(graph: LayerGraph, placed: PlacedLayer, sizes: LayerSizes) -> dict[CollectivePhase, PlacedWork]:
    """The work of one chip per micro-batch, forward and backward."""
    tokens = graph.sizes.get(EXPERT_TOKENS)
    imbalance = tokens.imbalance if isinstance(tokens, DerivedSize) else 1.0
    directions = {CollectivePhase.FORWARD: placed.forward, CollectivePhase.BACKWARD: placed.backward}
    return {
        phase: PlacedWork(operators, placed.tensors, sizes.dims, sizes.axes, sizes.widths, imbalance)
        for phase, operators in directions.items()
    }


def _operator_seconds(work: PlacedWork, chip: ChipUnits) -> dict[str, Floats]:
    """Seconds of every operator; concurrent ones are scaled to add up to the schedule."""
    seconds = operator_seconds(work, chip)
    match chip.sharing:
        case "none":
            return seconds
        case "scheduled":
            from dovetail.schedule.side_by_side import side_by_side_share  # compiled code, which few chips need

            share = side_by_side_share(work, chip)
        case "least" | "asymptotic":
            from dovetail.schedule.least_share import least_share

            share = least_share(work, chip, seconds)
    return {name: share * alone for name, alone in seconds.items()}


def _parameters(placed: PlacedLayer, sizes: LayerSizes) -> tuple[list[Floats], list[Floats]]:
    """Per weight, the parameters one chip computes with and those it stores where weights are sharded."""
    used = [sizes.stored(w, w.use) for w in placed.weights]
    home = [sizes.stored(w, w.home) for w in placed.weights]
    return used, home


def _transient(placed: PlacedLayer, sizes: VersionSizes) -> Floats:
    """Bytes of the largest activation or gradient."""
    return largest(
        sizes.bytes(placed.tensors[name], layout)
        for name, layout in placed.written.items()
        if placed.tensors[name].role in (Role.ACTIVATION, Role.GRADIENT)
    )


def _dequantized(placed: PlacedLayer, copies: Mapping[str, Floats]) -> dict[str, tuple[Floats, ...]]:
    operators = [p.operator for p in placed.forward] if copies else []
    return {o.name: tuple(copies[each.tensor] for each in o.inputs if each.tensor in copies) for o in operators}


def update_work(
    weights: Sequence[PlacedWeight], home: Sequence[Floats], matrices: Mapping[str, Orthogonalized] | None
) -> UpdateWork:
    """The update of weights, of which a chip is home to so many parameters; no `matrices`: all are updated alike.

    A matrix is iterated on by one of the chips that share it, each chip having its part of all matrices: what they
    send each other for that is left out.
    """
    none: Floats = np.zeros(())
    if matrices is None:
        return UpdateWork(none, none)
    owned = [(w.tensor, n) for w, n in zip(weights, home, strict=True) if not (w.tensor.tied or w.tensor.frozen)]
    vectors = [n for weight, n in owned if weight.name not in matrices]
    flops = [n * matrices[weight.name].flops_per_parameter for weight, n in owned if weight.name in matrices]
    return UpdateWork(summed([none, *vectors]), summed([none, *flops]))


def _kernels(
    placed: PlacedLayer, launched: Mapping[str, Floats], price: CollectivePrice, phase: CollectivePhase
) -> Floats:
    """Kernels launched in one direction: those of its operators and collectives."""
    operators = placed.forward if phase is CollectivePhase.FORWARD else placed.backward
    return summed(launched[p.operator.name] for p in operators) + price.launches(
        [c for c in placed.collectives if c.phase is phase]
    )


def _tied(placed: PlacedLayer, sizes: LayerSizes) -> dict[str, TiedParameters]:
    return {
        weight.tensor.tied: TiedParameters(
            sizes.elements(weight.tensor, weight.use),
            sizes.elements(weight.tensor, weight.home),
            trained=not weight.tensor.frozen,
        )
        for weight in placed.weights
        if weight.tensor.tied
    }


def _energy_counts(
    placed: PlacedLayer, works: Mapping[CollectivePhase, PlacedWork], sizes: LayerSizes, chip: ChipUnits
) -> dict[CollectivePhase, dict[str, Floats]]:
    """What takes energy on one chip: operations, bytes from memory, and bytes sent."""
    sent = dict.fromkeys(CollectivePhase, np.zeros(()))
    for collective in placed.collectives:
        # an all-reduce sends its data twice, everything else once
        times = 2.0 if collective.kind is CollectiveKind.ALL_REDUCE else 1.0
        sent[collective.phase] = sent[collective.phase] + times * sizes.collective_bytes(collective)
    worked = {phase: operator_counts(work, chip) for phase, work in works.items()}
    return {phase: {**worked.get(phase, {}), "link_bytes": number} for phase, number in sent.items()}


def _sharded_vocabulary(placed: PlacedLayer, sizes: LayerSizes) -> Floats:
    losses = [p for p in placed.forward if p.operator.kind is Kind.LOSS]
    shards = [as_array(sizes.axes[axis]) for p in losses for axis, dim in p.shards.items() if dim == "vocab"]
    return np.where(largest(shards) > 1, 1.0, 0.0)


def _logits(placed: PlacedLayer, sizes: LayerSizes) -> Floats:
    """Logits that losses read."""
    names = {o.operator.inputs[0].tensor for o in placed.forward if o.operator.kind is Kind.LOSS}
    return summed(sizes.elements(placed.tensors[name], placed.written[name]) for name in names)
