"""Reads fields of a Hugging Face config.json: by several names, bounded, with a sentence when wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from dovetail.errors import InputError, one_of, quoted
from dovetail.models.limits import MAX_LAYERS, MAX_WIDTH


class MissingOperatorError(InputError):
    """A config needs an operator that described models do not have."""


class ConfigReader:
    """One config (or the text part of one); `null` counts as absent, as in the configs themselves."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where

    def at(self, name: str) -> str:
        """Where a field stands, for an error."""
        return f"{self.where}: {name}"

    def has(self, *names: str) -> bool:
        """Whether any of these fields is given."""
        return any(self.fields.get(n) is not None for n in names)

    def given(self, *names: str) -> str:
        """Which of these names the config uses for a field, for an error; the first where it uses none."""
        return next((n for n in names if self.has(n)), names[0])

    def part(self, name: str) -> ConfigReader | None:
        """A nested config."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InputError(self.at(name), f"is {quoted(value)}", "it should be a mapping of fields")
        return ConfigReader(cast("dict[str, Any]", value), self.at(name))

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = MAX_WIDTH) -> int:
        """A whole number under the first of these names that is given; required without a default."""
        value = self.optional(*names, low=low, high=high)
        if value is not None:
            return value
        if default is None:
            others = f" (and so is {' or '.join(names[1:])})" if names[1:] else ""
            raise InputError(self.at(names[0]), f"is missing{others}", f"add it as a whole number from {low}")
        return default

    def optional(self, *names: str, low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """A whole number, or None where it is absent."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                fix = f"it should be a whole number from {low} to {high}"
                raise InputError(self.at(name), f"is {quoted(value)}", fix)
            return value
        return None

    def number(self, *names: str, default: float | None = None, low: float = 1e-30) -> float:
        """A finite number under the first of these names that is given; required without a default."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if not _is_number(value, low):
                raise InputError(self.at(name), f"is {quoted(value)}", f"it should be a number from {low:g} to 1e30")
            return float(value)
        if default is None:
            raise InputError(self.at(names[0]), "is missing", "add it as a number")
        return default

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers above nought."""
        values = self._per_layer(name, None) or []
        for position, value in enumerate(values):
            if not _is_number(value, 1e-30):
                raise InputError(self.at(f"{name}[{position}]"), f"is {quoted(value)}", "it should be a number above 0")
        return [float(cast("float", value)) for value in values]

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers: bounded before anything is built from it."""
        return self.integer(*(names or ("num_hidden_layers",)), default=default, high=MAX_LAYERS)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(self.at(name), f"is {quoted(value)}", "it should be true or false")
        return value

    def text(self, name: str, choices: Iterable[str], *, default: str | None = None) -> str:
        """One of a few words."""
        value = self.fields.get(name, default)
        value = default if value is None else value
        if value is None:
            raise InputError(self.at(name), "is missing", one_of(choices))
        if not isinstance(value, str) or value not in set(choices):
            raise InputError(self.at(name), f"is {quoted(value)}", one_of(choices, value))
        return value

    def words(self, name: str, choices: Iterable[str], length: int | None = None) -> list[str] | None:
        """A list of words, one per layer where a length is given."""
        values = self._per_layer(name, length)
        allowed = set(choices)
        for position, value in enumerate(values or []):
            if not isinstance(value, str) or value not in allowed:
                raise InputError(self.at(f"{name}[{position}]"), f"is {quoted(value)}", one_of(allowed, value))
        return cast("list[str] | None", values)

    def integers(self, name: str, length: int | None = None, low: int = 0, high: int = MAX_WIDTH) -> list[int] | None:
        """A list of whole numbers, one per layer where a length is given."""
        values = self._per_layer(name, length)
        for position, value in enumerate(values or []):
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                fix = f"it should be a whole number from {low} to {high}"
                raise InputError(self.at(f"{name}[{position}]"), f"is {quoted(value)}", fix)
        return cast("list[int] | None", values)

    def same(self, name: str, operator: str) -> object:
        """The one value a list repeats for every layer, or a value that is no list; lists that vary are refused."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value:
            return cast("object", value)
        first, *others = cast("list[object]", value)
        if any(other != first for other in others):
            raise self.refuse(name, operator)
        return first

    def divides(self, small_name: str, small: int, large_name: str, large: int) -> None:
        """Refuses counts that do not divide each other."""
        if large % small:
            raise InputError(
                self.at(small_name), f"{small} does not divide {large_name} {large}", "it should divide it"
            )

    def refuse(self, name: str, operator: str) -> MissingOperatorError:
        """The error for a config that needs an operator the graph does not have."""
        return MissingOperatorError(
            self.at(name),
            f"needs {operator}, which Dovetail does not model",
            "it cannot be imported; a model file can only approximate it without this part",
        )

    def _per_layer(self, name: str, length: int | None) -> list[object] | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InputError(self.at(name), f"is {quoted(value)}", "it should be a list")
        values = list(cast("Sequence[object]", value))
        if len(values) > 4 * MAX_LAYERS:
            raise InputError(self.at(name), f"has {len(values)} entries", f"it should have at most {MAX_LAYERS}")
        if length is not None and len(values) < length:
            raise InputError(self.at(name), f"has {len(values)} entries", f"it should have {length}, one per layer")
        return values if length is None else values[:length]


def _is_number(value: object, low: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= 1e30
