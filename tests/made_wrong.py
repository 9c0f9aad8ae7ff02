"""Documents with one place changed: what tests of wrong input start from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from typing import Any

Document = dict[str, Any]
Path = tuple[Any, ...]


def nodes(document: Any, path: Path = (), *, whole: Collection[str] = ()) -> Iterator[tuple[Path, Any]]:
    """Every field and list entry below a document; what stands under the names in `whole` is not entered."""
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in entries:
        yield (*path, name), value
        if isinstance(value, dict | list) and name not in whole:
            yield from nodes(value, (*path, name), whole=whole)


def changed(document: Document, path: Path, change: Callable[[Any, Any], None]) -> Document:
    """A copy in which `change` was called with the container of a path and the path's last part."""
    document = copy.deepcopy(document)
    container: Any = document
    for part in path[:-1]:
        container = container[part]
    change(container, path[-1])
    return document


def replaced(document: Document, path: Path, value: Any) -> Document:
    """A copy with another value at a path."""
    return changed(document, path, lambda container, name: container.__setitem__(name, value))
