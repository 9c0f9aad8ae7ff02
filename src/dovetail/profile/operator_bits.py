"""Sets of a layer's operators as bits of two words, which compiled code reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

#: Bits of one word, and how many operators a layer may have: two words.
WORD = 62
MAX_OPERATORS = 2 * WORD


def members(words: Sequence[int], operators: Sequence[str]) -> list[str]:
    """The operators whose bits are set, in the order of the bits."""
    return [name for k, name in enumerate(operators) if words[k // WORD] >> (k % WORD) & 1]
