"""The layer classes of a job on the tile of a stage: what their layouts cost, and the plan they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.frameworks import Framework
from dovetail.graph import LayerGraph
from dovetail.graph.size import Sizes
from dovetail.hardware import Cluster
from dovetail.layout import Collective, CollectivePhase
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.layouts.free_layouts import tile_price
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.models import Job
from dovetail.pipeline.in_flight import chunk_runs_in_flight
from dovetail.plans.derive import even_layers
from dovetail.plans.pipeline_schedule import ONE_F_ONE_B
from dovetail.plans.plan import Plan
from dovetail.plans.wafer_part import StageTile, WaferPart
from dovetail.profile.layer import CollectivePrice
from dovetail.profile.recompute import BLOCKS_ON_CHIP
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import is_block, units_of
from dovetail.step.facts import FrameworkFacts, facts_of
from dovetail.step.formulas import exposed_at_least, tensor_capacity
from dovetail.step.profiles import UPDATED_WEIGHTS, Pricing, TokenRouting, pricing_of
from dovetail.step.times import hidden_shares

#: The price of a die's memory per block, as multiples of the block's seconds; 0: memory is free.
PRICES = (0.0, 0.01, 0.1, 1.0)


class _Free:
    """Collectives that cost nothing."""

    def seconds(self, collectives: Sequence[Collective], sizes: Sequence[Floats]) -> list[Floats]:
        return [np.zeros_like(size) for _, size in zip(collectives, sizes, strict=True)]

    def launches(self, collectives: Sequence[Collective]) -> int:
        return len(collectives)


@dataclass(frozen=True)
class TileLayers:
    """A job on the stages of a skeleton under a ZeRO stage and a schedule."""

    job: Job
    cluster: Cluster
    framework: Framework
    skeleton: TileSkeleton
    zero_stage: int
    schedule: str = "1f1b"

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step."""
        return self.job.global_batch // self.skeleton.batch

    @cached_property
    def facts(self) -> FrameworkFacts:
        """The framework's figures."""
        skeleton = self.skeleton
        return facts_of(self.framework, self.job, schedule=self.schedule, stages=skeleton.stages, store=skeleton.store)

    @cached_property
    def _least_facts(self) -> FrameworkFacts:
        """The figures with which no step is longer than a simulated one."""
        return self.facts.at_least(schedule=self.schedule, stages=self.skeleton.stages)

    @cached_property
    def units(self) -> ChipUnits:
        """A die as operator models see it."""
        return units_of(self.job, self.cluster, self.facts, self._efficiencies)

    @cached_property
    def _efficiencies(self) -> Efficiencies:
        return calibration(self.cluster.chip, self.job.precision).efficiencies

    @cached_property
    def _pricing(self) -> Pricing:
        facts = self.facts
        gradients = facts.sharded_reduction_bytes if self.zero_stage == 3 else facts.reduction_bytes
        weights, buckets = facts.gathered_weight_bytes, facts.buckets
        return pricing_of(self.job, self.cluster, self._efficiencies, gradients, weights, buckets)

    @property
    def capacity_bytes(self) -> float:
        """The memory of a die for state and activations; unlimited where a store has the activations."""
        return float("inf") if "activations" in self.skeleton.store else self.die_bytes

    @property
    def die_bytes(self) -> float:
        """The memory of a die for tensors."""
        limit = memory_limit(self.cluster.chip, self.framework)
        return float(tensor_capacity(limit, self.facts.context_bytes, self.facts.allocator_overhead))

    def blocks(self) -> dict[str, int]:
        """Layer classes that read and write the residual stream, and how many layers each has."""
        graph = self.job.graph()
        return {name: count for name, count in graph.counts().items() if is_block(graph.layers[name])}

    def sizes(self, layer: LayerGraph) -> Sizes:
        """The sizes of a layer's dims before sharding."""
        return layer.resolve(batch=self.skeleton.batch, seq=self.job.seq_len)

    @cached_property
    def main_block(self) -> LayerGraph:
        """The class with the most blocks."""
        counts = self.blocks()
        return self.job.graph().layers[max(counts, key=lambda name: counts[name])]

    @property
    def in_flight(self) -> int:
        """Micro-batches that the first stage has in flight."""
        return chunk_runs_in_flight(ONE_F_ONE_B, self.skeleton.stages, self.microbatches, 1, 1, 0)

    def prices(self, block_s: float) -> list[tuple[float, float]]:
        """Prices of a byte of state and of a byte a micro-batch saves, as multiples of a block's time per die.

        What a store has is on the dies for the blocks at work alone.
        """
        store, share = self.skeleton.store, self.skeleton.stages / self.job.model.num_layers
        state, saved = ((1.0 if part in store else share) * self.die_bytes for part in ("weights", "activations"))
        in_flight = BLOCKS_ON_CHIP if "activations" in store else self.in_flight
        return [(price * block_s / state, price * block_s / saved * in_flight) for price in PRICES]

    def setting(self, layer: LayerGraph, tile: LayerTile, *, working: bool = False) -> LayerSetting:
        """What the layouts of a layer class cost on a tile's axes.

        `working` counts weights that a store holds as they are used, to choose layouts that fit.
        """
        routing = TokenRouting.of(layer, one_copy_per_node=self.facts.one_copy_per_node)
        setting = self._setting(layer, tile_price(self._pricing, self.cluster, tile, routing))
        if working and "weights" in self.skeleton.store:
            # two weights are gathered at a time, and the gradient of one
            sizes = self.facts.parameter_bytes
            return replace(setting, working_bytes=2 * sizes.weight + sizes.sharded_gradient)
        return setting

    def work_setting(self, layer: LayerGraph) -> LayerSetting:
        """The same if messages took no time."""
        return self._setting(layer, _Free())

    def _setting(self, layer: LayerGraph, price: CollectivePrice) -> LayerSetting:
        return LayerSetting(
            layer,
            self.sizes(layer),
            self.units,
            price,
            self._exposure,
            self.facts.parameter_bytes,
            self.zero_stage,
            1 / self.microbatches,
            self.job.element_bytes(),
        )

    def _exposure(self, group: str, phase: CollectivePhase) -> float:
        """The share of a collective that no amount of computation can hide."""
        overlaps = self._least_facts.overlaps
        tensor = overlaps.tensor_forward if phase is CollectivePhase.FORWARD else overlaps.tensor_backward
        hidden = overlaps.updated_weights if group == UPDATED_WEIGHTS else hidden_shares(overlaps, tensor)[group]
        return float(exposed_at_least(1.0, float(np.ravel(hidden)[0]), 1.0)[0])

    def plan_of(self, layouts: TileLayouts | None, tiles: tuple[StageTile, ...] = ()) -> Plan:
        """A plan with these layouts on these tiles, layers dealt evenly and no recompute."""
        dies, layers = self.skeleton.dies, self.job.model.num_layers
        part = WaferPart(tiles, store=self.skeleton.store, defects=self.cluster.defects)
        return Plan(
            data_parallel=1,
            tensor_parallel=dies,
            pipeline_parallel=self.skeleton.stages,
            expert_tensor_parallel=dies,
            zero_stage=self.zero_stage,
            zero_group=1,
            micro_batch=self.skeleton.batch,
            num_microbatches=self.microbatches,
            pipeline_schedule=self.schedule,
            layers_per_stage=even_layers(self.skeleton.stages, layers),
            layouts=layouts,
            wafer=part if part != WaferPart() else None,
        )
