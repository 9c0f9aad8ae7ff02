"""One dim of an operator cut in two as its `DimSplit` says: the shards' operands, their runs, what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import interpreter_attention
import numpy as np
from interpreter import rule_of
from interpreter_call import Array, Call, Rule, visible

from dovetail.graph import DimSplit, Kind, Mask, Operand, Operator
from dovetail.graph.routing import EXPERT_TOKENS

Bound = tuple[int, int]
Outputs = tuple[Array, ...]

TOKENS = ("batch", "seq")
#: Kinds with an index into another operand's rows, and which input it is: forward, and in a gradient.
INDEX = {Kind.EMBEDDING: (0, 1), Kind.LOSS: (1, 2), Kind.DISPATCH: (1, 1), Kind.COMBINE: (2, 2)}


@dataclass(frozen=True)
class Cut:
    """An operator with its whole inputs, and the dim along which each shard holds a part."""

    operator: Operator
    split: DimSplit
    sizes: Mapping[str, int]
    arrays: tuple[Array, ...]

    @property
    def along(self) -> str:
        """The dim itself; slots of tokens that are regrouped are cut with the sequences they come from."""
        regrouped = self.split.dim == EXPERT_TOKENS and TOKENS[0] in self.operator.dims
        return TOKENS[0] if regrouped else self.split.dim

    @property
    def bounds(self) -> tuple[Bound, Bound]:
        """Two shards, of different lengths where the dim is odd."""
        size = self.sizes[self.along]
        return (0, size // 2), (size // 2, size)

    @property
    def gradient(self) -> bool:
        return ".grad" in self.operator.function

    def attribute(self, name: str) -> Any:
        return self.operator.attributes[name]

    def share(self, bound: Bound) -> float:
        """The part of the dim that a shard holds."""
        return (bound[1] - bound[0]) / self.sizes[self.along]

    def call(self, length: int, operator: Operator | None = None) -> Call:
        """The operator on a shard of this length."""
        sizes = {**self.sizes, self.along: length}
        if self.along in TOKENS:
            sizes[EXPERT_TOKENS] = sizes[TOKENS[0]] * sizes[TOKENS[1]]
        return Call(operator or self.operator, sizes)

    def parts(self, bound: Bound) -> list[Array]:
        """What the shard is given: its part of the sharded inputs, the replicated ones whole."""
        return [self.part(o, a, bound) for o, a in zip(self.operator.inputs, self.arrays, strict=True)]

    def part(self, operand: Operand, array: Array, bound: Bound) -> Array:
        slots = operand.tensor in self.split.sharded and EXPERT_TOKENS in operand.indices
        if self.along not in operand.indices and not slots:
            assert operand.tensor in self.split.replicated, f"{operand.tensor} is not replicated"
            return array
        assert operand.tensor in self.split.sharded, f"{operand.tensor} is not sharded"
        axis, opened = self._opened(operand, array)
        part = np.take(opened, range(*bound), axis=axis)
        return part.reshape(self.call(bound[1] - bound[0]).shape(operand.indices))

    def join(self, shards: Sequence[Outputs]) -> Outputs:
        """Whole outputs: sharded ones in a row, partial ones added, any other must be the same everywhere."""
        joined: list[Array] = []
        for operand, parts in zip(self.operator.outputs, zip(*shards, strict=True), strict=True):
            if operand.tensor in self.split.sharded:
                assert operand.tensor not in self.split.partial
                opened = [self._opened(operand, part, bound) for part, bound in zip(parts, self.bounds, strict=True)]
                whole = np.concatenate([array for _, array in opened], axis=opened[0][0])
                joined.append(whole.reshape(Call(self.operator, self.sizes).shape(operand.indices)))
            elif operand.tensor in self.split.partial:
                joined.append(added(parts))
            else:
                for part in parts[1:]:
                    np.testing.assert_array_equal(part, parts[0], err_msg=f"shards differ on {operand.tensor}")
                joined.append(parts[0])
        return tuple(joined)

    def _opened(self, operand: Operand, array: Array, bound: Bound | None = None) -> tuple[int, Array]:
        """The array with an axis that is the cut dim; slots of experts stand for sequences × positions."""
        sizes = self.sizes if bound is None else self.call(bound[1] - bound[0]).sizes
        if self.along in operand.indices:
            return operand.indices.index(self.along), array
        axis = operand.indices.index(EXPERT_TOKENS)
        shape = (*array.shape[:axis], *(sizes[d] for d in TOKENS), *array.shape[axis + 1 :])
        return axis + TOKENS.index(self.along), array.reshape(shape)


def added(arrays: Iterable[Array]) -> Array:
    return sum(arrays, np.zeros(()))


def run(cut: Cut, bound: Bound) -> Outputs:
    """The operator on one shard, by the interpreter."""
    if cut.operator.function == "dropout" or (cut.operator.function.startswith("rotary") and cut.along == "seq"):
        return _run_in_place(cut, bound)
    if cut.along == _pointed_into(cut):
        return _run_with_a_row_of_zeros(cut, bound)
    call, inputs = cut.call(bound[1] - bound[0]), cut.parts(bound)
    mask = cut.operator.mask
    if cut.operator.kind is Kind.ATTENTION and mask is not None and cut.along == mask.key:
        inputs = _of_own_keys(cut, bound, inputs)
    with placed(cut, bound):
        outputs = rule(cut.operator)(call, *inputs)
    if cut.operator.kind is Kind.LOSS:
        # every shard knows over how many tokens the mean is taken
        outputs = (outputs[0] * cut.share(bound), *outputs[1:])
    for operand, output in zip(cut.operator.outputs, outputs, strict=True):
        assert output.shape == call.shape(operand.indices), f"{operand.tensor} of a shard has {output.shape}"
    return outputs


def rule(operator: Operator) -> Rule:
    if operator.kind is Kind.OPTIMIZER:
        return lambda call, *arrays: UPDATES[call.operator.function](*arrays)
    return rule_of(operator.kind, operator.function)


def placed(cut: Cut, bound: Bound) -> AbstractContextManager[object]:
    """Masks see a shard's queries or keys at their places in the whole sequence."""
    mask = cut.operator.mask
    if mask is None or cut.along not in (mask.query, mask.key):
        return nullcontext()
    return mock.patch.object(interpreter_attention, "visible", lambda mask, *_: visible_part(cut, mask, bound))


