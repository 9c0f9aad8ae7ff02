"""As much of JSON Schema as pydantic writes: whether a document keeps to a schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip


def keeps_to(document: Any, schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether the document is one the schema (a part of `root`) allows."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return keeps_to(document, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and not any(keeps_to(document, choice, root) for choice in choices):
        return False
    if "enum" in schema and document not in schema["enum"]:
        return False
    if "const" in schema and document != schema["const"]:
        return False
    kind = schema.get("type")
    if kind and (not isinstance(document, _TYPES[kind]) or (isinstance(document, bool) and kind != "boolean")):
        return False
    match document:
        case dict():
            return _keeps_fields(document, schema, root)
        case list():
            return len(document) <= schema.get("maxItems", 10**9) and all(
                keeps_to(entry, schema.get("items", True), root) for entry in document
            )
        case str():
            length = schema.get("minLength", 0) <= len(document) <= schema.get("maxLength", 10**9)
            return length and re.search(schema.get("pattern", ""), document) is not None
        case bool() | None:
            return True
        case _:
            above = schema.get("minimum", document) <= document and schema.get("exclusiveMinimum", -1) < document
            return above and document <= schema.get("maximum", document)


def _keeps_fields(document: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    known = schema.get("properties", {})
    if not set(schema.get("required", ())) <= set(document):
        return False
    return all(keeps_to(value, known.get(name, _other(name, schema)), root) for name, value in document.items())


def _other(name: str, schema: Mapping[str, Any]) -> Any:
    """What a field that has no name of its own in the schema may hold."""
    for pattern, allowed in schema.get("patternProperties", {}).items():
        if re.search(pattern, name):
            return allowed
    return schema.get("additionalProperties", True)
