"""Rules of the source tree that no linter checks: one test a rule, with every offender in its message."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dovetail
from architecture_allowed import ALLOWED_UNREACHABLE, LOADS_AN_EXTRA, THE_FIELDS_OWN
from source_tree import (
    ROOT,
    TOP,
    Function,
    Module,
    cycles,
    import_edges,
    packages_of_extras,
    read_modules,
    unreachable,
    words,
)

PACKAGE = ROOT / "src" / TOP
MODULES = read_modules(ROOT / "src")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8

#: Packages behind one module each, so that the rest of the tree does not depend on them.
ADAPTED = ("torch", "ray", "ortools", "duckdb", "pandas", "pyarrow", "optuna")

#: Ways to run what a file says.
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
#: Writes methods of our dataclasses from the names of their fields, as `dataclass` does.
WRITES_METHODS = "dovetail.frozen"
#: The one loader of users' YAML, a subclass of yaml.SafeLoader.
YAML_READER = "dovetail.documents"

#: Words of ours, and what the field says instead: no definition has one of them in its name.
DENIED_WORDS = {
    "again": "recompute",
    "annealed": "simulated annealing",
    "apart": "the rank order",
    "beside": "the rank order, or with",
    "binding": "bottleneck",
    "binds": "bottleneck",
    "bred": "genetic search",
    "closing": "end of step",
    "copies": "replicas",
    "cut": "partition (of layers), shard (of a dim)",
    "cuts": "partition (of layers), shards (of a dim)",
    "endless": "asymptotic",
    "floor": "lower bound",
    "floors": "lower bounds",
    "held": "saved",
    "kept": "saved",
    "lacks": "is missing",
    "moment": "transient bytes",
    "moments": "transient bytes",
    "people": "population",
    "relief": "smallest fix",
    "repeated": "recomputed",
    "room": "overlap budget (of time), headroom (of memory)",
    "rooms": "overlap budgets (of time), headroom (of memory)",
    "scout": "warm start",
    "scouts": "warm starts",
    "stands": "cannot be combined with, or is",
}
#: Names of ours as a whole; a longer name may have these words in it.
DENIED_NAMES = {
    "front": "Pareto front",
    "whole_space": "Space.resolve()",
    **dict.fromkeys(("chosen", "every", "found", "known", "least", "own", "some", "wanted"), "what it holds"),
}
#: Classes named after their role in one algorithm; functions and modules may be of options, shapes and states.
DENIED_CLASSES = {
    "cell": "ProfileKey",
    "cells": "profile keys",
    "left": "what is left of what",
    "option": "RecomputePolicy",
    "options": "recompute policies",
    "plan_shape": "PlanSkeleton",
    "shape": "PlanSkeleton, or what it is the shape of",
    "shapes": "plan skeletons, or what they are the shapes of",
    "split": "StageDegrees",
    "splits": "stage degrees",
    "state_key": "StateSharding",
    "states": "state sharding, or what they are the states of",
}
DENIED_MODULES = {
    "levels": "fidelity",
    "narrow": "Space.resolve()",
    "placement": "plans, pipeline, partition",
    "splits": "stage degrees",
}


def assert_allowed(rule: str, offenders: Mapping[Any, Any], allowed: Mapping[Any, Any]) -> None:
    """Offenders are exactly the allowed ones: a new one fails, and so does an entry that is no longer needed."""
    new = {key: value for key, value in offenders.items() if allowed.get(key) != value}
    stale = {key: value for key, value in allowed.items() if offenders.get(key) != value}
    lines = [f"{rule}:"]
    lines += [f"  offends: {key!r}: {value!r}" for key, value in sorted(new.items())]
    lines += [
        f"  remove or lower in architecture_allowed.py: {key!r}: {value!r}" for key, value in sorted(stale.items())
    ]
    assert not new, "\n".join(lines)
    assert not stale, "\n".join(lines)


def assert_none(rule: str, offenders: Iterable[str]) -> None:
    """No offender, and where there are some, all of them in the message."""
    lines = [f"  offends: {offender}" for offender in offenders]
    assert not lines, "\n".join([f"{rule}:", *lines])


def imported_packages(module: Module) -> set[str]:
    """The top-level packages a module imports, at its head or within a function."""
    plain = {alias.name for node in module.nodes if isinstance(node, ast.Import) for alias in node.names}
    taken = {node.module or "" for node in module.nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | taken}


def test_there_is_something_to_check():
    assert "dovetail.models.model" in MODULES
    assert MODULES["dovetail.models"].is_package


def test_files_are_short():
    long = {name: module.num_lines for name, module in MODULES.items() if module.num_lines > MAX_FILE_LINES}
    assert_allowed(f"a file has at most {MAX_FILE_LINES} lines", long, {})


def num_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_functions_are_short():
    long = {
        f"{module.name}.{function.name}": length
        for module in MODULES.values()
        for function in module.functions
        if (length := num_lines(function)) > MAX_FUNCTION_LINES
    }
    assert_allowed(f"a function has at most {MAX_FUNCTION_LINES} lines", long, {})


def num_parameters(function: Function) -> int:
    given = function.args
    several = [parameter for parameter in (given.vararg, given.kwarg) if parameter]
    names = [parameter.arg for parameter in [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]]
    return len(names[1:] if names[:1] in (["self"], ["cls"]) else names)


def test_functions_have_few_parameters():
    many = {
        f"{function.name}()": count
        for module in MODULES.values()
        if not (module.is_kernels or module.is_command)
        for function in module.functions
        if (count := num_parameters(function)) > MAX_PARAMETERS
    }
    rule = f"a function has at most {MAX_PARAMETERS} parameters outside kernels and commands"
    assert_allowed(rule, many, {})


def undocumented(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    """The module and its public functions, classes and methods without a docstring."""
    if ast.get_docstring(node) is None:
        yield prefix
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from undocumented(child, f"{prefix}.{child.name}")
        elif isinstance(child, Function) and not child.name.startswith("_") and ast.get_docstring(child) is None:
            if any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in child.decorator_list):
                continue  # the implementation has it
            yield f"{prefix}.{child.name}"


def test_what_is_public_is_documented():
    bare = (name for module in MODULES.values() for name in undocumented(module.tree, module.name))
    assert_none("what is public has a docstring", bare)


def test_imports_are_absolute():
    relative = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    assert_none("imports are absolute", relative)


def called_names(module: Module) -> list[tuple[str, int]]:
    return [(call.func.id, call.lineno) for call in module.calls if isinstance(call.func, ast.Name)]


def test_only_the_command_line_prints():
    prints = [
        f"{module.name}:{line}"
        for module in MODULES.values()
        if not module.is_command
        for name, line in called_names(module)
        if name == "print"
    ]
    assert_none("only the command line prints", prints)


def test_nothing_runs_what_a_file_says():
    unsafe = {
        module.name: names
        for module in MODULES.values()
        if (names := UNSAFE_NAMES & dict(called_names(module)).keys() | UNSAFE_MODULES & imported_packages(module))
    }
    assert unsafe.pop(WRITES_METHODS) == {"exec"}
    assert_none("nothing runs what a file says", (f"{name}: {sorted(names)}" for name, names in unsafe.items()))


def test_frozen_dataclasses_are_defined_the_cheap_way():
    usual = ("dataclass(frozen=True, slots=True)", "dataclass(frozen=True, slots=True, kw_only=True)")
    costly = [
        f"{module.name}.{node.name}"
        for module in MODULES.values()
        for node in module.classes
        if any(ast.unparse(mark) in usual for mark in node.decorator_list)
    ]
    assert_none("`frozen` of dovetail.frozen defines a frozen dataclass", costly)


def yaml_loads(module: Module) -> list[str]:
    """The calls that read YAML, as source; `safe_load` expands aliases, so it is none for users' files either."""
    loads: list[str] = []
    for call in module.calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == "yaml" and "load" in ast.unparse(call.func):
            loads.append(ast.unparse(call))
    return loads


