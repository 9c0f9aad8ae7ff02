"""The numbers fitted without one family after another: the scoreboard's check on unseen families."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import yaml

from dovetail.accuracy.fit import Fit
from dovetail.accuracy.parameters import Parameter
from dovetail.documents import parse_document

Values = Mapping[Parameter, float]


@lru_cache(maxsize=1)
def left_out_values() -> Mapping[str, Values]:
    """Family → the numbers fitted without it."""
    entry = files("dovetail.accuracy") / "data" / "left_out.yaml"
    if not entry.is_file():
        return {}
    document = cast(
        "dict[str, dict[str, dict[str, Any]]]", parse_document(entry.read_text("utf-8"), "left_out", ours=True)
    )
    return {
        family: {Parameter(name, group): float(v) for group, names in groups.items() for name, v in names.items()}
        for family, groups in document.items()
    }


def write_left_out(path: Path, fits: Mapping[str, Fit]) -> None:
    """Writes the numbers of every fold."""
    document: dict[str, dict[str, dict[str, float]]] = {}
    for family, fit in fits.items():
        groups = document.setdefault(family, {})
        for parameter, value in fit.values.items():
            groups.setdefault(parameter.group, {})[parameter.name] = float(f"{value:.4g}")
    head = "# Family → the numbers fitted on the runs of all other families; written by accuracy.regenerate.\n"
    text = yaml.safe_dump(document, sort_keys=True, default_flow_style=None, width=118)
    path.write_text(head + text, encoding="utf-8")
