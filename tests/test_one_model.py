"""One model: a formula of the step stands in one function, and every part that speaks of it calls that one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dovetail.step.formulas import FORMULAS

SCRIPT = Path(__file__).parent / "one_model_figures.py"
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "architecture.md"


@pytest.fixture(scope="module")
def moved() -> dict[str, list[str]]:
    """Formula → consumers whose figures move when it is changed, in a process without compilation."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    ran = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    answer = json.loads(ran.stdout)
    assert answer["differ without a change"] == []
    return answer["moved"]


def test_every_formula_exists_once():
    places = [formula.where for formula in FORMULAS]
    assert len(set(places)) == len(places)
    for place in places:
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name))


def test_a_changed_formula_moves_all_its_consumers_and_no_others(moved):
    assert moved == {formula.where: list(formula.consumers) for formula in FORMULAS}


def test_the_page_has_the_table_of_formulas():
    page = PAGE.read_text(encoding="utf-8")
    for formula in FORMULAS:
        module, _, name = formula.where.partition(":")
        file = f"{module.removeprefix('dovetail.').replace('.', '/')}.py"
        assert f"| {formula.what} | `{file}`: `{name}` | {', '.join(formula.consumers)} |" in page
