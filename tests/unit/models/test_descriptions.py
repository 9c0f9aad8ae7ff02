"""What a reader of the schema sees: every field of a model file is described."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.models import Model

SCHEMA: dict[str, Any] = Model.model_json_schema()
PARTS = {"Model": SCHEMA, **SCHEMA["$defs"]}


@pytest.mark.parametrize("part", PARTS)
def test_every_field_of_a_model_file_is_described(part):
    without = [name for name, field in PARTS[part]["properties"].items() if not field.get("description")]
    assert not without
