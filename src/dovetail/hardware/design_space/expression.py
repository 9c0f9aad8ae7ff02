"""Expressions of a user's file over arrays: checked against a short list of what may stand there, then interpreted."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np

from dovetail.arrays import Bools, Floats
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen

Lookup = Callable[[str], Floats]
"""what a name stands for; an attribute's name is `reference.attribute`"""

Kind = Literal["number", "condition"]

MAX_CHARACTERS = 500
#: Of nested parts; a sum of so many terms is as deep.
MAX_DEPTH = 60

_ARITHMETIC: dict[type[ast.operator], np.ufunc] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide, ast.Mod: np.remainder, ast.Pow: np.power,
}  # fmt: skip
_SIGNS: dict[type[ast.unaryop], np.ufunc] = {ast.USub: np.negative, ast.UAdd: np.positive}
#: What says that a comparison holds, and what says that it does not; where a side is nan neither does.
_COMPARISONS: dict[type[ast.cmpop], tuple[Callable[[Floats, Floats], Bools], Callable[[Floats, Floats], Bools]]] = {
    ast.Lt: (np.less, np.greater_equal),
    ast.LtE: (np.less_equal, np.greater),
    ast.Gt: (np.greater, np.less_equal),
    ast.GtE: (np.greater_equal, np.less),
    ast.Eq: (np.equal, lambda a, b: np.less(a, b) | np.greater(a, b)),
    ast.NotEq: (lambda a, b: np.less(a, b) | np.greater(a, b), np.equal),
}
_ONE_ARGUMENT: dict[str, np.ufunc] = {
    "abs": np.absolute, "ceil": np.ceil, "floor": np.floor, "log2": np.log2, "sqrt": np.sqrt,
}  # fmt: skip
_SEVERAL_ARGUMENTS: dict[str, np.ufunc] = {"max": np.maximum, "min": np.minimum}
FUNCTIONS = (*_ONE_ARGUMENT, *_SEVERAL_ARGUMENTS)

_ALLOWED = (
    "use numbers, names, + - * / // % **, comparisons, and, or, not, if else, "
    f"{', '.join(sorted(FUNCTIONS))}, and units as factors (16 * MiB)"
)


@frozen
class Expression:
    """A number or a condition over names."""

    text: str
    kind: Kind
    tree: ast.expr
    names: tuple[str, ...]
    """each once, in order; `reference.attribute` for an attribute"""

    def number(self, lookup: Lookup) -> Floats:
        """Its value; nan or infinite where arithmetic has none, never a warning."""
        with np.errstate(all="ignore"):
            return _number(self.tree, lookup)

    def holds(self, lookup: Lookup) -> Bools:
        """Where the condition certainly holds: what nan makes unknown does not, and neither does its opposite."""
        with np.errstate(all="ignore"):
            return _mask(self.tree, lookup, truth=True)


