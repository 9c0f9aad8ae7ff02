"""`dovetail simulate`: a step of a given plan, simulated event by event, and where its time goes."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dovetail as dt
from dovetail.cli.defects import DefectOptions, DefectRate, Defects, LinkDefectRate, Seed
from dovetail.cli.evaluation import Facts, exit_unless_fits, plan_facts, question_facts
from dovetail.cli.output import check_target, print_bars, print_facts, print_json
from dovetail.errors import InputError
from dovetail.units import bytes_text, percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import Cluster
    from dovetail.plans.plan_file import Task
    from dovetail.report.step_trace import StepTrace
    from dovetail.report.wafer_picture import WaferPicture
    from dovetail.simulation.simulate import Simulation
    from dovetail.step.evaluation import Evaluation

_PICTURE = "Draw the wafer here as SVG: stages, link utilisation, what is dead."
_EXACT = "Simulate every chip instead of one per stage."


def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file: job, cluster and plan in YAML.")],
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a trace for Perfetto and Chrome here.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help=_PICTURE)] = None,
    exact: Annotated[bool, typer.Option("--exact", help=_EXACT)] = False,
    force: Annotated[bool, typer.Option("--force", help="Allow --trace and --picture to overwrite files.")] = False,
    defects: Defects = None,
    defect_rate: DefectRate = None,
    link_defect_rate: LinkDefectRate = None,
    seed: Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Simulate a step of a plan, kernel by kernel and message by message, and draw it."""
    for out in (trace, picture):
        if out is not None:
            check_target(out, force=force)
    from dovetail.simulation.simulate import simulate as simulated

    task = DefectOptions(defects, defect_rate, link_defect_rate, seed).task(plan)
    if picture is not None:
        from dovetail.plans.wafer_tiles import wafer_shape

        wafer_shape(task.cluster)  # refused before the work
    result = dt.evaluate(task.plan, task.job, task.cluster, task.framework)
    start = time.process_time()
    step = simulated(task.plan, task.job, task.cluster, task.framework, exact=exact, rates=trace is not None)
    timing = {"simulate_s": time.process_time() - start}
    written = None
    if trace is not None:
        written = write_trace(step, trace)
        timing["trace_s"] = time.process_time() - start - timing["simulate_s"]
    if picture is not None:
        from dovetail.documents import write_text
        from dovetail.report.wafer_svg import wafer_svg

        write_text(picture, wafer_svg(_wafers(step, task)))
    if as_json:
        shown = None if written is None else {"path": str(trace), **trace_fields(written)}
        drawn = None if picture is None else str(picture)
        print_json({**_fields(step, result, exact=exact), "trace": shown, "picture": drawn, "timing": timing})
    else:
        asked = question_facts(task.job, task.cluster, task.framework)
        print_facts([*asked, *plan_facts(task.plan), *_facts(step, task.cluster, exact=exact)])
        _print_parts(step)
        _print_wafers(step, task)
        if written is not None:
            typer.echo(f"\nwrote {trace}: {trace_text(written)}")
        if picture is not None:
            typer.echo(f"\nwrote {picture}")
    exit_unless_fits(result, str(plan))


def write_trace(step: Simulation, out: Path) -> StepTrace:
    """Writes the trace of a step that was simulated with rates."""
    from dovetail.documents import write_parts
    from dovetail.report.step_trace import step_trace

    trace = step_trace(step)
    write_parts(out, trace.parts())
    return trace


def _wafers(step: Simulation, task: Task) -> list[WaferPicture]:
    """The wafers of a simulated plan."""
    from dovetail.plans.arrange import arrange
    from dovetail.report.wafer_picture import wafer_pictures

    return wafer_pictures(step, arrange(task.plan, task.job.graph(), task.cluster), task.cluster)


def trace_fields(trace: StepTrace) -> dict[str, Any]:
    """What a trace holds, as JSON fields."""
    return {"events": trace.events, "operators": trace.operators}


def trace_text(trace: StepTrace) -> str:
    """What a trace holds, in words."""
    left = "" if trace.operators else ", without single operators (they would be too many)"
    return f"{trace.events:,} events for ui.perfetto.dev or chrome://tracing{left}"


