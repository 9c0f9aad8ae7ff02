"""`dovetail schedule`: operators of a layer on a chip's cores, or the tasks of a problem file."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson
from dovetail.cli.output import check_target, print_facts, print_json
from dovetail.errors import InputError
from dovetail.units import seconds_text

if TYPE_CHECKING:
    from dovetail.schedule.problem import Problem, Solution

Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]

#: Cycles of a problem file are shown as if each took so long.
FILE_CLOCK_HZ = 1e9

_Size = Annotated[int, typer.Option(min=1, max=2**20)]


def schedule(
    file: Annotated[Path | None, typer.Argument(help="A schedule problem, as JSON.")] = None,
    model: Annotated[str, typer.Option(help="Schedule a layer of this model instead,")] = "",
    chip: Annotated[str, typer.Option(help="on this systolic chip.")] = "",
    layer: Annotated[str, typer.Option(help="Its layer class; default: the most frequent.")] = "",
    direction: Annotated[Literal["forward", "backward"], typer.Option()] = "forward",
    tensor_parallel: _Size = 1,
    micro_batch: _Size = 1,
    seq_len: _Size = 2048,
    precision: Annotated[Precision, typer.Option()] = "bf16",
    out: Annotated[Path | None, typer.Option("--out", help="Write the problem here (JSON).")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a trace for Chrome and Perfetto here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out and --trace to overwrite files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the shortest schedule of operators that share cores and memory bandwidth, with a proven bound."""
    from dovetail.schedule.problem import read_problem
    from dovetail.schedule.solve import solve

    for target in (out, trace):
        if target is not None:
            check_target(target, force=force)
    if (file is None) == (not (model and chip)):
        raise InputError("dovetail schedule", "needs one problem", "give a problem file, or --model and --chip")
    serial: int | None = None
    clock_hz = FILE_CLOCK_HZ
    if file is not None:
        problem = read_problem(file)
    else:
        problem, serial, clock_hz = _layer_problem(
            model, chip, layer, direction, tensor_parallel, micro_batch, seq_len, precision
        )
    start = time.process_time()
    solution = solve(problem)
    timing = {"solve_s": time.process_time() - start}
    _write(problem, solution, clock_hz, out, trace)
    if as_json:
        print_json(_fields(problem, solution, serial) | {"timing": timing})
    else:
        _print(problem, solution, serial, clock_hz if file is None else None)


def _layer_problem(
    model: str,
    chip: str,
    layer: str,
    direction: Literal["forward", "backward"],
    tensor_parallel: int,
    micro_batch: int,
    seq_len: int,
    precision: Precision,
) -> tuple[Problem, int, float]:
    """The problem of a model's layer, cycles of one operator after the other, and the clock."""
    from dovetail.cost.units import chip_units
    from dovetail.schedule.layer import layer_problems
    from dovetail.schedule.model_layer import commonest_layer, model_layer_work

    job = dt.Job(dt.models.load(model), seq_len=seq_len, global_batch=micro_batch, precision=precision)
    systolic = dt.hardware.chip(chip)
    if systolic.kind != "systolic":
        fix = "schedules are for systolic chips; on other chips operators run one after the other"
        raise InputError("--chip", f"{systolic.name} is a {systolic.kind} chip", fix)
    work = model_layer_work(job, layer or commonest_layer(job), direction, tensor_parallel, micro_batch)
    problems = layer_problems(work, [chip_units(systolic, precision)])
    return problems.problem(0), int(problems.serial[0]), systolic.clock_hz


def _write(problem: Problem, solution: Solution, clock_hz: float, out: Path | None, trace: Path | None) -> None:
    from dovetail.documents import write_text
    from dovetail.report.schedule_chart import trace as trace_of
    from dovetail.schedule.problem import problem_document

    if out is not None:
        write_text(out, json.dumps(problem_document(problem), indent=1) + "\n")
    if trace is not None:
        write_text(trace, json.dumps(trace_of(problem, solution.schedule, clock_hz)) + "\n")


def _fields(problem: Problem, solution: Solution, serial: int | None) -> dict[str, Any]:
    """The JSON fields of a schedule."""
    scheduled = zip(problem.tasks, solution.schedule.starts, solution.schedule.modes, strict=True)
    return {
        "makespan_cycles": solution.makespan,
        "serial_cycles": serial,
        "schedule": [
            {"name": task.name, "start": start, "phases": [asdict(phase) for phase in task.modes[mode].phases]}
            for task, start, mode in scheduled
        ],
        "certificate": {"status": solution.status, "lower_bound_cycles": solution.bound, "gap": solution.gap},
    }


def _print(problem: Problem, solution: Solution, serial: int | None, clock_hz: float | None) -> None:
    from dovetail.report.schedule_chart import chart

    for line in chart(problem, solution.schedule):
        typer.echo(line)
    typer.echo()
    seconds = f", {seconds_text(solution.makespan / clock_hz)}" if clock_hz else ""
    facts = [("makespan", f"{solution.makespan:,} cycles{seconds}")]
    if serial is not None:
        facts.append(("sequential", f"{serial:,} cycles, {serial / solution.makespan - 1:.1%} longer"))
    proof = "proven: no schedule is shorter"
    if solution.status != "optimal":
        proof = f"within {solution.gap:.2%} of the best: no schedule is shorter than {solution.bound:,} cycles"
    print_facts([*facts, ("proof", proof)])