def test_yaml_is_read_in_one_place_and_safely():
    loads = {name: calls for name, module in MODULES.items() if (calls := yaml_loads(module))}
    assert loads == {YAML_READER: ["yaml.load(text, Loader=_PlainLoader)", "yaml.load(text, Loader=_QuickLoader)"]}
    reader = MODULES[YAML_READER]
    quick = 'getattr(yaml, "CSafeLoader", yaml.SafeLoader)'
    assert f"_QuickLoader = {quick}\n" in reader.text
    from_yaml = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("yaml")
    ]
    assert_none("yaml is imported as a whole", from_yaml)
    loader = next(node for node in reader.classes if node.name == "_PlainLoader")
    assert [ast.unparse(base) for base in loader.bases] == ["yaml.SafeLoader"]


def test_one_module_alone_knows_an_adapted_package():
    users = {package: [m.name for m in MODULES.values() if package in imported_packages(m)] for package in ADAPTED}
    several = (f"{package}: {names}" for package, names in users.items() if len(names) > 1)
    assert_none("one module alone imports an adapted package", several)


def imports_at_head(module: Module) -> Iterator[str]:
    """The modules that importing this one imports too."""
    waiting: list[ast.AST] = list(module.tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            waiting += ast.iter_child_nodes(node)


def test_no_import_of_an_extra_is_on_the_way_to_a_core_answer():
    extras = packages_of_extras()
    assert extras >= set(ADAPTED)
    heads = {name: set(imports_at_head(module)) for name, module in MODULES.items()}
    loading = {name for name, head in heads.items() if {each.partition(".")[0] for each in head} & extras}
    while more := {name for name, head in heads.items() if head & loading} - loading:
        loading |= more
    assert loading == LOADS_AN_EXTRA, "what loads an extra is imported within functions alone, but by its like"


def test_the_sentences_name_an_extra_that_has_the_package():
    asked: set[str] = set()
    for module in MODULES.values():
        for call in module.calls:
            if ast.unparse(call.func) == "require_package":
                (package, *rest) = call.args
                assert isinstance(package, ast.Constant)
                assert len(rest) == 2, "all of them are in [study], which is the default"
                asked.add(str(package.value))
    assert asked == packages_of_extras("study")


def test_the_import_contract_lists_the_whole_tree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    assert contract["exhaustive"] is True
    listed = {name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert packages | modules <= listed
    required = {
        name.strip() for layer in contract["layers"] for name in layer.split("|") if not name.strip().startswith("(")
    }
    assert required <= packages | modules


def test_every_folder_of_python_is_a_package():
    folders = {module.path.parent for module in MODULES.values()} - {PACKAGE.parent}
    bare = (str(folder) for folder in folders if not (folder / "__init__.py").exists())
    assert_none("a folder of Python is a package", bare)


def test_no_import_is_in_a_cycle():
    groups = {group: len(group) for group in cycles(import_edges(MODULES))}
    assert_allowed("no module imports itself through others", groups, {})


def test_everything_is_reached_from_a_command_or_a_public_name():
    """What only a study, a benchmark or a test needs lives there: a capability no command reaches is none."""
    lost = {name: ALLOWED_UNREACHABLE.get(name, "unreachable") for name in unreachable(MODULES)}
    assert_allowed("a command or a public name reaches every module", lost, ALLOWED_UNREACHABLE)


def definitions(module: Module) -> Iterator[str]:
    """What a module defines: itself, classes and aliases of types, functions, options of commands."""
    stem = module.name.rpartition(".")[2]
    yield f"{stem}/" if module.is_package else f"{stem}.py"
    yield from (node.name for node in module.classes)
    yield from (f"{node.name}()" for node in module.functions)
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            alias = node.targets[0].id
            if re.fullmatch(r"_?[A-Z][A-Za-z]*[a-z][A-Za-z]*", alias):
                yield alias
    if module.is_command:
        yield from options(module)


def options(module: Module) -> Iterator[str]:
    for call in module.calls:
        if ast.unparse(call.func) == "typer.Option":
            strings = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            yield from (text for text in strings if isinstance(text, str) and text.startswith("--"))
    for function in module.functions:
        for parameter in [*function.args.args, *function.args.kwonlyargs]:
            if parameter.annotation is not None and "typer." in ast.unparse(parameter.annotation):
                yield f"--{parameter.arg.replace('_', '-')}"


def words_of_the_field(definition: str) -> list[str]:
    """What the field says in place of a definition's denied words; nothing where none is denied."""
    parts = words(definition.removesuffix(".py"))
    whole = dict(DENIED_NAMES)
    if definition.endswith((".py", "/")):
        whole |= DENIED_MODULES
    elif not definition.endswith("()") and not definition.startswith("--"):
        whole |= DENIED_CLASSES
    name = "_".join(parts)
    return [whole[name]] if name in whole else [DENIED_WORDS[part] for part in parts if part in DENIED_WORDS]


def test_definitions_are_named_in_the_words_of_the_field():
    names = Counter(name for module in MODULES.values() for name in definitions(module) if words_of_the_field(name))
    allowed = THE_FIELDS_OWN
    advice = {name: words_of_the_field(name) for name, count in names.items() if allowed.get(name, 0) < count}
    assert_allowed(f"the field has a word for it: {advice}", names, allowed)


def test_a_class_name_means_one_thing():
    names = Counter(node.name for module in MODULES.values() for node in module.classes)
    twice = {name: count for name, count in names.items() if count > 1}
    assert_allowed("a class name is used once", twice, {})


def test_no_subpackage_bears_the_name_of_a_public_function():
    """Importing the subpackage would replace the function in `dovetail`."""
    submodules = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/*.py")}
    public = dict(dovetail._PUBLIC)
    assert sorted(public) == sorted(set(dovetail.__all__) - {"__version__"})
    hidden = (name for name, place in public.items() if name in submodules and place != f"{TOP}.{name}")
    assert_none("no subpackage bears the name of a public function", hidden)
