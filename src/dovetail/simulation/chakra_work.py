"""What simulated tasks are in numbers: bytes and axes of collectives, operations and bytes of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from dovetail.cost.operators import PlacedWork
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, bytes_read, bytes_written
from dovetail.graph.size import Sizes, as_array
from dovetail.layout import Collective, CollectiveKind, CollectivePhase, PlacedLayer
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan
from dovetail.simulation.item_tasks import parted
from dovetail.simulation.layer_steps import LayerStep, StepKind, steps_of_layers
from dovetail.simulation.step_tasks import KERNELS
from dovetail.step.arrangements import Arrangements
from dovetail.step.evaluate import ProfiledJob, Step
from dovetail.step.profiles import Pricing, TokenRouting, group_name, placed_layer, pricing_of
from dovetail.step.stages import layer_counts, layer_variants

#: A task by what its arrays say: name, kind, stream, seconds and bytes.
TaskKey = tuple[str, int, str, float, float]


@frozen
class CollectiveWork:
    """A collective, or the part of it that overlaps computation or does not."""

    kind: CollectiveKind
    #: whose chips take part
    axes: tuple[str, ...]
    #: on one rank, see `comm_bytes`
    bytes: int


@frozen
class KernelWork:
    """One operator on one rank: floating-point operations, and bytes from and to memory."""

    num_ops: int
    bytes: int


TaskWork = CollectiveWork | KernelWork


def comm_bytes(collective: Collective, arranged: Arrangements, sizes: Sizes, job: Job, pricing: Pricing) -> float:
    """The input of a collective on one rank, as NCCL and ASTRA-sim state it.

    An all-gather has its shard, all others the whole that is reduced, scattered or exchanged, at the width in which it
    is sent. For a permute it is what a rank sends round the ring: all shards but one.
    """
    whole = float(as_array(collective.bytes(sizes, arranged.axis_sizes, job.element_bytes())))
    whole *= float(pricing.widening.get(collective.user, 1.0))
    ranks = float(as_array(collective.group_size(arranged.axis_sizes)))
    match collective.kind:
        case CollectiveKind.ALL_GATHER:
            return whole / ranks
        case CollectiveKind.PERMUTE:
            return whole * (ranks - 1) / ranks
        case _:
            return whole


def task_works(plan: Plan, job: Job, profiled: ProfiledJob, step: Step) -> dict[str, dict[TaskKey, TaskWork]]:
    """Layer by name → its collectives and kernels, by what their tasks look like."""
    arrangement = arrange(plan, job.graph(), profiled.cluster, profiled.facts.tensor_rule)
    arranged = Arrangements.of([arrangement], [plan.micro_batch * plan.data_parallel])
    weight_bytes, buckets = profiled.facts.gathered_weight_bytes, profiled.facts.buckets
    pricing = pricing_of(job, profiled.cluster, profiled.efficiencies, profiled.gradient_bytes, weight_bytes, buckets)
    variants = layer_variants(job.graph(), plan, step.contents, profiled.damage.by_stage)
    works: dict[str, dict[TaskKey, TaskWork]] = {}
    for name, steps in steps_of_layers(plan, job, profiled, step, variants).items():
        graph = job.graph().layers[variants[name].layer]
        placed = placed_layer(graph, arranged.strategy)
        layer = _Layer(graph, placed, graph.resolve(batch=arranged.batch, seq=job.seq_len), job, arranged, pricing)
        collectives = layer.collectives(name, step, one_copy_per_node=profiled.facts.one_copy_per_node)
        kernels = layer.kernels()
        by_key: dict[TaskKey, TaskWork] = {}
        for field in fields(steps):
            for each in getattr(steps, field.name):
                by_key.update(_works_of(each, collectives, kernels))
        works[name] = by_key
    return works


def tied_bytes(step: Step, gradient_bytes: float) -> list[tuple[tuple[int, ...], int]]:
    """Gradients of weights that several stages hold, in the order in which they are summed: stages and bytes."""
    holders: dict[str, set[int]] = {}
    parameters: dict[str, float] = {}
    for position, stage in enumerate(step.stages):
        for name in layer_counts(stage):
            shared = step.profiles.layers[name].tied_parameters
            for weight, tied in ((w, each) for w, each in shared.items() if each.trained):
                holders.setdefault(weight, set()).add(position)
                parameters[weight] = float(tied.parameters)
    return [
        (tuple(sorted(stages)), round(parameters[weight] * gradient_bytes))
        for weight, stages in holders.items()
        if len(stages) > 1
    ]


#: A collective of a layer: the step's name, axes and seconds.
_StepKey = tuple[str, tuple[str, ...], float]


@frozen
class _Layer:
    """A layer of a plan with its sizes."""

    graph: LayerGraph
    placed: PlacedLayer
    sizes: Sizes
    job: Job
    arranged: Arrangements
    pricing: Pricing

    def collectives(
        self, name: str, step: Step, *, one_copy_per_node: bool
    ) -> dict[_StepKey, tuple[CollectiveKind, float]]:
        """Kind and bytes of every collective, and of the parts that are recomputed."""
        routing = TokenRouting.of(self.graph, one_copy_per_node=one_copy_per_node)
        widths, recomputed = self.job.element_bytes(), step.recompute[name].added_collective_s
        by_step: dict[_StepKey, tuple[CollectiveKind, float]] = {}
        collectives = self.placed.collectives
        bytes_of = [as_array(c.bytes(self.sizes, self.arranged.axis_sizes, widths)) for c in collectives]
        times = self.pricing.layer_times(self.arranged, collectives, bytes_of, routing)
        for collective, (spent, _) in zip(collectives, times, strict=True):
            seconds = float(spent.seconds)
            sent = comm_bytes(collective, self.arranged, self.sizes, self.job, self.pricing)
            text = f"{collective.kind.value.replace('_', ' ')} {collective.tensor.name}"
            by_step[text, collective.axes, seconds] = collective.kind, sent
            group = group_name(collective, self.arranged.axes)
            if collective.phase is CollectivePhase.FORWARD and group in recomputed:
                whole = float(step.profiles.layers[name].forward_collective_s[group])
                part = float(recomputed[group]) / whole if whole else 0.0
                by_step[f"{text} (recompute)", collective.axes, seconds * part] = collective.kind, sent * part
        return by_step

    def kernels(self) -> dict[str, KernelWork]:
        """By name of an operator."""
        widths = self.job.element_bytes()
        works: dict[str, KernelWork] = {}
        for operators in (self.placed.forward, self.placed.backward):
            work = PlacedWork(operators, self.placed.tensors, self.sizes, self.arranged.axis_sizes, widths)
            for operator in (placed.operator for placed in operators):
                local = work.local[operator.name]
                moved = work.moved_bytes.get(operator.name)
                if moved is None:
                    touched = (bytes_read, bytes_written)
                    moved = sum(as_array(count(operator, work.tensors, local, widths)) for count in touched)
                works[operator.name] = KernelWork(round(float(sum(work.flops[operator.name]))), round(float(moved)))
        return works


def _works_of(
    step: LayerStep,
    collectives: Mapping[_StepKey, tuple[CollectiveKind, float]],
    kernels: Mapping[str, KernelWork],
) -> Iterator[tuple[TaskKey, TaskWork]]:
    """The tasks of a step: a kernel, or the parts of a collective, each in whole bytes."""
    if step.message is None:
        if step.kind in (StepKind.FORWARD, StepKind.INPUT_GRADIENT, StepKind.WEIGHT_GRADIENT):
            yield (step.name, step.kind, KERNELS, step.seconds, 0.0), kernels[step.name]
        return
    kind, sent = collectives[step.name, step.message.axes, step.message.seconds]
    parts = parted(step)
    for part, share in ((parts.seen, 1 - max(step.overlapped, 0.0)), (parts.overlapped, step.overlapped)):
        if part is not None:
            yield _key(part), CollectiveWork(kind, step.message.axes, round(sent * share))


def _key(step: LayerStep) -> TaskKey:
    assert step.message is not None, step
    busiest = max((sent for _, sent in step.message.bytes_by_way), default=0.0)
    return step.name, step.kind, step.group, step.message.wait_s, busiest
