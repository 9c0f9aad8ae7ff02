"""What is saved and what is recomputed: none, selective (attention), full, or a list of operators and modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dovetail.arrays import Floats, largest, summed
from dovetail.graph import LayerGraph
from dovetail.profile.layer import WEIGHT_GATHER, LayerProfile
from dovetail.profile.modules import MODULES
from dovetail.profile.recompute_space import Choice, RecomputeSpace
from dovetail.profile.saving import PLANNED, Saving
from dovetail.profile.version import by_group

CHOICES = ("none", "selective", "full")
#: Blocks whose activations are on chips where the rest is elsewhere: the one at work, and one on its way.
BLOCKS_ON_CHIP = 2


def _nothing() -> dict[str, Floats]:
    return {}


@dataclass(frozen=True, slots=True)
class Recompute:
    """Bytes saved per micro-batch and layer, and the seconds recomputation adds to the backward."""

    saved_bytes: Floats
    added_s: Floats
    #: bytes of recomputed tensors that the backward reads
    workspace_bytes: Floats
    #: bytes beyond the saved ones at the fullest moment of the layer's backward: recomputed tensors and gradients
    working_bytes: Floats
    #: recomputed kernels
    added_kernels: Floats | float = 0.0
    #: recomputed collectives, by kind of group
    added_collective_s: Mapping[str, Floats] = field(default_factory=_nothing)
    #: bytes that go to the host in the forward and come back in the backward
    offloaded_bytes: Floats | float = 0.0

    def bytes(self) -> tuple[Floats | float, ...]:
        """What a micro-batch saves, takes beyond that in its backward, and leaves on the host."""
        return self.saved_bytes, self.working_bytes, self.offloaded_bytes

    def offloaded(self) -> Recompute:
        """The same where the host holds what a block saves: its own is on the chip while it works, and the next one's.

        The buffer for two blocks counts as working bytes.
        """
        working = self.working_bytes + BLOCKS_ON_CHIP * self.saved_bytes
        return replace(
            self, saved_bytes=0.0 * self.saved_bytes, working_bytes=working, offloaded_bytes=self.saved_bytes
        )

    def mixed(self, other: Recompute, share: Floats | float) -> Recompute:
        """The mean layer where a share of the layers does this and the rest the other."""
        whole = np.asarray(share) == 1
        mine, others = self.added_collective_s, other.added_collective_s
        none = np.zeros(())
        return Recompute(
            saved_bytes=share * self.saved_bytes + (1 - share) * other.saved_bytes,
            added_s=share * self.added_s + (1 - share) * other.added_s,
            workspace_bytes=np.where(
                whole, self.workspace_bytes, np.maximum(self.workspace_bytes, other.workspace_bytes)
            ),
            working_bytes=np.where(whole, self.working_bytes, np.maximum(self.working_bytes, other.working_bytes)),
            added_kernels=share * self.added_kernels + (1 - share) * other.added_kernels,
            added_collective_s={
                name: share * mine.get(name, none) + (1 - share) * others.get(name, none)
                for name in (*mine, *(n for n in others if n not in mine))
            },
            offloaded_bytes=share * self.offloaded_bytes + (1 - share) * other.offloaded_bytes,
        )


def recompute(
    graph: LayerGraph, profile: LayerProfile, choice: str | Collection[str], saving: Saving = PLANNED
) -> Recompute:
    """The cost of a recompute choice for one layer; a list names operators, or modules of a framework."""
    space = RecomputeSpace(graph, profile, saving)
    chosen, when_read = choose(space, graph, choice)
    cost = cost_of(chosen, space, profile, saving, when_read=when_read)
    cost = _whole_forward(cost, profile) if choice == "full" and not saving.stops_early else cost
    return cost.offloaded() if saving.offloads else cost


def choose(space: RecomputeSpace, graph: LayerGraph, choice: str | Collection[str]) -> tuple[Choice, bool]:
    """What is saved and recomputed, and whether tensors are recomputed one by one as the backward reads them."""
    if choice in ("none", "full"):
        return space.choose(space.operators if choice == "full" else ()), False
    names = ("core_attn",) if choice == "selective" else choice
    modules = [MODULES[name] for name in names if name in MODULES]
    dropped = {operator for module in modules if not module.whole for operator in module.operators(graph)}
    functions = [frozenset(module.operators(graph)) for module in modules if module.whole]
    results = {operator for module in modules for operator in module.results(graph)}
    chosen = space.choose(dropped.union(names), functions, results)
    return chosen, not any(module.policy for module in modules)


def cost_of(
    choice: Choice, space: RecomputeSpace, profile: LayerProfile, saving: Saving, *, when_read: bool = False
) -> Recompute:
    """Bytes, seconds and kernels of a choice; `when_read`, tensors are recomputed one by one as the backward reads."""
    exchanged = [profile.exchange_s[name] for name in choice.recomputed if name in profile.exchange_s]
    made = [space.versions[i].made_s for i in choice.remade]
    collectives = by_group((group, s) for parts in (*exchanged, *made) for group, s in parts.items())
    launched = summed(profile.kernels[name] for name in choice.recomputed)
    again = set(choice.recomputed)
    inner = [size for name, size in space.inner_bytes.items() if name in again]
    stored = [size for name, size in space.inner_bytes.items() if name not in again]
    workspace = summed([*(space.saved_bytes(i) for i in choice.returned), *inner])
    working = workspace + profile.transient_bytes
    if saving.frees_by_operator:
        working = _autograd_peak(choice, space, profile, saving, when_read=when_read)
    return Recompute(
        saved_bytes=summed([*(space.saved_bytes(i) for i in choice.saved), *stored]),
        added_s=summed(profile.operator_s[name] for name in choice.recomputed),
        workspace_bytes=workspace,
        working_bytes=working,
        added_kernels=launched + len(exchanged) + sum(1 for parts in made if parts),
        added_collective_s=collectives,
    )


def _autograd_peak(
    choice: Choice, space: RecomputeSpace, profile: LayerProfile, saving: Saving, *, when_read: bool
) -> Floats:
    """Bytes beyond the saved ones at the fullest node of the backward: each frees what it was the last to read."""
    saved, returned = (_by_tensor(space, versions) for versions in (choice.saved, choice.returned))
    for name, size in space.inner_bytes.items():
        (returned if name in choice.recomputed else saved)[_inner(name)] = size
    nodes = profile.nodes
    reads = [(number, {*node.reads, _inner(node.operator)}) for number, node in enumerate(nodes)]
    last = {tensor: number for number, tensors in reads for tensor in tensors}
    first = {tensor: number for number, tensors in reversed(reads) for tensor in tensors}
    # what is saved to recompute from alone is freed by that: before the backward of a block, or at its end
    after = len(nodes) if when_read or not choice.recomputed else -1
    peaks: list[Floats] = []
    for number, node in enumerate(nodes):
        alive = [
            size
            for tensor, size in returned.items()
            if last.get(tensor, 0) >= number and (not when_read or first.get(tensor, 0) <= number)
        ]
        freed = [size for tensor, size in saved.items() if last.get(tensor, after) < number]
        each = saving.layer_gradient_bytes
        gradients = node.gradient_bytes + each * node.written_parameters
        gradients = gradients - node.logit_bytes * (1 - 1 / saving.loss_chunks)
        if saving.whole_tables:
            # what arrived is gone when the shard is cut out of the whole table's gradient
            whole = each * (node.table_parameters + node.written_parameters)
            gradients = np.where(node.table_parameters > 0, whole, gradients)
        peaks.append(gradients + summed(alive) - summed(freed))
    if choice.recomputed and not (when_read or saving.stops_early):
        ends = _ends_of_block(space)
        read = [size for tensor, size in saved.items() if tensor not in last and tensor not in ends]
        end = summed(returned.values()) + _end_bytes(choice, space, ends)
        start = nodes[0]
        if profile.frozen_weights:
            end = _recomputing_peak(choice, space, profile)
            # products with 4-bit weights save nothing, so the first of them runs before anything is recomputed
            start = next((n for n in nodes if n.reads), start) if profile.dequantized_bytes else start
        peaks.append(start.arriving_bytes + end - summed(read))
    return largest(peaks)


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


def _whole_forward(needed: Recompute, profile: LayerProfile) -> Recompute:
    """Recomputes the whole forward, with the weights the backward gathers anyway (Chen et al. 2016)."""
    return replace(
        needed,
        added_s=profile.forward_s,
        added_kernels=profile.forward_kernels,
        added_collective_s={name: s for name, s in profile.forward_collective_s.items() if name != WEIGHT_GATHER},
    )
