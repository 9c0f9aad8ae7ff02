"""What becomes of operators that only copy, and of those nothing is known of."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.graph import Element, Kind, Operand, Operator, Role
from dovetail.graph.function import FUNCTIONS
from dovetail.graph.operator import union, vector_work
from dovetail.models.tracing.emit import Emitter
from dovetail.models.tracing.flow import Source
from dovetail.models.tracing.trace import Node, Value

#: How many operands a function of points may have.
_MOST_OPERANDS = 3


def reshaped(emit: Emitter, node: Node) -> None:
    """A copy in another shape, where axes are taken apart or merged that are dims of their own.

    Several values become one by each being put in its place, and all being added.
    """
    given = sorted((v for v in node.inputs() if emit.flow.is_data(v)), key=lambda v: -len(v.shape))
    tensors = list(dict.fromkeys(emit.whole(v) for v in given))
    leaves, name = emit.flat(node.result), f"{emit.name(node)}.copy"
    copies = [_copy(emit, emit.unique(name), tensor, leaves) for tensor in tensors]
    made = copies[0]
    for other in copies[1:]:
        made = emit.point(emit.unique(f"{name}.placed"), "add", (made, other))
    emit.hold(node.result, made)


def written_into(emit: Emitter, node: Node) -> None:
    """A part of a tensor is overwritten: what was there and the part are copied into one."""
    given = [v for v in node.args[:2] if emit.flow.is_data(v)]
    tensors = list(dict.fromkeys(emit.whole(v) for v in given))
    leaves = emit.flat(node.result)
    read = [a for t in tensors for a in emit.leaves(t)]
    along = [
        a for a in dict.fromkeys((*leaves, *read)) if any(a not in emit.leaves(t) for t in tensors) or a not in leaves
    ]
    operands, dims = tuple(emit.operand(t) for t in tensors), tuple(emit.dim(a) for a in leaves)
    made = emit.builder.movement(emit.name(node), "write", operands, dims, tuple(emit.dim(a) for a in along))
    emit.hold(node.result, emit.remember(made, leaves))


def _copy(emit: Emitter, name: str, tensor: str, leaves: Sequence[int]) -> str:
    mine, source = emit.leaves(tensor), emit.operand(tensor)
    gone, come = [a for a in mine if a not in leaves], [a for a in leaves if a not in mine]
    dims = tuple(emit.dim(a) for a in leaves)
    emit.builder.tensor(name, dims)
    regroups = tuple((emit.dim(a), emit.dim(b)) for a in gone[:1] for b in come[:1])
    along = tuple(emit.dim(a) for a in (*gone[1:], *come[1:]))
    operator = Operator(
        name, Kind.MOVEMENT, "reshape", (source,), (Operand(name, dims),), regroups=regroups, indivisible=along
    )  # fmt: skip
    return emit.remember(emit.builder.append(operator), leaves)


def generic(emit: Emitter, node: Node, why: str) -> None:
    """An operator nothing is known of: it reads its operands once and writes its results."""
    data = [v for v in node.inputs() if emit.flow.of(v) >= Source.WEIGHT]
    name = emit.name(node)
    words = f"{node.target} ({why})" if why else node.target
    for number, result in enumerate(node.results):
        tensors = list(dict.fromkeys(emit.whole(v) for v in data))
        own = emit.unique(f"{name}.result") if number else name
        made = _approximation(emit, own, tensors[:_MOST_OPERANDS], result, words)
        # the rest is read where the first result is made
        for at in range(_MOST_OPERANDS, 0 if number else len(tensors), _MOST_OPERANDS - 1):
            more = tensors[at : at + _MOST_OPERANDS - 1]
            made = _approximation(emit, emit.unique(f"{name}.more"), [made, *more], result, words)
        emit.hold(result, made)


def _approximation(emit: Emitter, name: str, tensors: Sequence[str], result: Value, words: str) -> str:
    leaves = emit.flat(result)
    dims = tuple(dict.fromkeys(emit.dim(a) for a in leaves))
    operands = tuple(emit.operand(t) for t in tensors)
    whole_number = result.dtype.startswith(("int", "bool"))
    role, element = (Role.INDEX, Element.INT64) if whole_number else (Role.ACTIVATION, Element.COMPUTE)
    emit.builder.tensor(name, dims, role, element)
    missing = set(dims) - {d for o in operands for d in o.indices}
    saves = [t for t in tensors if emit.builder.tensors[t].role is Role.ACTIVATION]
    function = f"pointwise{len(tensors)}" if len(tensors) > 1 else "pointwise"
    largest = max([leaves, *(emit.leaves(t) for t in tensors)], key=emit.atoms.length)
    work = vector_work(tuple(dict.fromkeys(emit.dim(a) for a in largest)), FUNCTIONS[function].flops)
    along = union((*(o.indices for o in operands), dims)) if missing else ()
    operator = Operator(
        name, Kind.MOVEMENT if missing else Kind.ELEMENTWISE, "reshape" if missing else function, operands,
        (Operand(name, dims),), work=work, saves=() if missing else tuple(saves),
        indivisible=tuple(d for d in along if d != "batch"),
    )  # fmt: skip
    emit.approximated[name] = words
    return emit.remember(emit.builder.append(operator), dict.fromkeys(leaves))
