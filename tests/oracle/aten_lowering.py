"""One block, traced by PyTorch at ATen level, lowered into the IR by hand: how tracing fits.

By hand are only the names of dims (`Names`): of each parameter's axes, and which name a broadcast or a second
use of a dim takes. The rest follows the trace. A traced value is a tensor of the IR *read along axes*, each a
product of dims; views, transposes and expansions change the reading and emit nothing. Other nodes match a
pattern, whose rule emits operators (aten_rules.py); a node that matches none is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx import Graph, map_arg
from torch.fx.traceback import preserve_node_meta
from torch_blocks import counter

from dovetail.graph import LayerBuilder, LayerGraph, Operand
from dovetail.graph.size import DimSize, resolve

#: torch.fx.Node; its own annotations make each argument a union of all that a call may hold
Node: TypeAlias = Any
Axis: TypeAlias = "tuple[str, ...]"
Axes: TypeAlias = "tuple[Axis, ...]"
#: which traced values an operator yields, and how each reads
Results: TypeAlias = "dict[Node, Reading]"
Renaming: TypeAlias = "Callable[[Lowering, Node, Axes], Axes]"
Rule: TypeAlias = "Callable[..., Results]"

#: No data passes through these.
CHECKS = {"_assert_tensor_metadata"}


def trace(module: nn.Module, stream: torch.Tensor, options: Mapping[str, Any]) -> Graph:
    """Forward and backward as one ATen graph; a node knows its phase, its module and its forward partner."""
    with preserve_node_meta(), ExitStack() as stack:
        program = torch.export.export(module, (stream,), dict(options), strict=False)
        joint = aot_export_joint_with_descriptors(stack, program.module(), (stream,), dict(options))
    return joint.graph_module.graph


def is_forward(node: Node) -> bool:
    """Whether a node belongs to the forward pass."""
    return node.meta.get("partitioner_tag") == "is_forward"


def operator_name(node: Node) -> str:
    """The ATen operator's name without its overload: mm, view, getitem; empty for an input."""
    if node.op != "call_function":
        return ""
    return getattr(node.target, "overloadpacket", node.target).__name__


def traced_flops(nodes: Sequence[Node]) -> dict[Node, int]:
    """PyTorch's FLOP formulas on the traced shapes, for the nodes that have one."""
    formulas = counter().flop_registry
    found: dict[Node, int] = {}
    for node in nodes:
        formula = formulas.get(getattr(node.target, "overloadpacket", None))
        if formula is not None:
            args, options = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            found[node] = formula(*args, **options, out_val=node.meta["val"])
    return found


class LeftOverError(AssertionError):
    """A traced node that no rule consumes."""


@dataclass(frozen=True)
class Reading:
    """A tensor of the IR as a traced value shows it; a dim the tensor lacks is broadcast."""

    tensor: str
    axes: Axes

    @property
    def dims(self) -> Axis:
        """All dims in the order of the axes."""
        return tuple(chain.from_iterable(self.axes))


@dataclass(frozen=True)
class Rules:
    """What changes only how a tensor is read, and the operators that sequences of ATen operators are."""

    renamings: Mapping[str, Renaming]
    #: ATen operators in trace order, renamings between them left out; the longest first
    patterns: tuple[tuple[str, Rule], ...]


@dataclass(frozen=True)
class Names:
    """What is given by hand: sizes of dims, and the dims of each parameter and input axis."""

    sizes: Mapping[str, DimSize]
    parameters: Mapping[str, Axes]
    #: by position: the stream, the two rotary tables, the mask (which has no tensor in the IR)
    inputs: tuple[Axes, ...]
    #: the name an axis of size 1 takes when it is expanded
    expanded: str = "group"
    #: the name of a dim that a product meets on both sides without summing it
    second: Mapping[str, str] = field(default_factory=lambda: {"seq": "key_seq"})
    #: parameters of which a token uses a share
    active: Mapping[str, Fraction] = field(default_factory=dict)


