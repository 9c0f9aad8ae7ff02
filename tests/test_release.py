"""What a release promises: lower bounds that are tested, a package with its data, an image that is not root's."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
#: Its releases end in a build number, so none is called 9.11 alone.
NUMBERED_BUILDS = {"ortools"}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads(text("pyproject.toml"))


def pins(name: str) -> dict[str, Version]:
    """Versions of a constraints file by package."""
    lines = [line for line in text(name).splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    versions: dict[str, Version] = {canonicalize_name(package): Version(version) for package, version in pairs}
    assert len(versions) == len(lines), f"{name} pins a package twice"
    return versions


def bounds(requirements: list[str]) -> dict[str, Version]:
    """Lower bounds by package; a requirement has that and nothing else."""
    lower: dict[str, Version] = {}
    for requirement in map(Requirement, requirements):
        (bound,) = requirement.specifier
        assert bound.operator == ">=", f"{requirement} is no lower bound"
        lower[canonicalize_name(requirement.name)] = Version(bound.version)
    return lower


def test_the_lowest_versions_are_the_lower_bounds(pyproject):
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    users = bounds(project["dependencies"] + [entry for name in extras if name != "dev" for entry in extras[name]])
    developers = bounds(extras["dev"])
    lowest = pins("constraints-lowest.txt")
    assert users.keys() - lowest.keys() == set(), "bounds that `just lowest` does not test"
    for name, version in lowest.items():
        bound = (users | developers)[name]
        compared = Version(f"{version.major}.{version.minor}") if name in NUMBERED_BUILDS else version
        assert compared == bound, f"{name}: constraints-lowest.txt has {version}, pyproject.toml {bound}"


def test_the_checks_run_with_versions_within_the_bounds(pyproject):
    project = pyproject["project"]
    declared = project["dependencies"] + [
        entry for extra in project["optional-dependencies"].values() for entry in extra
    ]
    checked = pins("constraints.txt")
    assert {name for name, bound in bounds(declared).items() if checked[name] < bound} == set()


def test_what_the_recipes_name_is_there():
    justfile = text("justfile")
    tests = re.findall(r"\btests/[\w/]+\.py", justfile)
    assert tests
    assert [path for path in tests if not (ROOT / path).is_file()] == []


def test_each_lowest_version_is_installed(pyproject):
    """By `just lowest`; only torch is too large to be asked for always."""
    justfile = text("justfile")
    (extras,) = re.findall(r'^lowest extras="(.*)":', justfile, flags=re.MULTILINE)
    (tools,) = re.findall(r'"\.\[{{extras}}\]" (.*)$', justfile, flags=re.MULTILINE)
    project = pyproject["project"]
    optional = project["optional-dependencies"]
    asked = project["dependencies"] + [entry for extra in extras.split(",") for entry in optional[extra]]
    installed = bounds(asked).keys() | set(tools.split())
    assert pins("constraints-lowest.txt").keys() - installed == bounds(optional["torch"]).keys()


def test_the_source_distribution_names_what_is_there(pyproject):
    included = pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert "/src/dovetail" in included
    assert [path for path in included if not (ROOT / path[1:]).exists()] == []


def test_no_file_of_the_package_is_left_out_of_the_wheel():
    """Hatch leaves out what .gitignore names: a folder `site` with the assets of a page would be missing."""
    ignored = [line.rstrip("/") for line in text(".gitignore").splitlines() if line and not line.startswith("#")]
    folder = ROOT / "src" / "dovetail"
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    assert any(path.suffix == ".css" for path in files), "the files of the report"
    assert [path for path in files if any(fnmatch(part, name) for part in path.parts for name in ignored)] == []


def test_the_licence_of_each_bundled_script_ships(pyproject):
    patterns = pyproject["project"]["license-files"]
    shipped = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == [], "a build refuses these"
    bundled = (ROOT / "src" / "dovetail").rglob("*.min.js")
    assert {path.with_name(path.name.split("-")[0] + "-LICENSE.txt") for path in bundled} <= shipped


def test_the_changelog_begins_with_this_version(pyproject):
    headings = re.findall(r"^## (.*)$", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert re.fullmatch(r"(\S+) \((unreleased|\d{4}-\d\d-\d\d)\)", headings[0])
    assert headings[0].split()[0] == pyproject["project"]["version"]


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Containerfile with continued lines joined."""
    lines = [line for line in text("Containerfile").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def final_stage() -> list[tuple[str, str]]:
    steps = instructions()
    last = max(number for number, (name, _) in enumerate(steps) if name == "FROM")
    return steps[last:]


def values(steps: list[tuple[str, str]], instruction: str) -> list[str]:
    return [value for name, value in steps if name == instruction]


def test_the_image_runs_the_command_as_a_user_who_is_not_root():
    steps = final_stage()
    user, group = values(steps, "USER")[-1].split(":")
    assert int(user) > 0, "a number, so that an orchestrator can see that it is not root"
    assert int(group) > 0
    names = [name for name, _ in steps]
    assert "RUN" not in names[names.index("USER") :], "nothing is installed by the user"
    assert [json.loads(value) for value in values(steps, "ENTRYPOINT")] == [["dovetail"]]


def test_what_the_image_writes_is_on_volumes():
    """So that the root may be read-only."""
    steps = final_stage()
    volumes = [Path(path) for path in json.loads(values(steps, "VOLUME")[0])]
    environment = dict(pair.split("=", 1) for value in values(steps, "ENV") for pair in shlex.split(value))
    written = [environment[name] for name in ("HOME", "NUMBA_CACHE_DIR", "HF_HOME")] + values(steps, "WORKDIR")
    assert [path for path in written if not any(Path(path).is_relative_to(volume) for volume in volumes)] == []
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_image_is_built_of_what_the_builder_sees(pyproject):
    steps = instructions()
    oldest = pyproject["project"]["requires-python"].removeprefix(">=")
    bases = {value.split()[0] for value in values(steps, "FROM")}
    assert bases == {f"docker.io/library/python:{oldest}-slim"}, "the oldest Python we promise"
    seen = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    copied = [name for value in values(steps, "COPY") if "--from" not in value for name in value.split()[:-1]]
    assert set(copied) == seen
    assert [name for name in copied if not (ROOT / name).exists()] == []
    (extras,) = (value.removeprefix("EXTRAS=") for value in values(steps, "ARG"))
    assert set(extras.split(",")) <= pyproject["project"]["optional-dependencies"].keys()
