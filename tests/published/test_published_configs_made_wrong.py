"""Every field of every published config replaced by nonsense: refused in one sentence or harmless, never a crash."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.errors import InputError
from dovetail.models.huggingface import import_config
from timing import within

CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("huggingface_configs.yaml").read_text(encoding="utf-8")
)

NONSENSE: tuple[Any, ...] = (
    None, 0, -1, 1, 10**12, 2**63, 16**9999, 1.5, math.nan, math.inf, "", "x", "a\nb\x1b[31m", True, False,
    [], [1], [[]], [None], [{}], ["x"] * 200, {}, {"a": 1},
)  # fmt: skip


def fields(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from fields(value, (*path, name))


def sentence(config: dict[str, Any]) -> str:
    """Why a config is refused; empty where it is not."""
    try:
        import_config(config, "config.json")
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CONFIGS)
def test_nonsense_in_a_field_is_no_accident(name):
    for path in fields(CONFIGS[name]):
        for value in NONSENSE:
            config = deepcopy(CONFIGS[name])
            part = config
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = value
            with within(1):
                refused = sentence(config)
            assert refused.isprintable()
            assert len(refused) < 500