class Lowering:
    """Walks the forward nodes in order; `graph` is the result, `consumed` says what became of each node."""

    def __init__(self, traced: Graph, names: Names, rules: Rules, **free: int) -> None:
        self.names = names
        self._renamings, self._patterns = rules.renamings, rules.patterns
        self.builder = LayerBuilder("lowered", names.sizes)
        self.sizes = resolve(names.sizes, free)
        self.readings: dict[Node, Reading] = {}
        #: forward node → operators it became part of; empty for a renaming, a check, an input
        self.consumed: dict[Node, tuple[str, ...]] = {}
        self._nodes = [n for n in traced.nodes if is_forward(n)]
        self._emitted: list[str] = []
        for position, node in enumerate(self._nodes):
            if node not in self.consumed:
                self._lower(node, position)
        (returned,) = traced.find_nodes(op="output")
        self.graph: LayerGraph = self.builder.build(self.readings[returned.args[0][0]].tensor)

    def _lower(self, node: Node, position: int) -> None:
        if node.op == "placeholder":
            self.consumed[node] = ()
            self._declare(node)
        elif operator_name(node) in CHECKS:
            self.consumed[node] = ()
        elif operator_name(node) in self._renamings:
            self._rename(node)
        else:
            self._match(position)

    def _declare(self, node: Node) -> None:
        given = node.meta["desc"]
        if hasattr(given, "target"):
            axes, name = self.names.parameters[given.target], given.target
            share = self.names.active.get(name, Fraction(1))
            self.builder.weight(name, tuple(chain.from_iterable(axes)), active_share=share)
        else:
            axes, name = self.names.inputs[given.idx], f"input_{given.idx}"
            if axes:
                declare = self.builder.input if given.idx == 0 else self.builder.constant
                declare(name, tuple(chain.from_iterable(axes)))
        assert not axes or self.shape(axes) == tuple(node.meta["val"].shape), f"{name} is not {axes}"
        self.readings[node] = Reading(name, axes)

    def _rename(self, node: Node) -> None:
        source = node.args[0]
        if source not in self.readings:
            raise LeftOverError(f"{node.name} renames {source}, which has no reading")
        old = self.readings[source]
        axes = self._renamings[operator_name(node)](self, node, old.axes)
        assert self.shape(axes) == tuple(node.meta["val"].shape), f"{node.name} is not {axes}"
        self.readings[node] = Reading(old.tensor, axes)
        self.consumed[node] = ()

    def _match(self, position: int) -> None:
        for pattern, rule in self._patterns:
            span = self._span(position, pattern)
            if span is None:
                continue
            inside = [n for n in span if operator_name(n) not in self._renamings]
            for node in span:
                if operator_name(node) in self._renamings and node.args[0] not in inside:
                    self._rename(node)
            self._emitted = []
            results = rule(self, *inside)
            group = [n for n in span if n not in self.consumed]
            self._check_closed(group, results)
            self.readings.update(results)
            self.consumed.update((n, tuple(self._emitted)) for n in group)
            return
        raise LeftOverError(f"{self._nodes[position].format_node()} is left over")

    def _span(self, position: int, pattern: str) -> list[Node] | None:
        """The nodes from a position on that spell the pattern, renamings among them; checks left out."""
        span: list[Node] = []
        wanted = pattern.split()
        for node in self._nodes[position:]:
            if not wanted:
                break
            if operator_name(node) == wanted[0]:
                wanted.pop(0)
            elif operator_name(node) in CHECKS:
                continue
            elif operator_name(node) not in self._renamings:
                return None
            span.append(node)
        return None if wanted else span

    def _check_closed(self, group: Sequence[Node], results: Mapping[Node, Reading]) -> None:
        inside = {*group, *(n for n in self._nodes if operator_name(n) in CHECKS)}
        for node in group:
            leaks = [u for u in node.users if is_forward(u) and u not in inside]
            if node not in results and leaks:
                raise LeftOverError(f"{node.name} is used by {leaks} beyond its pattern")

    def shape(self, axes: Axes) -> tuple[Any, ...]:
        """The sizes of the axes."""
        return tuple(prod(self.sizes[d] for d in axis) for axis in axes)

    def name(self, node: Node) -> str:
        """The operator a node becomes, named after its module."""
        modules = list(node.meta.get("nn_module_stack", {}).values())
        return ".".join(filter(None, (modules[-1][0] if modules else "", node.name)))

    def emitted(self, name: str) -> str:
        """Notes an operator just emitted."""
        self._emitted.append(name)
        return name

    def use(self, node: Node, renamed: Mapping[str, str] | None = None) -> Operand:
        """A traced value as an operand."""
        return self.builder.use(self.readings[node].tensor, renamed)
