"""A user's YAML or JSON file becomes a validated spec: bounded, safe, one sentence when wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from dovetail.errors import InputError, one_of, quoted

MAX_FILE_BYTES = 4 * 2**20
MAX_DEPTH = 40

SpecT = TypeVar("SpecT", bound="Spec")


class Spec(BaseModel):
    """A part of a user's file: frozen, strict about types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read_document(path: Path | str) -> dict[str, Any]:
    """The mapping a YAML or JSON file holds."""
    path = Path(path)
    where = str(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(
                where,
                f"the file has {path.stat().st_size} bytes",
                f"it should have at most {MAX_FILE_BYTES}",
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(where, f"cannot be read ({reason})", "name a file that exists") from None
    except (UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(where, "is not UTF-8 text", "it should be a YAML or JSON file") from None
    return parse_document(text, where, json_only=path.suffix == ".json")


def parse_document(text: str, where: str, *, json_only: bool = False) -> dict[str, Any]:
    """The mapping a YAML or JSON text holds."""
    try:
        document: object = json.loads(text) if json_only else _load_yaml(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}, line {error.lineno}", f"is not JSON ({error.msg})", "correct the syntax there"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "malformed"
        raise InputError(f"{where}{line}", f"is not YAML ({problem})", "correct the syntax there") from None
    except (RecursionError, ValueError):
        raise InputError(
            where, "is nested too deeply or holds an unreadable value", f"nest at most {MAX_DEPTH} levels"
        ) from None
    _check_depth(document, where)
    if not isinstance(document, dict):
        raise InputError(where, f"holds {_type_name(document)}", "it should hold a mapping of fields")
    mapping = cast("dict[Any, Any]", document)
    for key in mapping:
        if not isinstance(key, str):
            raise InputError(where, f"the field {quoted(key)} is no text", "field names should be text")
    return cast("dict[str, Any]", mapping)


class _NoAliasLoader(yaml.SafeLoader):
    """Safe YAML without aliases: a short file must not expand into a huge one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType]
            mark = cast("yaml.Mark", self.peek_event().start_mark)  # pyright: ignore[reportUnknownMemberType]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)


def _load_yaml(text: str) -> object:
    return yaml.load(text, Loader=_NoAliasLoader)  # noqa: S506  (a SafeLoader subclass)


def _check_depth(document: object, where: str) -> None:
    level: list[object] = [document]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise InputError(where, "is nested too deeply", f"nest at most {MAX_DEPTH} levels")


def _children(item: object) -> list[object]:
    if isinstance(item, dict):
        return list(cast("dict[object, object]", item).values())
    if isinstance(item, list):
        return cast("list[object]", item)
    return []


def validate(spec: type[SpecT], document: Mapping[str, Any], where: str) -> SpecT:
    """The document as a spec; the first thing wrong with it becomes the error's sentence."""
    try:
        return spec.model_validate(dict(document))
    except ValidationError as error:
        raise _sentence(error.errors(include_url=False)[0], where, spec) from None


def _sentence(error: ErrorDetails, where: str, spec: type[Spec]) -> InputError:
    field = _field_path(error["loc"])
    at = f"{where}: {field}" if field else where
    context: dict[str, Any] = error.get("ctx", {})
    given = quoted(error["input"])
    match error["type"]:
        case "missing":
            return InputError(at, "is missing", "add this field")
        case "extra_forbidden":
            known = _known_fields(spec, error["loc"][:-1])
            return InputError(at, "is no field here", one_of(known, str(error["loc"][-1])))
        case "literal_error" | "enum":
            return InputError(at, f"is {given}", f"it should be {context['expected']}")
        case "union_tag_invalid":
            return InputError(at, f"has kind {quoted(context['tag'])}", f"it should be {context['expected_tags']}")
        case "union_tag_not_found":
            return InputError(at, "has no kind", f"add the field {context['discriminator']}")
        case "value_error":
            cause = context["error"]
            if isinstance(cause, InputError):
                return InputError(f"{where}: {_join(field, cause.where)}", cause.what, cause.fix)
            return InputError(at, f"is {given}", str(cause))
        case _:
            message = error["msg"].removeprefix("Input ").rstrip(".")
            message = message if message.startswith("should") else f"should be right ({message})"
            return InputError(at, f"is {given}", f"it {message}")


def _join(field: str, inner: str) -> str:
    return f"{field}.{inner}" if field and inner else field or inner


def _field_path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _known_fields(spec: type[Spec], location: tuple[int | str, ...]) -> list[str]:
    """The field names allowed at a location, as far as the schema tells without guessing."""
    schema = spec.model_json_schema()
    definitions = cast("dict[str, Any]", schema.get("$defs", {}))
    nodes: list[dict[str, Any]] = [schema]
    for part in location:
        nodes = [n for node in nodes for n in _descend(node, part, definitions)]
    names = {name for node in nodes for name in node.get("properties", {})}
    return sorted(names) or sorted(schema.get("properties", {}))


def _descend(node: dict[str, Any], part: int | str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if part in node.get("properties", {}):
        return _expand(node["properties"][part], definitions)
    if isinstance(part, int) and "items" in node:
        return _expand(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        return _expand(node["additionalProperties"], definitions)
    # A union's tag stands in the location but not in the schema: keep the member it names.
    kind = node.get("properties", {}).get("kind", {}).get("const")
    return [node] if kind == part else []


def _expand(node: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return _expand(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    members: list[dict[str, Any]] = [*node.get("oneOf", []), *node.get("anyOf", [])]
    return [e for member in members for e in _expand(member, definitions)] or [node]


def _type_name(value: object) -> str:
    return {"NoneType": "nothing", "list": "a list", "str": "a text"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )
