"""docs/explanation/architecture.md: each file it names exists, and each function is defined in the files of its row."""

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "dovetail"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "assets" / "way-of-one-question.svg"
STEPS = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


def defined(path):
    """Names a file defines: functions, classes, and methods behind their class."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))


def test_the_page_has_the_whole_way():
    assert [int(step[0].strip("| ")) for step in STEPS] == list(range(1, len(STEPS) + 1))
    assert len(STEPS) > 10


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[0].strip("| "))
def test_each_function_is_in_the_files_of_its_step(step):
    *_, files, functions = step
    assert quoted(functions)
    names = [name for file in quoted(files) for name in defined(SOURCE / file)]
    assert [name for name in quoted(functions) if name not in names] == []


def test_all_files_of_page_and_picture_exist():
    drawn = [element.text or "" for element in ElementTree.parse(PICTURE).iter()]  # noqa: S314
    paths = re.findall(r"\b[\w/]+\.py\b", " ".join([*quoted(PAGE), *drawn]))
    assert len(paths) > 30
    assert [path for path in paths if not (SOURCE / path).exists() and not (ROOT / path).exists()] == []


def test_the_rooms_are_those_of_the_contract():
    line = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert line is not None
    rooms = set(re.findall(r"\w+", line[1]))
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}
    assert rooms == packages | modules
