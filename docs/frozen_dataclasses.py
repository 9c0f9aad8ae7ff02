"""Shows `@frozen` of dovetail.frozen as the dataclass it makes, so that pages have the signatures of such classes."""

from __future__ import annotations

from typing import Any

import griffe


class FrozenDataclasses(griffe.Extension):
    """Runs before griffe's own extension for dataclasses."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Puts the decorator that griffe knows in place of ours."""
        known = griffe.ExprName("dataclasses.dataclass")
        for decorator in cls.decorators:
            value = decorator.value
            if isinstance(value, griffe.ExprCall) and str(value.function) == "frozen":
                value.function = known
            elif str(value) == "frozen":
                decorator.value = known
