"""What a graph from a file must keep: what `verify` asks, and what every later stage takes for granted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import dropwhile

import numpy as np

from dovetail.errors import InputError, one_of
from dovetail.frozen import frozen
from dovetail.graph import (
    Backward,
    DerivedSize,
    Kind,
    LayerGraph,
    ModelGraph,
    Operator,
    Role,
    differentiate,
    verify,
    verify_chain,
)
from dovetail.graph.count import active_parameters
from dovetail.graph.function import FUNCTIONS
from dovetail.graph.layer import FREE_DIMS
from dovetail.graph.routing import EXPERT_TOKENS, TOP_K
from dovetail.graph.size import Size, as_array, resolve
from dovetail.models.limits import MAX_LAYERS
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION

_FIX = "correct it, or trace the model again"
#: Larger than any tensor's dim, and small enough that products of several stay numbers.
_MAX_SIZE = 2.0**62
#: What stands for batch and seq where sizes are tried.
_PROBE = 1024.0
#: What blocks call the stream they take.
STREAM = "x"


@frozen
class _Operands:
    """How many operands an operator of a kind has, and what else its gradient and cost rely on."""

    inputs: tuple[int, int]
    outputs: int = 1
    work: int = 0
    exchanges: int = 0
    masked: bool = False
    #: whether every operand has dims
    indexed: bool = False


_MANY = 64
_OPERANDS: Mapping[Kind, _Operands] = {
    Kind.CONTRACTION: _Operands((2, 2)),
    Kind.ATTENTION: _Operands((3, _MANY), outputs=2, work=2, masked=True),
    Kind.LINEAR_ATTENTION: _Operands((1, _MANY)),
    Kind.STATE_SPACE: _Operands((1, _MANY)),
    Kind.INDEXER: _Operands((2, _MANY), masked=True),
    Kind.CONVOLUTION: _Operands((2, 2)),
    Kind.ELEMENTWISE: _Operands((1, _MANY)),
    Kind.NORMALISATION: _Operands((1, _MANY)),
    Kind.SOFTMAX: _Operands((1, 1)),
    Kind.EMBEDDING: _Operands((2, 2)),
    Kind.ROUTING: _Operands((1, _MANY), outputs=2, exchanges=1, indexed=True),
    Kind.DISPATCH: _Operands((2, 2), indexed=True),
    Kind.COMBINE: _Operands((3, 3), indexed=True),
    Kind.MOVEMENT: _Operands((1, _MANY)),
    Kind.LOSS: _Operands((2, 2), outputs=2),
}


def check_graph(graph: ModelGraph) -> None:
    """Refuses a graph that has no time or memory; the sentence names the place in its document."""
    for name, layer in graph.layers.items():
        for place, what in _wrong_parts(layer):
            raise InputError(f"layers.{name}{place}", what, _FIX)
        try:
            verify(layer)
            unsaved = _unsaved(layer, differentiate(layer))
        except AssertionError as error:  # graph errors are
            what = str(error).removeprefix(f"{name}.backward: ").removeprefix(f"{name}: ")
            raise InputError(f"layers.{name}", what, _FIX) from None
        if unsaved:
            what = f"save no {unsaved[0]}, which the backward reads"
            raise InputError(f"layers.{name}.operators", what, f"add it to the saves of one that has it, or {_FIX}")
    _check_chain(graph)
    _check_tied(graph)


def _unsaved(layer: LayerGraph, backward: Backward) -> list[str]:
    """Tensors of the forward that the backward reads and no operator saves."""
    given = {operand.tensor for operator in backward.graph.operators for operand in operator.inputs}
    saved = {tensor.name for tensor in layer.saved()}
    computed = (t.name for t in layer.tensors.values() if t.role not in (Role.WEIGHT, Role.CONSTANT))
    return [name for name in computed if name in given and name not in saved]


def _wrong_parts(layer: LayerGraph) -> Iterator[tuple[str, str]]:
    """What is wrong inside a layer that `verify` takes for granted, and where: sizes first, since all else has them."""
    yield from _wrong_sizes(layer)
    for field in ("inputs", "outputs"):
        for name in getattr(layer, field):
            if name not in layer.tensors:
                yield f".{field}", f"names {name}, which is missing in tensors"
    for number, operator in enumerate(layer.operators):
        place = f".operators.{number}"
        for field in ("inputs", "outputs"):
            for operand in getattr(operator, field):
                if operand.tensor not in layer.tensors:
                    yield f"{place}.{field}", f"names {operand.tensor}, which is missing in tensors"
        yield from ((f"{place}{field}", what) for field, what in _wrong_operator(layer, operator))
    yield from _wrong_routing(layer)
    yield from _wrong_weights(layer)


def _wrong_sizes(layer: LayerGraph) -> Iterator[tuple[str, str]]:
    for dim in FREE_DIMS:
        if dim in layer.sizes:
            yield f".sizes.{dim}", "is given, and the job sets it"
    # in numbers with a point first: whole ones of a malicious file could have any length
    known: dict[str, Size] = {d: np.asarray(float(s)) for d, s in layer.sizes.items() if isinstance(s, int)}
    known |= dict.fromkeys(FREE_DIMS, np.asarray(_PROBE))
    derived = {dim: size for dim, size in layer.sizes.items() if isinstance(size, DerivedSize)}
    try:
        with np.errstate(all="ignore"):
            found = resolve(derived, known)
    except KeyError as error:
        yield ".sizes", f"are incomplete: {error.args[0]}"
        return
    for dim in derived:
        if not 0 < float(as_array(found[dim])) <= _MAX_SIZE:
            yield f".sizes.{dim}", "is no size that a dim can have"
    for name, tensor in layer.tensors.items():
        for dim in tensor.dims:
            if dim not in found:
                yield f".tensors.{name}", f"has the dim {dim}, which is missing in sizes"


def _wrong_operator(layer: LayerGraph, operator: Operator) -> Iterator[tuple[str, str]]:
    shape = _OPERANDS.get(operator.kind)
    if shape is None:
        yield ".kind", f"is {operator.kind.value}, which the forward of a layer does not have"
        return
    fewest, most = shape.inputs
    if operator.kind is Kind.ELEMENTWISE:
        rule = FUNCTIONS.get(operator.function)
        if rule is None:
            yield ".function", f"is {operator.function}; {one_of(FUNCTIONS, operator.function)}"
            return
        fewest = max((1, *(position + 1 for position in rule.saves_inputs)))
        if rule.saves_mask and len(operator.outputs) < 2:
            yield ".outputs", "have no mask, which its backward reads"
    for field, count, needed in (
        (".inputs", len(operator.inputs), fewest),
        (".outputs", len(operator.outputs), shape.outputs),
        (".work", len(operator.work), shape.work),
        (".exchanges", len(operator.exchanges), shape.exchanges),
    ):
        if count < needed or (field == ".inputs" and count > most):
            yield field, f"are {count}, and {operator.kind.value} has {needed}"
    if shape.indexed and not all(operand.indices for operand in (*operator.inputs, *operator.outputs)):
        yield "", "has an operand without dims"
    yield from _wrong_mask(layer, operator, needed=shape.masked)
    if any(not work.dims for work in operator.work[: shape.work]):
        yield ".work", "has no dims"


def _wrong_mask(layer: LayerGraph, operator: Operator, *, needed: bool) -> Iterator[tuple[str, str]]:
    mask = operator.mask
    if mask is None:
        if needed:
            yield ".mask", f"is missing, and {operator.kind.value} has one"
        return
    for dim in (mask.query, mask.key):
        if dim not in layer.sizes and dim not in FREE_DIMS:
            yield ".mask", f"names the dim {dim}, which is missing in sizes"
    if mask.span.value != "all" and mask.width < 1:
        yield ".mask", f"has a width of {mask.width}"
    if mask.compressed is not None and not 0 < mask.compressed.share < 1:
        yield ".mask.compressed", f"has a share of {mask.compressed.share}, which is no part of the keys"


def _wrong_routing(layer: LayerGraph) -> Iterator[tuple[str, str]]:
    """Layers that send tokens to experts say in which groups these are chosen."""
    tokens, top_k, experts = (layer.sizes.get(dim) for dim in (EXPERT_TOKENS, TOP_K, "experts"))
    if not (isinstance(tokens, DerivedSize) and isinstance(top_k, int) and isinstance(experts, int)):
        return
    routing = [(n, o) for n, o in enumerate(layer.operators) if o.kind is Kind.ROUTING]
    if not routing:
        yield ".operators", f"have no {Kind.ROUTING.value}, and the sizes have experts and their tokens"
    for number, operator in routing:
        for name in ("groups", "top_groups"):
            value = operator.attributes.get(name)
            if type(value) is not int or not 1 <= value <= experts:
                yield f".operators.{number}.attributes", f"have no {name} from 1 to {experts}"


def _wrong_weights(layer: LayerGraph) -> Iterator[tuple[str, str]]:
    read = {operand.tensor for operator in layer.operators for operand in operator.inputs}
    weights = list(layer.weights())
    for weight in weights:
        if weight.name not in read:
            yield f".tensors.{weight.name}", "is a weight that no operator reads"
        if any(not isinstance(layer.sizes.get(dim), int) for dim in weight.dims):
            yield f".tensors.{weight.name}", "is a weight whose size follows from the job"
            return
        if weight.active_share > 1:
            yield f".tensors.{weight.name}.active_share", f"is {weight.active_share}"
    try:
        active_parameters(layer)
    except AssertionError:
        yield ".tensors", "have an active_share that leaves a part of a parameter"


def _check_chain(graph: ModelGraph) -> None:
    """The chain is one embedding, the blocks, one head with the loss, and what goes on from there."""
    for number, run in enumerate(graph.chain):
        if run.layer not in graph.layers:
            raise InputError(f"chain.{number}.layer", f"is {run.layer}", one_of(graph.layers, run.layer))
    for name, count in graph.counts().items():
        if not count:
            raise InputError(f"layers.{name}", "is used nowhere", "name it in chain or remove it")
    first, *others = [(run.layer, run.count) for run in graph.chain]
    after = list(dropwhile(lambda run: run[0] not in (EMBEDDING, HEAD, PREDICTION), others))
    if first != (EMBEDDING, 1) or after[:1] != [(HEAD, 1)] or any(name != PREDICTION for name, _ in after[1:]):
        what = f"does not have one {EMBEDDING}, then blocks, then one {HEAD}"
        raise InputError("chain", what, f"call the first layer {EMBEDDING} and the one with the loss {HEAD}")
    if sum(count for _, count in others) - sum(count for _, count in after) > MAX_LAYERS:
        raise InputError("chain", "is too long", f"it should have at most {MAX_LAYERS} blocks")
    for name, layer in graph.layers.items():
        takes = [tensor.name for tensor in layer.stream(layer.inputs)]
        loss = any(layer.tensors[each].role is Role.LOSS for each in layer.outputs)
        if name == EMBEDDING and takes:
            raise InputError(f"layers.{name}.inputs", f"have {takes[0]}, a stream", "the chain begins here")
        if name != EMBEDDING and STREAM not in takes:
            raise InputError(f"layers.{name}.inputs", f"have no stream called {STREAM}", f"call it {STREAM}")
        if loss != (name in (HEAD, PREDICTION)):
            fix = f"layers called {HEAD} and {PREDICTION} hand on a loss, and no others"
            raise InputError(f"layers.{name}.outputs", f"have {'a' if loss else 'no'} loss", fix)
    try:
        verify_chain(graph)
    except AssertionError as error:
        raise InputError("chain", str(error).removeprefix(f"{graph.name}: "), _FIX) from None


def _check_tied(graph: ModelGraph) -> None:
    """Weights of one name have one size."""
    shapes: dict[str, list[int]] = {}
    for name, layer in graph.layers.items():
        sizes = layer.sizes
        for weight in layer.weights():
            shape = [size for dim in weight.dims if isinstance(size := sizes[dim], int)]
            if weight.tied and sorted(shapes.setdefault(weight.tied, shape)) != sorted(shape):
                what = f"is tied to {weight.tied} and has another size"
                raise InputError(f"layers.{name}.tensors.{weight.name}", what, _FIX)