def parse_expression(text: object, where: str, kind: Kind) -> Expression:
    """The expression a file holds, of the kind that belongs there; a plain number is one too."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        # no float is as large, and Python writes no whole number of thousands of digits
        text = repr(text) if abs(text) < 1e300 else "1e300"
    if not isinstance(text, str) or not text.strip():
        raise InputError(where, f"is {quoted(text)}", "it should be an expression such as '2 * rows'")
    if len(text) > MAX_CHARACTERS:
        raise InputError(where, f"has {len(text)} characters", f"keep it to {MAX_CHARACTERS}")
    text = " ".join(text.split())
    tree = _tree(text, where)
    names: list[str] = []
    actual = _check(tree, where, names, 0)
    if actual != kind:
        hint = "compare it with something" if kind == "condition" else "leave the comparison out"
        raise InputError(where, f"{quoted(text)} is a {actual}", f"it should be a {kind}: {hint}")
    return Expression(text, kind, tree, tuple(dict.fromkeys(names)))


def _tree(text: str, where: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, about what the check refuses anyway
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(where, f"{quoted(text)} is not an expression", _ALLOWED) from None


def _check(node: ast.expr, where: str, names: list[str], depth: int) -> Kind:
    """Refuses everything that is not listed here, names what is used, and says what the part is."""
    if depth > MAX_DEPTH:
        raise InputError(
            where, "is nested too deeply", f"nest at most {MAX_DEPTH} levels; define parts of it separately"
        )

    def parts(kind: Kind, *inner: ast.expr) -> None:
        for part in inner:
            if _check(part, where, names, depth + 1) != kind:
                other = "a condition" if kind == "number" else "a number"
                raise InputError(where, f"{quoted(ast.unparse(part))} is {other}", f"it should be a {kind}")

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and _finite(value):
            return "number"
        case ast.Name(id=name):
            names.append(name)
            return "number"
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            names.append(f"{name}.{attribute}")
            return "number"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            parts("condition", operand)
            return "condition"
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            parts("number", operand)
            return "number"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            parts("number", left, right)
            return "number"
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARISONS for op in ops):
            parts("number", left, *rest)
            return "condition"
        case ast.BoolOp(values=values):
            parts("condition", *values)
            return "condition"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts("condition", test)
            parts("number", body, orelse)
            return "number"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            _check_call(name, len(arguments), where)
            parts("number", *arguments)
            return "number"
        case _:
            raise InputError(where, f"{quoted(ast.unparse(node))} cannot be used in an expression", _ALLOWED)


def _check_call(name: str, arguments: int, where: str) -> None:
    if name not in FUNCTIONS:
        raise InputError(where, f"{quoted(name)} is not a function", one_of(FUNCTIONS, name))
    if name in _ONE_ARGUMENT and arguments != 1:
        raise InputError(where, f"{name} has {arguments} arguments", "give it one")
    if name in _SEVERAL_ARGUMENTS and arguments < 2:
        raise InputError(where, f"{name} has {arguments} arguments", "give it two or more")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number may be larger than any float
        return False


def _number(node: ast.expr, lookup: Lookup) -> Floats:
    match node:
        case ast.Constant(value=int() | float() as value):
            return np.asarray(value, np.float64)
        case ast.Name(id=name):
            return lookup(name)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return lookup(f"{name}.{attribute}")
        case ast.UnaryOp(op=op, operand=operand):
            return _SIGNS[type(op)](_number(operand, lookup))
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(left, lookup), _number(right, lookup))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            otherwise = np.where(_mask(test, lookup, truth=False), _number(orelse, lookup), np.nan)
            return np.where(_mask(test, lookup, truth=True), _number(body, lookup), otherwise)
        case ast.Call(func=ast.Name(id=name), args=[only]) if name in _ONE_ARGUMENT:
            return _ONE_ARGUMENT[name](_number(only, lookup))
        case ast.Call(func=ast.Name(id=name), args=[first, *rest]):
            value = _number(first, lookup)
            for part in rest:
                value = _SEVERAL_ARGUMENTS[name](value, _number(part, lookup))
            return value
        case _:
            raise AssertionError(f"unchecked {ast.dump(node)}")


def _mask(node: ast.expr, lookup: Lookup, *, truth: bool) -> Bools:
    """Where a condition certainly holds, or certainly does not: the two leave out what nan makes unknown."""
    match node:
        case ast.UnaryOp(operand=operand):
            return _mask(operand, lookup, truth=not truth)
        case ast.BoolOp(op=op, values=values):
            join = np.logical_and if isinstance(op, ast.And) == truth else np.logical_or
            result = _mask(values[0], lookup, truth=truth)
            for part in values[1:]:
                result = join(result, _mask(part, lookup, truth=truth))
            return result
        case ast.Compare(left=left, ops=ops, comparators=rest):
            join = np.logical_and if truth else np.logical_or
            sides = [_number(side, lookup) for side in (left, *rest)]
            tests = [_COMPARISONS[type(op)][0 if truth else 1] for op in ops]
            result = tests[0](sides[0], sides[1])
            for test, a, b in zip(tests[1:], sides[1:], sides[2:], strict=False):
                result = join(result, test(a, b))
            return result
        case _:
            raise AssertionError(f"unchecked {ast.dump(node)}")
