"""`dovetail place`: the optimal placement of a chain of layers with given costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.exit_codes import EXIT_INFEASIBLE
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.errors import InputError
from dovetail.units import seconds_text

if TYPE_CHECKING:
    from dovetail.partition.chain_solver import ChainSolution


def place(
    chain: Annotated[Path, typer.Argument(help="A chain of layers with their costs, as JSON.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Find the optimal stages, tensor-parallel width and number of pipelines for a chain of layers."""
    # loading the compiled search does not count as search time
    import dovetail.partition.chain_kernels  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from dovetail.partition.chain import read_chain
    from dovetail.partition.chain_solver import solve_chain

    start = time.process_time()
    problem = read_chain(chain)
    read = time.process_time()
    solution = solve_chain(problem)
    timing = {"read_s": read - start, "solve_s": time.process_time() - read}
    if as_json:
        print_json(fields(solution) | {"timing": timing})
    elif solution.placement is not None:
        _print(solution)
    if solution.placement is None:
        what = "no pipeline fits the devices' memory"
        typer.echo(str(InputError(str(chain), what, "use more devices, or devices with more memory")), err=True)
        raise typer.Exit(EXIT_INFEASIBLE)


def fields(solution: ChainSolution) -> dict[str, Any]:
    """The JSON fields others rely on; without a placement they are null."""
    placement = solution.placement
    if placement is None:
        certificate = {"status": solution.status, "lower_bound_s": None, "gap": None}
        empty = dict.fromkeys(("time_per_batch_s", "stages", "tensor_parallel", "data_parallel"))
        return empty | {"certificate": certificate}
    return {
        "time_per_batch_s": solution.seconds,
        "stages": [
            {"layers": list(placement.layers.ids[first:end]), "devices": placement.devices(first, end)}
            for first, end in placement.stages
        ],
        "tensor_parallel": placement.layers.width,
        "data_parallel": placement.data_parallel,
        "certificate": {"status": solution.status, "lower_bound_s": solution.seconds, "gap": 0.0},
    }


def _print(solution: ChainSolution) -> None:
    placement = solution.placement
    assert placement is not None, "an infeasible chain is answered by a sentence"
    devices = [placement.devices(first, end) for first, end in placement.stages]
    replicas, used = placement.data_parallel, placement.data_parallel * sum(devices)
    print_facts(
        [
            ("time", f"{seconds_text(solution.seconds)} per batch, proven optimal"),
            ("width", f"{placement.layers.width:,}"),
            ("pipelines", f"{replicas:,} of {len(devices):,} stages, {used:,} devices"),
        ]
    )
    rows = [
        (f"{position + 1}", _layers(placement.layers.ids[first:end]), f"{end - first:,}", f"{count:,}")
        for position, ((first, end), count) in enumerate(zip(placement.stages, devices, strict=True))
    ]
    print_table(("stage", "layers", "number", "devices"), rows)


def _layers(ids: tuple[int, ...]) -> str:
    return f"{ids[0]}" if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
