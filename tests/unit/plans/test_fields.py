"""A field of a plan is declared once: one more is read, searched, written and told without another line of code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.flags import flags_of
from dovetail.plans.plan import Plan, PlanSpec
from dovetail.plans.space import PlanSpaceSpec, Space, listed


@pytest.fixture(scope="module")
def used() -> dict:
    """What became of a field that only its declaration knows (`declared_field.DECLARATION`)."""
    script = Path(__file__).with_name("declared_field.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_declared_field_is_read_from_plan_files(used):
    assert (used["read"], used["left_out"]) == (128, 64)
    assert "plan.dispatch_block" in used["refused"]
    assert used["schema"] == "tokens that are dispatched to experts together"


def test_a_declared_field_is_written(used):
    assert used["written"] == 128
    assert used["same"]
    assert used["flags"] == ["--dispatch-block 128"]
    assert used["usual_flags"] == []
    assert used["imported"] == 128


def test_a_declared_field_has_words(used):
    assert used["words"][0].split(", ")[0].endswith("MBS1 DB128")
    assert used["words"][1].split(", ")[0].endswith("MBS1 DB64")
    assert "; DB 64, 128" in used["sentence"]
    assert used["differences"] == [["dispatch_block"]]


def test_a_declared_field_is_listed_and_searched(used):
    assert (used["fixed"], used["listed"]) == ([128], [128])
    assert used["missing"] == [None, "dispatch_block 256 is none of 64, 128"]
    # each value with each of the other plans; of plans of equal time the default is simplest
    assert used["both"]["counted"] == 2 * used["one"]["counted"]
    assert used["both"]["evaluated"] == 2 * used["one"]["evaluated"] > 0
    assert (used["both"]["block"], used["one"]["block"]) == (64, 128)
    assert used["free"] == used["both"]
    assert used["free"]["space"] == [64, 128]
    assert used["leading"] == [64, 64, 128, 128]


def test_all_that_is_derived_has_the_declared_fields():
    names = set(declared(PlanFields))
    assert {field.name for field in fields(Plan)} == names
    assert set(PlanSpec.model_fields) == names - {"num_microbatches"}
    assert {field.name for field in fields(Space)} == set(PlanSpaceSpec.model_fields) == set(listed())
    assert set(listed()) - names == {"partition"}
    for target in ("megatron", "torchtitan", "deepspeed", "accelerate", "maxtext"):
        assert flags_of(target).keys() <= names
        assert flags_of(target)


def test_defaults_of_files_and_plans_are_the_same():
    spec = PlanSpec()
    for name, each in declared(PlanFields).items():
        if each.about.written:
            assert getattr(spec, name) == (None if each.derived else each.default)
