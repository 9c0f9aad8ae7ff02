"""The TMAC study: models on wafers under free layouts and under what others run, in one cost model.

python studies/tmac.py points|curves|memory --out FILE
python studies/tmac.py tables --out FILE [--pictures FOLDER]

`points`: every model on every wafer that passes the physical rules, with every mapping. `curves`: one wafer with other
links and other memory. `memory`: free layouts with less memory. Rows are appended to a file of JSON lines;
what it has already is skipped. `tables` prints the file as markdown and draws it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tmac_mappings import PUBLISHED, TUNED, JobOnWafers, MappedJob, StudyLimits, what_if
from tmac_tables import draw, print_tables

from dovetail import hardware
from dovetail.hardware.wafer import Wafer

MODELS = ("gpt3-175b", "llama-3.1-70b", "llama-30b", "deepseek-v3")
WAFERS = ("watos-buildable", "dojo-buildable", "wse-3-like")

SWEPT, SWEPT_MODELS = WAFERS[0], MODELS[:2]
#: TB/s of an edge and direction, and GB of a die.
D2D, MEMORY = (4.0, 2.0, 1.0, 0.3, 0.1), (140.0, 70.0, 54.0, 24.0, 0.5)
#: So little memory needs a store: as fast as that of dojo-buildable, and large enough.
STORE_BELOW_GB, STORE = 1.0, (20e12, 16e12)
#: GB of a die in which free layouts have to fit, from little more than a model's state on: what fits less fits more.
LESS_MEMORY = {
    "gpt3-175b": (44.0, 45.0, 46.0, 48.0, 50.0, 54.0, 60.0, 65.0),
    "llama-3.1-70b": (18.0, 19.0, 20.0, 22.0, 26.0, 35.0, 50.0, 65.0),
}

#: Where free layouts end at a point.
LIMITS = {"points": StudyLimits(60.0, 0.005), "curves": StudyLimits(15.0, 0.01), "memory": StudyLimits(20.0, 0.01)}


class MappedJobs:
    """The rows of a file, which new ones are appended to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.rows = [MappedJob(**json.loads(line)) for line in lines]

    def get(self, *key: object) -> MappedJob | None:
        """The row of a question that was answered before."""
        return next((row for row in self.rows if row.key == key), None)

    def add(self, row: MappedJob) -> None:
        """Remembers a row and says so."""
        self.rows.append(row)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        took = "–" if row.step_s is None else f"{row.step_s:.2f} s"
        print(*row.key, row.words[:90], took, f"{row.cpu_s:.0f} s CPU", sep=" | ", flush=True)


def answered(
    rows: MappedJobs, part: str, place: JobOnWafers, limits: StudyLimits, warm: tuple[MappedJob, ...] = ()
) -> MappedJob:
    """Every mapping at a place, the others first: free layouts begin with their plans."""
    where = part, place.job.model.name, place.wafer.name, place.wafer.d2d_bytes_per_s / 1e12
    at = (*where, place.wafer.die.memory_bytes / 1e9)
    others: list[MappedJob] = []
    for mapping in (*TUNED, *PUBLISHED):
        if rows.get(*at, mapping) is None:
            rows.add(place.mapped(part, mapping))
        others += [row] if (row := rows.get(*at, mapping)) is not None else []
    free = rows.get(*at, "free")
    if free is None:
        free = place.free(part, limits, (*others, *warm))
        rows.add(free)
    return free


def points(rows: MappedJobs, limits: StudyLimits, asked: argparse.Namespace) -> None:
    """Every model on the fewest wafers that hold its state."""
    for name, model in product(asked.wafer or WAFERS, asked.model or MODELS):
        answered(rows, "points", JobOnWafers.of(model, hardware.wafer(name)), limits)


def swept(asked: argparse.Namespace) -> Iterator[Wafer]:
    """The wafer with other links and memory, the easiest first."""
    for memory_gb, d2d_tb_s in product(asked.memory_gb or MEMORY, asked.d2d or D2D):
        yield what_if(SWEPT, d2d_tb_s, memory_gb, STORE if memory_gb < STORE_BELOW_GB else None)


def curves(rows: MappedJobs, limits: StudyLimits, asked: argparse.Namespace) -> None:
    """One wafer with other links and memory; free layouts begin with those of other points."""
    base = hardware.wafer(SWEPT)
    for model, wafer in product(asked.model or SWEPT_MODELS, swept(asked)):
        # as many sequences whatever the memory
        place = JobOnWafers(JobOnWafers.of(model, base).job, wafer, 1)
        answered(rows, "curves", place, limits, warm_rows(rows, model))


def memory(rows: MappedJobs, limits: StudyLimits, asked: argparse.Namespace) -> None:
    """Free layouts on the wafer as it is with less memory."""
    base = hardware.wafer(SWEPT)
    for model in asked.model or SWEPT_MODELS:
        for less_gb in LESS_MEMORY[model]:
            wafer = what_if(SWEPT, base.d2d_bytes_per_s / 1e12, less_gb)
            place = JobOnWafers(JobOnWafers.of(model, base).job, wafer, 1)
            at = ("memory", model, wafer.name, wafer.d2d_bytes_per_s / 1e12, wafer.die.memory_bytes / 1e9)
            if rows.get(*at, "free") is None:
                rows.add(place.free("memory", limits, warm_rows(rows, model)))


def warm_rows(rows: MappedJobs, model: str) -> tuple[MappedJob, ...]:
    """Plans that are known of a model: all on the wafer as it is, and those of free layouts where it was changed."""
    here = (row for row in rows.rows if (row.model, row.wafer) == (model, SWEPT))
    return tuple(row for row in here if row.part == "points" or row.mapping in ("free", "AccPar"))


def main() -> None:
    """Runs a part of the study, or prints what a file has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*LIMITS, "tables"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append")
    parser.add_argument("--wafer", action="append")
    parser.add_argument("--d2d", action="append", type=float, help="TB/s of an edge and direction, for curves")
    parser.add_argument("--memory-gb", action="append", type=float, help="GB of a die, for curves")
    parser.add_argument("--seconds", type=float, help="CPU seconds of free layouts at a point")
    parser.add_argument("--pictures", type=Path)
    asked = parser.parse_args()
    rows = MappedJobs(asked.out)
    if asked.part == "tables":
        print_tables(rows.rows)
        if asked.pictures is not None:
            draw(rows.rows, asked.pictures)
        return
    run = {"points": points, "curves": curves, "memory": memory}[asked.part]
    limits = LIMITS[asked.part]
    run(rows, limits if asked.seconds is None else limits._replace(cpu_s=asked.seconds), asked)


if __name__ == "__main__":
    main()
