"""What the process groups of a plan exchange in a step, counted from the order of the work and not from tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import chain

from dovetail.cost.calibration import calibration
from dovetail.graph.size import as_array
from dovetail.graph.tensor import Element
from dovetail.layout import Collective, CollectiveKind, CollectivePhase
from dovetail.pipeline.work_order import WorkKind, work_order
from dovetail.plans.arrange import arrange
from dovetail.plans.plan_file import Task
from dovetail.step.arrangements import Arrangements
from dovetail.step.evaluate import ProfiledJob, Step, profiled_job, step_from
from dovetail.step.facts import plan_facts
from dovetail.step.profiles import group_name, placed_layer
from dovetail.step.stages import layer_variants


class CountedStep:
    """A step whose collectives are counted layer by layer."""

    def __init__(self, task: Task) -> None:
        self.plan, self.job = task.plan, task.job
        facts = plan_facts(task.plan, task.framework, task.job)
        efficiencies = calibration(task.cluster.chip, task.job.precision).efficiencies
        self.profiled: ProfiledJob = profiled_job(task.plan, task.job, task.cluster, facts, efficiencies)
        self.step: Step = step_from(task.plan, self.profiled)
        arrangement = arrange(task.plan, task.job.graph(), task.cluster)
        self.axis_sizes = arrangement.axes.sizes
        self.arranged = Arrangements.of([arrangement], [task.plan.micro_batch * task.plan.data_parallel])
        self.order = work_order(self.step.pipeline)
        variants = layer_variants(task.job.graph(), task.plan, self.step.contents)
        self.layers = {name: task.job.graph().layers[layer] for name, (layer, *_) in variants.items()}

    def bytes_by_stage(self) -> list[dict[frozenset[str], float]]:
        """For every stage: axes → bytes that a rank puts into collectives along them."""
        by_stage: list[dict[frozenset[str], float]] = []
        for stage in range(self.plan.pipeline_parallel):
            sums: dict[frozenset[str], float] = defaultdict(float)
            items = self.order.items(stage)
            places = self.order.pipeline.places()[stage]
            for item in items:
                content = self.step.contents[places[item.chunk]]
                for name, count in content.items():
                    self._add_item(sums, name, count, item.kind)
            for place in {int(places[item.chunk]) for item in items}:
                for name, count in self.step.contents[place].items():
                    self._add(sums, name, count, CollectivePhase.STEP, {})
            by_stage.append(sums)
        return by_stage

    def tied_bytes(self) -> float:
        """Of the gradients of all weights that several stages hold, on one rank of a stage that holds them."""
        holders, parameters = defaultdict[str, set[int]](set), dict[str, float]()
        for position, stage in enumerate(self.step.stages):
            for name in chain.from_iterable(stage):
                for weight, tied in self.step.profiles.layers[name].tied_parameters.items():
                    holders[weight].add(position)
                    parameters[weight] = float(tied.parameters)
        return sum(
            parameters[weight] * self.profiled.gradient_bytes for weight, held in holders.items() if len(held) > 1
        )

    def _add_item(self, sums, name, count, kind) -> None:
        if kind is WorkKind.FORWARD:
            self._add(sums, name, count, CollectivePhase.FORWARD, {})
        elif kind in (WorkKind.BACKWARD, WorkKind.INPUT_GRADIENT):
            self._add(sums, name, count, CollectivePhase.BACKWARD, {})
            profile, recomputed = self.step.profiles.layers[name], self.step.recompute[name].added_collective_s
            shares = {
                group: float(seconds) / float(profile.forward_collective_s[group])
                for group, seconds in recomputed.items()
                if float(seconds) > 0
            }
            self._add(sums, name, count, CollectivePhase.FORWARD, shares, only=True)

    def _add(self, sums, name, count, phase, shares, *, only=False) -> None:
        for collective in placed_layer(self.layers[name], self.arranged.strategy).collectives:
            group = group_name(collective, self.arranged.axes)
            if collective.phase is phase and (not only or group in shares):
                sums[frozenset(collective.axes)] += count * shares.get(group, 1.0) * self._input(name, collective)

    def _input(self, name: str, collective: Collective) -> float:
        graph = self.layers[name]
        sizes = graph.resolve(batch=self.arranged.batch, seq=self.job.seq_len)
        widths = self.job.element_bytes()
        whole = float(as_array(collective.bytes(sizes, self.arranged.axis_sizes, widths)))
        width = {
            "gradient": self.profiled.gradient_bytes,
            "updated": self.profiled.facts.gathered_weight_bytes,
        }
        if collective.user in width:
            whole *= width[collective.user] / widths[Element.COMPUTE]
        ranks = math.prod(self.axis_sizes[axis] for axis in collective.axes)
        parts = {CollectiveKind.ALL_GATHER: 1 / ranks, CollectiveKind.PERMUTE: (ranks - 1) / ranks}
        return whole * parts.get(collective.kind, 1.0)
