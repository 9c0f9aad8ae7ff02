"""The fullest moment of a layer's backward, where each node frees what it was the last to read."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from dovetail.arrays import Floats, largest, summed
from dovetail.profile.backward_nodes import BackwardNode
from dovetail.profile.layer import LayerProfile
from dovetail.profile.recompute_space import Choice, RecomputeSpace
from dovetail.profile.saving import Saving


class BackwardPeak:
    """The backward of one layer as autograd runs it, for any choice of what is saved and what recomputed."""

    def __init__(self, space: RecomputeSpace, profile: LayerProfile, saving: Saving) -> None:
        self._space, self._profile, self._saving = space, profile, saving
        nodes = profile.nodes
        reads = [(number, {*node.reads, _inner(node.operator)}) for number, node in enumerate(nodes)]
        #: tensor → the last node that reads it, and the first
        self._last = {tensor: number for number, tensors in reads for tensor in tensors}
        self._first = {tensor: number for number, tensors in reversed(reads) for tensor in tensors}
        self._gradients = [_gradient_bytes(node, saving) for node in nodes]

    def bytes(self, choice: Choice, *, when_read: bool) -> Floats:
        """Bytes beyond the saved ones at the fullest node; `when_read` as in `RecomputeMenu.cost_of`."""
        space, nodes, last, first = self._space, self._profile.nodes, self._last, self._first
        saved, returned = (_by_tensor(space, versions) for versions in (choice.saved, choice.returned))
        for name, size in space.inner_bytes.items():
            (returned if name in choice.recomputed else saved)[_inner(name)] = size
        alive: list[list[Floats]] = [[] for _ in nodes]
        for tensor, size in returned.items():
            for number in range(first.get(tensor, 0) if when_read else 0, last.get(tensor, 0) + 1):
                alive[number].append(size)
        # what is saved to recompute from alone is freed by that: before the backward of a block, or at its end
        after = len(nodes) if when_read or not choice.recomputed else -1
        freed_by: list[list[Floats]] = [[] for _ in nodes]
        for tensor, size in saved.items():
            if (done := last.get(tensor, after) + 1) < len(nodes):
                freed_by[done].append(size)
        peaks: list[Floats] = []
        freed: Floats = np.zeros(())
        for gradients, there, gone in zip(self._gradients, alive, freed_by, strict=True):
            freed = summed([freed, *gone]) if gone else freed
            peaks.append((gradients + summed(there) if there else gradients) - freed)
        if choice.recomputed and not (when_read or self._saving.stops_early):
            ends = _ends_of_block(space)
            read = [size for tensor, size in saved.items() if tensor not in last and tensor not in ends]
            peaks.append(self._start_bytes(choice, ends, summed(returned.values())) - summed(read))
        return largest(peaks)

    def _start_bytes(self, choice: Choice, ends: Collection[str], returned: Floats) -> Floats:
        """What is there when a whole block was recomputed to its end, and its backward has not begun."""
        space, profile = self._space, self._profile
        end, start = returned + _end_bytes(choice, space, ends), profile.nodes[0]
        if profile.frozen_weights:
            end = _recomputing_peak(choice, space, profile)
            # products with 4-bit weights save nothing, so the first of them runs before anything is recomputed
            start = next((n for n in profile.nodes if n.reads), start) if profile.dequantized_bytes else start
        return start.arriving_bytes + end


def _gradient_bytes(node: BackwardNode, saving: Saving) -> Floats:
    """Gradients that are there while a node runs: of activations, and whole weight gradients of the layer so far."""
    each = saving.layer_gradient_bytes
    gradients = node.gradient_bytes + each * node.written_parameters
    gradients = gradients - node.logit_bytes * (1 - 1 / saving.loss_chunks)
    if not saving.whole_tables:
        return gradients
    # what arrived is gone when the shard is cut out of the whole table's gradient
    whole = each * (node.table_parameters + node.written_parameters)
    return np.where(node.table_parameters > 0, whole, gradients)


def _recomputing_peak(choice: Choice, space: RecomputeSpace, profile: LayerProfile) -> Floats:
    """What recomputing a block to its end needs at most, where inputs of frozen products are not saved.

    A result is there until its last reader is done, or until the backward if that reads it; what a norm made is the
    argument of its half of the block, so it is there until the next norm.
    """
    saved, returned = set(choice.saved), set(choice.returned)
    operators = [name for name in space.operators if not saved.issuperset(space.writes[name])]
    left = {i: sum(reader in operators for reader in version.readers) for i, version in enumerate(space.versions)}
    alive: dict[int, Floats] = {}
    inner: list[Floats] = []
    argument = -1
    peaks: list[Floats] = []
    for name in operators:
        made = [i for i in space.reads[name] if space.versions[i].made_of is not None]
        written = [i for i in space.writes[name] if space.versions[i].made_of is None]
        alive |= {i: space.saved_bytes(i) for i in (*made, *written) if i not in saved}
        inner += [space.inner_bytes[name]] if name in choice.recomputed and name in space.inner_bytes else []
        peaks.append(summed([*alive.values(), *inner, *profile.dequantized_bytes.get(name, ())]))
        for i in space.reads[name]:
            left[i] -= 1
        argument = written[0] if name in space.norms else argument
        alive = {i: size for i, size in alive.items() if left[i] > 0 or i in returned or i == argument}
    return largest(peaks)


def _ends_of_block(space: RecomputeSpace) -> list[str]:
    """The operators at the end of a block whose results no backward reads: its last product and what adds it up."""
    return [name for name in space.operators if not space.needed.intersection(space.writes[name])][-2:]


def _end_bytes(choice: Choice, space: RecomputeSpace, ends: Collection[str]) -> Floats:
    """What the end of a recomputed block needs at most: each result beside the one it is made of.

    A result that is scattered is laid out for that first; one that was saved is freed when the next is made. What the
    last products gathered is there as a shard too until they are done.
    """
    results = [i for name in ends for i in space.writes[name]]
    gathered = [v for v in space.versions if v.gathered][-1:]
    shards = [v.bytes for g in gathered for v in space.versions if (v.tensor, v.number) == (g.tensor, g.made_of)]
    peaks: list[Floats] = []
    freed: Floats = np.zeros(())
    for before, index in zip([None, *results], results, strict=False):
        size = space.versions[index].bytes
        peak = (0.0 * size if index in choice.saved else size) - freed
        if before is not None:
            source = space.versions[before].bytes
            times = (before not in choice.saved) + space.versions[index].scattered
            peak = peak + source * times
            freed = freed + (source if before in choice.saved else 0.0 * source)
        peaks.append(peak)
    return largest(peaks) + summed(shards)


def _inner(operator: str) -> str:
    """A name for what an operator saves beyond a fused kernel."""
    return f"{operator}.inner"


def _by_tensor(space: RecomputeSpace, versions: Iterable[int]) -> dict[str, Floats]:
    sizes: dict[str, Floats] = {}
    for index in versions:
        name = space.versions[index].tensor
        sizes[name] = space.saved_bytes(index) + sizes[name] if name in sizes else space.saved_bytes(index)
    return sizes
