"""Axes through operators that only read otherwise, take a part, or join: views, slices, concatenations."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.models.tracing.axes import Axes, Axis
from dovetail.models.tracing.infer import Inference, Rule, by_sample
from dovetail.models.tracing.trace import Node, Value


def _view(inf: Inference, node: Node) -> None:
    axes = inf.atoms.reshape(inf.of(node.args[0]), node.result.shape)
    if axes is not None and inf.flow.is_data(node.result) and (places := _places(inf, node.args[0], axes)):
        inf.broken[id(node)] = "places of an image become one axis"
        axes = tuple(_one_place(inf, axis) if i in places else axis for i, axis in enumerate(axes))
    if axes is None:
        inf.broken[id(node)] = "a view takes apart what a job sizes"
        axes = _equal_ends(inf, inf.of(node.args[0]), node.args[0].shape, node.result.shape)
        axes = (by_sample(inf, node.args[0], node.result.shape[0], axes[0]), *axes[1:])
        axes = _in_chunks(inf, node, axes)
    whole = tuple(_unchunked(inf, axis) for axis in axes)
    if whole != axes:
        inf.broken[id(node)] = "chunks become one axis again"
    inf.axes[node.result.id] = whole


def _in_chunks(inf: Inference, node: Node, axes: Axes) -> Axes:
    """A sequence cut into chunks: how many follows from its length, how long they are stays."""
    before, after = node.args[0].shape, node.result.shape
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    if at is None or at + 1 >= len(after) or after[at] * after[at + 1] != before[at]:
        return axes
    (*_, sequence) = inf.atoms.leaves(inf.of(node.args[0])[at]) or (-1,)
    if sequence < 0 or not inf.atoms.is_free(sequence) or len(inf.atoms.leaves(inf.of(node.args[0])[at])) > 1:
        return axes
    key = (sequence, after[at + 1])
    if key not in inf.chunks:
        inf.chunks[key] = (inf.atoms.new(after[at], free=True), inf.atoms.new(after[at + 1], fixed=True))
    number, chunk = inf.chunks[key]
    rest = inf.of(node.args[0])[at + 1 :]
    tail = axes[at + 2 :] if len(after) - at - 2 != len(rest) or after[at + 2 :] != before[at + 1 :] else rest
    return (*axes[:at], (number,), (chunk,), *tail)


def _unchunked(inf: Inference, axis: Axis) -> Axis:
    leaves = inf.atoms.leaves(axis)
    for (sequence, _), pair in inf.chunks.items():
        found = tuple(inf.atoms.find(a) for a in pair)
        for at in range(len(leaves) - 1):
            if leaves[at : at + 2] == found:
                return (*leaves[:at], sequence, *leaves[at + 2 :])
    return axis


def _places(inf: Inference, value: Value, axes: Axes) -> set[int]:
    """Axes that a view makes of several that no weight has: rows and columns of an image."""
    before = [inf.atoms.leaves(axis) for axis in inf.of(value)]
    found = [i for i, axis in enumerate(axes) if len(leaves := _within_sample(inf, axis)) > 1 and leaves not in before]
    if not found:
        return set()
    owned = {a for p in inf.flow.trace.parameters.values() for axis in inf.of(p) for a in inf.atoms.below(axis)}
    return {
        i for i in found
        if not any(a in owned or inf.atoms.is_free(a) for a in _within_sample(inf, axes[i]))
    }  # fmt: skip


def _within_sample(inf: Inference, axis: Axis) -> Axis:
    """An axis without the batch that leads it, where samples stand one behind another."""
    leaves = inf.atoms.leaves(axis)
    return leaves[leaves[:1] == (inf.atoms.find(inf.batch),) :]


def _one_place(inf: Inference, axis: Axis) -> Axis:
    """One atom for all places of a sample: the patches of its image, where they are as many."""
    inside = _within_sample(inf, axis)
    size = inf.atoms.length(inside)
    known = next((p for p in inf.patches if inf.atoms.size(p) == size), None)
    batch = inf.atoms.leaves(axis)[: -len(inside)]
    return (*batch, inf.atoms.new(size, fixed=True) if known is None else known)


def _equal_ends(inf: Inference, axes: Axes, before: Sequence[int], after: Sequence[int]) -> Axes:
    """Axes of a view that cannot be followed: those at its ends that are untouched stay."""
    result: list[Axis] = [inf.atoms.axis(size) for size in after]
    for i in range(min(len(before), len(after))):
        if before[i] != after[i]:
            break
        result[i] = axes[i]
    for i in range(1, min(len(before), len(after)) + 1):
        if before[-i] != after[-i]:
            break
        result[-i] = axes[-i]
    return tuple(result)


def _order(inf: Inference, node: Node, order: Sequence[int]) -> None:
    axes = inf.of(node.args[0])
    inf.axes[node.result.id] = tuple(axes[d] for d in order)


def _transpose(inf: Inference, node: Node) -> None:
    rank = len(node.args[0].shape)
    first, second = (d % rank for d in node.args[1:3]) if len(node.args) > 2 else (0, rank - 1)
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    _order(inf, node, order)


def _permute(inf: Inference, node: Node) -> None:
    _order(inf, node, [d % len(node.args[1]) for d in node.args[1]])


def _unsqueeze(inf: Inference, node: Node) -> None:
    axes = inf.of(node.args[0])
    at = node.args[1] % (len(axes) + 1)
    inf.axes[node.result.id] = (*axes[:at], (), *axes[at:])


def _squeeze(inf: Inference, node: Node) -> None:
    axes, shape = inf.of(node.args[0]), node.args[0].shape
    given = node.args[1] if len(node.args) > 1 else range(len(shape))
    gone = {d % len(shape) for d in (given if isinstance(given, list | tuple | range) else [given])}
    inf.axes[node.result.id] = tuple(a for d, a in enumerate(axes) if d not in gone or shape[d] != 1)


def _expand(inf: Inference, node: Node) -> None:
    axes, shape = inf.of(node.args[0]), node.result.shape
    axes = (*[()] * (len(shape) - len(axes)), *axes)
    found = [
        axis if inf.atoms.length(axis) == size else inf.atoms.axis(size) for axis, size in zip(axes, shape, strict=True)
    ]
    if not axes[0] and shape[0] == inf.flow.trace.batch:  # what is learned is handed to every sample
        found[0] = (inf.batch,)
    inf.axes[node.result.id] = tuple(found)


def _part(inf: Inference, node: Node, value: Value, dim: int, start: int, stop: int) -> Axis | None:
    axis = inf.of(value)[dim]
    found = inf.atoms.span(axis, start, stop)
    if found is None:
        inf.broken.setdefault(id(node), "it takes a part of an axis that has no name of its own")
    return found


def _slice(inf: Inference, node: Node) -> None:
    value, place = node.args[0], taken(node, node.result)
    dim = node.arg(1, "dim", 0) % len(value.shape)
    axes = list(inf.of(value))
    if place is None:
        inf.broken[id(node)] = "it takes every so many"
        axes[dim] = inf.atoms.axis(node.result.shape[dim])
    elif place[2] - place[1] != value.shape[dim]:
        _, start, stop = place
        if inf.grows(axes[dim]) and stop - start > 1:
            inf.broken[id(node)] = "it takes a part of what a job sizes"
            axes[dim] = inf.sized(axes[dim], stop - start)
        else:
            axes[dim] = _part(inf, node, value, dim, start, stop) or inf.atoms.axis(node.result.shape[dim])
    inf.axes[node.result.id] = tuple(axes)


def _select(inf: Inference, node: Node) -> None:
    value, dim, at = node.args[0], node.args[1] % len(node.args[0].shape), node.args[2]
    at = at % value.shape[dim]
    _part(inf, node, value, dim, at, at + 1)
    axes = inf.of(value)
    inf.axes[node.result.id] = (*axes[:dim], *axes[dim + 1 :])


def pieces(node: Node) -> list[tuple[int, int, int]]:
    """Dim, start and stop of each result of a split."""
    value = node.args[0]
    if node.target == "unbind":
        dim = node.arg(1, "dim", 0) % len(value.shape)
        return [(dim, i, i + 1) for i in range(len(node.results))]
    dim = node.arg(2, "dim", 0) % len(value.shape)
    at, found = 0, list[tuple[int, int, int]]()
    for result in node.results:
        found.append((dim, at, at + result.shape[dim]))
        at += result.shape[dim]
    return found


def taken(node: Node, result: Value) -> tuple[int, int, int] | None:
    """Dim, start and stop of the part a node takes out of its operand; None where it takes none."""
    if node.target in ("split", "split_with_sizes", "unbind", "chunk"):
        return pieces(node)[node.results.index(result)]
    if node.target not in ("slice", "select"):
        return None
    shape = node.args[0].shape
    dim = node.arg(1, "dim", 0) % len(shape)
    if node.target == "select":
        at = node.args[2] % shape[dim]
        return dim, at, at + 1
    stop = node.arg(3, "end", shape[dim])
    start, stop = node.arg(2, "start", 0) or 0, shape[dim] if stop is None else min(stop, shape[dim])
    start, stop = (x + shape[dim] if x < 0 else x for x in (start, stop))
    return (dim, start, stop) if node.arg(4, "step", 1) == 1 else None


def _split(inf: Inference, node: Node) -> None:
    value = node.args[0]
    for result, (dim, start, stop) in zip(node.results, pieces(node), strict=True):
        axes = list(inf.of(value))
        part = _part(inf, node, value, dim, start, stop)
        if node.target == "unbind":
            inf.axes[result.id] = (*axes[:dim], *axes[dim + 1 :])
        else:
            axes[dim] = part if part is not None else inf.atoms.axis(stop - start)
            inf.axes[result.id] = tuple(axes)


def _cat(inf: Inference, node: Node) -> None:
    values = [v for v in node.args[0] if 0 not in v.shape]
    dim = node.arg(1, "dim", 0) % len(values[0].shape)
    shape = node.result.shape
    result: list[Axis] = []
    for position in range(len(shape)):
        axes = [inf.of(v)[position] for v in values]
        if position == dim and any(map(inf.grows, axes)):
            inf.broken[id(node)] = "it adds to what a job sizes"
            result.append(inf.sized(next(filter(inf.grows, axes)), shape[dim]))
            continue
        if position == dim:
            result.append(inf.atoms.joined(axes) if len(axes) > 1 else axes[0])
            continue
        known = [a for a in axes if inf.atoms.leaves(a)]
        for other in known[1:]:
            inf.same(known[0], other, node)
        result.append(known[0] if known else ())
    inf.axes[node.result.id] = tuple(result)


def _stack(inf: Inference, node: Node) -> None:
    values = node.args[0]
    dim = node.arg(1, "dim", 0) % len(node.result.shape)
    axes = list(inf.of(values[0]))
    for other in values[1:]:
        for one, two in zip(axes, inf.of(other), strict=True):
            inf.same(one, two, node)
    axes.insert(dim, inf.atoms.axis(len(values)))
    inf.axes[node.result.id] = tuple(axes)
    inf.broken[id(node)] = "it stacks"


def _pad(inf: Inference, node: Node) -> None:
    axes = inf.of(node.args[0])
    inf.broken[id(node)] = "it pads"
    inf.axes[node.result.id] = tuple(
        a if inf.atoms.length(a) == n else inf.sized(a, n) if inf.grows(a) else (inf.atoms.new(n, fixed=True),)
        for a, n in zip(axes, node.result.shape, strict=True)
    )


VIEW_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten", "_reshape_alias"), _view),
    **dict.fromkeys(("t", "transpose"), _transpose),
    **dict.fromkeys(("split", "split_with_sizes", "unbind", "chunk"), _split),
    "permute": _permute, "unsqueeze": _unsqueeze, "squeeze": _squeeze, "expand": _expand, "slice": _slice,
    "select": _select, "cat": _cat, "stack": _stack, "constant_pad_nd": _pad,
}  # fmt: skip
