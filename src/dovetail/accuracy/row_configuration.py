"""How a measured run's trainer was configured, by words in the cells of its row: `data/configurations.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.accuracy.table import TableRow
from dovetail.documents import Spec, parse_document, validate
from dovetail.errors import InputError
from dovetail.layout.strategy import ContextKind
from dovetail.models.adapters import Adapters


class ConfigurationSpec(Spec):
    """What runs differ in from the catalogue's framework where these words are in these cells."""

    cells: Annotated[dict[str, str], Field(min_length=1)]
    """words, or a whole cell after `=`"""
    changes: dict[str, Any] = Field(default_factory=dict)
    """fields of the framework"""
    zero_group: Literal["data", "whole"] = "data"
    """what the column counts: data-parallel chips, or all that share the state"""
    context: ContextKind | None = None
    """how context parallelism exchanges keys and values"""
    dropout: bool | None = None
    """whether layers drop activations, where it is not as usual with its attention kernels"""
    attention: Literal["fused", "unfused"] | None = None
    """kernels, where they are not what the column says"""
    adapters: Adapters | None = None
    """where a row trains adapters, which"""
    ranks_per_chip: Annotated[int, Field(ge=1, le=16)] = 1
    """cores of a chip that degrees count as ranks; they share the chip's part of a tensor-parallel group"""
    plan: dict[str, Any] = Field(default_factory=dict)
    """fields of the plan that cells do not state, or count in another way"""
    imbalance: Annotated[float, Field(ge=1, le=100)] | None = None
    """tokens of the fullest chip over the mean, where experts were not balanced as usual"""
    balanced: bool = False
    """experts take their share and no more: what exceeds a capacity factor of 1 is dropped"""
    activations: Literal["device", "host"] = "device"
    """where saved layer inputs are"""

    def applies(self, row: TableRow) -> bool:
        """Whether the words are in the cells."""
        return all(_has(row.text(column).casefold(), words) for column, words in self.cells.items())


class ConfigurationsSpec(Spec):
    """The file."""

    configurations: list[ConfigurationSpec]


def configurations_of(row: TableRow) -> tuple[ConfigurationSpec, ...]:
    """Those that apply, in order."""
    return tuple(each for each in _configurations() if each.applies(row))


def framework_changes(row: TableRow) -> Mapping[str, Any]:
    """What differs from the framework's entry in the catalogue."""
    changes: dict[str, Any] = {}
    for configuration in configurations_of(row):
        for field, value in configuration.changes.items():
            changes[field] = {**changes.get(field, {}), **value} if field == "states" else value
    return changes


def plan_fields(row: TableRow) -> Mapping[str, Any]:
    """Fields of the plan that are not as the row's cells or the framework's defaults have them."""
    return {field: value for each in configurations_of(row) for field, value in each.plan.items()}


def tensor_parallel_chips(row: TableRow) -> int:
    """Chips of a tensor-parallel group, where a chip's cores are a rank each."""
    degree, ranks = row.count("tp") or 1, max((each.ranks_per_chip for each in configurations_of(row)), default=1)
    if degree % ranks:
        raise InputError("tp", f"is {degree}", f"it counts cores, of which a chip has {ranks}: a multiple of {ranks}")
    return degree // ranks


def says(row: TableRow, column: str) -> bool:
    """Whether a configuration of a row covers a column, so that what it says is modelled."""
    return any(column in each.cells for each in configurations_of(row))


@lru_cache(maxsize=1)
def _configurations() -> tuple[ConfigurationSpec, ...]:
    text = (files("dovetail.accuracy") / "data" / "configurations.yaml").read_text(encoding="utf-8")
    document = parse_document(text, "configurations", ours=True)
    return tuple(validate(ConfigurationsSpec, document, "configurations").configurations)


def _has(cell: str, words: str) -> bool:
    return cell == words[1:] if words.startswith("=") else words in cell
