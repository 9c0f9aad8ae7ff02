"""Expressions of design spaces: arithmetic as Python's over arrays, and one sentence for all else."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InputError
from dovetail.hardware.design_space.expression import MAX_CHARACTERS, Expression, parse_expression
from timing import within

NAMES = ("rows", "cols", "big.rows")

#: What Python's own evaluation of the same text sees, one design at a time.
FUNCTIONS: dict[str, Any] = {
    "min": lambda *a: np.min(a), "max": lambda *a: np.max(a), "abs": abs, "ceil": np.ceil, "floor": np.floor,
    "log2": np.log2, "sqrt": np.sqrt,
}  # fmt: skip

NUMBERS = st.sampled_from(["0", "1", "2", "0.5", "3", "128", "1e3", "2.5e-3", *NAMES])
CALLS = st.sampled_from(["abs", "ceil", "floor", "log2", "sqrt"])


SIGNS = ["+", "-", "*", "/", "//", "%", "**"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]


def joined(parts: Any) -> Any:
    return st.one_of(
        st.tuples(parts, st.sampled_from(SIGNS), parts).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        parts.map(lambda p: f"(-{p})"),
        st.tuples(CALLS, parts).map(lambda p: f"{p[0]}({p[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), parts, parts, parts).map(lambda p: f"{p[0]}({', '.join(p[1:])})"),
    )


ARITHMETIC = st.recursive(NUMBERS, joined, max_leaves=6)
COMPARED = st.lists(st.tuples(st.sampled_from(COMPARISONS), ARITHMETIC), min_size=1, max_size=2).flatmap(
    lambda rest: ARITHMETIC.map(lambda first: "(" + first + "".join(f" {op} {n}" for op, n in rest) + ")")
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda parts: st.one_of(
        st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        parts.map(lambda p: f"(not {p})"),
    ),
    max_leaves=4,
)
FIGURES = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 7.5, 64.0, -3.0])] * 3), min_size=1, max_size=5)


class Big:
    """What stands before a dot, for Python."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows


class NumpyNumbers(ast.NodeTransformer):
    """Numbers of a text as numpy's, which divide by zero without an error."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("number", ast.Load()), [node], [])


def in_python(text: str, design: tuple[float, ...]) -> Any:
    rows, cols, big = (np.float64(value) for value in design)
    tree = ast.fix_missing_locations(NumpyNumbers().visit(ast.parse(text, mode="eval")))
    scope = FUNCTIONS | {"rows": rows, "cols": cols, "big": Big(big), "number": np.float64}
    with np.errstate(all="ignore"):
        return eval(compile(tree, "text", "eval"), {"__builtins__": {}}, scope)  # noqa: S307


def looked_up(designs: Any) -> Any:
    return dict(zip(NAMES, np.asarray(designs, np.float64).T, strict=True)).__getitem__


@given(text=ARITHMETIC.filter(lambda t: len(t) <= MAX_CHARACTERS), designs=FIGURES)
def test_numbers_are_pythons(text, designs):
    found = np.broadcast_to(parse_expression(text, "here", "number").number(looked_up(designs)), len(designs))
    for value, design in zip(found, designs, strict=True):
        assert np.isclose(value, in_python(text, design), rtol=1e-12, equal_nan=True)


@given(text=CONDITIONS.filter(lambda t: len(t) <= MAX_CHARACTERS), designs=FIGURES)
def test_conditions_hold_where_they_certainly_do(text, designs):
    expression = parse_expression(text, "here", "condition")
    found = np.broadcast_to(expression.holds(looked_up(designs)), len(designs))
    for holds, design in zip(found, designs, strict=True):
        wanted = three_valued(expression.tree, looked_up([design]))
        assert holds == (wanted is True)


def three_valued(node: Any, lookup: Any) -> bool | None:
    """Kleene's logic, one design at a time: None where nan makes it unknown."""
    match node:
        case ast.UnaryOp(operand=inner):
            known = three_valued(inner, lookup)
            return None if known is None else not known
        case ast.BoolOp(op=op, values=values):
            parts = [three_valued(value, lookup) for value in values]
            decisive = isinstance(op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        case ast.Compare(left=left, ops=ops, comparators=rest):
            sides = [float(np.squeeze(Expression("", "number", n, ()).number(lookup))) for n in (left, *rest)]
            signs = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!="}
            parts = [
                None if np.isnan([a, b]).any() else eval(f"a {signs[type(op).__name__]} b", {"a": a, "b": b})  # noqa: S307
                for a, b, op in zip(sides, sides[1:], ops, strict=False)
            ]
            return False if False in parts else None if None in parts else True
    raise AssertionError(node)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rows < 3", [True, False]),
        ("not rows < 3", [False, False]),
        ("not rows >= 3", [True, False]),
        ("rows == rows", [True, False]),
        ("rows != rows", [False, False]),
        ("rows < 3 or cols == 1", [True, True]),
        ("rows < 3 and cols == 2", [False, False]),
        ("not (rows < 3 and cols == 2)", [True, True]),
        ("1 <= rows <= 2", [True, False]),
        ("(1 if rows > 5 else 2) == 2", [True, False]),
        ("min(rows, 1) == 1", [True, False]),
    ],
)
def test_what_nan_makes_unknown_does_not_hold(text, wanted):
    figures = {"rows": np.array([1.0, np.nan]), "cols": np.array([1.0, 1.0])}
    assert parse_expression(text, "here", "condition").holds(figures.__getitem__).tolist() == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2 * rows + cols", 20.0), ("rows ** 2 / cols", 16.0), ("-rows // 3", -3.0), ("rows % 3", 2.0),
        ("min(rows, cols, 3)", 3.0), ("max(rows, cols)", 8.0), ("ceil(rows / 3)", 3.0), ("floor(rows / 3)", 2.0),
        ("log2(rows)", 3.0), ("sqrt(2 * rows)", 4.0), ("abs(cols - rows)", 4.0), ("rows if rows > cols else cols", 8.0),
        ("big.rows + 1", 17.0), (" rows\n  + 1", 9.0), (7, 7.0), (0.25, 0.25), ("+rows", 8.0), ("1_000", 1000.0),
        ("1 / 0", np.inf), ("10 ** 10 ** 10", np.inf), ("log2(0)", -np.inf), ("10.0 ** 400", np.inf),
    ],
)  # fmt: skip
def test_values(text, wanted):
    figures = {"rows": np.array(8.0), "cols": np.array(4.0), "big.rows": np.array(16.0)}
    expression = parse_expression(text, "here", "number")
    assert float(expression.number(figures.__getitem__)) == wanted


