"""One layer class under one layout on one chip: times by phase, collectives, saved bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dovetail.arrays import Floats, largest, summed
from dovetail.cost.energy import EnergyRates, operator_joules
from dovetail.cost.operators import ChipUnits, PlacedWork, kernel_counts, operator_seconds
from dovetail.graph import DerivedSize, Kind, LayerGraph, Phase, Role
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import Size, Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.layout import Collective, CollectiveKind, Moment, PlacedLayer, local_bytes
from dovetail.profile.version import Version, by_group, exchanges, profile_versions

#: The kind of group whose collectives bring sharded weights together (ZeRO 3).
WEIGHT_GATHER = "weight-gather"

#: Seconds of a collective, for the sizes at hand.
CollectivePrice = Callable[[Collective, Floats], Floats]


@dataclass(frozen=True, slots=True)
class TiedParameters:
    """Parameters of a weight that several layers use, on one chip."""

    parameters: Floats
    home_parameters: Floats


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What one layer of a class costs per microbatch (and per step); arrays over plans or chips."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    #: collectives of a microbatch's forward and backward, by kind of group ("tensor", "context", ...)
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
    #: operator → seconds of the statistics its shards exchange in the forward, by kind of group
    exchange_s: Mapping[str, Mapping[str, Floats]]
    #: parameters of one chip: as used, and as its gradient and optimizer state are kept
    parameters: Floats
    home_parameters: Floats
    #: parameters of one chip that every token uses: all but routed experts
    dense_parameters: Floats
    #: parameters of the largest weight, as used
    largest_weight: Floats
    #: those of weights other layers share: a chip that holds several of the layers keeps them once
    tied_parameters: Mapping[str, TiedParameters]
    #: the largest tensor that exists for a moment only
    transient_bytes: Floats
    #: logits of one chip that its loss reads
    logits: Floats
    #: bytes of the stream a layer hands to the next
    stream_bytes: Floats
    #: joules of one chip, where the technology gives energies: forward, backward, and the links of a step
    forward_j: Floats
    backward_j: Floats
    step_j: Floats


def profile_layer(
    graph: LayerGraph,
    placed: PlacedLayer,
    sizes: Sizes,
    axis_sizes: Mapping[str, Size],
    chip: ChipUnits,
    widths: Mapping[Element, int],
    price: CollectivePrice,
    group_of: Callable[[Collective], str],
    rates: EnergyRates | None = None,
) -> LayerProfile:
    """Costs of every operator and collective of a layer, on one chip."""
    tensors = placed.tensors
    works = _works(graph, placed, sizes, axis_sizes, widths)
    forward, backward = (_operator_seconds(each, chip) for each in works.values())
    phase = {p.operator.name: p.operator.phase for p in placed.backward}
    priced = [
        (collective, group_of(collective), price(collective, as_array(collective.bytes(sizes, axis_sizes, widths))))
        for collective in placed.collectives
    ]
    by_moment = {moment: by_group((g, s) for c, g, s in priced if c.moment is moment) for moment in Moment}
    launched = kernel_counts(replace(works[Moment.FORWARD], operators=(*placed.forward, *placed.backward)))
    joules = _joules(placed, works, chip, rates)
    used, home = _parameters(placed, sizes, axis_sizes)
    written = [
        as_array(local_bytes(tensors[name], layout, sizes, axis_sizes, widths))
        for name, layout in placed.written.items()
        if tensors[name].role in (Role.ACTIVATION, Role.GRADIENT)
    ]
    stream = [as_array(local_bytes(tensor, layout, sizes, axis_sizes, widths)) for tensor, layout in placed.handed_on]
    return LayerProfile(
        forward_s=summed(forward.values()),
        input_gradient_s=summed(s for n, s in backward.items() if phase[n] is not Phase.WEIGHT_GRADIENT),
        weight_gradient_s=summed(s for n, s in backward.items() if phase[n] is Phase.WEIGHT_GRADIENT),
        forward_collective_s=by_moment[Moment.FORWARD],
        backward_collective_s=by_moment[Moment.BACKWARD],
        step_collective_s=by_moment[Moment.STEP],
        operator_s={**forward, **backward},
        kernels=launched,
        forward_kernels=_kernels(placed, launched, Moment.FORWARD),
        backward_kernels=_kernels(placed, launched, Moment.BACKWARD),
        versions=profile_versions(placed, sizes, axis_sizes, widths, priced),
        exchange_s=exchanges(placed, priced),
        parameters=summed(used),
        home_parameters=summed(home),
        dense_parameters=summed(n for n, w in zip(used, placed.weights, strict=True) if w.tensor.active_share == 1),
        largest_weight=largest(used),
        tied_parameters=_tied(placed, sizes, axis_sizes),
        transient_bytes=largest(written),
        logits=_logits(placed, sizes, axis_sizes),
        stream_bytes=summed(stream),
        forward_j=joules[Moment.FORWARD],
        backward_j=joules[Moment.BACKWARD],
        step_j=joules[Moment.STEP],
    )


def _works(
    graph: LayerGraph,
    placed: PlacedLayer,
    sizes: Sizes,
    axis_sizes: Mapping[str, Size],
    widths: Mapping[Element, int],
) -> dict[Moment, PlacedWork]:
    """What a microbatch has a chip do, forward and backward."""
    tokens = graph.sizes.get(EXPERT_TOKENS)
    imbalance = tokens.imbalance if isinstance(tokens, DerivedSize) else 1.0
    directions = {Moment.FORWARD: placed.forward, Moment.BACKWARD: placed.backward}
    return {
        moment: PlacedWork(operators, placed.tensors, sizes, axis_sizes, widths, imbalance)
        for moment, operators in directions.items()
    }


def _operator_seconds(work: PlacedWork, chip: ChipUnits) -> dict[str, Floats]:
    """Seconds of every operator; side by side each takes its part of the schedule's, so that they add up to it."""
    seconds = operator_seconds(work, chip)
    match chip.sharing:
        case "none":
            return seconds
        case "scheduled":
            from dovetail.schedule.side_by_side import side_by_side_share  # compiled code, which few chips need

            share = side_by_side_share(work, chip)
        case "least" | "endless":
            from dovetail.schedule.least_share import least_share

            share = least_share(work, chip, seconds)
    return {name: share * own for name, own in seconds.items()}


