"""The layer classes of a job on the tile of a stage: what their layouts cost, and a plan of chosen ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.frameworks import Framework
from dovetail.graph import LayerGraph
from dovetail.graph.size import Sizes
from dovetail.hardware import Cluster
from dovetail.layout import Moment
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.layouts.free_layouts import tile_price
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.tiles.shapes import PlanShape
from dovetail.models import Job
from dovetail.pipeline.in_flight import chunk_runs_in_flight
from dovetail.plans.derive import even_layers
from dovetail.plans.pipeline_schedule import ONE_F_ONE_B
from dovetail.plans.plan import Plan
from dovetail.profile.layer import CollectivePrice
from dovetail.step.evaluate import is_block, units_of
from dovetail.step.facts import FrameworkFacts, facts_of
from dovetail.step.formulas import exposed_at_least, tensor_capacity
from dovetail.step.profiles import UPDATED_WEIGHTS, Pricing, pricing_of
from dovetail.step.times import hidden_shares

#: What all that a die may hold of a block costs, in times of the block's seconds; 0: memory costs nothing.
PRICES = (0.0, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class TileLayers:
    """A job on stages of one shape under a ZeRO stage and a schedule."""

    job: Job
    cluster: Cluster
    framework: Framework
    shape: PlanShape
    zero_stage: int
    schedule: str = "1f1b"

    @property
    def microbatches(self) -> int:
        """Of a step."""
        return self.job.global_batch // self.shape.batch

    @cached_property
    def facts(self) -> FrameworkFacts:
        """The framework's figures."""
        return facts_of(self.framework, self.job, schedule=self.schedule, stages=self.shape.stages)

    @cached_property
    def _least_facts(self) -> FrameworkFacts:
        """The same under which no step is longer than a simulated one."""
        return self.facts.at_least(schedule=self.schedule, stages=self.shape.stages)

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
        return pricing_of(self.job, self.cluster, self._efficiencies, gradients, facts.gathered_weight_bytes)

    @property
    def capacity_bytes(self) -> float:
        """What a die has for state and activations."""
        chip = self.cluster.chip
        return float(tensor_capacity(chip.memory_bytes, self.facts.context_bytes, self.facts.allocator_overhead))

    def blocks(self) -> dict[str, int]:
        """Layer classes that take the stream and hand it on, and how many of each there are."""
        graph = self.job.graph()
        return {name: count for name, count in graph.counts().items() if is_block(graph.layers[name])}

    def sizes(self, layer: LayerGraph) -> Sizes:
        """The sizes of a layer's dims on a whole stage."""
        return layer.resolve(batch=self.shape.batch, seq=self.job.seq_len)

    @cached_property
    def main_block(self) -> LayerGraph:
        """The class of most blocks."""
        counts = self.blocks()
        return self.job.graph().layers[max(counts, key=lambda name: counts[name])]

    @property
    def in_flight(self) -> int:
        """Microbatches that the first stage has in flight."""
        return chunk_runs_in_flight(ONE_F_ONE_B, self.shape.stages, self.microbatches, 1, 1, 0)

    def prices(self, block_s: float) -> list[tuple[float, float]]:
        """Prices of a byte of state and of one that a microbatch keeps, up to a die's worth for the time of a block."""
        share = self.capacity_bytes * self.shape.stages / self.job.model.num_layers
        return [(price * block_s / share, price * block_s / share * self.in_flight) for price in PRICES]

    def setting(self, layer: LayerGraph, tile: LayerTile) -> LayerSetting:
        """What the layouts of a layer class cost on a tile's axes."""
        return self._setting(layer, tile_price(self._pricing, self.cluster, tile))

    def work_setting(self, layer: LayerGraph) -> LayerSetting:
        """The same where messages take no time."""
        return self._setting(layer, lambda collective, size: 0.0 * size)  # noqa: ARG005

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

    def _exposure(self, group: str, moment: Moment) -> float:
        """What computation does not hide of a collective, however much of it there is."""
        overlaps = self._least_facts.overlaps
        tensor = overlaps.tensor_forward if moment is Moment.FORWARD else overlaps.tensor_backward
        hidden = overlaps.updated_weights if group == UPDATED_WEIGHTS else hidden_shares(overlaps, tensor)[group]
        return float(exposed_at_least(1.0, float(np.ravel(hidden)[0]), 1.0)[0])

    def plan_of(self, layouts: TileLayouts | None) -> Plan:
        """A plan of these layouts with layers dealt evenly and nothing computed again."""
        dies, layers = self.shape.dies, self.job.model.num_layers
        return Plan(
            data_parallel=1,
            tensor_parallel=dies,
            pipeline_parallel=self.shape.stages,
            expert_tensor_parallel=dies,
            zero_stage=self.zero_stage,
            zero_group=1,
            micro_batch=self.shape.batch,
            num_microbatches=self.microbatches,
            pipeline_schedule=self.schedule,
            layers_per_stage=even_layers(self.shape.stages, layers),
            layouts=layouts,
        )
