"""Global ranks of a plan, and the process groups they form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from dovetail.plans.plan import Plan


@dataclass(slots=True)
class PlanRanks:
    """Ranks by stage and by position in a stage, in the rank order of the plan."""

    plan: Plan
    #: of a stage's axes, innermost first
    axis_sizes: Mapping[str, int]
    #: process groups by their ranks, numbered from 1: to ASTRA-sim group 0 is all ranks
    groups: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    @property
    def per_stage(self) -> int:
        """Ranks of a stage."""
        return self.plan.chips // self.plan.pipeline_parallel

    def rank(self, stage: int, position: int) -> int:
        """The global rank."""
        if not self.plan.stages_inside:
            return stage * self.per_stage + position
        replica, inner = divmod(position, self.plan.tensor_parallel * self.plan.context_parallel)
        stages = self.plan.pipeline_parallel
        return (replica * stages + stage) * (self.plan.tensor_parallel * self.plan.context_parallel) + inner

    def along(self, stage: int, position: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The group of a rank along axes of its stage, in ring order."""
        first, offsets, stride = position, list[range](), 1
        for axis, size in self.axis_sizes.items():
            if axis in axes:
                first -= position // stride % size * stride
                offsets.insert(0, range(0, size * stride, stride))
            stride *= size
        return tuple(self.rank(stage, first + sum(offset)) for offset in product(*offsets))

    def across(self, stages: Sequence[int], position: int) -> tuple[int, ...]:
        """The ranks at one position of several stages."""
        return tuple(sorted(self.rank(stage, position) for stage in stages))

    def group_id(self, ranks: tuple[int, ...]) -> int:
        """The number of a group, a new one where it has none yet."""
        return self.groups.setdefault(ranks, len(self.groups) + 1)

    def __post_init__(self) -> None:
        assert math.prod(self.axis_sizes.values()) == self.per_stage, "the axes are those of a stage"
