"""Shards of a sequence that hand something on: the state of a scan and its gradient, the halo of a convolution.

A state of key × value numbers is as good as one token per key that writes its row of values, and one token per
key reads it: a shard that is handed a state is a shard with a few more tokens, and the interpreter runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from interpreter import rule_of
from interpreter_call import Array, Call, Dims, align, only
from split_cut import Bound, Cut, Outputs, rule
from split_statistics import Exchanged

from dovetail.graph import Operand, Operator

SEQ = "seq"
#: An operand of a token: the unit vector of a key, the state's row of values, or a number.
UNIT, ROW = "unit vector", "row"
Entry: TypeAlias = "str | float"
#: For each operand of a scan, what it is in a token that writes a row and in one that reads it.
TOKENS: Mapping[str, tuple[tuple[Entry, Entry], ...]] = {
    # q, k, v, log decay, beta
    "gated_delta": ((0.0, UNIT), (UNIT, 0.0), (ROW, 0.0), (0.0, 0.0), (1.0, 0.0)),
    # q, k, v, decay
    "decay": ((0.0, UNIT), (UNIT, 0.0), (ROW, 0.0), (0.0, 0.0)),
    # x, dt, A, B, C, D: the decay is exp(-exp(A) · dt)
    "ssd": ((ROW, 0.0), (1.0, 0.0), (-np.inf, -np.inf), (UNIT, 0.0), (0.0, UNIT), (0.0, 0.0)),
}
WRITE, READ = 0, 1


class _Scan:
    """A scan cut in two, every operand made to run along the sequence."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        function = cut.operator.function.removesuffix(".grad")
        self.roles = TOKENS[function]
        inputs, outputs = (tuple(_runs(o) for o in part) for part in (cut.operator.inputs, cut.operator.outputs))
        self.backward = replace(cut.operator, inputs=inputs, outputs=outputs)
        self.operands = inputs[-len(self.roles) :]
        self.value = self._operand(ROW)
        self.rows = cut.sizes[self._operand(UNIT).indices[-1]]
        results = (replace(self.value, tensor="result"),)
        self.forward = replace(cut.operator, function=function, inputs=self.operands, outputs=results)
        self.scale = float(cut.operator.attributes.get("scale", 1.0))

    def _operand(self, entry: Entry) -> Operand:
        return next(o for o, entries in zip(self.operands, self.roles, strict=True) if entries[WRITE] == entry)

    def call(self, operator: Operator, bound: Bound, *arrays: Array) -> Outputs:
        call = self.cut.call(bound[1] - bound[0] + self.rows, operator)
        return rule_of(operator.kind, operator.function)(call, *arrays)

    def shard(self, bound: Bound, moment: int, state: Array | None = None) -> list[Array]:
        """The operands of a shard, after tokens that write the state or before tokens that read it."""
        own = self.cut.parts(bound)[-len(self.roles) :]
        given = self.cut.operator.inputs[-len(self.roles) :]
        arrays: list[Array] = []
        for operand, before, array, entries in zip(self.operands, given, own, self.roles, strict=True):
            call = self.cut.call(bound[1] - bound[0])
            tokens = self._tokens(operand.indices, entries[moment], state)
            arrays.append(_joined(operand, call.spread(array, before.indices, operand.indices), tokens, moment))
        return arrays

    def _tokens(self, dims: Dims, entry: Entry, state: Array | None) -> Array:
        if entry == ROW:
            assert state is not None
            return state
        shape = Call(self.forward, {**self.cut.sizes, SEQ: self.rows}).shape(dims)
        if entry == UNIT:
            return np.broadcast_to(align(np.eye(self.rows), (SEQ, dims[-1]), dims), shape)
        return np.full(shape, float(entry))

    def arriving(self, bound: Bound, tokens: Array, moment: int) -> Array:
        return _joined(self.value, self.cut.parts(bound)[0], tokens, moment)

    def own(self, arrays: Outputs, moment: int) -> Outputs:
        """Outputs without the added tokens; what did not run along the sequence is summed along it again."""
        found: list[Array] = []
        for array, given, operand in zip(arrays, self.cut.operator.outputs, self.backward.outputs, strict=True):
            part = self.taken(array, operand, moment, added=False)
            found.append(part if SEQ in given.indices else part.sum(axis=operand.indices.index(SEQ)))
        return tuple(found)

    def taken(self, array: Array, operand: Operand, moment: int, *, added: bool) -> Array:
        """The added tokens alone, or all others."""
        axis = operand.indices.index(SEQ)
        edge = self.rows if moment == WRITE else array.shape[axis] - self.rows
        before, after = np.split(array, [edge], axis=axis)
        return before if added == (moment == WRITE) else after


