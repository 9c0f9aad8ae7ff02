"""Plan files of the best designs of a study, in its run directory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.exploration.result import StudyResult


def write_plans(result: StudyResult, where: str, name: str, point: Mapping[str, Any] | None) -> dict[str, str]:
    """Writes the plan files of a design in a folder of the run; none if there is no design, or on remote storage."""
    if point is None or "://" in where:
        return {}
    from dovetail.plans.write import write_plan_file

    folder = Path(where) / name
    try:
        folder.mkdir(exist_ok=True, parents=True)
    except OSError as error:
        raise InputError(
            str(folder), f"cannot be created ({error.strerror})", "name a folder you may write to"
        ) from None
    written: dict[str, str] = {}
    for job in point["jobs"]:
        path = folder / f"{job}.yaml"
        write_plan_file(path, result.plan_file(point, job))
        written[job] = str(path)
    return written


def write_front_plans(result: StudyResult, where: str) -> list[dict[str, str]]:
    """The same for every point of a Pareto front, numbered in the order of the first objective; in that of the result.

    Those of an earlier result of the run are removed.
    """
    from dovetail.exploration.records import FRONT

    points = result.ordered_points()
    if "://" in where:
        return []
    folder = Path(where) / FRONT
    for number in folder.glob("[0-9]*"):
        for file in (*number.glob("*.yaml"), *number.glob("*.model.json")):
            file.unlink()
        with suppress(OSError):  # somebody's own files stay
            number.rmdir()
    written = [write_plans(result, where, f"{FRONT}/{n}", point) for n, point in enumerate(points, 1)]
    place = {id(point): paths for point, paths in zip(points, written, strict=True)}
    return [place[id(point)] for point in result.pareto_front()]
