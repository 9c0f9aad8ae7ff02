"""What a newcomer meets first (hooks, workflow, templates, citation) parses and agrees with pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import dovetail

ROOT = Path(__file__).parents[1]
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
#: The kinds of element an issue form of GitHub may have.
FORM_ELEMENTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def document(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict), f"{name} is no mapping"
    return loaded


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_citation_agrees_with_the_package(pyproject):
    project = pyproject["project"]
    citation = document("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"authors", "message", "title"} <= citation.keys(), "keys that version 1.2.0 of the format requires"
    assert citation["authors"] == [{"name": "The Dovetail authors"}]
    assert citation["version"] == project["version"] == dovetail.__version__
    assert citation["license"] == project["license"]
    assert citation["abstract"] == project["description"]
    assert citation["keywords"] == project["keywords"]


def test_the_workflow_calls_the_check_of_a_clean_clone(pyproject):
    workflow = document(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert "permissions" not in job
    assert job["runs-on"] == "ubuntu-latest"
    actions = {name: step for step in job["steps"] if (name := step.get("uses"))}
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+(\.\d+)*|[0-9a-f]{40})", name) for name in actions), "pin each action"
    (python,) = (step["with"]["python-version"] for name, step in actions.items() if "/setup-python@" in name)
    assert isinstance(python, str), "quote it: YAML reads 3.10 as 3.1"
    assert pyproject["project"]["requires-python"] == f">={python}", "CI runs the oldest Python we promise"
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_hooks_use_the_tools_of_the_environment(pyproject):
    (repository,) = document(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local", "a hook must not download what constraints.txt does not pin"
    hooks = repository["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "lint-imports"}
    names = {re.split(r"[\[>=]", text)[0] for text in pyproject["project"]["optional-dependencies"]["dev"]}
    assert {"ruff", "import-linter", "pre-commit"} <= names


def test_the_hooks_are_valid_to_pre_commit():
    command = shutil.which("pre-commit", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if command is None:
        pytest.skip("pre-commit is not installed beside this Python")
    done = subprocess.run(
        [command, "validate-config", ".pre-commit-config.yaml"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_tool_of_the_developers_is_pinned(pyproject):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    extras = pyproject["project"]["optional-dependencies"].values()
    needed = {re.split(r"[\[>=]", text)[0].lower() for extra in extras for text in extra}
    needed |= {re.split(r"[\[>=]", text)[0].lower() for text in pyproject["project"]["dependencies"]}
    assert needed - pinned == set()


def test_issue_forms_ask_for_what_we_need():
    forms = {path.stem: document(str(path.relative_to(ROOT))) for path in FORMS.glob("*.yml") if path.stem != "config"}
    asked: dict[str, set[str]] = {}
    for name, form in forms.items():
        assert form["name"], name
        assert form["description"], name
        assert {element["type"] for element in form["body"]} <= FORM_ELEMENTS, name
        questions = [element for element in form["body"] if element["type"] != "markdown"]
        assert all(element["attributes"]["label"] for element in questions), name
        ids = [element["id"] for element in questions]
        assert len(set(ids)) == len(ids), name
        asked[name] = {e["id"] for e in questions if e.get("validations", {}).get("required")}
    assert {"command", "json", "version"} <= asked["bug_report"]
    assert {"plan", "measured", "json", "version"} <= asked["wrong_prediction"]
    assert "question" in asked["feature_request"]


def test_a_pull_request_has_a_checklist():
    text = (ROOT / ".github" / "pull_request_template.md").read_text(encoding="utf-8")
    items = re.findall(r"^- \[ \] (\S+?):? ", text, flags=re.MULTILINE)
    assert items == ["Tests", "Docs", "Changelog", "Glossary", "Figures", "`just"]
    assert all((ROOT / name).exists() for name in re.findall(r"`([\w/]+\.md)`", text))


def test_security_names_a_private_way_and_no_address():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "private vulnerability reporting" in text
    assert "@" not in text


def test_contributors_are_told_of_the_hooks():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "pre-commit install" in text
    assert ".github/workflows/ci.yml" in text
