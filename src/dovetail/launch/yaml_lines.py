"""YAML that people edit: a key a line, in the order given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
#: Words YAML takes for something else than text.
_NO_TEXT = frozenset({"y", "n", "yes", "no", "true", "false", "on", "off", "null"})


def yaml_lines(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """The lines of a mapping of numbers, switches, words and further mappings."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from yaml_lines(cast("Mapping[str, Any]", value), f"{indent}  ")
        elif isinstance(value, str) and _PLAIN.fullmatch(value) and value.casefold() not in _NO_TEXT:
            yield f"{indent}{key}: {value}"
        elif isinstance(value, float):
            # YAML takes 1e-06 for text
            digits, letter, exponent = json.dumps(value).partition("e")
            yield f"{indent}{key}: {digits}{'.0' if letter and '.' not in digits else ''}{letter}{exponent}"
        else:
            yield f"{indent}{key}: {json.dumps(value)}"
