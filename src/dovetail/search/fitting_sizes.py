"""What fits: the least memory of plans on any of several numbers of chips, by one set of tables for a sequence length.

The network has no say in memory, so the tables are those of the largest number. Of the plans of a framework those are
looked at that need least memory: layers dealt evenly to stages, one chunk a stage; state sharded over all replicas;
sequence parallelism where there is tensor parallelism, which stays within a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Literal

import numpy as np

from dovetail.arrays import Ints, numbers
from dovetail.bounds.batch import Batch, Candidates
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_runs
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons, plan_skeletons, shardings
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees, stage_degrees
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from dovetail.step.layer_tables import RecomputePolicy, Setting
from dovetail.step.plan_tables import Tables
from dovetail.step.state_tables import StateSharding
from dovetail.step.tabled_plan import plan_of

#: Recompute policies that are asked about, where a framework has them.
POLICIES = ("none", "selective", "full")
#: Micro-batches that are tried: 1 to 1,024.
MOST_DOUBLINGS = 11
#: Sequences of a step for each chip, where no global batch is asked for.
SEQUENCES_PER_CHIP = 16


@frozen
class FittingSize:
    """The largest micro-batch or sequence length of some chips under a recompute policy, and the plan it fits with."""

    largest: Literal["micro_batch", "seq_len"]
    chips: int
    recompute: str
    micro_batch: int
    seq_len: int
    evaluation: Evaluation
    limited_by_memory: bool
    """whether twice as much does not fit; otherwise no plan divides it, or it is not asked about"""
    most_tokens: float = math.inf
    """no sequence is longer that fits at micro-batch 1, where that is known"""


@frozen
class SizeQuestion:
    """A job on clusters of one kind: global batch None has 16 sequences for each chip."""

    job: Job
    cluster: Callable[[int], Cluster]
    framework: Framework
    global_batch: int | None
    limit_bytes: float

    def job_on(self, chips: int, seq_len: int) -> Job:
        """The job on so many chips."""
        batch = SEQUENCES_PER_CHIP * chips if self.global_batch is None else self.global_batch
        return replace(self.job, global_batch=batch, seq_len=seq_len)


class LeastMemory:
    """Peak bytes of plans on some numbers of chips, for one sequence length and some micro-batches."""

    def __init__(
        self, question: SizeQuestion, counts: Sequence[int], seq_len: int, micro_batches: Sequence[int]
    ) -> None:
        self.question, self.counts = question, tuple(counts)
        framework, largest = question.framework, question.cluster(max(counts))
        self._jobs = [question.job_on(chips, seq_len) for chips in counts]
        self.policies: list[RecomputePolicy] = [(word, 1.0) for word in POLICIES if word in framework.recompute]
        job = question.job_on(largest.chips, seq_len)
        self._space = lean_space(job, largest, framework, micro_batches)
        self._setting = Setting.of(job, largest, framework)
        self._degrees = stage_degrees(job, largest, framework, self._space)
        self.peak_bytes, self.seconds = np.zeros(0), np.zeros(0)
        self.micro_batch, self.count, self.policy = (np.zeros(0, np.int64) for _ in range(3))
        skeletons, count = self._skeletons()
        if self._degrees and len(skeletons):
            self._evaluate(skeletons, count)

    def _skeletons(self) -> tuple[PlanSkeletons, Ints]:
        """Those of every number of chips, and which number it is."""
        setting, space = self._setting, self._space
        every = np.ones((len(self._degrees), len(space.pipeline_parallel)), np.bool_)
        parts: list[PlanSkeletons] = []
        for chips, job in zip(self.counts, self._jobs, strict=True):
            cluster = self.question.cluster(chips)
            parts.append(plan_skeletons(job, cluster, setting.framework, space, self._degrees, every))
        count = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        names = [each.name for each in fields(PlanSkeletons)]
        return PlanSkeletons(*(np.concatenate([getattr(part, name) for part in parts]) for name in names)), count

    def _evaluate(self, skeletons: PlanSkeletons, count: Ints) -> None:
        tables = Tables(self._setting, self._degrees, self.policies)
        batch = Batch(tables, skeletons)
        places: dict[tuple[int, int, int], list[StateSharding]] = {}
        skeleton, keys = list[int](), list[StateSharding]()
        triples = zip(numbers(skeletons.degrees), numbers(skeletons.replicas), numbers(skeletons.stages), strict=True)
        for row, key in enumerate(triples):
            if key not in places:
                places[key] = self._states(*key)
            skeleton += [row] * len(places[key])
            keys += places[key]
        state, policies = tables.states.rows(keys), len(self.policies)
        candidates = Candidates(
            np.repeat(np.array(skeleton, np.int64), policies),
            np.tile(np.arange(policies), len(skeleton)),
            np.repeat(state, policies),
        )
        partitions = [
            [self._partition(tables, int(p), int(s))] for p, s in zip(skeletons.stages, skeletons.schedule, strict=True)
        ]
        evaluated = batch.evaluate(candidates, partitions)
        taken = candidates.take(evaluated.candidate)
        self._found = skeletons, tables, taken
        self.peak_bytes = evaluated.peak_bytes
        self.seconds = evaluated.seconds
        self.micro_batch, self.count = skeletons.micro_batch[taken.skeleton], count[taken.skeleton]
        self.policy = taken.policy

    def _states(self, number: int, replicas: int, stages: int) -> list[StateSharding]:
        """Every ZeRO stage over all replicas."""
        setting, degrees = self._setting, self._degrees[number]
        groups = replace(self._space, zero_group=(replicas * degrees.plan.context_parallel,))
        found = shardings(setting.job, setting.framework, groups, degrees, replicas, stages, [setting.cluster.chips])
        return [StateSharding(number, replicas, stages, AXIS_ORDERS[0], zero, group) for zero, group in found]

    def _partition(self, tables: Tables, stages: int, schedule: int) -> int:
        layers = even_layers(stages, self._setting.job.model.num_layers)
        return tables.partitions.row(layers, stages, NAMES[schedule])

    def fitting(self, count: int, policy: int, micro_batch: int) -> Evaluation | None:
        """The fastest plan within the limit, by its bound, that runs on a cluster of its size; None where none does."""
        chosen = (self.count == count) & (self.policy == policy) & (self.micro_batch == micro_batch)
        rows = np.flatnonzero(chosen & (self.peak_bytes <= self.question.limit_bytes))
        job, cluster = self._jobs[count], self.question.cluster(self.counts[count])
        for row in rows[np.argsort(self.seconds[rows], kind="stable")].tolist():
            plan = self._plan(row)
            try:
                check_runs(plan, job, cluster, self.question.framework)
            except InputError:
                continue
            return evaluate(plan, job, cluster, self.question.framework, energy=False)
        return None

    def too_large(self, count: int, policy: int, micro_batch: int) -> tuple[bool, bool]:
        """Whether plans divide a micro-batch and none of them fits, and whether as many do as for micro-batch 1."""
        of_cell = (self.count == count) & (self.policy == policy)
        divided = of_cell & (self.micro_batch == micro_batch)
        all_divide = np.count_nonzero(divided) == np.count_nonzero(of_cell & (self.micro_batch == 1))
        return bool(divided.any() and (self.peak_bytes[divided] > self.question.limit_bytes).all()), all_divide

    def _plan(self, row: int) -> Plan:
        skeletons, tables, taken = self._found
        skeleton = int(taken.skeleton[row])
        degrees: StageDegrees = self._degrees[int(skeletons.degrees[skeleton])]
        layers = even_layers(int(skeletons.stages[skeleton]), self._setting.job.model.num_layers)
        state = tables.states.keys[int(taken.state[row])]
        return plan_of(degrees, skeletons, skeleton, self.policies[int(taken.policy[row])], state, layers)


def lean_space(job: Job, cluster: Cluster, framework: Framework, micro_batches: Sequence[int]) -> Space:
    """The plans that need least memory of those with equal degrees."""
    whole = Space().resolve(job, cluster, framework)
    schedules = [schedule for schedule in whole.pipeline_schedule if schedule != "interleaved"]
    node = cluster.tiers[0].size if cluster.tiers else 1
    return replace(
        whole,
        tensor_parallel=tuple(degree for degree in whole.tensor_parallel if degree <= node),
        micro_batch=tuple(micro_batches),
        sequence_parallel=whole.sequence_parallel[-1:],
        context_kind=whole.context_kind[:1],
        expert_tensor_parallel=(1,) if whole.expert_parallel != (1,) else whole.expert_tensor_parallel,
        pipeline_schedule=("1f1b",) if "1f1b" in schedules else tuple(schedules[:1]),
        virtual_stages=(1,),
        recompute_share=(1.0,),
        axis_order=AXIS_ORDERS[:1],
        partition="even",
    )


def fitting_sizes(question: SizeQuestion, counts: Sequence[int], longest: int) -> list[FittingSize]:
    """Of each number of chips and recompute policy the largest micro-batch, and the longest sequence at micro-batch 1.

    Micro-batches are powers of two at the job's sequence length; sequences double from it up to `longest`. Of several
    plans it is the one with the lowest bound of its step time.
    """
    found: list[FittingSize] = []
    for chips in _nested(counts):
        largest = _largest(question, chips, question.job.seq_len, [2**power for power in range(MOST_DOUBLINGS)])
        found += largest + _longest(question, largest, longest)
    return sorted(found, key=lambda each: (each.largest, each.chips, POLICIES.index(each.recompute)))


def divides(question: SizeQuestion, chips: int) -> bool:
    """Whether any plan divides chips, model and global batch at all, however much memory it takes."""
    return bool(len(LeastMemory(question, [chips], question.job.seq_len, (1,)).peak_bytes))


def _nested(counts: Sequence[int]) -> list[list[int]]:
    """Numbers of chips that divide the largest of them together: one set of tables has their degrees."""
    groups: list[list[int]] = []
    for chips in sorted(set(counts), reverse=True):
        group = next((each for each in groups if each[0] % chips == 0), None)
        if group is None:
            groups.append([chips])
        else:
            group.append(chips)
    return groups


def _largest(question: SizeQuestion, counts: Sequence[int], seq_len: int, sizes: Sequence[int]) -> list[FittingSize]:
    """The largest of some micro-batches that fits on each number of chips under each policy."""
    memory, found = LeastMemory(question, counts, seq_len, sizes), list[FittingSize]()
    for count, chips in enumerate(memory.counts):
        for policy, (word, _) in enumerate(memory.policies):
            tried = ((size, memory.fitting(count, policy, size)) for size in reversed(sizes))
            best = next(((size, evaluation) for size, evaluation in tried if evaluation is not None), None)
            if best is not None:
                size, evaluation = best
                by_memory, for_all = memory.too_large(count, policy, 2 * size)
                most = size * seq_len if by_memory and for_all else math.inf
                found.append(FittingSize("micro_batch", chips, str(word), size, seq_len, evaluation, by_memory, most))
    return found


def _longest(question: SizeQuestion, largest: Sequence[FittingSize], longest: int) -> list[FittingSize]:
    """The longest sequences at micro-batch 1: a sequence twice as long takes what two sequences do, or more.

    So no sequence fits that is longer than the largest micro-batch together, where memory limits that; from there on
    down the first that fits.
    """
    found: list[FittingSize] = []
    open_cells = {(each.chips, each.recompute): each for each in largest}
    start, doublings = question.job.seq_len, max(longest // question.job.seq_len, 1).bit_length() - 1
    for seq_len in (start * 2**power for power in range(doublings, -1, -1)):
        asked = [each for each in open_cells.values() if seq_len <= each.most_tokens]
        if asked:
            fitting = _largest(question, sorted({each.chips for each in asked}), seq_len, (1,))
            cells = {(each.chips, each.recompute) for each in asked}
            for each in fitting:
                if (each.chips, each.recompute) in cells:
                    del open_cells[each.chips, each.recompute]
                    by_memory = seq_len < start * 2**doublings
                    found.append(replace(each, largest="seq_len", limited_by_memory=by_memory))
    return found


def smallest_cluster(question: SizeQuestion, most: int) -> FittingSize | None:
    """The fewest chips, a power of two, on which any plan fits at micro-batch 1; None where none up to `most` does."""
    chips = 1
    while chips <= most:
        found = _largest(question, [chips], question.job.seq_len, (1,)) if _state_fits(question, chips) else []
        if found:
            return min(found, key=lambda each: each.evaluation.step_time_s)
        chips *= 2
    return None


def _state_fits(question: SizeQuestion, chips: int) -> bool:
    """Whether weights and the state of the optimizer fit, each parameter's on one chip alone."""
    job = question.job_on(chips, question.job.seq_len)
    sizes = Setting.of(job, question.cluster(chips), question.framework).alone.parameter_bytes
    trained, each = job.graph().trained_parameters(), min(sizes.weight, sizes.sharded_weight) + sizes.optimizer
    # frozen weights of 4 bits take a quarter of others
    frozen = (job.graph().parameters() - trained) * sizes.frozen / 4
    return trained * each + frozen <= chips * question.limit_bytes
