"""What the layers of a chain mean for the memory of a stage, at most and at least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dovetail.arrays import Floats, largest
from dovetail.partition.layer_chain import LayerPolicies
from dovetail.plans.plan import Plan
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.profile import Recompute, recompute
from dovetail.step.evaluate import ProfiledJob
from dovetail.step.memory import STATE, MemoryTables, loss_bytes
from dovetail.step.memory_kernels import EMBEDDING, HEAD, LAST, PHASES, UPDATE, OneRun

#: Working bytes larger than anything else of a stage.
BUSY = 1e18


@dataclass(frozen=True)
class ChainMemory:
    """The layers of a plan on stages that are not decided yet.

    What is whole of sharded weights and gradients while a layer works depends on the layers before and after it, and on
    what it saved, so a chain counts the most for an answer and the least for a bound.
    """

    plan: Plan
    job: ProfiledJob
    #: the blocks in order
    blocks: Sequence[str]

    @cached_property
    def zero_stage(self) -> int:
        """The ZeRO stage in effect."""
        return effective_zero_stage(self.plan.zero_stage, self.plan.pipeline_parallel)

    def losses(self, names: Sequence[str]) -> dict[str, Floats]:
        """Bytes of the losses of layers, by name."""
        layers = self.job.profiles.layers
        return loss_bytes({name: layers[name] for name in names}, self.job.facts)

    @cached_property
    def tables(self) -> MemoryTables:
        """All layers, as if they recomputed nothing: for what does not depend on that."""
        layers = self.job.profiles.layers
        nothing = {name: recompute(self.job.profiles.graph.layers[name], layers[name], "none") for name in layers}
        return MemoryTables.of(layers, nothing, self.losses(list(layers)))

    @property
    def sharded(self) -> bool:
        """Whether gradients are reduced layer by layer."""
        return self.zero_stage >= 2

    def phase(self, names: Sequence[str]) -> int:
        """When layers of these classes are at work."""
        if not self.sharded or self.job.facts.parameter_bytes.by_weight or names[0] in self.blocks:
            return LAST
        return HEAD if self.losses(names) else EMBEDDING

    def relaxed(self, names: Sequence[str], recomputed: Sequence[Recompute], most: LayerPolicies) -> LayerPolicies:
        """The least memory that layers of these classes can mean for a stage."""
        phase = self.phase(names)
        working = [a.working_bytes + self._least_working(n, phase) for n, a in zip(names, recomputed, strict=True)]
        workspace = np.broadcast_to(largest(working), most.workspace_bytes.shape)
        relaxed = replace(most, gathered_bytes=self.gathered(names), working_bytes=(), workspace_bytes=workspace)
        if phase == EMBEDDING:
            # it works when other activations are gone
            return replace(relaxed, workspace_bytes=0 * most.workspace_bytes)
        if phase == HEAD and self.plan.pipeline_parallel == 1:
            # what it saved is gone when others work
            return replace(relaxed, state_bytes=most.state_bytes - float(most.saved_bytes.max()))
        return relaxed

    def sent(self, names: Sequence[str]) -> float:
        """What the reduction of a head's gradients sends, beyond a block's, while the last block works."""
        if self.phase(names) != HEAD:
            return 0.0
        buffer, layers = self.job.facts.parameter_bytes.reduce_buffer, self.job.profiles.layers
        sizes = [max(float(np.ravel(layers[name].trained_parameters)[0]) for name in names)]
        sizes.append(min(float(np.ravel(layers[name].trained_parameters)[0]) for name in self.blocks))
        return buffer * max(0.0, sizes[0] - sizes[1])

    def _at_phase(self, name: str, phase: int, tables: MemoryTables, others: Sequence[str] = ()) -> dict[str, float]:
        """What a stage with one layer of a class and others has at a phase, but for its activations."""
        sizes, run = self.job.facts.parameter_bytes, OneRun(one_stage=False, one_microbatch=False)
        together = {name: 1, self.blocks[0]: 1} if phase != LAST else dict.fromkeys((name, *others), 1)
        (phases,) = tables.by_phase([[together]], sizes, self.zero_stage, np.zeros(1), run)
        state = phases[PHASES[UPDATE]]
        parts = phases.get(PHASES[phase], state)
        if sizes.by_weight:
            # counted for all layers of a stage (`gathered`)
            parts = {**parts, "gathered weights": 0.0}
        return {part: size - state[part] if part in STATE else size for part, size in parts.items()}

    def most_working(self, name: str, phase: int) -> float:
        """Bytes of a layer at work beyond its working bytes, at most: as if it had saved nothing."""
        tables = self.tables
        nothing = tables.layers._replace(saved=0 * tables.layers.saved, working=0 * tables.layers.working)
        return sum(self._at_phase(name, phase, replace(tables, layers=nothing)).values())

    def _least_working(self, name: str, phase: int) -> float:
        """The same while its operators run, at least: what is there at its end may be more."""
        busy = self.tables.layers._replace(working=self.tables.layers.working + BUSY)
        heads = list(self.losses(list(self.job.profiles.layers)))
        # what comes before a block is another one or the head
        alternatives: list[Sequence[str]] = [(), heads] if name in self.blocks else [()]
        found = [self._at_phase(name, phase, replace(self.tables, layers=busy), others) for others in alternatives]
        return min(parts["layer gradients"] + parts["gathered weights"] for parts in found)

    def gathered(self, names: Sequence[str]) -> float:
        """Bytes of sharded weights that are whole at once in a stage of these layers, fetched one by one."""
        sizes = self.job.facts.parameter_bytes
        if self.zero_stage < 3 or not sizes.by_weight:
            return 0.0
        return sizes.weight * self.tables.gathered([dict(Counter(names))])
