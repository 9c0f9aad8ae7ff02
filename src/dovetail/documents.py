"""A user's YAML or JSON file becomes a validated spec: bounded, safe, one sentence when wrong."""

from __future__ import annotations

import ast
import inspect
import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from dovetail.errors import InputError, one_of, quoted

MAX_FILE_BYTES = 4 * 2**20
#: YAML is much slower to read than JSON; this much takes a few seconds.
MAX_YAML_BYTES = 2**18
MAX_DEPTH = 40

#: The tag of a union's member with fields, where the others are short forms of it.
IN_FULL = "in full"

SpecT = TypeVar("SpecT", bound="Spec")


class Spec(BaseModel):
    """A part of a user's file: frozen, strict about types, no unknown fields; its schema is built when one is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def unchecked(cls, **values: Any) -> Self:
        """A part that a file leaves out: of values that are right, and defaults; it needs no schema."""
        return cls.model_construct(**values)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Docstrings under the fields describe them; they are read only for a schema, since parsing sources is slow."""
        schema = handler(core_schema)
        fields = cast("dict[str, dict[str, Any]]", handler.resolve_ref_schema(schema).get("properties", {}))
        for name, text in _texts_under_fields(cls).items():
            if name in fields:
                fields[name]["description"] = text
        return schema


def _texts_under_fields(spec: type[Spec]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for part in reversed(spec.__mro__):
        if issubclass(part, Spec) and part is not Spec:
            try:
                source = inspect.getsource(part)
            except OSError:  # a class made from others has none
                continue
            body = cast("ast.ClassDef", ast.parse(textwrap.dedent(source)).body[0]).body
            for field, text in pairwise(body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        texts[name] = inspect.cleandoc(words)
                    case _:
                        pass
    return texts


def read_bytes(path: Path, most: int, shorten: str = "keep it shorter") -> bytes:
    """The bytes of a user's file, up to a limit; `shorten` says what to do if there are more."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        raise InputError(str(path), f"cannot be read ({reason})", "name an existing file") from None
    if len(content) > most:
        raise InputError(str(path), f"has more than {most} bytes", shorten)
    return content


def read_document(path: Path | str, *, finite: bool = True) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; where numbers may be infinite, the field's reader must check them."""
    path = Path(path)
    where = str(path)
    json_only = path.suffix.lower() == ".json"
    most = MAX_FILE_BYTES if json_only else MAX_YAML_BYTES
    content = read_bytes(path, most, "keep it shorter (JSON may be longer than YAML)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(where, "is not UTF-8 text", "it should be a YAML or JSON file") from None
    return parse_document(text, where, json_only=json_only, finite=finite)


def parse_document(
    text: str, where: str, *, json_only: bool = False, finite: bool = True, ours: bool = False
) -> dict[str, Any]:
    """The mapping in a YAML or JSON text; `ours`, shipped and tested, is read by the fastest safe loader."""
    try:
        document: object = _load_json(text) if json_only else _load_yaml(text, ours=ours)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}, line {error.lineno}", f"is not JSON ({error.msg})", "correct the syntax there"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "malformed"
        raise InputError(f"{where}{line}", f"is not YAML ({problem})", "correct the syntax there") from None
    except RecursionError:
        raise InputError(where, "is nested too deeply", f"nest at most {MAX_DEPTH} levels") from None
    except (ValueError, ArithmeticError) as error:
        reason = str(error)[:100]
        raise InputError(where, f"contains a value that cannot be read ({reason})", "correct that value") from None
    if not isinstance(document, dict):
        raise InputError(where, f"contains {_type_name(document)}", "it should contain a mapping of fields")
    _check_values(cast("dict[object, object]", document), where, finite=finite)
    return cast("dict[str, Any]", document)


def to_yaml(document: Mapping[str, Any]) -> str:
    """A document as the text of a file, the same bytes every time."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def write_text(path: Path, text: str) -> None:
    """Writes a file the user asked for."""
    write_parts(path, (text,))


def write_parts(path: Path, parts: Iterable[str]) -> None:
    """Writes a file the user asked for, part by part."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as error:
        fix = "name a file in an existing folder"
        raise InputError(str(path), f"cannot be written ({error.strerror})", fix) from None


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases (a short file must not expand into a huge one), tags and repeated fields.

    It stops where a file is nested too deeply: reading on takes time with the square of the depth.
    """

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._depth >= MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        node = self._compose_here(parent, index)
        self._depth -= 1
        return node

    def _compose_here(self, parent: Any, index: Any) -> Any:
        event = cast("yaml.Event", self.peek_event())  # pyright: ignore[reportUnknownMemberType]
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases are not allowed", event)
        if getattr(event, "tag", None) is not None:
            raise _refused("tags are not allowed", event)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            _check_names_once(node)
        return node


#: Also safe, and ten times as fast with libyaml; it allows aliases and repeated fields.
_QuickLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_names_once(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        if isinstance(key, yaml.ScalarNode):
            name = (key.tag, key.value)
            if name in seen:
                raise _refused(f"the field {quoted(key.value)} is given twice", key)
            seen.add(name)


def _refused(problem: str, there: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=cast("yaml.Mark", there.start_mark))


def _load_yaml(text: str, *, ours: bool) -> object:
    if ours:
        return yaml.load(text, Loader=_QuickLoader)  # noqa: S506  (a safe loader)
    return yaml.load(text, Loader=_PlainLoader)  # noqa: S506  (a SafeLoader subclass)


def _load_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_fields_once)


def _fields_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the field {quoted(twice)} is given twice")
    return fields


def _check_values(document: dict[object, object], where: str, *, finite: bool) -> None:
    """Refuses what a document must not contain: deep nesting, names that are not text, numbers that are not finite."""
    level: list[tuple[str, object]] = [("", document)]
    for _ in range(MAX_DEPTH):
        level = [child for path, item in level for child in _children(path, item, where)]
        for path, value in level:
            if finite and isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{where}: {path}", f"is {value}", "it should be a finite number")
        if not level:
            return
    raise InputError(where, "is nested too deeply", f"nest at most {MAX_DEPTH} levels")


def _children(path: str, item: object, where: str) -> list[tuple[str, object]]:
    if isinstance(item, list):
        return [(f"{path}.{n}", value) for n, value in enumerate(cast("list[object]", item))]
    if not isinstance(item, dict):
        return []
    fields = cast("dict[object, object]", item)
    for name in fields:
        if not isinstance(name, str):
            at = f"{where}: {path}" if path else where
            raise InputError(at, f"the field {quoted(name)} is not text", "put the name in quotation marks")
    return [(_join(path, str(name)), value) for name, value in fields.items()]


def validate(spec: type[SpecT], document: Mapping[str, Any], where: str) -> SpecT:
    """The document as a spec; the first mistake in it becomes the error's sentence."""
    try:
        return spec.model_validate(dict(document))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # a misspelt name explains why a field is missing
        first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        raise _sentence(first, where, spec, document) from None


def _sentence(error: ErrorDetails, where: str, spec: type[Spec], document: Mapping[str, Any]) -> InputError:
    field = _field_path(error, document)
    at = f"{where}: {field}" if field else where
    context: dict[str, Any] = error.get("ctx", {})
    given = quoted(error["input"])
    match error["type"]:
        case "missing":
            return InputError(at, "is missing", "add this field")
        case "extra_forbidden":
            allowed = _allowed_fields(spec, error["loc"][:-1])
            return InputError(at, "is not a field here", one_of(allowed, str(error["loc"][-1])))
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
            message = error["msg"].rstrip(".").replace(" after validation", "").replace("a valid tuple", "a list")
            subject, _, rule = message.partition(" should ")
            return InputError(at, f"is {given}", f"it should {rule}" if rule else f"it should be right ({subject})")


def _join(field: str, inner: str) -> str:
    return f"{field}.{inner}" if field and inner else field or inner


def _field_path(error: ErrorDetails, document: object) -> str:
    """The path as in the user's file: without the tags of unions and the marks of mapping keys."""
    parts: list[str] = []
    item = document
    for position, part in enumerate(error["loc"]):
        here = _item(item, part)
        missing = error["type"] == "missing" and position == len(error["loc"]) - 1
        if here is not None or missing:
            parts.append(str(part))
            item = here[0] if here is not None else None
    return ".".join(parts)


def _item(container: object, part: int | str) -> tuple[object] | None:
    if isinstance(container, Mapping):
        fields = cast("Mapping[object, object]", container)
        return (fields[part],) if part in fields else None
    if isinstance(container, list | tuple) and isinstance(part, int):
        # the error is about an entry that a short list does not have
        entries = cast("list[object]", container)
        return (entries[part],) if part < len(entries) else None
    return None


def _allowed_fields(spec: type[Spec], location: tuple[int | str, ...]) -> list[str]:
    """The field names allowed at a location, as far as the schema says."""
    schema = _schema(spec)
    definitions = cast("dict[str, Any]", schema.get("$defs", {}))
    nodes: list[dict[str, Any]] = [schema]
    for part in location:
        nodes = [n for node in nodes for n in _descend(node, part, definitions)]
    names = {name for node in nodes for name in node.get("properties", {})}
    return sorted(names) or sorted(schema.get("properties", {}))


@lru_cache(maxsize=64)
def _schema(spec: type[Spec]) -> dict[str, Any]:
    return spec.model_json_schema()


def _descend(node: dict[str, Any], part: int | str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if part in node.get("properties", {}):
        return _expand(node["properties"][part], definitions)
    if isinstance(part, int) and "items" in node:
        return _expand(node["items"], definitions)
    entries: list[object] = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    schemas = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
    if schemas:
        return [e for entry in schemas for e in _expand(entry, definitions)]
    # A union's tag is in the location but not in the schema: follow the member it names, or the one with fields.
    kind = node.get("properties", {}).get("kind", {}).get("const")
    return [node] if kind == part or part == IN_FULL else []


def _expand(node: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return _expand(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    members: list[dict[str, Any]] = [*node.get("oneOf", []), *node.get("anyOf", [])]
    return [e for member in members for e in _expand(member, definitions)] or [node]


def _type_name(value: object) -> str:
    names = {"NoneType": "nothing", "list": "a list", "str": "a text", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, "a single value")
