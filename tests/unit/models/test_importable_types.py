"""docs/reference/models.md names every type that is imported, read as another or refused, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail.models.huggingface import IMPORTERS, MISSING_OPERATORS, TEXT_PARTS

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "models.md"


def tables() -> list[list[list[str]]]:
    """The rows of each table, heading and rule apart."""
    found = re.findall(r"(?:^\|.*\n)+", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [[row.strip("|").split(" | ") for row in table.splitlines()[2:]] for table in found]


def types(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_tables_are_those_of_the_code():
    imported, read_as, refused, _ = tables()
    listed = [name for _, names in imported for name in types(names)]
    assert sorted(listed) == sorted(IMPORTERS)
    assert {name: types(known)[0] for names, known in read_as for name in types(names)} == TEXT_PARTS
    assert {name: operator.strip() for names, operator in refused for name in types(names)} == MISSING_OPERATORS


def test_no_type_has_two_answers():
    assert not IMPORTERS.keys() & MISSING_OPERATORS.keys()
    assert not IMPORTERS.keys() & TEXT_PARTS.keys()
    assert set(TEXT_PARTS.values()) <= IMPORTERS.keys()
