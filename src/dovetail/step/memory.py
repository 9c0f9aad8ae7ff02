"""Memory of one chip by part and stage: what training saves, and what is there at its transient peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail.arrays import Array, Floats, Ints, summed
from dovetail.compilation import worth_compiling
from dovetail.frameworks import ParameterBytes
from dovetail.frozen import frozen
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION
from dovetail.plans.plan import Plan
from dovetail.profile import LayerProfile, Recompute
from dovetail.step.facts import FrameworkFacts
from dovetail.step.memory_kernels import (
    IS_BLOCK,
    IS_EMBEDDING,
    IS_HEAD,
    LAST,
    PARTS,
    PHASES,
    UPDATE,
    OneRun,
    gathered_parameters,
    memory_by_stage,
    parameters_by_stage,
)
from dovetail.step.plan_columns import LayerColumns, ProfileColumns, StateColumns
from dovetail.step.stages import ChunkContent, class_of, layer_counts

#: Parts that are there from the first step to the last.
STATE = ("weights", "gradients", "optimizer")


@frozen
class MemoryTables:
    """The layers of a plan as tables of one row: what the search has of many plans, here of one."""

    names: tuple[str, ...]
    layers: LayerColumns
    profiles: ProfileColumns
    states: StateColumns
    kinds: Ints

    @staticmethod
    def of(
        profiles: Mapping[str, LayerProfile], recomputed: Mapping[str, Recompute], losses: Mapping[str, Array]
    ) -> MemoryTables:
        """Tables of profiled layers with what they recompute and the peak bytes of their losses."""
        names = tuple(sorted(profiles))
        layers = [profiles[name] for name in names]
        weights = sorted({weight for layer in layers for weight in layer.tied_parameters})
        tied, tied_home, tied_trained = np.zeros((3, 1, len(names), len(weights)))
        for number, layer in enumerate(layers):
            for weight, shared in layer.tied_parameters.items():
                tied[0, number, weights.index(weight)] = _number(shared.parameters)
                tied_home[0, number, weights.index(weight)] = _number(shared.home_parameters)
                tied_trained[0, number, weights.index(weight)] = _number(shared.trained_parameters)
        whole, home = _row(layer.parameters for layer in layers), _row(layer.home_parameters for layer in layers)
        trained, trained_home = _trained_rows(layers)
        vectors, flops = _row(layer.update.vectors for layer in layers), _row(layer.update.flops for layer in layers)
        nothing, zero = np.zeros((1, len(names))), np.zeros(())
        return MemoryTables(
            names,
            LayerColumns(
                nothing,
                nothing,
                nothing,
                _row(recomputed[name].saved_bytes for name in names),
                _row(recomputed[name].working_bytes for name in names),
                _row(recomputed[name].offloaded_bytes for name in names),
            ),
            ProfileColumns(
                untied=whole - tied.sum(axis=2),
                tied=tied,
                whole=_row(layer.gathered_parameters for layer in layers),
                trained=trained,
                tied_trained=tied_trained,
                dense=_row(layer.dense_parameters for layer in layers),
                largest=_row(layer.largest_weight for layer in layers),
                second=_row(layer.second_weight for layer in layers),
                largest_trained=_row(layer.largest_trained for layer in layers),
                loss=_row(losses.get(name, zero) for name in names),
                stream=np.array([max(_number(layer.stream_bytes) for layer in layers)]),
            ),
            StateColumns(home - tied_home.sum(axis=2), tied_home, trained_home, nothing, nothing, vectors, flops),
            class_kinds(names),
        )

    def counts(self, *stages: Sequence[ChunkContent]) -> Ints:
        """Layers of every class that the chunks of each stage hold together: stages × classes."""
        together = [layer_counts(tuple(contents)) for contents in stages]
        return np.array([[counts.get(name, 0) for name in self.names] for counts in together], np.int64)

    def saved_bytes(self, contents: Sequence[ChunkContent]) -> Floats:
        """What a micro-batch of every chunk saves for its backward."""
        return self.counts(*([content] for content in contents)) @ self.layers.saved[0]

    def parameters(self, *stages: Sequence[ChunkContent]) -> Floats:
        """`StageParameters` of each stage; tied ones count once."""
        counts = self.counts(*stages)
        return worth_compiling(parameters_by_stage, counts.size)(counts, self.profiles, self.states)

    def gathered(self, contents: Sequence[ChunkContent]) -> float:
        """Parameters that are whole at once under ZeRO-3 where weights are fetched one by one."""
        counts = self.counts(contents)
        return worth_compiling(gathered_parameters, counts.size)(counts, 0, self.profiles, 0)

    def by_phase(
        self,
        stages: Sequence[Sequence[ChunkContent]],
        sizes: ParameterBytes,
        zero_stage: int,
        activations: Floats,
        run: OneRun,
    ) -> list[dict[str, dict[str, float]]]:
        """Bytes of every stage's tensors by phase and part, with what it saves for its backwards at the peak."""
        counts = self.counts(*stages)
        table = worth_compiling(memory_by_stage, counts.size * len(PHASES))(
            counts,
            self.layers,
            self.profiles,
            self.states,
            sizes,
            self.kinds,
            zero_stage,
            activations,
            run,
        )
        rows: list[list[list[float]]] = table.tolist()
        return [
            {
                when: dict(zip(PARTS, parts, strict=True))
                for when, parts in zip(PHASES, of_stage, strict=True)
                if any(parts) or when in (PHASES[LAST], PHASES[UPDATE])
            }
            for of_stage in rows
        ]


def one_run(plan: Plan) -> OneRun:
    """Whether a step has one stage, and one micro-batch on it."""
    alone = plan.pipeline_parallel == 1
    return OneRun(alone, alone and plan.num_microbatches == 1)


def loss_bytes(layers: Mapping[str, LayerProfile], facts: FrameworkFacts) -> dict[str, Floats]:
    """Bytes of the losses at their peak, by the layers that have one."""
    return {
        name: facts.loss_bytes(profile.logits, profile.sharded_vocabulary)
        for name, profile in layers.items()
        if float(np.max(profile.logits))
    }


def class_kinds(names: Iterable[str]) -> Ints:
    """What classes of layers are, for kernels: blocks, embedding, or heads with a loss."""
    kinds = {EMBEDDING: IS_EMBEDDING, HEAD: IS_HEAD, PREDICTION: IS_HEAD}
    return np.array([kinds.get(class_of(name), IS_BLOCK) for name in names], np.int64)


def _trained_rows(layers: Sequence[LayerProfile]) -> tuple[Floats, Floats]:
    """Untied parameters with a gradient, as used and as stored; no columns where all have one."""
    if not any(layer.frozen_weights for layer in layers):
        return np.zeros((1, 0)), np.zeros((1, 0))
    shared = [layer.tied_parameters.values() for layer in layers]
    used = _row(summed(each.trained_parameters for each in tied) for tied in shared)
    home = _row(summed(each.trained_home_parameters for each in tied) for tied in shared)
    whole, stored = (layer.trained_parameters for layer in layers), (layer.trained_home_parameters for layer in layers)
    return _row(whole) - used, _row(stored) - home


def _row(values: Iterable[Array | float]) -> Floats:
    return np.array([[_number(value) for value in values]])


def _number(value: Array | float) -> float:
    return float(np.ravel(value)[0])
