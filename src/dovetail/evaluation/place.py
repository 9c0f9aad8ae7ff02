"""The best cut and recompute of a plan whose degrees are given: a chain of layers with options, solved and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from dovetail.cost.calibration import calibration
from dovetail.cost.shapes import Array, largest, summed
from dovetail.errors import InputError
from dovetail.evaluation.evaluate import (
    Evaluation,
    ProfiledJob,
    evaluation_of,
    is_block,
    loss_bytes,
    pipeline_of,
    profiled_job,
    state_kept,
    step_from,
)
from dovetail.evaluation.facts import facts_of
from dovetail.evaluation.profiles import UPDATED_WEIGHTS
from dovetail.evaluation.times import Overlaps, layer_times, reduction_rooms, transfer_seconds
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.placement.layer_chain import LayerChain, LayerOptions
from dovetail.placement.memory import gathered_parameters, layer_gradients, state_bytes
from dovetail.placement.pipeline_schedule import PipelineSchedule
from dovetail.placement.place_layers import TOLERANCE, PlacementSolution, place_layers
from dovetail.placement.plan import Plan
from dovetail.profile import LayerProfile, Recompute, recompute
from dovetail.profile.frontier import recompute_frontier

Floats = NDArray[np.float64]

#: Taken off a chip's memory, so that no placement misses it by rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan with the best cut and recompute found, and what no other takes less than."""

    evaluation: Evaluation
    status: str
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """How far the answer may be from the best, as a part of it."""
        return 1 - self.lower_bound_s / self.evaluation.step_time_s