def _parameters(placed: PlacedLayer, sizes: Sizes, axis_sizes: Mapping[str, Size]) -> tuple[list[Floats], list[Floats]]:
    """Of every weight, the parameters one chip uses and those its state is kept of."""
    whole = dict.fromkeys(Element, 1)
    used = [as_array(local_bytes(w.tensor, w.use, sizes, axis_sizes, whole)) for w in placed.weights]
    home = [as_array(local_bytes(w.tensor, w.home, sizes, axis_sizes, whole)) for w in placed.weights]
    return used, home


def _kernels(placed: PlacedLayer, launched: Mapping[str, Floats], moment: Moment) -> Floats:
    """Kernels one direction launches: its operators' own and one for each collective."""
    operators = placed.forward if moment is Moment.FORWARD else placed.backward
    return summed(launched[p.operator.name] for p in operators) + sum(c.moment is moment for c in placed.collectives)


def _tied(placed: PlacedLayer, sizes: Sizes, axis_sizes: Mapping[str, Size]) -> dict[str, TiedParameters]:
    whole = dict.fromkeys(Element, 1)
    return {
        weight.tensor.tied: TiedParameters(
            as_array(local_bytes(weight.tensor, weight.use, sizes, axis_sizes, whole)),
            as_array(local_bytes(weight.tensor, weight.home, sizes, axis_sizes, whole)),
        )
        for weight in placed.weights
        if weight.tensor.tied
    }


def _joules(
    placed: PlacedLayer, works: Mapping[Moment, PlacedWork], chip: ChipUnits, rates: EnergyRates | None
) -> dict[Moment, Floats]:
    if rates is None:
        return dict.fromkeys(Moment, np.zeros(()))
    result: dict[Moment, Floats] = {Moment.STEP: np.zeros(())}
    result |= {moment: operator_joules(work, chip, rates) for moment, work in works.items()}
    work = works[Moment.FORWARD]
    for collective in placed.collectives:
        # an all-reduce sends what it holds twice, everything else once
        times = 2.0 if collective.kind is CollectiveKind.ALL_REDUCE else 1.0
        sent = times * as_array(collective.bytes(work.sizes, work.axis_sizes, work.widths))
        result[collective.moment] = result[collective.moment] + sent * rates.link_j_per_byte
    return result


def _logits(placed: PlacedLayer, sizes: Sizes, axis_sizes: Mapping[str, Size]) -> Floats:
    """Elements of what losses read."""
    whole = dict.fromkeys(Element, 1)
    names = {o.operator.inputs[0].tensor for o in placed.forward if o.operator.kind is Kind.LOSS}
    return summed(
        as_array(local_bytes(placed.tensors[name], placed.written[name], sizes, axis_sizes, whole)) for name in names
    )
