"""Maps of defects: a file of dead dies and links, one drawn at random, and which of them a question names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from dovetail.documents import Spec, read_document, validate
from dovetail.errors import InputError
from dovetail.hardware.defects import DefectMap, check_defects

#: Dies along one side of a grid.
MAX_SIDE = 256
#: Seeds of a drawn map.
MAX_SEED = 2**63 - 1

_Place = Annotated[int, Field(ge=0, lt=MAX_SIDE)]
_Position = Annotated[tuple[_Place, _Place], Field(strict=False)]
_Link = Annotated[tuple[_Position, _Position], Field(strict=False)]


class DefectsSpec(Spec):
    """Dead dies as [row, col], dead links as pairs of them."""

    dead_dies: Annotated[tuple[_Position, ...], Field(strict=False, max_length=MAX_SIDE**2)] = ()
    dead_links: Annotated[tuple[_Link, ...], Field(strict=False, max_length=2 * MAX_SIDE**2)] = ()

    def defects(self) -> DefectMap:
        """The map."""
        return DefectMap(self.dead_dies, self.dead_links)


def read_defects(path: Path | str, rows: int, cols: int) -> DefectMap:
    """The map that a file describes, of a grid of so many dies."""
    defects = validate(DefectsSpec, read_document(path), str(path)).defects()
    try:
        check_defects(defects, rows, cols, "")
    except InputError as error:
        # the fields of the map are those of the whole file
        raise InputError(f"{path}: {error.where.removeprefix('.')}", error.what, error.fix) from None
    return defects


def defects_document(defects: DefectMap) -> dict[str, Any]:
    """A map as a file has it: `read_defects` reads it back, and a wafer file may hold it under `defects`."""
    return {
        "dead_dies": [list(die) for die in defects.dead_dies],
        "dead_links": [[list(end) for end in link] for link in defects.dead_links],
    }


def drawn_defects(rows: int, cols: int, defect_rate: float, link_defect_rate: float, seed: int) -> DefectMap:
    """A map in which every die and every link is dead with its probability; the same one for a seed."""
    for name, rate in (("defect_rate", defect_rate), ("link_defect_rate", link_defect_rate)):
        if not 0 <= rate <= 1:
            raise InputError(name, f"is {rate:g}", "it should be from 0 to 1")
    if not 0 <= seed <= MAX_SEED:
        raise InputError("seed", f"is {seed}", f"it should be from 0 to {MAX_SEED}")
    return DefectMap.sampled(rows, cols, 1 - defect_rate, 1 - link_defect_rate, seed)


def asked_defects(
    rows: int,
    cols: int,
    path: Path | str | None = None,
    defect_rate: float | None = None,
    link_defect_rate: float | None = None,
    seed: int | None = None,
) -> DefectMap | None:
    """The map that a question names: that of a file, or a drawn one (seed 0 unless given); None where it names none."""
    options = {"defect_rate": defect_rate, "link_defect_rate": link_defect_rate, "seed": seed}
    given = [name for name, value in options.items() if value is not None]
    if path is not None:
        if given:
            raise InputError("defects", f"cannot be combined with {given[0]}", "read a map or draw one")
        return read_defects(path, rows, cols)
    if given == ["seed"]:
        raise InputError("seed", "draws nothing", "add a rate of dead dies or links")
    if not given:
        return None
    return drawn_defects(rows, cols, defect_rate or 0.0, link_defect_rate or 0.0, seed or 0)