def _fields(step: Simulation, result: Evaluation, *, exact: bool) -> dict[str, Any]:
    """The JSON fields others rely on."""
    from dovetail.plans.write import plan_fields
    from dovetail.report.step_breakdown import link_shares, stage_breakdowns, store_shares
    from dovetail.report.step_items import busy_shares

    stores = store_shares(step)
    stages = zip(busy_shares(step).tolist(), stage_breakdowns(step), step.memory, strict=True)
    return {
        "step_time_s": step.step_time_s,
        "model_step_time_s": step.model_step_time_s,
        "ratio": step.ratio,
        "events": step.events,
        "played_events": step.played_events,
        "peak_memory_bytes": step.peak_memory_bytes,
        "fits": result.fits,
        "exact": exact,
        "tasks": step.tasks.num_tasks,
        "stages": [
            {"busy_share": busy, "seconds": seconds, "peak_memory_bytes": memory.peak_bytes}
            for busy, seconds, memory in stages
        ],
        "links": [asdict(link) for link in link_shares(step)],
        **({"stores": stores} if stores else {}),
        "plan": plan_fields(step.plan),
    }


def _facts(step: Simulation, cluster: Cluster, *, exact: bool) -> Facts:
    """What was simulated and what came out."""
    share = f"{abs(step.ratio - 1):.1%}"
    compared = f"{share} {'longer than' if step.ratio >= 1 else 'shorter than'}" if share != "0.0%" else "as long as"
    chips = f"all {cluster.chips} chips" if exact else "one chip per stage"
    capacity = cluster.chip.usable_bytes
    return [
        ("step", f"{seconds_text(step.step_time_s)} simulated, {compared} the model's "
                 f"{seconds_text(step.model_step_time_s)} (ratio {step.ratio:.4f})"),
        ("events", f"{step.events:,}, of {step.tasks.num_tasks:,} tasks on {chips}{_skipped(step)}"),
        ("memory", f"{bytes_text(step.peak_memory_bytes)} of {bytes_text(capacity)} usable at its peak"),
    ]  # fmt: skip


def _skipped(step: Simulation) -> str:
    """What part of the events is that of periods which repeat."""
    if not step.timeline.skipped:
        return ""
    return f"; {1 - step.played_events / step.events:.1%} repeat others and were not played"


def _print_parts(step: Simulation) -> None:
    """The time of the busiest stage, link utilisation, and the picture."""
    from dovetail.report.pipeline_picture import picture
    from dovetail.report.step_breakdown import busiest_stage, link_shares, stage_breakdowns, store_shares

    stage = busiest_stage(step)
    typer.echo(f"\ntime of stage {stage}, the busiest")
    print_bars(stage_breakdowns(step)[stage], seconds_text)
    links = link_shares(step)
    if links:
        typer.echo("\nlink utilisation")
        label = max(len(link.name) for link in links)
        for link in links:
            most = f"{percent_text(link.busiest_share):>7} at stage {link.busiest_stage}"
            typer.echo(f"  {link.name:<{label}}  {most}, {percent_text(link.mean_share)} on average")
    stores = store_shares(step)
    if stores:
        fullest = max(range(len(stores)), key=stores.__getitem__)
        average = percent_text(sum(stores) / len(stores))
        typer.echo(f"\nlink to the store {percent_text(stores[fullest])} at wafer {fullest}, {average} on average")
    typer.echo()
    for line in picture(step):
        typer.echo(line)


def _print_wafers(step: Simulation, task: Task) -> None:
    """The dies of wafers, if the plan runs on wafers."""
    from dovetail.plans.wafer_tiles import is_wafer

    if not is_wafer(task.cluster):
        return
    from dovetail.report.wafer_lines import wafer_lines

    typer.echo()
    try:
        lines = wafer_lines(_wafers(step, task))
    except InputError as error:
        # a plan that cannot be drawn has been simulated all the same
        lines = [f"no picture of the wafer: {error}"]
    for line in lines:
        typer.echo(line)
