"""The source tree as the architecture tests see it: modules, what they import, and what a command can reach."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Function = ast.FunctionDef | ast.AsyncFunctionDef
ROOT = Path(__file__).parents[1]
TOP = "dovetail"


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, its text and its syntax tree."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_kernels(self) -> bool:
        return "kernels" in self.path.name

    @property
    def is_command(self) -> bool:
        return self.name.split(".")[1:2] == ["cli"]

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def names_over_submodules(self) -> set[str]:
        """What a package binds at its head, by which a submodule of the same name is hidden; not the submodules."""
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.module != self.name:
                names.update(alias.asname or alias.name for alias in node.names)
        return names

    @cached_property
    def runtime_nodes(self) -> list[ast.AST]:
        """All nodes but those under `if TYPE_CHECKING`: what runs, now or when a function is called."""
        return list(_without_type_checking(self.tree))


def _without_type_checking(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def read_modules(source: Path) -> dict[str, Module]:
    """Every Python file under a source folder, by its dotted name."""
    modules: dict[str, Module] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return modules


def packages_of_extras(*extras: str) -> set[str]:
    """What extras install, as imports name it; by default all that users may ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    asked = extras or tuple(name for name in optional if name != "dev")
    return {canonicalize_name(Requirement(text).name).replace("-", "_") for extra in asked for text in optional[extra]}


def import_edges(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Which modules each one imports, at its head or within a function; types alone do not count."""
    return {name: {target for target, _, _ in _bindings(module, modules)} for name, module in modules.items()}


def cycles(edges: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Groups of nodes that reach each other (Tarjan, 1972), and nodes that reach themselves."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[tuple[str, ...]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            position = stack.index(node)
            group, stack[position:] = stack[position:], []
            if len(group) > 1 or node in edges[node]:
                groups.append(tuple(sorted(group)))

    for node in edges:
        if node not in index:
            visit(node)
    return sorted(groups)


class Reach:
    """What commands and public names reach; a re-export of a package reaches only what somebody takes from it."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.reached: set[str] = set()
        self._bindings = {name: list(_bindings(module, modules)) for name, module in modules.items()}
        self._seen: set[tuple[str, str | None]] = set()
        self._waiting: list[tuple[str, str | None]] = []

    def take(self, module: str, name: str | None = None) -> None:
        """Reaches a module, or one name of it, and all that follows."""
        self._waiting.append((module, name))
        while self._waiting:
            self._follow(*self._waiting.pop())

    def take_public(self, module: str) -> None:
        """Reaches a module whose exported names are all public."""
        for name in exported(self.modules[module]):
            self.take(module, name)
        if not self.modules[module].is_package:
            self.take(module)

    def _follow(self, module: str, name: str | None) -> None:
        if module not in self.modules:
            return
        if not self.modules[module].is_package:
            name = None  # a plain module is reached as a whole
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        if not self.modules[module].is_package:
            self._enter(module)
        elif name is not None:
            self._mark(module)
            origins = {local: (target, inner) for target, inner, local in self._bindings[module]}
            if name in origins:
                self._waiting.append(origins[name])
            elif f"{module}.{name}" in self.modules:
                self._waiting.append((f"{module}.{name}", None))
            else:
                self._enter(module)

    def _mark(self, module: str) -> None:
        """A module's packages are there with it."""
        parts = module.split(".")
        self.reached.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))

    def _enter(self, module: str) -> None:
        """The code of a module runs: what it imports is reached; of a package, what its own code uses."""
        self._mark(module)
        entered = self.modules[module]
        used = _names_used(entered)
        for target, name, local in self._bindings[module]:
            if entered.is_package and local not in used:
                continue
            self._waiting.append((target, name))
            if name is None and self.modules[target].is_package:
                self._waiting += [(target, attribute) for attribute in _attributes_of(entered, local)]
        self._waiting += _named_by_strings(entered)


def _bindings(module: Module, modules: Mapping[str, Module]) -> Iterator[tuple[str, str | None, str]]:
    """(module, name taken from it or None for all of it, local name) of every import of our own modules."""
    for node in module.runtime_nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    yield alias.name, None, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in modules:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                local = alias.asname or alias.name
                if inner in modules and alias.name not in modules[node.module].names_over_submodules:
                    yield inner, None, local
                else:
                    yield node.module, alias.name, local


def _names_used(module: Module) -> set[str]:
    return {node.id for node in module.runtime_nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _attributes_of(module: Module, local: str) -> set[str]:
    return {
        node.attr
        for node in module.runtime_nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == local
    }


def _named_by_strings(module: Module) -> Iterator[tuple[str, str | None]]:
    """Modules of ours that a string names: what `import_module` is given, directly or from a table ("module:name")."""
    if "import_module" in module.text:
        for node in module.runtime_nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                target, _, name = node.value.partition(":")
                if re.fullmatch(rf"{TOP}(\.\w+)+", target):
                    yield target, name or None


def exported(module: Module) -> list[str]:
    """The names in a module's `__all__`."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def unreachable(modules: Mapping[str, Module], root: Path = ROOT) -> list[str]:
    """Modules that neither a command nor a public name reaches."""
    reach = Reach(modules)
    scripts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    for script in scripts.values():
        reach.take(*script.split(":"))
    reach.take(f"{TOP}.__main__")
    for command in re.findall(r"python -m (dovetail[\w.]*)", (root / "justfile").read_text(encoding="utf-8")):
        reach.take(f"{command}.__main__" if modules[command].is_package else command)
    for target, name in _named_by_strings(modules[TOP]):
        if name:
            reach.take(target, name)
        else:
            reach.take_public(target)
    reach.reached.add(TOP)
    return sorted(modules.keys() - reach.reached)


def words(name: str) -> list[str]:
    """The words of an identifier, in small letters."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
