"""Rules have ids of their own, and the page on the space names each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail import frameworks
from dovetail.plans.model_limits import MODEL_RULES
from dovetail.plans.runs import rules_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "space.md"


@pytest.mark.parametrize("name", frameworks.names())
def test_rules_of_a_framework_have_ids_of_their_own(name):
    ids = [*MODEL_RULES, *(rule.id for rule in rules_of(frameworks.load(name)))]
    assert len(set(ids)) == len(ids)


def test_the_page_has_every_rule_and_no_other():
    rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`([a-z0-9-]+)`", row)}
    known = {*MODEL_RULES, *(rule.id for name in frameworks.names() for rule in rules_of(frameworks.load(name)))}
    keys = {"partition", "coupled", "excluded"}
    assert known - named == set()
    assert named - known - keys == set()


def test_the_page_says_what_rules_of_every_plan_ask():
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    for rule, asked in MODEL_RULES.items():
        assert f"| `{rule}` | {asked} |" in text
