"""What each operator of a rewritten trace becomes in a layer graph."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from collections.abc import Mapping

from dovetail.graph import Element, Kind, Operand, Operator
from dovetail.graph.operator import vector_work
from dovetail.models.tracing.emissions_of_blocks import BLOCKS
from dovetail.models.tracing.emissions_of_movements import generic, reshaped, written_into
from dovetail.models.tracing.emissions_of_points import COMPARISONS, FUNCTION, compare, point
from dovetail.models.tracing.emit import Emission, Emitter, Pieces, one
from dovetail.models.tracing.flow import POINTWISE, VIEWS, Source
from dovetail.models.tracing.infer_operators import RESIZED
from dovetail.models.tracing.infer_views import pieces, taken
from dovetail.models.tracing.trace import Node, Value


def _linear(emit: Emitter, node: Node) -> None:
    source, weight = node.args[:2]
    bias = node.arg(2, "bias")
    if emit.flow.of(weight) is not Source.WEIGHT:
        _matmul_of(emit, node, source, weight, transposed=True)
        return
    weight_axes = emit.inf.of(weight)
    _affine(emit, node, source, weight, bias, emit.atoms.leaves(weight_axes[-1]), emit.atoms.leaves(weight_axes[0]))


def _affine(
    emit: Emitter,
    node: Node,
    source: Value,
    weight: Value,
    bias: object,
    summed: tuple[int, ...],
    made: tuple[int, ...],
) -> None:
    """A product with a weight, in as many parts as what follows takes it apart, each with its bias."""
    left, name = emit.whole(source), emit.name(node).removesuffix(f".{node.target.strip('_')}")
    if not set(summed) <= set(emit.leaves(left)):
        left = emit.full(source)
    summed = _summed_of(emit, left, summed)
    over = next((a for a in made if emit.atoms.is_sum(a)), None)
    parts = emit.atoms.parts(over) if over is not None else (-1,)
    found: list[tuple[str, int]] = []
    for number, part in enumerate(parts):
        own = name if over is None else f"{name}.{number}"
        right = emit.weight(weight, over, number)
        element = _element(emit, node.result)
        fusion = "" if over is None else f"{name}.parts"
        tensor = emit.product(
            emit.unique(own), left, right, emit.flat(node.result), summed, element=element, fusion=fusion
        )
        if isinstance(bias, Value):
            offset = emit.weight(bias, over, number)
            tensor = emit.point(f"{tensor}.biased", "add", (tensor, offset), fusion=f"{tensor}.bias")
        found.append((tensor, part))
    emit.held[node.result.id] = one(found[0][0]) if over is None else Pieces(tuple(found), over, fused=True)


def _summed_of(emit: Emitter, left: str, summed: tuple[int, ...]) -> tuple[int, ...]:
    """The atoms a product sums, as the tensor has them."""
    have = emit.leaves(left)
    return tuple(a for a in have if a in set(summed)) or summed


def _element(emit: Emitter, value: Value) -> Element:
    """Logits of a router are kept in float32."""
    user = emit.flow.sole_user(value)
    return Element.FLOAT32 if user is not None and user.target == "routing" else Element.COMPUTE


def _mm(emit: Emitter, node: Node) -> None:
    bias, left, right = node.args[:3] if node.target in ("addmm", "baddbmm") else (None, *node.args[:2])
    axes = emit.inf.of(right)
    if emit.flow.of(right) is Source.WEIGHT and emit.flow.is_data(left):
        _affine(emit, node, left, right, bias, emit.atoms.leaves(axes[-2]), emit.atoms.leaves(axes[-1]))
        return
    _matmul_of(emit, node, left, right)


def _matmul_of(emit: Emitter, node: Node, left: Value, right: Value, transposed: bool = False) -> None:
    """A product of two computed values, position by position."""
    a, b = emit.whole(left), emit.whole(right)
    mine, theirs, result = emit.inf.of(left), emit.inf.of(right), emit.inf.of(node.result)
    if transposed:
        theirs = (*theirs[:-2], theirs[-1], theirs[-2])
    renames: dict[int, int] = {}
    pairs = [(theirs[-2], mine[-1]), (theirs[-1], result[-1]), *zip(theirs[:-2], result[:-2], strict=False)]
    for own, other in pairs:
        one_side, other_side = emit.atoms.leaves(own), emit.atoms.leaves(other)
        if len(one_side) == len(other_side):
            renames.update((x, y) for x, y in zip(one_side, other_side, strict=True) if x != y)
    summed = [x for x in emit.atoms.leaves(mine[-1]) if x in emit.leaves(a)]
    emit.hold(node.result, emit.product(emit.name(node), a, b, emit.flat(node.result), summed, renames=renames))


def _view(emit: Emitter, node: Node) -> None:
    if id(node) in emit.inf.broken:
        reshaped(emit, node)
        return
    emit.held[node.result.id] = emit.get(node.args[0])
    if node.args[0].id in emit.waiting:
        emit.waiting[node.result.id] = emit.waiting[node.args[0].id]


def _take(emit: Emitter, value: Value, result: Value, dim: int, start: int, stop: int) -> None:
    """A part of a value: its pieces where it has some, a copy otherwise."""
    axis = emit.inf.of(value)[dim]
    part = emit.atoms.span(axis, start, stop)
    held = emit.get(value)
    if part is None or stop - start == value.shape[dim]:
        emit.held[result.id] = held
        return
    first = part[0]
    leaves = emit.atoms.leaves(axis)
    over, inner = emit.atoms.find(leaves[0]), emit.atoms.length(leaves[1:])
    mine = _covering(emit, held, over, start // inner, stop // inner)
    if mine:
        emit.held[result.id] = (
            one(mine[0][0]) if len(mine) == 1 else Pieces(mine, emit.atoms.find(first), fused=held.fused)
        )
        return
    tensor = emit.whole(value)
    emit.hold(result, emit.sliced(tensor, over, first, start))


def _covering(emit: Emitter, held: Pieces, over: int, start: int, stop: int) -> tuple[tuple[str, int], ...]:
    """The pieces of a value that cover just a part of an atom; none where they do not."""
    if held.over != over:
        return ()
    at, found, covered = 0, list[tuple[str, int]](), 0
    for tensor, atom in held.pieces:
        size = 1 if atom < 0 else emit.atoms.size(atom)
        if start <= at and at + size <= stop:
            found.append((tensor, atom))
            covered += size
        at += size
    return tuple(found) if covered == stop - start else ()


def _slice(emit: Emitter, node: Node) -> None:
    if id(node) in emit.inf.broken:
        reshaped(emit, node)
        return
    place = taken(node, node.result)
    assert place is not None
    _take(emit, node.args[0], node.result, *place)


def _split(emit: Emitter, node: Node) -> None:
    for result, (dim, start, stop) in zip(node.results, pieces(node), strict=True):
        if result.id in emit.flow.users:
            _take(emit, node.args[0], result, dim, start, stop)


def _cat(emit: Emitter, node: Node) -> None:
    values = [v for v in node.args[0] if 0 not in v.shape]
    dim = node.arg(1, "dim", 0) % len(node.result.shape)
    if len(values) == 1:
        emit.held[node.result.id] = emit.get(values[0])
        return
    if id(node) in emit.inf.broken:
        reshaped(emit, node)
        return
    over = emit.atoms.find(emit.inf.of(node.result)[dim][0])
    found: list[tuple[str, int]] = []
    for value in values:
        axis = emit.inf.of(value)[dim]
        tensor = emit.whole(value)
        found.append((tensor, emit.atoms.find(axis[0]) if axis else -1))
    parts = emit.atoms.parts(over)
    if len(parts) == len(found):
        found = [(t, p) for (t, _), p in zip(found, parts, strict=True)]
    emit.held[node.result.id] = Pieces(tuple(found), over)


def _norm(emit: Emitter, node: Node) -> None:
    source, *weights = node.args
    function = node.options["function"]
    tensor = emit.whole(source)
    over = _normalised(emit, node, tensor)
    names = tuple(emit.weight(w) for w in weights)
    name = emit.name(node)
    given = tuple(emit.operand(w) for w in names)
    made = emit.builder.normalisation(name, function, emit.operand(tensor), tuple(emit.dim(a) for a in over), given)
    emit.hold(node.result, emit.remember(made, emit.leaves(tensor)))


def _normalised(emit: Emitter, node: Node, tensor: str) -> tuple[int, ...]:
    axes = emit.inf.of(node.args[0])[-int(node.options["axes"]) :]
    atoms = emit.atoms.leaves(a for axis in axes for a in axis)
    return tuple(a for a in emit.leaves(tensor) if a in atoms) or emit.leaves(tensor)[-1:]


def _embedding(emit: Emitter, node: Node) -> None:
    table, ids = emit.weight(node.args[0]), emit.whole(node.args[1])
    leaves = (*emit.leaves(ids), *emit.leaves(table)[1:])
    name = emit.name(node)
    made = emit.builder.embedding(name, emit.operand(table), emit.operand(ids), tuple(emit.dim(a) for a in leaves))
    emit.hold(node.result, emit.remember(made, leaves))


def _embedding_bag(emit: Emitter, node: Node) -> None:
    """Sums of rows of a table, looked up and added in one."""
    ids, table = emit.whole(node.args[0]), emit.weight(node.args[1])
    bag = emit.atoms.leaves(emit.inf.of(node.args[0])[-1])
    width = emit.atoms.leaves(emit.inf.of(node.args[1])[-1])
    leaves = (*(a for a in emit.leaves(ids) if a not in bag), *width)
    made = emit.builder.embedding(
        emit.name(node), emit.operand(table), emit.operand(ids), tuple(emit.dim(a) for a in leaves)
    )
    emit.hold(node.result, emit.remember(made, leaves))


def _index(emit: Emitter, node: Node) -> None:
    """Rows in another order, where the order does not depend on what a model is given."""
    ids = [each for each in node.args[1] if each is not None]
    if emit.flow.is_data(node.args[0]) and all(emit.flow.of(each) is Source.CONSTANT for each in ids):
        reshaped(emit, node)
    else:
        generic(emit, node, "")


def _reduce(emit: Emitter, node: Node) -> None:
    """A sum or mean over some dims."""
    tensor, name = emit.whole(node.args[0]), emit.name(node)
    leaves = tuple(a for a in emit.leaves(tensor) if a in emit.flat(node.result))
    source = emit.operand(tensor)
    dims = tuple(emit.dim(a) for a in leaves)
    emit.builder.tensor(name, dims)
    work = vector_work(source.indices, 1)
    operator = Operator(
        name, Kind.ELEMENTWISE, "pointwise", (source,), (Operand(name, dims),), work=work, saves=(tensor,)
    )
    emit.hold(node.result, emit.remember(emit.builder.append(operator), leaves))


def _unknown(emit: Emitter, node: Node) -> None:
    if node.target in POINTWISE or node.target in FUNCTION or node.target in ("softmax", "_softmax"):
        if node.target in ("softmax", "_softmax"):
            _softmax(emit, node)
        else:
            point(emit, node)
        return
    generic(emit, node, "")


def _softmax(emit: Emitter, node: Node) -> None:
    tensor, dim = emit.whole(node.args[0]), node.arg(1, "dim", -1)
    atoms = emit.atoms.leaves(emit.inf.of(node.args[0])[dim])
    over = next((a for a in atoms if a in emit.leaves(tensor)), emit.leaves(tensor)[-1])
    made = emit.builder.softmax(emit.name(node), emit.operand(tensor), emit.dim(over))
    emit.hold(node.result, emit.remember(made, emit.leaves(tensor)))


EMISSIONS: Mapping[str, Emission] = {
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _mm),
    **dict.fromkeys(("slice", "select"), _slice),
    **dict.fromkeys(("split", "split_with_sizes", "unbind", "chunk"), _split),
    **dict.fromkeys(("mean", "sum", "amax", "var"), _reduce),
    **dict.fromkeys(COMPARISONS, compare),
    "linear": _linear, "cat": _cat, "norm": _norm, "embedding": _embedding, "embedding_bag": _embedding_bag,
    "index": _index,
    "constant_pad_nd": reshaped, "write": written_into,
    **dict.fromkeys(RESIZED, reshaped),
    "placed": reshaped,
    "unknown": _unknown,
    **BLOCKS,
}  # fmt: skip
