"""What a chip does for one layer and micro-batch, one step after another: kernels, collectives, waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, Phase
from dovetail.graph.size import as_array
from dovetail.layout import Collective, CollectivePhase, PlacedLayer
from dovetail.models import Job
from dovetail.plans.arrange import Arrangement, arrange
from dovetail.plans.plan import Plan
from dovetail.profile import WEIGHT_GATHER, LayerProfile, Recompute
from dovetail.step.arrangements import Arrangements
from dovetail.step.evaluate import ProfiledJob, Step
from dovetail.step.profiles import (
    GRADIENTS,
    UPDATED_WEIGHTS,
    Pricing,
    TokenRouting,
    group_name,
    placed_layer,
    pricing_of,
)
from dovetail.step.stages import LayerVariant
from dovetail.step.times import LayerTimes, hidden_shares, layer_times


class StepKind(IntEnum):
    """What a step of a chip is."""

    FORWARD = 0
    RECOMPUTE = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3
    OPTIMIZER = 4
    WAIT = 5
    #: what kernels lose to messages that overlap them
    SLOWED = 6
    COLLECTIVE = 7
    TRANSFER = 8


@frozen
class Message:
    """What a collective sends: seconds before and between its bytes, and bytes through a chip's ports by way."""

    wait_s: float
    bytes_by_way: tuple[tuple[int, float], ...]
    #: the axes whose chips take part; empty for one chip that stands for all
    axes: tuple[str, ...]
    #: all of it when nothing else is sent
    seconds: float = 0.0

    def times(self, factor: float) -> Message:
        """A part of it, or several."""
        sent = tuple((way, sent * factor) for way, sent in self.bytes_by_way)
        return Message(self.wait_s * factor, sent, self.axes, self.seconds * factor)


@frozen
class LayerStep:
    """A kernel, a collective or a wait."""

    name: str
    kind: StepKind
    seconds: float = 0.0
    message: Message | None = None
    #: kind of group of a collective
    group: str = ""
    #: the part of it that overlaps computation, and the part of that which computation loses all the same
    overlapped: float = 0.0
    lost: float = 0.0


@frozen
class LayerSteps:
    """The steps of one layer; collectives of weights and their gradients are separate."""

    forward: tuple[LayerStep, ...]
    #: input and weight gradients in the order in which they are computed
    backward: tuple[LayerStep, ...]
    forward_gather: tuple[LayerStep, ...]
    backward_gather: tuple[LayerStep, ...]
    #: of gradients, in every micro-batch or once a step
    microbatch_reduction: tuple[LayerStep, ...]
    step_reduction: tuple[LayerStep, ...]
    #: of weights that were updated in shards, ahead of a step's first forward
    updated_gather: tuple[LayerStep, ...]

    @property
    def input_gradient(self) -> tuple[LayerStep, ...]:
        """The backward where weight gradients come later."""
        return tuple(step for step in self.backward if step.kind is not StepKind.WEIGHT_GRADIENT)

    @property
    def weight_gradient(self) -> tuple[LayerStep, ...]:
        """What comes later."""
        return tuple(step for step in self.backward if step.kind is StepKind.WEIGHT_GRADIENT)