def visible_part(cut: Cut, mask: Mask, bound: Bound) -> Array:
    """The pairs inside the mask that a shard of queries or keys has."""
    seen = visible(mask, cut.sizes[mask.query], cut.sizes[mask.key])
    dims = (mask.query, mask.key)
    return np.take(seen, range(*bound), axis=dims.index(cut.along)) if cut.along in dims else seen


def _run_in_place(cut: Cut, bound: Bound) -> Outputs:
    """Where a point's place matters: the shard's part in its place, zeros around it that it may not depend on."""
    axis = cut.operator.inputs[0].indices.index(cut.along)
    (part,) = cut.parts(bound)
    around = [(0, 0)] * part.ndim
    around[axis] = (bound[0], cut.sizes[cut.along] - bound[1])
    outputs = rule(cut.operator)(Call(cut.operator, cut.sizes), np.pad(part, around))
    return tuple(np.take(o, range(*bound), axis=axis) for o in outputs)


def _run_with_a_row_of_zeros(cut: Cut, bound: Bound) -> Outputs:
    """Rows another shard holds are looked up in, or written to, a last row that is no part of the result."""
    length = bound[1] - bound[0]
    index = INDEX[cut.operator.kind][cut.gradient]
    inputs = cut.parts(bound)
    for position, operand in enumerate(cut.operator.inputs):
        if cut.along in operand.indices:
            row = [(0, int(d == cut.along)) for d in operand.indices]
            inputs[position] = np.pad(inputs[position], row)
    inputs[index] = localised(inputs[index], bound, length)
    outputs = rule(cut.operator)(cut.call(length + 1), *inputs)
    return tuple(
        np.take(a, range(length), axis=o.indices.index(cut.along)) if cut.along in o.indices else a
        for o, a in zip(cut.operator.outputs, outputs, strict=True)
    )


def localised(ids: Array, bound: Bound, elsewhere: int) -> Array:
    """Rows counted from the shard's first; `elsewhere` for rows it does not hold."""
    return np.where((bound[0] <= ids) & (ids < bound[1]), ids - bound[0], elsewhere)


def _pointed_into(cut: Cut) -> str | None:
    """The dim whose rows an index input names."""
    operator = cut.operator
    if operator.kind not in INDEX or (operator.kind is Kind.LOSS and not cut.gradient):
        return None
    operands = (*operator.inputs, *operator.outputs)
    if operator.kind in (Kind.DISPATCH, Kind.COMBINE):
        return next(o.indices[0] for o in operands if EXPERT_TOKENS in o.indices)
    ids = operator.inputs[INDEX[operator.kind][cut.gradient]].indices
    if operator.kind is Kind.LOSS:
        return next(d for d in operator.dims if d not in ids)
    return next(d for d in operator.dims if d not in ids and sum(d in o.indices for o in operands) == 1)


def _of_own_keys(cut: Cut, bound: Bound, inputs: list[Array]) -> list[Array]:
    """Chosen keys counted from the shard's first; the sink counts once, on the first shard."""
    position = 3 + cut.gradient
    if cut.attribute("sinks"):
        inputs[position] = inputs[position] if bound[0] == 0 else np.full_like(inputs[position], -np.inf)
        position += 1
    if cut.attribute("sparse"):
        inputs[position] = localised(inputs[position], bound, -1)
    return inputs


def _momentum(gradient: Array, master: Array, momentum: Array) -> Outputs:
    momentum = 0.9 * momentum + gradient
    return master - 0.1 * momentum, master - 0.1 * momentum, momentum


def _adamw(gradient: Array, master: Array, first: Array, second: Array) -> Outputs:
    first, second = 0.9 * first + 0.1 * gradient, 0.99 * np.abs(second) + 0.01 * gradient**2
    master = 0.99 * master - 0.1 * first / (np.sqrt(second) + 1e-8)
    return master, master, first, second


def _lion(gradient: Array, master: Array, momentum: Array) -> Outputs:
    step = np.sign(0.9 * momentum + 0.1 * gradient)
    return (master - 0.1 * step, master - 0.1 * step, 0.99 * momentum + 0.01 * gradient)


#: From gradient, master weight and states to weight, master weight and states.
UPDATES: Mapping[str, Rule] = {
    "sgd": lambda gradient, master: (master - 0.1 * gradient, master - 0.1 * gradient),
    "momentum": _momentum,
    "adamw": _adamw,
    "adamw_bf16": _adamw,
    "adamw_8bit": _adamw,
    "lion": _lion,
    # matrices stay whole: between experts the update is that of its momentum
    "muon": _momentum,
}