def _runs(operand: Operand) -> Operand:
    return operand if SEQ in operand.indices else replace(operand, indices=(SEQ, *operand.indices))


def _joined(operand: Operand, own: Array, tokens: Array, moment: int) -> Array:
    arrays = (tokens, own) if moment == WRITE else (own, tokens)
    return np.concatenate(arrays, axis=operand.indices.index(SEQ))


def scan(cut: Cut) -> Exchanged:
    """Handed on: the state."""
    first, second = cut.bounds
    s = _Scan(cut)
    (result,) = s.call(s.forward, first, *s.shard(first, READ))
    state = s.taken(result, s.value, READ, added=True) / s.scale
    later = s.call(s.forward, second, *s.shard(second, WRITE, state))
    return [s.own((result,), READ), s.own(later, WRITE)], state.size


def scan_gradient(cut: Cut) -> Exchanged:
    """Handed on: the state, which is computed again; handed back: its gradient."""
    first, second = cut.bounds
    s = _Scan(cut)
    (result,) = s.call(s.forward, first, *s.shard(first, READ))
    state = s.taken(result, s.value, READ, added=True) / s.scale
    arriving = s.arriving(second, np.zeros_like(state), WRITE)
    later = s.call(s.backward, second, arriving, *s.shard(second, WRITE, state))
    position = [o.tensor.startswith(f"{s.value.tensor}.grad") for o in cut.operator.outputs].index(True)
    gradient = s.taken(later[position], s.value, WRITE, added=True)
    arriving = s.arriving(first, gradient / s.scale, READ)
    earlier = s.call(s.backward, first, arriving, *s.shard(first, READ))
    return [s.own(earlier, READ), s.own(later, WRITE)], state.size + gradient.size


def convolution(cut: Cut) -> Exchanged:
    """Handed on: the last inputs, one fewer than taps; back to the inputs' gradient: the first gradients."""
    operator = cut.operator
    weight = operator.outputs[0] if operator.function == "causal.grad1" else operator.inputs[1]
    halo = cut.sizes[only(weight.indices, operator.inputs[0].indices)] - 1
    backwards = operator.function == "causal.grad0"
    shards: list[Outputs] = []
    for number, (start, end) in enumerate(cut.bounds):
        more = halo if number == (0 if backwards else 1) else 0
        bound = (start, end + more) if backwards else (start - more, end)
        inputs = cut.parts(bound)
        if operator.function == "causal.grad1":
            inputs[0] = _without(inputs[0], operator.inputs[0], more)
        outputs = rule(operator)(cut.call(bound[1] - bound[0]), *inputs)
        kept = (0, end - start) if backwards else (more, more + end - start)
        shards.append(tuple(_tokens(a, o, kept) for a, o in zip(outputs, operator.outputs, strict=True)))
    axis = operator.inputs[0].indices.index(SEQ)
    return shards, halo * cut.arrays[0].size // cut.arrays[0].shape[axis]


def _without(arriving: Array, operand: Operand, halo: int) -> Array:
    """The halo's own results are another shard's."""
    own = _tokens(arriving, operand, (halo, arriving.shape[operand.indices.index(SEQ)]))
    return _joined(operand, own, np.zeros_like(_tokens(arriving, operand, (0, halo))), WRITE)


def _tokens(array: Array, operand: Operand, bound: Bound) -> Array:
    return np.take(array, range(*bound), axis=operand.indices.index(SEQ)) if SEQ in operand.indices else array