def steps_of_layers(
    plan: Plan, job: Job, profiled: ProfiledJob, step: Step, variants: Mapping[str, LayerVariant]
) -> dict[str, LayerSteps]:
    """By name of a layer as chunks have it; `variants` says of which class it is, and what is dead on its tile."""
    arrangement = arrange(plan, job.graph(), profiled.cluster, profiled.facts.tensor_rule)
    arranged = Arrangements.of([arrangement], [plan.micro_batch * plan.data_parallel])
    facts = profiled.facts
    alone = facts.at_least(schedule=plan.pipeline_schedule, stages=plan.pipeline_parallel)
    gradient_bytes, weight_bytes = profiled.gradient_bytes, facts.gathered_weight_bytes
    prices = [
        pricing_of(job, profiled.cluster, profiled.efficiencies, gradient_bytes, weight_bytes, facts.buckets, dead)
        for dead in (None, *profiled.damage.kinds)
    ]
    by_name: dict[str, LayerSteps] = {}
    for name, variant in variants.items():
        graph, profile = job.graph().layers[variant.layer], step.profiles.layers[name]
        pricing = prices[variant.damage]
        # waits are those of a chip that waits for nothing else: whatever else it waits for comes to it later
        times = layer_times(profile, step.recompute[name], alone.overlaps, facts.overheads.host_s)
        if facts.overlaps.offload_s_per_byte:
            own = layer_times(profile, step.recompute[name], facts.overlaps, facts.overheads.host_s)
            times = replace(
                times,
                forward_wait_s=times.forward_wait_s + own.forward_offload_s,
                backward_wait_s=times.backward_wait_s + own.backward_offload_s,
            )
        placed = placed_layer(graph, arranged.strategy)
        messages = _Messages(graph, placed, job, arrangement, arranged, pricing, profiled)
        by_name[name] = _layer_steps(placed, profile, step.recompute[name], times, messages, profiled)
    return by_name


class _Messages:
    """Collectives of a layer as messages, with the kind of their group."""

    def __init__(
        self,
        graph: LayerGraph,
        placed: PlacedLayer,
        job: Job,
        arrangement: Arrangement,
        arranged: Arrangements,
        pricing: Pricing,
        profiled: ProfiledJob,
    ) -> None:
        sizes, widths = graph.resolve(batch=arranged.batch, seq=job.seq_len), job.element_bytes()
        routing = TokenRouting.of(graph, one_copy_per_node=profiled.facts.one_copy_per_node)
        bytes_of = [as_array(c.bytes(sizes, arranged.axis_sizes, widths)) for c in placed.collectives]
        times = pricing.layer_times(arranged, placed.collectives, bytes_of, routing)
        #: of what overlaps computation, the part that costs time all the same
        self.lost = float(profiled.facts.overheads.exposed)
        self.messages: list[tuple[Collective, str, Message]] = []
        for collective, (spent, used) in zip(placed.collectives, times, strict=True):
            busy = {tier: float(s) for tier, s in zip(used, spent.busy_s, strict=True)}
            seconds = float(spent.seconds)
            rates = {t: float(pricing.ways[t].bytes_per_s * pricing.ways[t].efficiency) for t in busy}
            message = Message(
                max(seconds - max(busy.values(), default=0.0), 0.0),
                tuple((tier, s * rates[tier]) for tier, s in busy.items() if s > 0),
                collective.axes,
                seconds,
            )
            if seconds > 0:
                self.messages.append((collective, group_name(collective, arrangement.axes), message))

    def of(self, phase: CollectivePhase) -> Iterable[tuple[Collective, str, Message]]:
        """Those of a phase."""
        return (entry for entry in self.messages if entry[0].phase is phase)

    def steps(
        self, phase: CollectivePhase, groups: Collection[str], hidden: Mapping[str, float]
    ) -> tuple[LayerStep, ...]:
        """Those of a phase and of some kinds of groups as steps."""
        return tuple(
            self.step(collective, group, message, hidden)
            for collective, group, message in self.of(phase)
            if group in groups
        )

    def step(
        self, collective: Collective, group: str, message: Message, hidden: Mapping[str, float], suffix: str = ""
    ) -> LayerStep:
        """One of them, or a part of it, as a step; `hidden` is what the model takes off, what is lost included."""
        name = f"{collective.kind.value.replace('_', ' ')} {collective.tensor.name}{suffix}"
        overlapped = hidden[group] / (1 - self.lost) if self.lost < 1 else 0.0
        return LayerStep(name, StepKind.COLLECTIVE, 0.0, message, group, overlapped, self.lost)