def place_plan(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> PlacedPlan | None:
    """The plan with the best layers per stage and recompute per block; None where none fits.

    What the plan says of both is replaced. Embedding and head compute nothing again.
    """
    if plan.pipeline_schedule == PipelineSchedule.DUAL_PIPE:
        what = "is dualpipe, whose stages hold two chunks of one cut"
        raise InputError("plan: pipeline_schedule", what, "place plans of one of the other schedules")
    facts = facts_of(framework, job, schedule=plan.pipeline_schedule, stages=plan.pipeline_parallel)
    known = calibration(cluster.chip, job.precision)
    return place_profiled(plan, job, profiled_job(plan, job, cluster, facts, known.efficiencies), str(known))


def place_profiled(plan: Plan, job: Job, profiled: ProfiledJob, basis: str) -> PlacedPlan | None:
    """The same where the layers are profiled already."""
    builder = _ChainBuilder(plan, profiled)
    solution = place_layers(builder.chain())
    if solution.placement is None:
        return None
    placed = builder.placed(solution)
    step = step_from(placed, profiled)
    answer = evaluation_of(step, placed, job, profiled.cluster, profiled.facts, basis)
    # the chain leaves out what no cut or option changes, and counts of exposed reductions what is always exposed
    bound = min(solution.lower_bound_s + builder.constant_s(step.breakdown), answer.step_time_s)
    proven = bound >= answer.step_time_s * (1 - TOLERANCE)
    return PlacedPlan(answer, "optimal" if proven and answer.fits else "feasible", bound)


class _ChainBuilder:
    """A plan's layers as a chain with options, and a solution of it as a plan."""

    def __init__(self, plan: Plan, job: ProfiledJob) -> None:
        self.plan = plan
        self.job = job
        self.graph = job.profiles.graph
        order = [run.layer for run in self.graph.chain for _ in range(run.count)]
        blocks = sum(plan.layers_per_stage)
        self.blocks = order[1 : 1 + blocks]
        #: the first layer, the classes of blocks, and all that reads the finished stream as one layer
        self.parts = [(order[0],), *((name,) for name in dict.fromkeys(self.blocks)), tuple(order[1 + blocks :])]
        self.choices: list[list[str | tuple[str, ...]]] = []

    def chain(self) -> LayerChain:
        """The problem: blocks with the options of their frontier between an embedding and a head with none."""
        plan, job = self.plan, self.job
        classes: list[LayerOptions] = []
        for names in self.parts:
            options, choices = self._options(names)
            classes.append(options)
            self.choices.append(choices)
        numbers = {names[0]: number for number, names in enumerate(self.parts)}
        order = (0, *(numbers[name] for name in self.blocks), len(self.parts) - 1)
        chip, facts = job.cluster.chip, job.facts
        capacity = ((chip.hbm_bytes or chip.sram_bytes) - facts.context_bytes) / (1 + facts.allocator_overhead)
        return LayerChain(
            tuple(classes),
            order,
            pipeline_of(plan),
            device_bytes=capacity * (1 - ROUNDING),
            transfer_s=_number(transfer_seconds(plan, job.profiles, job.cluster, job.efficiencies)),
            sends_itself=not facts.overlaps.transfers and plan.pipeline_parallel > 1,
            shared_bytes=self._shared(),
        )

    def _options(self, names: Sequence[str]) -> tuple[LayerOptions, list[str | tuple[str, ...]]]:
        """The options of a block, or the one of layers that are placed together."""
        profiles = [self.job.profiles.layers[name] for name in names]
        choices: list[str | tuple[str, ...]] = ["none"]
        if is_block(self.graph.layers[names[0]]):
            choices, again = self._frontier(names[0])
        else:
            again = [recompute(self.graph.layers[name], self.job.profiles.layers[name], "none") for name in names]
        host_s = self.job.facts.overheads.host_s
        times = [layer_times(p, a, self.job.facts.overlaps, host_s) for p, a in zip(profiles, again, strict=True)]
        state = [self._state(p) for p in profiles]
        sizes, zero_stage = state_kept(self.plan, self.job.facts)
        losses = loss_bytes(dict(zip(names, profiles, strict=True)), self.job.facts)
        transients = [p.transient_bytes for name, p in zip(names, profiles, strict=True) if name not in losses]
        layers: Mapping[str, LayerProfile] = self.job.profiles.layers
        options = LayerOptions(
            forward_s=sum(_number(t.forward_s) for t in times),
            input_gradient_s=_row(summed(t.input_gradient_s for t in times)),
            weight_gradient_s=sum(_number(t.weight_gradient_s) for t in times),
            kept_bytes=_row(summed(a.saved_bytes for a in again)),
            workspace_bytes=_row(largest(a.workspace_bytes for a in again)),
            state_bytes=sum(kept for kept, _ in state),
            step_bytes=sum(step for _, step in state),
            working_bytes=(
                max((_number(size) for size in transients), default=0.0),
                _number(layer_gradients(names, layers, sizes, zero_stage)),
            ),
            loss_bytes=max((_number(size) for size in losses.values()), default=0.0),
            gathered_bytes=self._gathered(names),
            once_s=(),
        )
        longest = float(options.input_gradient_s.max()) + options.weight_gradient_s
        options = replace(options, once_s=self._once(profiles, options.forward_s, longest))
        return options, choices

    def _frontier(self, name: str) -> tuple[list[str | tuple[str, ...]], list[Recompute]]:
        """A block's choices, and what they take as arrays over choices."""
        graph, profile, facts = self.graph.layers[name], self.job.profiles.layers[name], self.job.facts
        found = recompute_frontier(graph, profile, facts.operand_share, _exposed(facts.overlaps))
        choices = [found.again(i) for i in range(len(found.seconds))]
        each = [recompute(graph, profile, choice, facts.operand_share) for choice in choices]
        groups = {group for again in each for group in again.added_collective_s}
        none = np.zeros(())
        again = Recompute(
            saved_bytes=np.array([_number(a.saved_bytes) for a in each]),
            added_s=np.array([_number(a.added_s) for a in each]),
            workspace_bytes=np.array([_number(a.workspace_bytes) for a in each]),
            added_kernels=np.array([_number(a.added_kernels) for a in each]),
            added_collective_s={
                g: np.array([_number(a.added_collective_s.get(g, none)) for a in each]) for g in sorted(groups)
            },
        )
        return [choice or "none" for choice in choices], [again]

    def _state(self, profile: LayerProfile) -> tuple[float, float]:
        """Bytes of a layer's state, and of what its optimizer's step adds."""
        sizes, zero_stage = state_kept(self.plan, self.job.facts)
        parts = state_bytes(profile.parameters, profile.home_parameters, sizes, zero_stage)
        stepped = profile.home_parameters if zero_stage >= 1 else profile.parameters
        return sum(_number(part) for part in parts.values()), _number(stepped) * sizes.step_copy

    def _gathered(self, names: Sequence[str]) -> float:
        """Bytes of weights kept in shards that are whole at once.

        Weights fetched one by one count as the largest two of the whole model, wherever these are.
        """
        sizes, zero_stage = state_kept(self.plan, self.job.facts)
        layers = self.job.profiles.layers
        if zero_stage < 3:
            return 0.0
        held = list(layers) if sizes.by_weight else names
        return sizes.weight * _number(gathered_parameters(held, layers, by_weight=sizes.by_weight))

    def _shared(self) -> float:
        """State that embedding and head have in common."""
        sizes, zero_stage = state_kept(self.plan, self.job.facts)
        held: dict[str, list[float]] = {}
        for name in (name for names in (self.parts[0], self.parts[-1]) for name in names):
            for weight, tied in self.job.profiles.layers[name].tied_parameters.items():
                parts = state_bytes(tied.parameters, tied.home_parameters, sizes, zero_stage)
                held.setdefault(weight, []).append(sum(_number(part) for part in parts.values()))
        return sum(sum(found[1:]) for found in held.values())

    def _once(self, profiles: Sequence[LayerProfile], forward_s: float, backward_s: float) -> tuple[float, ...]:
        """Seconds of layers once a step: their optimizer, and of their reductions and gatherings what is not hidden.

        Of each either the part that nothing hides, or what is longer than the work beside it (`reduction_seconds`).
        """
        overlaps, none, rooms = self.job.facts.overlaps, np.zeros(()), reduction_rooms(pipeline_of(self.plan))
        updated = sum(_number(p.step_collective_s.get(UPDATED_WEIGHTS, none)) for p in profiles)
        reduced = sum(_number(summed(p.step_collective_s.values())) for p in profiles) - updated
        rate = self.job.facts.update_bytes / self.job.chip.vector.memory_bytes_per_s
        update = _number(summed(p.home_parameters for p in profiles) * rate)
        reductions = (reduced * (1 - _number(overlaps.gradient_reduction)), reduced - rooms * backward_s)
        gatherings = (updated * (1 - _number(overlaps.updated_weights)), updated - rooms * forward_s)
        return tuple(update + r + g for r in reductions for g in gatherings)

    def constant_s(self, breakdown: Mapping[str, Array]) -> float:
        """What a step takes beside its pipeline and its layers' own seconds, however it is cut."""
        return sum(_number(breakdown[name]) for name in ("tied embeddings", "between steps"))

    def placed(self, solution: PlacementSolution) -> Plan:
        """The plan that a solution means."""
        assert solution.placement is not None
        numbers = {names[0]: number for number, names in enumerate(self.parts)}
        taken = solution.placement.options[1:-1]
        again = [self.choices[numbers[name]][option] for name, option in zip(self.blocks, taken, strict=True)]
        runs = tuple((len(list(run)), choice) for choice, run in groupby(again))
        sizes = [len(chunk) for chunk in solution.placement.chunks]
        sizes[0] -= 1
        sizes[-1] -= 1
        return replace(
            self.plan,
            layers_per_stage=tuple(sizes),
            recompute="none",
            recompute_share=1.0,
            recompute_by_block=runs,
        )


def _exposed(overlaps: Overlaps) -> dict[str, float]:
    """The part of a collective's seconds in the backward that computation does not hide, by kind of group."""
    hidden = {
        "tensor-parallel": overlaps.tensor_backward,
        "context-parallel": overlaps.context,
        "expert-parallel": overlaps.expert,
    }
    return {group: 1 - _number(np.asarray(share)) for group, share in hidden.items()}


def _number(value: Array | float) -> float:
    return float(np.ravel(value)[0])


def _row(value: Array) -> Floats:
    """One number per option: all of a variant's where they differ."""
    return np.atleast_1d(np.asarray(value, np.float64)).reshape(-1)
