"""Writes the reference that follows from the code: command pages, JSON Schemas and the tables of JSON fields.

`python docs/generate_reference.py` writes it, with `--check` it only names the files that are out of date. Commands are
read from the command line itself, schemas of files from their specs, and schemas of answers from
`reference/schemas/answers.yaml`. A page has its own words around blocks between `<!-- generated:begin NAME -->` and
`<!-- generated:end -->`; what is in no page yet is added to the end of one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import typer
import yaml

from dovetail.cli import app, exit_codes
from dovetail.documents import Spec
from dovetail.exploration.study_file import StudyFile
from dovetail.models import Model
from dovetail.plans.plan_file import PlanFile

REFERENCE = Path(__file__).parent / "reference"
SCHEMAS = REFERENCE / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
BLOCK = re.compile(r"<!-- generated:begin (?P<name>[^>]+?) -->\n.*?<!-- generated:end -->", re.DOTALL)

#: Specs of the files users write.
FILES: Mapping[str, type[Spec]] = {"plan-file": PlanFile, "study-file": StudyFile, "model-file": Model}
#: What readers of files take besides what the specs say: one value for a list of them, a name for a recompute policy.
ALSO: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("StudyClusterPart", "chips"): {"type": "integer", "minimum": 1},
    ("StudyClusterPart", "wafers"): {"type": "integer", "minimum": 1},
    ("ClusterPart", "defects"): {"$ref": "#/$defs/DefectsSpec"},
    ("WaferPartSpec", "defects"): {"$ref": "#/$defs/DefectsSpec"},
    ("WaferPartSpec", "tiles"): {"type": "array", "items": {"type": "array", "minItems": 4, "maxItems": 5}},
    ("PlanSpec", "recompute"): {"type": "string", "minLength": 1},
    ("RecomputeRun", "recompute"): {"type": "string", "minLength": 1},
}
#: Pages of commands, in the order of the overview.
COMMAND_PAGES = tuple(f"commands-{task}.md" for task in ("plans", "launch-files", "studies", "catalogues", "checks"))
#: The page of a block that is in none yet; other commands go to the last page of commands, other fields to the last.
HOMES = {
    "command fit": "commands-plans.md",
    "command report": "commands-studies.md",
    "command serve": "commands-studies.md",
}
LAST = {"command": COMMAND_PAGES[-1], "json": "json-checks.md", "part": "json-checks.md"}
#: Exit codes that every command may end with: `main` has them.
ALWAYS = {"EXIT_ANSWERED", "EXIT_WRONG_INPUT", "EXIT_INTERRUPTED"}
#: What stands for a value, by the type that help shows.
KINDS = {"path": "PATH", "list[Path]": "PATH", "int": "N", "int range": "N", "float": "NUMBER", "str": "TEXT"}
#: Fields that have a page of their own.
PAGES_OF_PARTS = {"plan": "plan-file.md"}

Places = Mapping[str, str]
Schema = dict[str, Any]


class View(NamedTuple):
    """What a table of fields needs to name and link shared parts."""

    parts: Mapping[str, Schema]
    places: Places
    page: str


def generated() -> dict[Path, str]:
    """Every generated file, and every page with a generated block, as it should be."""
    answers = yaml.safe_load((SCHEMAS / "answers.yaml").read_text(encoding="utf-8"))
    schemas = {**_answer_schemas(answers), **{name: _file_schema(spec) for name, spec in FILES.items()}}
    files = {SCHEMAS / f"{name}.schema.json": _json(schema) for name, schema in schemas.items()}
    return files | _pages(answers)


def outdated(files: Mapping[Path, str]) -> list[Path]:
    """The files that are not as they should be, and schemas that nothing generates any more."""
    differ = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return differ + sorted(set(SCHEMAS.glob("*.json")) - files.keys())


def main(arguments: Sequence[str]) -> int:
    """The command of this file."""
    files, checks = generated(), "--check" in arguments
    paths = outdated(files)
    for path in paths:
        sys.stdout.write(f"{path.relative_to(REFERENCE.parent.parent)}\n")
        if not checks and path in files:
            path.write_text(files[path], encoding="utf-8")
        elif not checks:
            path.unlink()
    return int(bool(paths) and checks)


# --- pages and their blocks ----------------------------------------------------------------------------------------


def _pages(answers: Schema) -> dict[Path, str]:
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md"))}
    commands = _commands()
    names = [f"command {name}" for name in commands]
    names += [f"json {name}" for name in answers["commands"]]
    names += [f"part {name}" for name, part in answers["$defs"].items() if _is_part(name, part)]
    places = _places(texts, names)
    for name in names:
        if name not in places:
            places[name] = _home(name, texts)
            texts[places[name]] += f"\n<!-- generated:begin {name} -->\n<!-- generated:end -->\n"
    blocks = _command_blocks(commands, places) | _json_blocks(answers, places)
    return {REFERENCE / name: _filled(name, text, blocks) for name, text in texts.items() if BLOCK.search(text)}


def _places(texts: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The page of every block; a block that is in two pages, or of nothing, is a mistake."""
    places: dict[str, str] = {}
    for page, text in texts.items():
        for match in BLOCK.finditer(text):
            name = match["name"]
            if name in places:
                raise SystemExit(f"{page}: {name!r} is also in {places[name]}; keep one of them")
            if name not in (*names, "commands", "exit codes"):
                raise SystemExit(f"{page}: {name!r} is no command, no answer and no part of one; drop the block")
            places[name] = page
    return places


