"""`dovetail wafers collectives`: what collectives take on a tile of dies, whole or damaged."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

import dovetail as dt
from dovetail.cli.defects import DefectOptions, DefectRate, Defects, LinkDefectRate, Seed
from dovetail.cli.figures import AsJson
from dovetail.cli.output import print_json, print_table
from dovetail.errors import InputError, quoted
from dovetail.units import parse, seconds_text


def collectives(
    name: Annotated[str, typer.Argument(help="A wafer of the catalogue, or the path of a wafer file.")],
    tile: Annotated[str, typer.Option("--tile", metavar="ROWSxCOLS", help="Dies that act together, e.g. 2x4.")],
    at: Annotated[str, typer.Option("--at", metavar="ROW,COL", help="The first die of the tile.")] = "0,0",
    size: Annotated[str, typer.Option("--bytes", metavar="BYTES", help="Of the collective.")] = "100MB",
    defects: Defects = None,
    defect_rate: DefectRate = None,
    link_defect_rate: LinkDefectRate = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Show what collectives take on a tile: the best algorithm, its lower bound, and the same simulated."""
    from dovetail.report.mesh_collectives import tile_collectives

    wafer = dt.hardware.wafer(name)
    options = DefectOptions(defects, defect_rate, link_defect_rate, seed)
    damaged = options.damaged(wafer.cluster())
    if damaged.defects:
        wafer = wafer.with_defects(damaged.defects[0])
    rows, cols = _pair(tile, "x", "--tile", "write it as 2x4")
    row, col = _pair(at, ",", "--at", "write it as 0,0")
    found = tile_collectives(wafer, rows, cols, row, col, parse(size, "bytes", "--bytes"))
    if as_json:
        print_json({"wafer": wafer.name, "tile": [row, col, rows, cols], "collectives": [asdict(f) for f in found]})
        return
    lines = [
        (
            each.kind.replace("_", " "),
            each.algorithm.replace("_", " "),
            seconds_text(each.seconds),
            seconds_text(each.lower_bound_s),
            "" if each.simulated_s is None else seconds_text(each.simulated_s),
            "" if each.across_tiles_s is None else seconds_text(each.across_tiles_s),
        )
        for each in found
    ]
    print_table(("collective", "algorithm", "takes", "at least", "simulated", "across tiles"), lines)


def _pair(text: str, between: str, flag: str, fix: str) -> tuple[int, int]:
    match = re.fullmatch(rf"(\d{{1,4}}){between}(\d{{1,4}})", text.strip())
    if match is None:
        raise InputError(flag, f"is {quoted(text)}", fix)
    return int(match[1]), int(match[2])
