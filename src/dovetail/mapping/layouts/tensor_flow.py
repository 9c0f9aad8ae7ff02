"""A tensor of the forward: its conversions, what is saved or recomputed, and what the backward reads."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Array
from dovetail.graph import Tensor
from dovetail.layout import CollectivePhase
from dovetail.mapping.layouts.policies import Policies
from dovetail.mapping.layouts.scoped import OptionScope, Scoped
from dovetail.mapping.layouts.tensor_layouts import TensorLayouts
from dovetail.mapping.layouts.versions import Conversions, Versions, saved_entries

#: The prices of a conversion: in the forward and in the backward.
FORWARD, BACKWARD = range(2)


class TensorFlow:
    """A tensor of the forward from its writer to its readers, and from memory to the backward."""

    def __init__(
        self,
        layouts_of: TensorLayouts,
        policies: Policies,
        tensor: Tensor,
        reads: list[tuple[str, Scoped]],
        later: list[tuple[str, Scoped]],
        savers: list[str],
        layouts: list[Scoped],
    ) -> None:
        self._of = layouts_of
        self._policies = policies
        self._tensor = tensor
        self._reads = reads
        self._later = later
        self._savers = savers
        self._layouts = layouts
        self._conversions: tuple[list[Scoped], Conversions] | None = None
        self._forward_cache: tuple[OptionScope, Versions, list[Array]] | None = None

    def _indexed(self) -> tuple[list[Scoped], Conversions]:
        if self._conversions is None:
            self._conversions = self._of.conversions(
                self._tensor, self._layouts, (CollectivePhase.FORWARD, CollectivePhase.BACKWARD)
            )
        return self._conversions

    def _forward(self, scope: OptionScope) -> tuple[Versions, list[Array]]:
        """The layouts of the forward, and which each reader takes."""
        if self._forward_cache is None or self._forward_cache[0] != scope:
            indexed, conversions = self._indexed()
            versions = Versions(conversions)
            versions.give(indexed[0].over(scope))
            taken = [versions.require(each.over(scope)) for each in indexed[1 : 1 + len(self._reads)]]
            self._forward_cache = scope, versions, taken
        return self._forward_cache[1], self._forward_cache[2]

    def seconds(self, scope: OptionScope) -> Array:
        """The forward's conversions."""
        return self._forward(scope)[0].seconds(FORWARD)

    def _saved(self, scope: OptionScope, versions: Versions, taken: list[Array]) -> list[Array]:
        """The number of the entry each saver saves, in order."""
        numbers: list[Array] = []
        for saver in self._savers:
            # if an operand is named twice, the last one counts
            own_reads = [i for i, (reader, _) in enumerate(self._reads) if reader == saver]
            if not own_reads:
                numbers.append(np.zeros((), np.int64))
                continue
            written, used = versions.entries[0].layout, self._indexed()[0][1 + own_reads[-1]].over(scope)
            gathers = versions.conversions.gathers[written, used] & 1
            numbers.append(np.where(gathers, 0, taken[own_reads[-1]]))
        return numbers

    def _saved_versions(self, scope: OptionScope) -> tuple[Versions, list[Array], list[Array], Array]:
        """The layouts, which of them the backward reads, which are saved, and the seconds to recreate the others."""
        versions, taken = self._forward(scope)
        policies = self._policies
        saved_numbers = self._saved(scope, versions, taken)
        numbers = range(len(versions.entries))
        never: Array = np.zeros((), np.bool_)
        is_needed = self._tensor.name in policies.needed
        needed = [sum((each == n for each in saved_numbers), never) if is_needed else never for n in numbers]
        recompute_reads: list[Array] = []
        for n in numbers:
            is_read = never
            for (reader, _), number in zip(self._reads, taken, strict=True):
                if reader and policies.recomputed[reader].values.any():
                    is_read = is_read | (policies.recomputed[reader].over(scope) & (number == n))
            recompute_reads.append(is_read)
        graph = self._of.setting.graph
        writer = next((o.name for o in graph.operators if any(i.tensor == self._tensor.name for i in o.outputs)), None)
        writer_recomputed = never if writer is None else policies.recomputed[writer].over(scope)
        saved, seconds = saved_entries(versions, needed, recompute_reads, writer_recomputed, BACKWARD)
        return versions, needed, saved, seconds

    def recompute_seconds(self, scope: OptionScope) -> Array:
        """Conversions that are recomputed in the backward."""
        return self._saved_versions(scope)[3]

    def saved_bytes(self, scope: OptionScope) -> Array:
        """Bytes of the tensor saved from forward to backward."""
        versions, needed, saved, _ = self._saved_versions(scope)
        conversions = versions.conversions
        whole = self._of.bytes(self._tensor) / self._of.parts(conversions.layouts)
        width = self._policies.widths.get(self._tensor.name, 1.0)
        total: Array = np.zeros(())
        for entry, is_needed, is_saved in zip(versions.entries, needed, saved, strict=True):
            total = total + np.where(is_saved, whole[entry.layout] * np.where(is_needed, width, 1.0), 0.0)
        return total

    def later_seconds(self, scope: OptionScope) -> Array:
        """The backward's conversions of what was saved."""
        versions, taken = self._forward(scope)
        indexed, conversions = self._indexed()
        restored = Versions(conversions)
        for number in self._saved(scope, versions, taken):
            layout: Array = np.zeros((), np.int64)
            for n, entry in enumerate(versions.entries):
                layout = np.where(number == n, entry.layout, layout)
            restored.give(layout)
        for each in indexed[1 + len(self._reads) :]:
            restored.require(each.over(scope))
        return restored.seconds(BACKWARD)