def _home(name: str, texts: Mapping[str, str]) -> str:
    page = HOMES.get(name, LAST[name.split()[0]])
    if page not in texts:
        raise SystemExit(f"{name!r} has no page: {page} does not exist")
    return page


def _command_blocks(commands: Mapping[str, Any], places: Places) -> dict[str, str]:
    sections = {f"command {name}": _command_section(command, name) for name, command in commands.items()}
    return {"commands": _overview(commands, places), "exit codes": _exit_code_table(), **sections}


def _json_blocks(answers: Schema, places: Places) -> dict[str, str]:
    sections = {f"json {name}": _answer_section(name, answers, places) for name in answers["commands"]}
    for name, part in answers["$defs"].items():
        if _is_part(name, part):
            sections[f"part {name}"] = _part_section(name, View(answers["$defs"], places, places[f"part {name}"]))
    return sections


def _filled(page: str, text: str, blocks: Mapping[str, str]) -> str:
    def fill(match: re.Match[str]) -> str:
        return f"<!-- generated:begin {match['name']} -->\n\n{blocks[match['name']].strip()}\n\n<!-- generated:end -->"

    if text.count("<!-- generated:begin") != len(BLOCK.findall(text)):
        raise SystemExit(f"{page}: a block has no end; close it with <!-- generated:end -->")
    return BLOCK.sub(fill, text)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|" for line in lines)


# --- commands ------------------------------------------------------------------------------------------------------


def _commands() -> dict[str, Any]:
    """The commands of the command line, in its order."""
    root: Any = typer.main.get_command(app)
    return {name: command for name, command in root.commands.items() if not command.hidden}


def _overview(commands: Mapping[str, Any], places: Places) -> str:
    """A line for each command, page by page in the order of the pages."""
    pages = {name: places[f"command {name}"] for name in commands}
    unlisted = sorted(set(pages.values()) - set(COMMAND_PAGES))
    if unlisted:
        raise SystemExit(f"{', '.join(unlisted)}: has commands but is no page of them; add it to COMMAND_PAGES")
    ordered = sorted(commands, key=lambda name: COMMAND_PAGES.index(pages[name]))
    rows = [
        (f"[`dovetail {name}`]({pages[name]}#{_slug(f'dovetail {name}')})", _first_sentence(commands[name].help))
        for name in ordered
    ]
    return _table(("command", "what it does"), rows)


def _command_section(command: Any, name: str) -> str:
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        return f"## dovetail {name}\n\n{_usage(command, name)}"
    parts = [f"### dovetail {name} {each}\n\n{_usage(part, f'{name} {each}')}" for each, part in subcommands.items()]
    return "\n\n".join([f"## dovetail {name}", _first_sentence(command.help), *parts])


