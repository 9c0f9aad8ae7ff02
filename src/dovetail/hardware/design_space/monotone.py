"""Whether an expression rises or falls with some of its names: told from its form, for whatever values they take."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from dovetail.frozen import frozen
from dovetail.hardware.design_space.expression import Expression


@frozen
class Trend:
    """What is certain of an expression whose names all stand for numbers that are not negative."""

    #: 1: it never falls when a moving name rises; -1: it never rises; 0: it does not depend on one; None: not certain
    direction: int | None
    #: whether it cannot be negative
    positive: bool


_FIXED = Trend(0, positive=True)
_UNCERTAIN = Trend(None, positive=False)


def trend(expression: Expression, moving: Mapping[str, int]) -> Trend:
    """The trend of an expression; `moving` says which names rise or fall together, all others stay as they are."""
    return _of(expression.tree, moving)


def _of(node: ast.expr, moving: Mapping[str, int]) -> Trend:
    match node:
        case ast.Name(id=name):
            return Trend(moving.get(name, 0), positive=True)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _of(operand, moving)
            return Trend(_opposite(inner.direction), positive=False)
        case ast.UnaryOp(operand=operand):
            return _of(operand, moving)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, _of(left, moving), _of(right, moving), right)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            inner = [_of(each, moving) for each in _numbers(test)]
            return _joined(_of(body, moving), _of(orelse, moving)) if _fixed(*inner) else _UNCERTAIN
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _called(name, [_of(each, moving) for each in arguments])
        case _:  # a number, or a figure of a reference
            return _FIXED


def _combined(op: ast.operator, a: Trend, b: Trend, right: ast.expr) -> Trend:
    both = a.positive and b.positive
    match op:
        case ast.Add():
            return Trend(_same(a.direction, b.direction), both)
        case ast.Sub():
            return Trend(_same(a.direction, _opposite(b.direction)), positive=False)
        case ast.Mult() if both:
            return Trend(_same(a.direction, b.direction), positive=True)
        case ast.Div() if both:
            return Trend(_same(a.direction, _opposite(b.direction)), positive=True)
        case ast.Pow() if a.positive and (sign := _sign(right)):
            return Trend(a.direction if sign > 0 else _opposite(a.direction), positive=True)
        case _:
            return Trend(0, both) if _fixed(a, b) else _UNCERTAIN


def _called(name: str, inner: list[Trend]) -> Trend:
    if name in ("max", "min"):
        joined = inner[0]
        for each in inner[1:]:
            joined = _joined(joined, each)
        return Trend(joined.direction, (any if name == "max" else all)(each.positive for each in inner))
    (one,) = inner
    if name == "log2":  # negative below 1
        return Trend(one.direction if one.positive else _if_fixed(one), positive=False)
    if name == "abs" and not one.positive:
        return Trend(_if_fixed(one), positive=True)
    return one


def _joined(a: Trend, b: Trend) -> Trend:
    """One or the other of two."""
    return Trend(_same(a.direction, b.direction), a.positive and b.positive)


def _same(a: int | None, b: int | None) -> int | None:
    """The direction of what grows with two others."""
    if a is None or b is None:
        return None
    return a or b if 0 in (a, b) or a == b else None


def _opposite(direction: int | None) -> int | None:
    return None if direction is None else -direction


def _fixed(*trends: Trend) -> bool:
    return all(each.direction == 0 for each in trends)


def _if_fixed(one: Trend) -> int | None:
    return 0 if _fixed(one) else None


def _sign(node: ast.expr) -> int:
    """Of a number as written; 0 where it is something else."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return 1 if value > 0 else 0
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -1 if value > 0 else 0
        case _:
            return 0


def _numbers(test: ast.expr) -> list[ast.expr]:
    """The numbers a condition compares."""
    match test:
        case ast.Compare(left=left, comparators=rest):
            return [left, *rest]
        case ast.BoolOp(values=values):
            return [each for value in values for each in _numbers(value)]
        case ast.UnaryOp(operand=operand):
            return _numbers(operand)
        case _:
            return [test]
