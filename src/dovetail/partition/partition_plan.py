"""The best partition and recompute policies of a plan whose degrees are given, solved and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from dovetail.arrays import ROUNDING, TOLERANCE, Floats, largest, summed
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frameworks.parameter_bytes import frozen_bytes, state_bytes
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.partition.chain_memory import ChainMemory
from dovetail.partition.layer_chain import LayerChain, LayerPartition, LayerPolicies
from dovetail.partition.partition_layers import partition_layers
from dovetail.plans.pipeline_schedule import PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.profile import LayerProfile, Recompute, RecomputeMenu, recompute
from dovetail.profile.frontier import recompute_frontier
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import (
    ProfiledJob,
    evaluation_of,
    is_block,
    pipeline_of,
    profiled_job,
    recompute_of,
    step_from,
)
from dovetail.step.evaluation import Evaluation
from dovetail.step.facts import plan_facts
from dovetail.step.formulas import (
    between_seconds,
    exposed_at_least,
    optimizer_seconds,
    optimizer_step_bytes,
    overlap_budget,
    tensor_capacity,
)
from dovetail.step.memory_kernels import LOSS, StageParameters
from dovetail.step.offload import single_rates, update_rates
from dovetail.step.profiles import UPDATED_WEIGHTS
from dovetail.step.times import Overlaps, layer_times, least_input_gradient, transfer_seconds

#: Policies whose times differ by no more than this part lead to one answer; the bound is not affected.
ALIKE = 1e-6


@frozen
class PartitionedPlan:
    """A plan with its best partition and recompute policies, and a lower bound over all others.

    An interleaved plan's bound is of partitions into chunks that are alike (`InterleavedPartitions`).
    """

    evaluation: Evaluation
    status: str
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """How far the answer may be from the best, as a part of it."""
        return 1 - self.lower_bound_s / self.evaluation.step_time_s


def partition_plan(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> PartitionedPlan | None:
    """The plan with the best layers per stage and recompute per block; None where none fits.

    What the plan says of both is replaced. Embedding and head recompute nothing.
    """
    if plan.pipeline_schedule == PipelineSchedule.DUAL_PIPE:
        what = "is dualpipe, whose stages hold two chunks of one partition"
        raise InputError("plan: pipeline_schedule", what, "use one of the other schedules")
    facts = plan_facts(plan, framework, job)
    calibrated = calibration(cluster.chip, job.precision)
    profiled = profiled_job(plan, job, cluster, facts, calibrated.efficiencies)
    return partition_profiled(plan, job, profiled, str(calibrated), memory_limit(cluster.chip, framework))


def partition_profiled(
    plan: Plan,
    job: Job,
    profiled: ProfiledJob,
    basis: str,
    limit_bytes: float,
    *,
    by_block: bool = True,
    below_s: float = float("inf"),
    poll: Callable[[], None] = lambda: None,
) -> PartitionedPlan | None:
    """The same where the layers are profiled already; without `by_block` all blocks recompute what the plan says.

    A chip's part of the plan takes at most `limit_bytes`; None also where no partition may take less than `below_s`.

    Two chains are solved where they differ: one that never takes more, in time or memory, than an evaluation would
    say, for the bound, and one that never takes less memory, for the answer. `poll` is called from time to time; what
    it raises ends the search.
    """
    builder = ChainBuilder(plan, profiled, limit_bytes, by_block=by_block)
    added = profiled.facts.overheads
    between = between_seconds(float(added.microbatch_s), float(added.step_s), plan.num_microbatches)
    relaxed = partition_layers(builder.chain(relaxed=True), poll, below_s=below_s - between)
    if relaxed.placement is None:
        return None
    solutions = [relaxed] if builder.agrees else [partition_layers(builder.chain(relaxed=False), poll), relaxed]
    answers: list[Evaluation] = []
    for placement in (solution.placement for solution in solutions if solution.placement is not None):
        placed = builder.placed(placement)
        answers.append(evaluation_of(step_from(placed, profiled), placed, job, profiled.cluster, profiled.facts, basis))
    fitting = [a for a in answers if a.peak_bytes <= limit_bytes and a.host_bytes <= a.host_limit_bytes]
    if not fitting:
        return None
    answer = min(fitting, key=lambda each: each.step_time_s)
    bound = min(relaxed.lower_bound_s + builder.constant_s(answer.breakdown), answer.step_time_s)
    proven = bound >= answer.step_time_s * (1 - TOLERANCE)
    return PartitionedPlan(answer, "optimal" if proven else "feasible", bound)


def least_partition_s(
    plan: Plan,
    profiled: ProfiledJob,
    limit_bytes: float,
    *,
    by_block: bool = True,
    poll: Callable[[], None] = lambda: None,
) -> float:
    """Seconds that no partition of the plan within so many bytes of a chip falls below; infinite where none fits."""
    builder = ChainBuilder(plan, profiled, limit_bytes, by_block=by_block)
    relaxed = partition_layers(builder.chain(relaxed=True), poll)
    return float("inf") if relaxed.placement is None else relaxed.lower_bound_s


class ChainBuilder:
    """A plan's layers as a chain with policies, and a solution of it as a plan."""

    def __init__(self, plan: Plan, job: ProfiledJob, limit_bytes: float, *, by_block: bool = True) -> None:
        self.plan = plan
        self.limit_bytes = limit_bytes
        self.by_block = by_block
        self.job = job
        self.graph = job.profiles.graph
        order = [run.layer for run in self.graph.chain for _ in range(run.count)]
        blocks = sum(plan.layers_per_stage)
        self.blocks = order[1 : 1 + blocks]
        #: the first layer, the classes of blocks, and all that reads the finished stream as one layer
        self.parts = [(order[0],), *((name,) for name in dict.fromkeys(self.blocks)), tuple(order[1 + blocks :])]
        self.memory = ChainMemory(plan, job, self.blocks)
        built = [self._layer_policies(names) for names in self.parts]
        self._relaxed = tuple(relaxed for relaxed, _, _ in built)
        self._most = tuple(most for _, most, _ in built)
        self._choices = [choices for _, _, choices in built]

    @property
    def agrees(self) -> bool:
        """Whether both chains are so alike that solving the second would not be worth it."""
        return all(
            np.allclose(relaxed.input_gradient_s, most.input_gradient_s, rtol=ALIKE, atol=0)
            and relaxed.gathered_bytes == most.gathered_bytes
            and sum(relaxed.working_bytes) == sum(most.working_bytes)
            and (relaxed.workspace_bytes == most.workspace_bytes).all()
            and relaxed.state_bytes == most.state_bytes
            for relaxed, most in zip(self._relaxed, self._most, strict=True)
        )

    def chain(self, *, relaxed: bool) -> LayerChain:
        """The problem: blocks with the policies of their frontier between an embedding and a head with none."""
        plan, job = self.plan, self.job
        numbers = {names[0]: number for number, names in enumerate(self.parts)}
        order = (0, *(numbers[name] for name in self.blocks), len(self.parts) - 1)
        facts = job.facts
        capacity = float(tensor_capacity(self.limit_bytes, facts.context_bytes, facts.allocator_overhead))
        return LayerChain(
            self._relaxed if relaxed else self._most,
            order,
            pipeline_of(plan),
            device_bytes=capacity * (1 - ROUNDING),  # so that no partition misses it by rounding
            # on a wafer links differ: the shortest for a bound, the longest for an answer
            transfer_s=float(
                (np.min if relaxed else np.max)(transfer_seconds(plan, job.profiles, job.cluster, job.efficiencies))
            ),
            sends_itself=not facts.overlaps.transfers and plan.pipeline_parallel > 1,
        )

    def _layer_policies(self, names: Sequence[str]) -> tuple[LayerPolicies, LayerPolicies, list[str | tuple[str, ...]]]:
        """Lower and upper bounds of a block's policies (or of layers placed together), and the policies' choices."""
        layers, facts = self.job.profiles.layers, self.job.facts
        profiles = [layers[name] for name in names]
        choices: list[str | tuple[str, ...]] = ["none"]
        fastest: Floats | None = None
        if not self.by_block:
            recomputed = [
                recompute_of(
                    self.graph.layers[name],
                    layers[name],
                    self.plan.recompute,
                    self.plan.recompute_share,
                    facts,
                    sharded=self.memory.sharded,
                )
                for name in names
            ]
        elif is_block(self.graph.layers[names[0]]):
            choices, recomputed, added = self._frontier(names[0])
            fastest = least_input_gradient(profiles[0], added, facts.overlaps, facts.overheads.host_s)
        else:
            saving = facts.saves(sharded=self.memory.sharded, narrow=False)
            recomputed = [recompute(self.graph.layers[name], layers[name], "none", saving) for name in names]
        times = [
            layer_times(p, a, facts.overlaps, facts.overheads.host_s) for p, a in zip(profiles, recomputed, strict=True)
        ]
        sizes, zero_stage = facts.parameter_bytes, self.memory.zero_stage
        owned = self._owned(names)
        used, home = owned.trained, owned.trained_home
        weights, gradients, optimizer = state_bytes(used, home, zero_stage, sizes, owned.vectors)
        weights += frozen_bytes(owned.used - used, owned.home - home, zero_stage, sizes)
        step_bytes = float(optimizer_step_bytes(used, home, zero_stage, sizes))
        phase = self.memory.phase(names)
        others = [self.memory.most_working(name, phase) for name in names]
        most = LayerPolicies(
            forward_s=sum(float(np.min(t.forward_s)) for t in times),
            input_gradient_s=_row(summed(t.input_gradient_s for t in times)),
            weight_gradient_s=sum(_number(t.weight_gradient_s) for t in times),
            saved_bytes=_row(summed(a.saved_bytes for a in recomputed)),
            workspace_bytes=_row(largest(a.working_bytes + b for a, b in zip(recomputed, others, strict=True))),
            state_bytes=float(weights + gradients + optimizer),
            step_bytes=step_bytes,
            working_bytes=(self.memory.sent(names),),
            loss_bytes=max((self.memory.most_working(name, LOSS) for name in self.memory.losses(names)), default=0.0),
            # weights fetched one by one: the largest two of a stage are never more than those of the model
            gathered_bytes=self.memory.gathered(list(layers)),
        )
        longest = float(most.input_gradient_s.max()) + most.weight_gradient_s
        most = replace(most, once_s=self._once(profiles, (home, owned.vectors), most.forward_s, longest))
        relaxed = self.memory.relaxed(names, recomputed, most)
        if sizes.late_gradients and self.plan.num_microbatches == 1:
            late = float(gradients)
            relaxed = replace(relaxed, state_bytes=relaxed.state_bytes - late, step_bytes=step_bytes + late)
        return (relaxed if fastest is None else replace(relaxed, input_gradient_s=_row(fastest))), most, choices

    def _owned(self, names: Sequence[str]) -> StageParameters:
        """Parameters of layers placed together; tied ones count once.

        Where one stage holds all layers, what the last share with the first counts with the first.
        """
        alone = self.plan.pipeline_parallel == 1 and names == self.parts[-1]
        before = self.parts[0] if alone else ()
        together, first = self.memory.tables.parameters([dict(Counter((*before, *names)))], [dict(Counter(before))])
        return StageParameters(*(together - first).tolist())

    def _frontier(self, name: str) -> tuple[list[str | tuple[str, ...]], list[Recompute], Floats]:
        """A block's choices, what they take as arrays over choices, and the seconds they add at least."""
        graph, profile, facts = self.graph.layers[name], self.job.profiles.layers[name], self.job.facts
        saving = facts.saves(sharded=self.memory.sharded)
        frontier = recompute_frontier(graph, profile, saving.operand_share, _exposed(facts.overlaps))
        choices = [frontier.recomputed(i) for i in range(len(frontier.seconds))]
        menu = RecomputeMenu(graph, profile, saving)
        each = [menu.cost(choice) for choice in choices]
        groups = {group for recomputed in each for group in recomputed.added_collective_s}
        none = np.zeros(())
        recomputed = Recompute(
            saved_bytes=np.array([_number(a.saved_bytes) for a in each]),
            added_s=np.array([_number(a.added_s) for a in each]),
            workspace_bytes=np.array([_number(a.workspace_bytes) for a in each]),
            working_bytes=np.array([_number(a.working_bytes) for a in each]),
            added_kernels=np.array([_number(a.added_kernels) for a in each]),
            offloaded_bytes=np.array([_number(np.asarray(a.offloaded_bytes)) for a in each]),
            added_collective_s={
                g: np.array([_number(a.added_collective_s.get(g, none)) for a in each]) for g in sorted(groups)
            },
        )
        return [choice or "none" for choice in choices], [recomputed], frontier.seconds

    def _once(
        self, profiles: Sequence[LayerProfile], owned: tuple[float, float], forward_s: float, backward_s: float
    ) -> tuple[float, ...]:
        """Seconds of layers once a step: their optimizer, and of their reductions and gatherings what is not hidden.

        Of each either the part that nothing hides, or what is longer than the work that hides it (`end_of_step`).
        """
        overlaps, none, pipeline = self.job.facts.overlaps, np.zeros(()), pipeline_of(self.plan)
        updated = sum(_number(p.step_collective_s.get(UPDATED_WEIGHTS, none)) for p in profiles)
        reduced = sum(_number(summed(p.step_collective_s.values())) for p in profiles) - updated
        (home, vectors), flops = owned, sum(_number(p.update.flops) for p in profiles)
        rates = single_rates(update_rates(self.job.facts, self.job.chip, self.job.cluster))
        update = float(optimizer_seconds(home, rates, vectors, flops)) + home * rates.up_s
        sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, overlaps.min_overlap_s
        behind, ahead = (float(overlap_budget(work_s, *sizes)) for work_s in (backward_s, forward_s))
        reductions = exposed_at_least(reduced, _number(overlaps.gradient_reduction), behind)
        gatherings = exposed_at_least(updated, _number(overlaps.updated_weights), ahead)
        once = [float(update + r + g) for r in reductions for g in gatherings]
        if not rates.down_s:
            return tuple(once)
        # gradients to the host: hidden, or longer than the work that hides them
        runs = pipeline.num_microbatches if rates.each_microbatch else 1
        downs = [runs * float(down) for down in exposed_at_least(home * rates.down_s, 1.0, behind)]
        return tuple(each + down for each in once for down in downs)

    def constant_s(self, breakdown: Mapping[str, float]) -> float:
        """What a step takes beside its pipeline and its layers' own seconds, whatever its partition."""
        return sum(breakdown[name] for name in ("tied embeddings", "between micro-batches", "between steps"))

    def placed(self, placement: LayerPartition) -> Plan:
        """The plan that a partition means."""
        sizes = [len(chunk) for chunk in placement.chunks]
        sizes[0] -= 1
        sizes[-1] -= 1
        if not self.by_block:
            return replace(self.plan, layers_per_stage=tuple(sizes))
        numbers = {names[0]: number for number, names in enumerate(self.parts)}
        taken = placement.policies[1:-1]
        choices = [self._choices[numbers[name]][policy] for name, policy in zip(self.blocks, taken, strict=True)]
        runs = tuple((len(list(run)), choice) for choice, run in groupby(choices))
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
    return {group: float(exposed_at_least(1.0, _number(np.asarray(share)), 1.0)[0]) for group, share in hidden.items()}


def _number(value: Floats | float) -> float:
    return float(np.ravel(value)[0])


def _row(value: Floats) -> Floats:
    """One number per policy: all of a variant's where they differ."""
    return np.atleast_1d(np.asarray(value, np.float64)).reshape(-1)
