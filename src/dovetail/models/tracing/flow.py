"""A trace as a graph that can be rewritten: who makes a value, who uses it, and what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

from dovetail.models.tracing.trace import Node, Trace, Value, replaced

#: Operators that change neither what a value holds nor how it is read.
SAME = frozenset(
    {"detach", "alias", "clone", "_to_copy", "contiguous", "lift_fresh_copy", "lift_fresh", "copy", "_conj"}
)
#: Operators that only change how a value is read.
VIEWS = frozenset(
    {"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "flatten",
     "unflatten", "_reshape_alias", "expand_as", "view_as"}
)  # fmt: skip
#: Operators that work on each point alone.
POINTWISE = frozenset(
    {"add", "sub", "rsub", "mul", "div", "neg", "pow", "square", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p",
     "tanh", "sigmoid", "silu", "gelu", "relu", "relu6", "softplus", "erf", "clamp", "clamp_min", "clamp_max", "abs",
     "where", "masked_fill", "reciprocal", "cos", "sin", "minimum", "maximum", "hardtanh", "leaky_relu", "elu", "mish",
     "hardswish", "hardsigmoid", "log_sigmoid_forward", "sign", "logaddexp", "addcmul", "addcdiv", "lerp", "nan_to_num",
     "threshold", "celu", "selu", "softsign", "fmod", "remainder", "floor", "round", "ceil", "atan2", "erfc"}
)  # fmt: skip


#: Operators that are work of their own or random, so that two of them with the same operands are two.
WHOLE = frozenset({"attention", "scaled_dot_product_attention", "experts", "state_space", "gated_delta", "kimi_delta",
                   "selective_scan", "causal_conv1d", "dropout", "native_dropout", "bernoulli"})  # fmt: skip
#: Operators whose result is no mere reading of a weight, even if nothing else goes in.
MIXING = frozenset({"linear", "mm", "bmm", "addmm", "baddbmm", "convolution", "softmax", "_softmax"})


#: Operators that take a shape alone from what they read.
SHAPED = frozenset({"new_full", "new_empty", "new_zeros", "new_ones", "zeros_like", "ones_like", "full_like",
                     "empty_like", "rand_like", "randn_like"})  # fmt: skip


class Source(IntEnum):
    """What a value depends on, the strongest first."""

    CONSTANT = 0
    INDEX = 1
    WEIGHT = 2
    DATA = 3


class Flow:
    """The nodes of a trace and the links between them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.nodes = list(trace.nodes)
        self.outputs = trace.outputs
        #: parameter name → the name all layers that share it call it
        self.tied: dict[str, str] = {}
        self.source: dict[int, Source] = {}
        self.maker: dict[int, Node] = {}
        for value in trace.inputs:
            is_float = value.dtype.startswith(("float", "bfloat"))
            self.source[value.id] = Source.DATA if is_float else Source.INDEX
        for value in trace.parameters.values():
            self.source[value.id] = Source.WEIGHT if value.kind == "parameter" else Source.CONSTANT
        self._forget_same()
        self.update()
        self._join_written()

    def update(self) -> None:
        """Finds links anew and drops what no output needs."""
        needed = {v.id for v in self.outputs}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if any(r.id in needed for r in node.results):
                kept.append(node)
                needed.update(v.id for v in node.inputs())
        self.nodes = kept[::-1]
        self._alive = {id(n) for n in self.nodes}
        self.maker = {r.id: n for n in self.nodes for r in n.results}
        self.users: dict[int, list[Node]] = {}
        for node in self.nodes:
            self._link(node)

    def _link(self, node: Node) -> None:
        for value in {v.id: v for v in node.inputs()}.values():
            self.users.setdefault(value.id, []).append(node)
        self._tell(node)

    def _tell(self, node: Node) -> None:
        """Says what the results of a node depend on."""
        source = self._source(node)
        is_rows = node.target == "index" and self.of(node.args[0]) is Source.WEIGHT
        if is_rows or node.target in ("embedding", "embedding_bag"):
            source = Source.DATA
        for result in node.results:
            self.source[result.id] = source

    def note(self, words: str) -> None:
        """What is told to the user with the graph."""
        if words not in self.trace.notes:
            self.trace.notes.append(words)

    def is_alive(self, node: Node) -> bool:
        """Whether a node is still one of the flow."""
        return id(node) in self._alive

    def _source(self, node: Node) -> Source:
        found = {self.of(v) for v in node.inputs()}
        strongest = max(found, default=Source.CONSTANT)
        if strongest is not Source.WEIGHT:
            return strongest
        # a weight that is computed from several is data: each of them is trained
        mixed = Source.INDEX in found or node.target in MIXING or self._owners(node) > 1
        return Source.DATA if mixed else strongest

    def _owners(self, node: Node) -> int:
        """How many parameters a node reads."""
        found = [self.parameter(v) for v in node.inputs() if self.of(v) is Source.WEIGHT]
        return len({each.id for each in found if each is not None})

    def of(self, value: Value) -> Source:
        """What a value depends on."""
        return self.source.get(value.id, Source.CONSTANT)

    def is_data(self, value: Any) -> bool:
        """Whether it holds what the model computes for its input."""
        return isinstance(value, Value) and self.of(value) is Source.DATA

    def data(self, node: Node) -> list[Value]:
        """The different values a node reads that hold data."""
        return list({v.id: v for v in node.inputs() if self.of(v) is Source.DATA}.values())

    def sole_user(self, value: Value) -> Node | None:
        """The one node that uses a value; None where there are others, or it is an output."""
        users = self.users.get(value.id, [])
        return users[0] if len(users) == 1 and value not in self.outputs else None

    def parameter(self, value: Any) -> Value | None:
        """The parameter a value is, or is alone computed from."""
        while isinstance(value, Value) and value.kind != "parameter":
            node = self.maker.get(value.id)
            if node is None:
                return None
            weights = [v for v in node.inputs() if self.of(v) is Source.WEIGHT]
            if len({v.id for v in weights}) != 1:
                return None
            value = weights[0]
        return value if isinstance(value, Value) else None

    def above(self, value: Value, stop: Callable[[Node], bool]) -> list[Node]:
        """The nodes a value is made by, up to those that stop the search, which are left out."""
        found: dict[int, Node] = {}
        waiting = [value]
        while waiting:
            node = self.maker.get(waiting.pop().id)
            if node is None or id(node) in found or stop(node):
                continue
            found[id(node)] = node
            waiting.extend(node.inputs())
        return list(found.values())

    def collapse(self, node: Node, gone: Iterable[Node], *, swap: dict[int, Value] | None = None) -> None:
        """Puts a node in the place of others (of the last of them); values in `swap` are replaced everywhere."""
        dropped = {id(n): n for n in gone}
        before = [self.of(r) for r in node.results]
        at = max(i for i, n in enumerate(self.nodes) if id(n) in dropped)
        self.nodes = [each for i, n in enumerate(self.nodes) for each in ((node,) if i == at else ()) or
                      (() if id(n) in dropped else (n,))]  # fmt: skip
        if swap:
            self.replace(swap)
            self.update()
            return
        self._unlink(dropped)
        self._alive.add(id(node))
        self.maker.update((r.id, node) for r in node.results)
        self._link(node)
        if [self.of(r) for r in node.results] != before:
            self.update()  # what is made of its results depends on something else now
        else:
            self._drop_unused([v for n in dropped.values() for v in n.inputs()])

    def _unlink(self, dropped: Mapping[int, Node]) -> None:
        self._alive -= dropped.keys()
        for node in dropped.values():
            for result in node.results:
                if self.maker.get(result.id) is node:
                    del self.maker[result.id]
            for value in node.inputs():
                if value.id in self.users:
                    self.users[value.id] = [n for n in self.users[value.id] if n is not node]

    def _drop_unused(self, values: list[Value]) -> None:
        """Drops what made these values where nothing uses them any more, and what made that."""
        outputs = {v.id for v in self.outputs}
        unused: dict[int, Node] = {}
        while values:
            node = self.maker.get(values.pop().id)
            if node is None or any(self.users.get(r.id) or r.id in outputs for r in node.results):
                continue
            unused[id(node)] = node
            values.extend(node.inputs())
            self._unlink({id(node): node})
        if unused:
            self.nodes = [n for n in self.nodes if id(n) not in unused]

    def replace(self, swap: dict[int, Value]) -> None:
        """Replaces values everywhere."""
        for each in self.nodes:
            each.args, each.options = replaced(each.args, swap), replaced(each.options, swap)
        self.outputs = tuple(swap.get(v.id, v) for v in self.outputs)
        self.units = tuple(
            replace(u, taken=_swapped(u.taken, swap), handed=_swapped(u.handed, swap)) for u in self.units
        )

    def closed(
        self, source: Value, ops: frozenset[str], ready: Callable[[Sequence[Node]], bool]
    ) -> tuple[list[Node], Node] | None:
        """The nodes from a value to the first one through which all that is made of it passes.

        Only nodes of these operators whose data come from the value alone are entered; `ready` says when they suffice.
        """
        inside: list[Node] = []
        own = {source.id}
        if not (users := self.users.get(source.id)):
            return None
        for node in self.nodes[min(map(self.nodes.index, users)) :]:
            data = self.data(node)
            if not data or not any(v.id in own for v in data):
                continue
            if node.target not in ops or any(v.id not in own for v in data):
                return None
            inside.append(node)
            own.update(r.id for r in node.results)
            among = {id(n) for n in inside}
            open_ends = [
                v for v in own
                if v not in {r.id for r in node.results} and any(id(u) not in among for u in self.users.get(v, ()))
            ]  # fmt: skip
            if not open_ends and ready(inside):
                return inside, node
            if len(inside) > 40:
                return None
        return None

    def _join_written(self) -> None:
        """A tensor whose parts are written one after another is their concatenation."""
        makers = {r.id: n for n in self.trace.nodes for r in n.results}
        for node in list(self.nodes):
            chain: list[Node] = []
            each: Node | None = node
            while each is not None and each.target == "write":
                chain.append(each)
                each = self.maker.get(each.args[0].id)
            if (
                len(chain) < 2
                or each is None
                or each.target not in ("new_empty", "empty", "empty_like", "zeros", "new_zeros")
            ):
                continue
            views = [makers.get(c.args[2].id) for c in chain]
            if any(v is None or v.target != "slice" for v in views):
                continue
            placed = [
                (v.arg(2, "start", 0) or 0, v.arg(1, "dim", 0), c.args[1])
                for v, c in zip(views, chain, strict=True)
                if v
            ]
            dims = {d % len(node.result.shape) for _, d, _ in placed}
            if (
                len(dims) == 1
                and sum(v.shape[next(iter(dims))] for *_, v in placed) == node.result.shape[next(iter(dims))]
            ):
                values = tuple(v for _, _, v in sorted(placed, key=lambda p: p[0]))
                made = Node("cat", (values, next(iter(dims))), {}, node.results, node.path, node.unit, node.after)
                self.collapse(made, [*chain, each] if len(self.users.get(each.result.id, ())) == 1 else chain)

    def _forget_same(self) -> None:
        swap: dict[int, Value] = {}
        kept: list[Node] = []
        detached: set[int] = set()
        seen: dict[object, Node] = {}
        for node in self.nodes:
            stopped = {v.id for v in node.inputs()} & detached
            node.args, node.options = replaced(node.args, swap), replaced(node.options, swap)
            node.stops = node.stops or bool(stopped)
            if node.target in SHAPED:
                node.args = ()
            args: tuple[Any, ...] = node.args
            whole = node.target in SAME and bool(args) and isinstance(args[0], Value)
            if node.target == "copy" and len(node.args) > 1 and isinstance(node.args[1], Value):
                source = node.args[1] if node.args[1].shape == node.result.shape else None
            elif node.target == "dropout":
                source = args[0] if float(node.arg(1, "p", 0.5)) == 0 else None
            else:
                source = args[0] if whole else None
            key = (node.target, repr(node.args), repr(node.options), node.unit)
            self.maker.update((r.id, node) for r in node.results)
            self._tell(node)
            # products of data are work each time they run, and dropouts differ
            differs = node.target in MIXING | WHOLE and self.of(node.result) is Source.DATA
            differs = differs or node.target.startswith(("rand", "new_empty", "empty"))
            if source is None and key in seen and not differs:
                swap.update(zip((r.id for r in node.results), seen[key].results, strict=True))
            elif source is not None:
                swap[node.result.id] = source
                if node.stops and self.of(source) is Source.DATA:
                    detached.add(node.result.id)
            else:
                kept.append(node)
                seen[key] = node
        self.nodes = kept
        self.outputs = tuple(swap.get(v.id, v) for v in self.outputs)
        self.units = tuple(
            replace(u, taken=_swapped(u.taken, swap), handed=_swapped(u.handed, swap)) for u in self.trace.units
        )


def _swapped(value: Value | None, swap: dict[int, Value]) -> Value | None:
    return None if value is None else swap.get(value.id, value)