def _usage(command: Any, name: str) -> str:
    """What a command does, how it is called, and how it ends."""
    context = typer.Context(command, info_name=f"dovetail {name}")
    shown = [parameter for parameter in command.params if parameter.get_help_record(context) is not None]
    words = [_argument(each) for each in shown if each.param_type_name == "argument"]
    line = " ".join(["dovetail", name, "[OPTIONS]", *words])
    rows = [_parameter_row(each, context) for each in shown]
    codes = ", ".join(str(code) for code in _exit_codes_of(command.callback))
    ends = f"Exit codes: {codes}; [what they mean](commands.md#exit-codes)."
    table = _table(("argument or option", "meaning"), rows)
    return "\n\n".join([_first_sentence(command.help), f"```text\n{line}\n```", table, ends])


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _parameter_row(parameter: Any, context: typer.Context) -> tuple[str, str]:
    names, about = parameter.get_help_record(context)
    name, _, kind = names.removesuffix(">").partition(" <")
    help_text, _, extras = about.removesuffix("]").rpartition("[") if about.endswith("]") else (about, "", "")
    choices = kind.split("|") if "|" in kind else []
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`", _sentence(help_text)
    value = " NAME" if choices else f" {KINDS.get(kind, kind.upper())}" if kind else ""
    one_of = f"One of {_listed(choices)}." if choices else ""
    said = [_extra(each) for each in extras.split("; ") if each]
    return f"`{name}{value}`", " ".join(filter(None, [_sentence(help_text), one_of, *said]))


def _extra(text: str) -> str:
    """What help says in brackets, as a sentence."""
    if text.startswith("default: "):
        return f"Default: `{text.removeprefix('default: ')}`."
    span = re.fullmatch(r"(?:(\d+)<=)?x(?:>=(\d+)|<=(\d+))?", text)
    if span is None:
        return _sentence(text)
    low, least, high = (each and f"{int(each):,}" for each in span.groups())
    return f"From {low} to {high}." if low and high else f"At least {least}." if least else f"At most {high}."


def _exit_code_table() -> str:
    return _table(("code", "meaning"), [(str(code), about) for code, about in _exit_codes().values()])


def _exit_codes() -> dict[str, tuple[int, str]]:
    """Every exit code by its name, with the comment above it."""
    source = inspect.getsource(exit_codes)
    matches = re.findall(r"((?:#: .+\n)+)(EXIT_\w+) = (\d+)", source)
    return {name: (int(code), " ".join(about.replace("#: ", " ").split())) for about, name, code in matches}


def _exit_codes_of(callback: Callable[..., Any]) -> list[int]:
    names = _exit_names(callback, set()) | ALWAYS
    return sorted(code for name, (code, _) in _exit_codes().items() if name in names)


def _exit_names(function: Any, seen: set[object]) -> set[str]:
    """The exit codes that a function of the command line mentions, itself or in functions it names."""
    function = inspect.unwrap(function)
    if function in seen or not str(getattr(function, "__module__", "")).startswith("dovetail.cli"):
        return set()
    seen.add(function)
    if inspect.isclass(function):
        methods = [each for each in vars(function).values() if inspect.isfunction(each)]
        return set().union(*(_exit_names(each, seen) for each in methods))
    names: set[str] = set()
    for code in _codes(function.__code__):
        scope = dict(function.__globals__)
        for module in (name for name in code.co_names if name.startswith("dovetail.cli.")):
            scope |= vars(importlib.import_module(module))  # imported where it is needed
        names |= {name for name in code.co_names if name.startswith("EXIT_")}
        parts = [scope.get(name) for name in code.co_names]
        names |= set().union(*(_exit_names(p, seen) for p in parts if inspect.isfunction(p) or inspect.isclass(p)))
    return names


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of all functions in it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


# --- schemas -------------------------------------------------------------------------------------------------------


def _answer_schemas(answers: Schema) -> dict[str, Schema]:
    """The schema of each command's answer by the name of its file, complete in itself."""
    schemas: dict[str, Schema] = {}
    for name in answers["commands"]:
        body = _opened(_answer(name, answers))
        parts = _parts_of(body, answers["$defs"])
        defs = {"$defs": {part: _opened(answers["$defs"][part]) for part in sorted(parts)}} if parts else {}
        head = {"$schema": DIALECT, "title": f"dovetail {name} --json"}
        schemas[_slug(name)] = {**head, **body, **defs}
    return schemas


def _answer(name: str, answers: Schema) -> Schema:
    """An answer with the fields it takes from another."""
    own = answers["commands"][name]
    if "from" not in own:
        return {"type": "object", **own}
    base = _answer(own["from"], answers)
    properties = {**base["properties"], **own["properties"]}
    for field in own.get("nullable", ()):
        properties[field] = _or_null(properties[field])
    required = list(dict.fromkeys([*base["required"], *own["required"]]))
    rest = {key: value for key, value in own.items() if key not in ("from", "nullable")}
    return {"type": "object", **rest, "required": required, "properties": properties}


def _or_null(schema: Schema) -> Schema:
    kinds = schema.get("type")
    if kinds is not None:
        listed = kinds if isinstance(kinds, list) else [kinds]
        return {**schema, "type": list(dict.fromkeys([*listed, "null"]))}
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**rest, "anyOf": [{"$ref": schema["$ref"]}, {"type": "null"}]}


def _opened(schema: Any) -> Any:
    """A schema in which every object says that it may have more fields."""
    if isinstance(schema, list):
        return [_opened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _opened(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and "type" in schema
    return {**parts, "additionalProperties": True} if is_object else parts


def _parts_of(schema: Any, defs: Mapping[str, Schema]) -> set[str]:
    """The shared parts that a schema needs, and those that these need."""
    names = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    return names.union(*(_parts_of(defs[name], defs) for name in names))


@cache
def _file_schema(spec: type[Spec]) -> Schema:
    schema = _untitled(spec.model_json_schema())
    for (part, field), other in ALSO.items():
        properties = schema["$defs"].get(part, {}).get("properties", {})
        if field in properties:
            said = {key: value for key, value in properties[field].items() if key in ("description", "default")}
            as_said = {key: value for key, value in properties[field].items() if key not in said}
            properties[field] = {**said, "anyOf": [as_said, dict(other)]}
    return {"$schema": DIALECT, **schema}


def _untitled(schema: Any, *, names: bool = False) -> Any:
    """A schema without the titles that repeat the names of fields; `names`: the keys are such names."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inside = ("properties", "$defs")
    return {
        key: _untitled(value, names=key in inside and not names)
        for key, value in schema.items()
        if names or key != "title"
    }


def _json(schema: Schema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


# --- tables of fields ----------------------------------------------------------------------------------------------


def _is_part(name: str, part: Schema) -> bool:
    return "properties" in part and name not in PAGES_OF_PARTS


def _answer_section(name: str, answers: Schema, places: Places) -> str:
    own, view = answers["commands"][name], View(answers["$defs"], places, places[f"json {name}"])
    base = own.get("from")
    taken = f" It also has the fields of [{base}]({_link(f'json {base}', base, view)})." if base else ""
    more = f" Without a plan {_listed(own['nullable'], 'and')} are null." if "nullable" in own else ""
    schema = f"Schema: [{_slug(name)}.schema.json](schemas/{_slug(name)}.schema.json)."
    promised = {**own, "required": _answer(name, answers)["required"]}
    table = _table(("field", "type", "meaning"), list(_rows(promised, view)))
    return f"## {name}\n\n{own['description']}{taken}{more}\n\n{schema}\n\n{table}"


def _part_section(name: str, view: View) -> str:
    part = view.parts[name]
    table = _table(("field", "type", "meaning"), list(_rows(part, view)))
    return f"### {_title(name)}\n\n{_sentence(part['description'])}\n\n{table}"


def _rows(schema: Schema, view: View, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """A row for each field, in bold where it is promised; parts that have their own table are linked."""
    conditions = [schema, schema.get("then", {}), *schema.get("anyOf", ())]
    promised = {name for each in conditions for name in each.get("required", ())}
    for name, part in schema["properties"].items():
        field = f"`{prefix}{name}`"
        yield f"**{field}**" if name in promised else field, _type(part, view), _meaning(part, view)
        for inside, step in ((part, "."), (part.get("items", {}), "[]."), (part.get("additionalProperties"), ".*.")):
            if isinstance(inside, dict) and "properties" in inside:
                yield from _rows(inside, view, f"{prefix}{name}{step}")


def _meaning(schema: Schema, view: View) -> str:
    """What is said of a field, or of the shared part that it is."""
    shared = view.parts[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    return schema.get("description") or shared.get("description", "")


def _type(schema: Schema, view: View) -> str:
    """The type of a field in words."""
    if "$ref" in schema:
        return _part_type(schema["$ref"].rpartition("/")[2], view)
    if "anyOf" in schema:
        return " or ".join(_type(each, view) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return _listed([str(each) for each in schema.get("enum", [schema.get("const")]) if each is not None])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(_kind(kind, schema, view) for kind in kinds)


def _kind(kind: str, schema: Schema, view: View) -> str:
    if kind not in ("array", "object"):
        return kind
    inside = schema.get("items" if kind == "array" else "additionalProperties")
    if not isinstance(inside, dict):
        return "list" if kind == "array" else "object"
    word = "list" if kind == "array" else "map"
    plain = "properties" in inside or inside.get("type") in ("object", "array")
    return word if plain else f"{word} of {_type(inside, view)}"


def _part_type(name: str, view: View) -> str:
    if name in PAGES_OF_PARTS:
        return f"[{name}]({PAGES_OF_PARTS[name]})"
    if f"part {name}" in view.places:
        return f"[{_title(name)}]({_link(f'part {name}', _title(name), view)})"
    return _type(view.parts[name], view)


def _link(block: str, heading: str, view: View) -> str:
    target = view.places[block]
    return f"{'' if target == view.page else target}#{_slug(heading)}"


# --- words ---------------------------------------------------------------------------------------------------------


def _title(name: str) -> str:
    return name.replace("_", " ")


def _slug(heading: str) -> str:
    """The anchor of a heading, as the pages have it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _listed(words: Sequence[str], last: str = "or") -> str:
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if not text or text.endswith((".", ":", ",")) else f"{text[0].upper()}{text[1:]}."


def _first_sentence(help_text: str | None) -> str:
    """The first paragraph of a help text on one line."""
    return _sentence((help_text or "").split("\n\n")[0])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
