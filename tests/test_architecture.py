"""Rules of the source tree that no linter checks."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dovetail"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in MODULES]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

#: Packages behind one module each, so that the rest of the tree does not depend on them.
ADAPTED = ("torch", "ray", "ortools", "duckdb", "pandas", "pyarrow", "optuna")

#: Ways to run what a file says.
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
#: The one loader of users' YAML, a subclass of yaml.SafeLoader.
YAML_READER = "documents.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """The top-level packages a module imports, at its head or within a function."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def undocumented(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    """Public functions, classes and methods without a docstring."""
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            if ast.get_docstring(child) is None:
                yield f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{prefix}{child.name}.")


def test_there_is_something_to_check():
    assert "models/model.py" in NAMES


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_files_and_functions_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, Function)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_what_is_public_is_documented(path):
    assert ast.get_docstring(tree(path)) is not None
    assert list(undocumented(tree(path))) == []


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_are_absolute(path):
    assert [n.lineno for n in ast.walk(tree(path)) if isinstance(n, ast.ImportFrom) and n.level > 0] == []


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_only_the_command_line_prints(path):
    if path.relative_to(PACKAGE).parts[0] != "cli":
        assert [
            call.lineno for call in calls(path) if isinstance(call.func, ast.Name) and call.func.id == "print"
        ] == []


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_nothing_runs_what_a_file_says(path):
    named = [call.func.id for call in calls(path) if isinstance(call.func, ast.Name)]
    assert UNSAFE_NAMES & set(named) == set()
    assert UNSAFE_MODULES & set(imports(path)) == set()


def yaml_loads(path: Path) -> list[str]:
    """The calls that read YAML, as source; `safe_load` expands aliases, so it is none for users' files either."""
    found: list[str] = []
    for call in calls(path):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == "yaml" and "load" in ast.unparse(call.func):
            found.append(ast.unparse(call))
    return found


def test_yaml_is_read_in_one_place_and_safely():
    found = {name: loads for name, path in zip(NAMES, MODULES, strict=True) if (loads := yaml_loads(path))}
    assert found == {YAML_READER: ["yaml.load(text, Loader=_PlainLoader)", "yaml.load(text, Loader=_QuickLoader)"]}
    quick = 'getattr(yaml, "CSafeLoader", yaml.SafeLoader)'
    assert f"_QuickLoader = {quick}\n" in (PACKAGE / YAML_READER).read_text(encoding="utf-8")
    from_yaml = [
        node
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("yaml")
    ]
    assert from_yaml == []
    loader = next(
        n for n in ast.walk(tree(PACKAGE / YAML_READER)) if isinstance(n, ast.ClassDef) and n.name == "_PlainLoader"
    )
    assert [ast.unparse(base) for base in loader.bases] == ["yaml.SafeLoader"]


@pytest.mark.parametrize("package", ADAPTED)
def test_one_module_alone_knows_an_adapted_package(package):
    users = [name for name, path in zip(NAMES, MODULES, strict=True) if package in imports(path)]
    assert len(users) <= 1, f"{package} is imported by {users}"


def test_the_import_contract_lists_the_whole_tree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
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
    folders = {path.parent for path in MODULES}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