def test_names_are_told_once_and_in_order():
    assert parse_expression("rows + big.rows * cols - rows", "here", "number").names == ("rows", "big.rows", "cols")


REFUSED = [
    "__import__('os')", "rows.__class__.__bases__", "().__class__", "'rows'", "b'x'", "f'{rows}'", "True", "None",
    "...", "1j", "1e999", "9" * 400, "[rows]", "(rows, cols)", "{rows}", "{1: rows}", "rows[0]", "lambda: rows",
    "(x := 3)", "[x for x in rows]", "rows @ cols", "rows & cols", "rows << 2", "~rows", "rows is cols", "rows in cols",
    "f(rows)",
    "rows(3)", "min(rows)", "min()", "abs(rows, cols)", "abs(x=rows)", "min(*rows)", "min(rows, key=cols)",
    "rows < 3", "not rows", "rows and cols", "rows if cols else 3", "(rows < 3) + 1", "min(rows < 3, 2)", "-(rows < 3)",
    "rows +", "rows cols", "16 MiB", "", "   ", "\x00", "a b\nc", "rows; cols", "rows = 3", "import os", "await rows",
    "yield", "big.rows.cols", "(rows).x.y", "1.rows", "3or 4", "(" * 240 + "rows" + ")" * 240, "-" * 300 + "rows",
    "rows" + "+rows" * 120, "max(" * 90 + "1, 2" + ", 2)" * 90, "r" * 501, "é²", "\ud800", "1 if 2", "print(1)",
    "rows.real.__doc__", "(rows<3)<4", None, True, [1], {"a": 1}, b"rows",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda t: repr(t)[:30])
def test_what_is_no_number_is_refused_in_one_sentence(text, refusal):
    with within(1):
        sentence = refusal(parse_expression, text, "mine.yaml: derive.rows", "number")
    assert sentence.startswith("mine.yaml: derive.rows: ")
    assert len(sentence) < 500


@pytest.mark.parametrize("text", ["rows", "3", "1 + 1", "rows or cols", "not 3", "rows < (cols < 3)", "True", True, 3])
def test_what_is_no_condition_is_refused(text, refusal):
    refusal(parse_expression, text, "here", "condition")


LETTERS = st.text(alphabet="rowscl019.+-*/%<>=!() ,andotifes_'\"[]{}:@&|~\\\n\t²é", max_size=60)


ODD = np.array([0.0, -1.0, np.nan, np.inf, -np.inf, 1e308, 5e-324])


@given(text=LETTERS | st.text(max_size=30), kind=st.sampled_from(["number", "condition"]))
def test_any_text_is_an_expression_or_refused(text, kind):
    with contextlib.suppress(InputError):
        expression = parse_expression(text, "here", kind)
        value = expression.number if kind == "number" else expression.holds
        value(lambda _: ODD)
