"""Where a trace falls into layers, and what each hands to the next."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.frozen import frozen
from dovetail.models.tracing.flow import Flow
from dovetail.models.tracing.trace import Node, Value


@frozen
class LayerCall:
    """One place in the chain of layers: the nodes it runs, and the values it is handed and hands on."""

    #: key of the recorded segment, the same for equal layers
    segment: tuple[int, int]
    path: str
    #: values as the recorded segment names them, in order
    taken: tuple[int, ...]
    handed: tuple[int, ...]


@frozen
class TracedChain:
    """The chain, and the nodes of each recorded segment."""

    positions: tuple[LayerCall, ...]
    nodes: dict[tuple[int, int], tuple[Node, ...]]
    values: dict[int, Value]


def chain_of(flow: Flow) -> TracedChain:
    """Segments are the calls of units, and what runs before, between and after them."""
    segments: dict[tuple[int, int], list[Node]] = {}
    for node in flow.nodes:
        if not flow.is_data(node.result) or node.target == "skipped":
            continue
        # (k, 0): outside, after k unit calls; (k, 1): inside unit call k
        key = (node.after, 0) if node.unit < 0 else (node.unit, 1)
        segments.setdefault(key, []).append(node)
    order: list[tuple[tuple[int, int], str, Value | None, Value | None]] = []
    for index in range(max(1, len(flow.units)) + 1):
        if (index, 0) in segments:
            order.append(((index, 0), "", None, None))
        if index < len(flow.units):
            call = flow.units[index]
            if (call.like, 1) in segments:
                order.append(((call.like, 1), call.path, call.taken, call.handed))
    values = {v.id: v for n in flow.nodes for v in (*n.inputs(), *n.results)} | {v.id: v for v in flow.outputs}
    return TracedChain(tuple(_positions(flow, order, segments)), {k: tuple(v) for k, v in segments.items()}, values)


def _positions(
    flow: Flow,
    order: Sequence[tuple[tuple[int, int], str, Value | None, Value | None]],
    segments: dict[tuple[int, int], list[Node]],
) -> list[LayerCall]:
    made = {r.id: key for key, nodes in segments.items() for n in nodes for r in n.results}
    made |= {call.handed.id: (-1, at) for at, call in enumerate(flow.units) if call.like != at and call.handed}
    reads = {key: _data_read(flow, nodes, made, key) for key, nodes in segments.items()}
    recorded: set[tuple[int, int]] = set()
    born: dict[int, int] = {}
    needs: list[list[int]] = []
    first: list[bool] = []
    for at, (key, _, taken, handed) in enumerate(order):
        is_first = key not in recorded
        first.append(is_first)
        recorded.add(key)
        if is_first:
            needs.append(reads[key])
            for node in segments[key]:
                born.update((r.id, at) for r in node.results)
        else:
            if handed is not None:
                born[handed.id] = at
            own = flow.units[key[0]].taken
            needs.append([taken.id if own is not None and taken is not None and v == own.id else v for v in reads[key]])
    live = _live(order, needs, born)
    found: list[LayerCall] = []
    for at, (key, path, taken, handed) in enumerate(order):
        before, after = live[at - 1] if at else [], live[at]
        if not first[at]:
            own = flow.units[key[0]]
            assert taken is not None
            assert handed is not None
            assert own.taken is not None
            assert own.handed is not None
            names_in = {taken.id: own.taken.id}
            names_out = {taken.id: own.taken.id, handed.id: own.handed.id}
            before = [names_in.get(v, v) for v in before]
            after = [names_out.get(v, v) for v in after]
        found.append(LayerCall(key, path, tuple(before), tuple(after)))
    return found


def _live(order: Sequence[object], needs: list[list[int]], born: dict[int, int]) -> list[list[int]]:
    """The values alive after each position, the youngest first: what a later one needs."""
    live: list[list[int]] = [[] for _ in order]
    alive: set[int] = set()
    for at in range(len(order) - 1, -1, -1):
        live[at] = sorted((v for v in alive if born.get(v, len(order)) <= at), key=lambda v: (-born[v], -v))
        alive.update(v for v in needs[at] if v in born)
    return live


def _data_read(flow: Flow, nodes: list[Node], made: dict[int, tuple[int, int]], key: tuple[int, int]) -> list[int]:
    """The values of earlier segments that nodes read."""
    found: dict[int, None] = {}
    for node in nodes:
        for value in flow.data(node):
            if value.id in made and made[value.id] != key:
                found[value.id] = None
    return list(found)
