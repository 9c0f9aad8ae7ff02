"""What a plan says of a wafer: the tile of every stage, memory lent to other stages, the store, known defects."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import DefectMap
from dovetail.hardware.defect_file import DefectsSpec, defects_document
from dovetail.hardware.defects import Position
from dovetail.layout.encoding.job_encoding import Tile

#: What a store may hold instead of the dies: the optimizer's state, weights with their gradients, saved activations.
Stored = Literal["optimizer", "weights", "activations"]

#: The choices of a store, from nothing on: weights are not kept outside without the optimizer that updates them.
STORE_CHOICES: tuple[tuple[Stored, ...], ...] = (
    (),
    ("optimizer",),
    ("optimizer", "weights"),
    ("optimizer", "activations"),
    ("optimizer", "weights", "activations"),
)


@dataclass(frozen=True, slots=True, order=True)
class StageTile:
    """The rectangle of dies a stage runs on: its wafer, its first row and column, and its extent."""

    wafer: int
    row: int
    col: int
    rows: int
    cols: int

    def dies(self) -> tuple[Position, ...]:
        """Rows and columns of its dies, row by row."""
        return tuple(product(range(self.row, self.row + self.rows), range(self.col, self.col + self.cols)))

    def tile(self) -> Tile:
        """The same as encodings have it, which know one wafer."""
        return Tile(self.col, self.row, self.rows, self.cols)


@dataclass(frozen=True, slots=True, order=True)
class Loan:
    """Activations of a stage that another stage's dies hold: bytes of each die of the stage, at their peak."""

    stage: int
    lender: int
    bytes: float


@frozen
class WaferPart:
    """The `wafer` part of a plan."""

    #: by stage; empty: one after another in a snake
    tiles: tuple[StageTile, ...] = ()
    loans: tuple[Loan, ...] = ()
    store: tuple[Stored, ...] = ()
    #: by wafer, what the plan goes around; empty: it was made for whole wafers
    defects: tuple[DefectMap, ...] = ()

    def at(self, wafer: int) -> DefectMap:
        """What the plan goes around on a wafer."""
        return self.defects[wafer] if self.defects else DefectMap()


_Place = Annotated[int, Field(ge=0, lt=4096)]
_Side = Annotated[int, Field(ge=1, le=4096)]
_TileNumbers = Annotated[tuple[_Place, _Place, _Place, _Side, _Side], Field(strict=False)]


def _on_first(value: object) -> object:
    """A tile without a wafer is on the first."""
    if isinstance(value, list | tuple) and len(value) == 4:  # pyright: ignore[reportUnknownArgumentType]
        return (0, *value)  # pyright: ignore[reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


def _by_wafer(value: object) -> object:
    """One map is that of one wafer."""
    return (value,) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType]


#: Defects of a file: one map, or one for each wafer.
DefectsByWafer = Annotated[tuple[DefectsSpec, ...], BeforeValidator(_by_wafer), Field(strict=False, max_length=4096)]


class LoanSpec(Spec):
    """A stage, the stage whose dies hold activations for it, and how many bytes of each of its dies."""

    stage: _Place
    lender: _Place
    bytes: Annotated[float, Field(gt=0, le=1e18)]


class WaferPartSpec(Spec):
    """What a plan says of the wafer it runs on."""

    tiles: Annotated[
        tuple[Annotated[_TileNumbers, BeforeValidator(_on_first)], ...], Field(strict=False, max_length=100_000)
    ] = ()
    """by stage: wafer (0 where left out), first row and column, rows and columns; a snake where left out"""
    loans: Annotated[tuple[LoanSpec, ...], Field(strict=False, max_length=100_000)] = ()
    """activations that dies of other stages hold"""
    store: Annotated[tuple[Stored, ...], Field(strict=False, max_length=3)] = ()
    """what the memory off the wafer holds"""
    defects: DefectsByWafer = ()
    """dead dies and links the plan goes around, of one wafer or of each"""

    def part(self) -> WaferPart:
        """The part a file describes."""
        store = next((each for each in STORE_CHOICES if set(each) == set(self.store)), None)
        if store is None:
            fix = "the optimizer's state goes first: weights and activations alone stay on the wafer"
            raise InputError("plan: wafer.store", f"holds {' and '.join(self.store)}", fix)
        return WaferPart(
            tuple(StageTile(*numbers) for numbers in self.tiles),
            tuple(sorted(Loan(each.stage, each.lender, each.bytes) for each in self.loans)),
            store,
            defect_maps(self.defects),
        )


def defect_maps(parts: tuple[DefectsSpec, ...]) -> tuple[DefectMap, ...]:
    """Maps by wafer; none where nothing is dead."""
    maps = tuple(each.defects() for each in parts)
    return maps if any(each != DefectMap() for each in maps) else ()


def wafer_document(part: WaferPart) -> dict[str, Any]:
    """The part as a plan file has it; what is empty is left out."""
    document: dict[str, Any] = {
        "tiles": [[t.wafer, t.row, t.col, t.rows, t.cols] for t in part.tiles],
        "loans": [{"stage": loan.stage, "lender": loan.lender, "bytes": loan.bytes} for loan in part.loans],
        "store": list(part.store),
        "defects": [defects_document(each) for each in part.defects],
    }
    return {name: value for name, value in document.items() if value}
