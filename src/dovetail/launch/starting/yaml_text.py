"""Texts inside YAML."""

from __future__ import annotations

from collections.abc import Iterable


def block(lines: Iterable[str], indent: int) -> str:
    """Lines as the content of a block scalar (`|`), each indented by as many spaces."""
    text = "\n".join(lines).rstrip("\n")
    return "\n".join(f"{' ' * indent}{line}" if line else "" for line in text.split("\n"))
