"""Sums and tests of a shell script, worked out from its text."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?|(.))")
#: Far above any number of chips or tokens.
MAX_NUMBER = 10**18

_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt,
    "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip


def arithmetic(text: str, variables: Mapping[str, str]) -> int | None:
    """The whole number that + - * / % and parentheses make; none where something in it is no number."""
    items: list[int | str] = []
    for number, name, other in _TOKEN.findall(text):
        value = number or variables.get(name, "")
        if other:
            items.append(other)
        elif re.fullmatch(r"\d{1,18}", value) is None:
            return None
        else:
            items.append(int(value))
    try:
        result, rest = _sum(items)
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return result if not rest else None


def _sum(items: list[int | str]) -> tuple[int, list[int | str]]:
    value, items = _product(items)
    while items and items[0] in ("+", "-"):
        right, rest = _product(items[1:])
        value, items = (value + right if items[0] == "+" else value - right), rest
    return value, items


def _product(items: list[int | str]) -> tuple[int, list[int | str]]:
    value, items = _factor(items)
    while items and items[0] in ("*", "/", "%"):
        right, rest = _factor(items[1:])
        value = value * right if items[0] == "*" else value // right if items[0] == "/" else value % right
        items = rest
        if abs(value) > MAX_NUMBER:
            raise ValueError
    return value, items


def _factor(items: list[int | str]) -> tuple[int, list[int | str]]:
    first = items[0]
    if isinstance(first, int):
        return first, items[1:]
    if first != "(":
        raise ValueError
    value, rest = _sum(items[1:])
    if rest[0] != ")":
        raise ValueError
    return value, rest[1:]


def holds(words: list[str]) -> bool | None:
    """Whether a test such as `[ "$X" = 1 ]` holds; none where it asks for more than texts and numbers."""
    if not words or words[0] not in ("[", "[[", "test"):
        return None
    inner = [word for word in words[1:] if word not in ("]", "]]")]
    if inner[:1] == ["!"]:
        result = holds(["[", *inner[1:]])
        return None if result is None else not result
    if any("$" in word or "`" in word for word in inner):
        return None
    match inner:
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-z"]:
            return True
        case ["-n"]:
            return False
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, sign, right] if sign in _COMPARED and left.isdecimal() and right.isdecimal():
            return _COMPARED[sign](int(left[:18]), int(right[:18]))
        case _:
            return None
