"""How Megatron-LM writes what differs between layers: layouts of pipelines, and lists such as [0]*3+[1]*58.

The grammars are those of megatron/core/transformer/pipeline_parallel_layer_layout.py (E, t, m and L for embedding,
blocks, further-token predictions and loss; `|` between stages; `x*n` and `(x)*n` for repetitions) and of
`moe_freq_type` in megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

#: Far above the stages or layers of any model.
MAX_PARTS = 100_000

_GROUP = re.compile(r"\(([^)]+)\)\*(\d+)")
_LETTER = re.compile(r"(.)\*(\d+)")


def layout_text(layers: Sequence[int], predictions: int = 0) -> str:
    """The layout of stages (chunk by chunk when interleaved) with so many blocks each."""
    first, last = layers[0], layers[-1]
    middle = [
        f"{_blocks(count)}|" if (repeat := len(list(run))) == 1 else f"({_blocks(count)}|)*{repeat}"
        for count, run in groupby(layers[1:-1])
    ]
    # commas mean nothing and part the runs for the eye
    return f"E{_blocks(first)}|{','.join(middle)}{_blocks(last)}{'m' * predictions}L"


def _blocks(count: int) -> str:
    return {0: "", 1: "t"}.get(count, f"t*{count}")


def layout_parts(text: str) -> list[str] | None:
    """The letters of each stage; none where the text is no layout."""
    text = text.replace(",", "")
    for pattern in (_GROUP, _LETTER):
        size = sum(len(match[1]) * int(match[2][:7]) for match in pattern.finditer(text))
        if size > MAX_PARTS:
            return None
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    if not re.fullmatch(r"E[t|m]*L", text):
        return None
    return text.split("|")


def list_text(values: Sequence[bool]) -> str:
    """A list of ones and zeros, the shortest of its repetitions first: [0]*3+[1]*58, ([0]+[1])*12."""
    size = len(values)
    period = next(n for n in range(1, size + 1) if size % n == 0 and list(values) == list(values[:n]) * (size // n))
    runs = [(int(value), len(list(run))) for value, run in groupby(values[:period])]
    inner = "+".join(f"[{value}]" + (f"*{count}" if count > 1 else "") for value, count in runs)
    if period == size:
        return inner
    return f"({inner})*{size // period}" if len(runs) > 1 or runs[0][1] > 1 else f"{inner}*{size // period}"


def list_values(text: str) -> list[int] | None:
    """The numbers a list stands for; none where the text is no list."""
    compact = re.sub(r"\s", "", text)
    tokens = re.findall(r"\d+|[\[\](),+*]", compact)
    if "".join(tokens) != compact or len(tokens) > MAX_PARTS:
        return None
    try:
        value, rest = _sum(tokens)
    except (ValueError, IndexError, RecursionError):
        return None
    return value if not rest else None


def _sum(tokens: list[str]) -> tuple[list[int], list[str]]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] == "+":
        right, tokens = _product(tokens[1:])
        value = value + right
    return value, tokens


def _product(tokens: list[str]) -> tuple[list[int], list[str]]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] == "*":
        times = int(tokens[1][:7])
        if len(value) * times > MAX_PARTS:
            raise ValueError
        value, tokens = value * times, tokens[2:]
    return value, tokens


def _factor(tokens: list[str]) -> tuple[list[int], list[str]]:
    if tokens[0] == "(":
        value, tokens = _sum(tokens[1:])
        bracket = ")"
    elif tokens[0] == "[":
        value, tokens = list[int](), tokens[1:]
        while tokens[0] != "]":
            value.append(int(tokens[0][:7]))
            tokens = tokens[1:] if tokens[1] != "," else tokens[2:]
        bracket = "]"
    else:
        raise ValueError
    if tokens[0] != bracket:
        raise ValueError
    return value, tokens[1:]
