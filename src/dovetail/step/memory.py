"""Memory of one chip by part and stage: what training saves, and what is there at its transient peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Array, Bools, Floats, Ints
from dovetail.frameworks import ParameterBytes
from dovetail.profile import LayerProfile, Recompute
from dovetail.step.plan_columns import LayerColumns, ProfileColumns, StateColumns
from dovetail.step.plan_kernels import PARTS, gathered_parameters, memory_by_stage, parameters_by_stage
from dovetail.step.stages import ChunkContent, layer_counts

#: Parts that are there from the first step to the last.
STATE = ("weights", "gradients", "optimizer")


@dataclass(frozen=True, slots=True)
class MemoryTables:
    """The layers of a plan as tables of one row: what the search has of many plans, here of one."""

    names: tuple[str, ...]
    layers: LayerColumns
    profiles: ProfileColumns
    states: StateColumns
    has_loss: Bools

    @staticmethod
    def of(
        profiles: Mapping[str, LayerProfile], recomputed: Mapping[str, Recompute], losses: Mapping[str, Array]
    ) -> MemoryTables:
        """Tables of profiled layers with what they recompute and the peak bytes of their losses."""
        names = tuple(sorted(profiles))
        layers = [profiles[name] for name in names]
        weights = sorted({weight for layer in layers for weight in layer.tied_parameters})
        tied, tied_home = np.zeros((2, 1, len(names), len(weights)))
        for number, layer in enumerate(layers):
            for weight, shared in layer.tied_parameters.items():
                tied[0, number, weights.index(weight)] = _number(shared.parameters)
                tied_home[0, number, weights.index(weight)] = _number(shared.home_parameters)
        whole, home = _row(layer.parameters for layer in layers), _row(layer.home_parameters for layer in layers)
        nothing, zero = np.zeros((1, len(names))), np.zeros(())
        return MemoryTables(
            names,
            LayerColumns(
                nothing,
                nothing,
                nothing,
                _row(recomputed[name].saved_bytes for name in names),
                _row(recomputed[name].workspace_bytes for name in names),
            ),
            ProfileColumns(
                untied=whole - tied.sum(axis=2),
                tied=tied,
                whole=whole,
                dense=_row(layer.dense_parameters for layer in layers),
                largest=_row(layer.largest_weight for layer in layers),
                second=_row(layer.second_weight for layer in layers),
                transient=_row(layer.transient_bytes for layer in layers),
                loss=_row(losses.get(name, zero) for name in names),
                stream=np.zeros(1),
            ),
            StateColumns(home - tied_home.sum(axis=2), tied_home, nothing, nothing),
            np.array([name in losses for name in names], np.bool_),
        )

    def counts(self, *stages: Sequence[ChunkContent]) -> Ints:
        """Layers of every class that the chunks of each stage hold together: stages × classes."""
        together = [layer_counts(tuple(contents)) for contents in stages]
        return np.array([[counts.get(name, 0) for name in self.names] for counts in together], np.int64)

    def saved_bytes(self, contents: Sequence[ChunkContent]) -> Floats:
        """What a micro-batch of every chunk saves for its backward."""
        return self.counts(*([content] for content in contents)) @ self.layers.saved[0]

    def parameters(self, *stages: Sequence[ChunkContent]) -> Floats:
        """Parameters that a chip of each stage uses, and those whose state it has; tied ones count once."""
        return parameters_by_stage(self.counts(*stages), self.profiles, self.states)

    def gathered(self, contents: Sequence[ChunkContent], *, by_weight: bool) -> float:
        """Parameters that are whole at once under ZeRO-3."""
        return gathered_parameters(self.counts(contents), 0, self.profiles, 0, by_weight)

    def parts(
        self, stages: Sequence[Sequence[ChunkContent]], sizes: ParameterBytes, zero_stage: int, activations: Floats
    ) -> list[dict[str, float]]:
        """Bytes of every stage's tensors by part, with what it saves for its backwards at the peak."""
        table = memory_by_stage(
            self.counts(*stages), self.layers, self.profiles, self.states, sizes, self.has_loss, zero_stage, activations
        )
        rows: list[list[float]] = table.tolist()
        return [dict(zip(PARTS, row, strict=True)) for row in rows]


def _row(values: Iterable[Array]) -> Floats:
    return np.array([[_number(value) for value in values]])


def _number(value: Array) -> float:
    return float(np.ravel(value)[0])