def _layer_steps(
    placed: PlacedLayer,
    profile: LayerProfile,
    recomputed: Recompute,
    times: LayerTimes,
    messages: _Messages,
    profiled: ProfiledJob,
) -> LayerSteps:
    overlaps = profiled.facts.overlaps
    shares = {
        CollectivePhase.FORWARD: _numbers(hidden_shares(overlaps, overlaps.tensor_forward)),
        CollectivePhase.BACKWARD: _numbers(hidden_shares(overlaps, overlaps.tensor_backward)),
    }
    forward = _direction(placed, profile, messages, CollectivePhase.FORWARD, shares[CollectivePhase.FORWARD])
    backward = _direction(placed, profile, messages, CollectivePhase.BACKWARD, shares[CollectivePhase.BACKWARD])
    recompute_steps = _recomputed(recomputed, profile, messages, shares[CollectivePhase.BACKWARD])
    waits = [
        [LayerStep("waiting for the host", StepKind.WAIT, float(s))] if float(s) > 0 else []
        for s in (times.forward_wait_s, times.backward_wait_s)
    ]
    at_step: dict[str, float] = {GRADIENTS: shares[CollectivePhase.BACKWARD][GRADIENTS]}
    at_step[UPDATED_WEIGHTS] = float(overlaps.updated_weights)
    ahead, behind = (
        messages.steps(m, (WEIGHT_GATHER,), shares[m]) for m in (CollectivePhase.FORWARD, CollectivePhase.BACKWARD)
    )
    return LayerSteps(
        (*forward, *waits[0]),
        (*recompute_steps, *backward, *waits[1]),
        ahead,
        behind,
        messages.steps(CollectivePhase.BACKWARD, (GRADIENTS,), shares[CollectivePhase.BACKWARD]),
        messages.steps(CollectivePhase.STEP, (GRADIENTS,), at_step),
        messages.steps(CollectivePhase.STEP, (UPDATED_WEIGHTS,), at_step),
    )


def _numbers(shares: Mapping[str, Floats | float]) -> dict[str, float]:
    return {name: float(share) for name, share in shares.items()}


def _direction(
    placed: PlacedLayer, profile: LayerProfile, messages: _Messages, phase: CollectivePhase, hidden: Mapping[str, float]
) -> list[LayerStep]:
    """Operators of a direction, each after the collectives that it needs."""
    operators = placed.forward if phase is CollectivePhase.FORWARD else placed.backward
    by_user: dict[str, list[LayerStep]] = {}
    names = {p.operator.name for p in operators}
    for collective, group, message in messages.of(phase):
        if group in (WEIGHT_GATHER, GRADIENTS):
            continue
        user = collective.user if collective.user in names else ""
        by_user.setdefault(user, []).append(messages.step(collective, group, message, hidden))
    kinds = {
        Phase.FORWARD: StepKind.FORWARD,
        Phase.INPUT_GRADIENT: StepKind.INPUT_GRADIENT,
        Phase.WEIGHT_GRADIENT: StepKind.WEIGHT_GRADIENT,
    }
    steps: list[LayerStep] = []
    for operator in (p.operator for p in operators):
        steps += by_user.get(operator.name, ())
        steps.append(LayerStep(operator.name, kinds[operator.phase], float(profile.operator_s[operator.name])))
    return [*steps, *by_user.get("", ())]


def _recomputed(
    recomputed: Recompute, profile: LayerProfile, messages: _Messages, hidden: Mapping[str, float]
) -> list[LayerStep]:
    """What is recomputed ahead of the backward: its kernels as one step, its collectives by kind of group."""
    steps: list[LayerStep] = []
    if float(recomputed.added_s) > 0:
        steps.append(LayerStep("recompute", StepKind.RECOMPUTE, float(recomputed.added_s)))
    for group, seconds in recomputed.added_collective_s.items():
        # those of the forward, as much of them as takes so long
        whole = float(profile.forward_collective_s[group])
        part = float(seconds) / whole if whole else 0.0
        for collective, kind, message in messages.of(CollectivePhase.FORWARD):
            if kind == group and part > 0:
                steps.append(messages.step(collective, group, message.times(part), hidden, " (recompute)"))
    return steps
