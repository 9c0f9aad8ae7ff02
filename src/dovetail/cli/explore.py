"""`dovetail explore`: the best design with its best plans, or the Pareto front of several objectives, proven."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.exit_codes import EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_NOTHING_FOUND
from dovetail.cli.output import print_facts, print_json, print_table, wrapped
from dovetail.cli.study_plan_files import write_front_plans, write_plans
from dovetail.cli.study_reasons import print_reasons, reasons_of
from dovetail.cli.study_references import print_references, print_regrets
from dovetail.cli.wafer_facts import SHOWN_VARIABLES, wafer_facts
from dovetail.errors import InputError
from dovetail.report.comparison_tables import design_text
from dovetail.report.design_words import LEVELS, objective_text, variable_label, variable_text, variables_text
from dovetail.units import percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.exploration.result import StudyResult

_OUT = "Run directory: a path or a URL such as s3://bucket/run; default: the study's."
_ADDRESS = "Ray cluster: local (start one here), auto (join this machine's), or ray://host:port."
_RECOMPUTE = "With --resume: discard what other code, calibration, data or versions computed."
_SIMULATE = "Simulate at most this many leading designs, with as many plans each, and report the fastest."
_LIMIT = "Seconds after which the study ends with the best so far, its bound and gap; --resume goes on."
_EXPLAIN = "Say why: runner-ups, what more of each variable gains, bottlenecks, parts and limits; takes more searches."
_SEARCHES = "With --explain: plan searches around the best designs at most."
_STOPPED = {"time_limit": "the time limit ended the study", "interrupt": "was interrupted"}
_GO_ON = {True: "the best so far is shown, --resume goes on.", False: "nothing was found yet, --resume goes on."}
#: Points of a Pareto front that the view shows; JSON has all of them.
_SHOWN = 20


def explore(
    file: Annotated[Path, typer.Argument(help="A study file (YAML).")],
    out: Annotated[str | None, typer.Option("--out", help=_OUT)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the directory.")] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help=_RECOMPUTE)] = False,
    executor: Annotated[
        Literal["inline", "ray"] | None, typer.Option("--executor", help="Where batches run; default: the study's.")
    ] = None,
    address: Annotated[str | None, typer.Option("--address", help=_ADDRESS)] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Cores of a local Ray; default: all.")] = None,
    simulate_top: Annotated[
        int | None, typer.Option("--simulate-top", min=1, max=1000, help=_SIMULATE, show_default=False)
    ] = None,
    time_limit: Annotated[float | None, typer.Option("--time-limit", min=0.0, help=_LIMIT)] = None,
    explain: Annotated[bool, typer.Option("--explain", help=_EXPLAIN)] = False,
    explain_searches: Annotated[int, typer.Option("--explain-searches", min=0, help=_SEARCHES)] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; progress as JSON lines on stderr.")] = False,
) -> None:
    """Search hardware and plans together, and prove that no design within the limits is better."""
    from dovetail.cli.progress import listener_for
    from dovetail.exploration.records import BEST, SIMULATED
    from dovetail.exploration.study import Study

    study = Study.load(file)
    study = study if simulate_top is None else study.simulating(simulate_top)
    study = study if time_limit is None else study.time_limited(time_limit)
    where = out or study.output
    if where is None:
        raise InputError("--out", "is missing", "name a run directory, or give the study an `output`")
    if (executor or study.executor.name) != "ray" and (address or workers):
        raise InputError("--address" if address else "--workers", "requires Ray", "add --executor ray")
    if recompute and not resume:
        raise InputError("--recompute", "is about a run to resume", "add --resume")
    with listener_for(as_json) as listener:
        result = study.run(
            where,
            resume=resume,
            recompute=recompute,
            executor=executor,
            address=address,
            workers=workers,
            listener=listener,
        )
    for sentence in result.repairs:
        _say("repair", sentence, as_json=as_json)
    plans = write_plans(result, where, BEST, result.document.get("best"))
    of_front = {"front_plans": write_front_plans(result, where)} if "front" in result.document else {}
    simulation = result.document.get("simulation")
    fastest = {} if simulation is None else write_plans(result, where, SIMULATED, simulation["best"])
    if not as_json:
        _print_result(result, plans)
    explained = explain and result.stopped != "interrupt" and bool(result.pareto_front())
    reasons = reasons_of(result, where, explain_searches, as_json=as_json) if explained else None
    if as_json:
        more: dict[str, Any] = {} if simulation is None else {"simulated_plans": fastest}
        more |= of_front if reasons is None else {**of_front, "reasons": reasons.as_json}
        print_json({**result.document, "run_dir": where, "plans": plans, **more, "timing": dict(result.timing)})
    elif reasons is not None:
        print_reasons(result, reasons)
    _end(result, interrupted=explained and reasons is None, as_json=as_json)


def _end(result: StudyResult, *, interrupted: bool, as_json: bool) -> None:
    """Says what else there is to say, and ends with the exit code of it."""
    if result.certificate["status"] == "infeasible":
        _say("infeasible", _infeasible(result), as_json=as_json)
        raise typer.Exit(EXIT_INFEASIBLE)
    if result.stopped is not None:
        _say("stopped", f"dovetail: {_STOPPED[result.stopped]}; {_GO_ON[bool(result.pareto_front())]}", as_json=as_json)
        if result.stopped == "interrupt":
            raise typer.Exit(EXIT_INTERRUPTED)
        if not result.pareto_front():
            raise typer.Exit(EXIT_NOTHING_FOUND)
    if interrupted:
        _say("stopped", "dovetail: the reasons were interrupted; --resume --explain gives them.", as_json=as_json)
        raise typer.Exit(EXIT_INTERRUPTED)


def _say(event: str, sentence: str, *, as_json: bool) -> None:
    """A note next to the answer; programs get it as an event."""
    text = json.dumps({"event": event, "sentence": sentence}, ensure_ascii=False) if as_json else sentence
    typer.echo(text, err=True)


def _print_result(result: StudyResult, plans: dict[str, str]) -> None:
    points = result.pareto_front()
    if "best" in result.document and points:
        _print_best(result, points[0])
    elif points:
        _print_front(result, points)
    print_references(result)
    print_regrets(result)
    certificate, counts = result.certificate, result.document["counts"]
    gap = "" if certificate["gap"] is None else f", gap {percent_text(certificate['gap'])}"
    lines = [("certificate", f"{certificate['status']}{gap}"), *wrapped("over", certificate["space"])]
    lines += _simulation_facts(result.document)
    lines += wrapped("designs", _levels(counts))
    left_out = {text: number for text, number in result.document.get("left_out", {}).items() if number}
    lines += wrapped("left out", ", ".join(f"{number:,} by {text}" for text, number in left_out.items()))
    lines.append(("run", str(result.run_dir)))
    lines += [("plan" if n == 0 else "", path) for n, path in enumerate(plans.values())]
    if "front" in result.document and points and "://" not in str(result.run_dir):
        count = f"N from 1 to {len(points)} in the order of {result.study.scored[0].title}"
        lines.append(("plans", f"{result.run_dir}/front/N/JOB.yaml, {count}"))
    print_facts(lines)


def _simulation_facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fastest design in simulation, whether it is the model's choice too, and what is proven."""
    simulation = document.get("simulation")
    if simulation is None or simulation["best"] is None:
        return []
    best, modelled, certificate = simulation["best"], document["best"], simulation["certificate"]
    over = f"{best['step_time_s'] / best['model_s'] - 1:+.1%} over the model"
    text = f"{seconds_text(best['step_time_s'])} per step ({over})"
    models_choice = next(row for row in simulation["replayed"] if _candidate(row) == _candidate(modelled))
    choice = "also the model's choice"
    if models_choice is not simulation["replayed"][0]:
        loss = models_choice["step_time_s"] / best["step_time_s"] - 1
        text = f"design {best['design']:,}, {_number_text(best)}: {text}"
        choice = f"the model's choice is {loss:.1%} slower"
    proof = "proven: no design is faster in simulation"
    if certificate["status"] != "optimal":
        bound = seconds_text(certificate["lower_bound"])
        proof = f"within {certificate['gap']:.1%} of the best: no design takes less than {bound} in simulation"
    said = f"best of {len(simulation['replayed']):,} simulated; {choice}; {proof}"
    return [("simulated", text), *(("", line) for _, line in wrapped("", said))]


def _candidate(point: Mapping[str, Any]) -> tuple[int, int]:
    return point["chips"], point["design"]


def _print_best(result: StudyResult, best: dict[str, Any]) -> None:
    from dovetail.plans.words import plan_words

    lines = [("design", f"{design_text(result, best)}, {_number_text(best)}")]
    figures = {**best["variables"], **best["silicon"]}
    if "wafer" in best:
        lines += wafer_facts(best["wafer"], best["silicon"])
        figures = {name: value for name, value in best["variables"].items() if name not in SHOWN_VARIABLES}
    lines += [(variable_label(name), variable_text(name, value)) for name, value in figures.items()]
    lines += [(each.title, objective_text(each, best["objectives"][each.name])) for each in result.study.scored]
    for name, answer in best["jobs"].items():
        words = plan_words(result.plan_of(best, name))
        lines.append((name, f"{seconds_text(answer['step_time_s'])} per step: {words}"))
    print_facts(lines)
    typer.echo("")


def _number_text(point: Mapping[str, Any]) -> str:
    """How many chips, or wafers."""
    if "wafers" not in point:
        return f"{point['chips']:,} chips"
    return f"{point['wafers']:,} {'wafer' if point['wafers'] == 1 else 'wafers'}"


def _print_front(result: StudyResult, points: list[dict[str, Any]]) -> None:
    """The Pareto front in order of its first objective, with all variables in one column."""
    scored = result.study.scored
    ordered = result.ordered_points()
    several = len(result.study.counts) > 1
    best = {each.name: each.best(point["objectives"][each.name] for point in points) for each in scored}
    rows: list[list[str]] = []
    for point in ordered[:_SHOWN]:
        figures = [
            objective_text(each, point["objectives"][each.name]) + _unsure(point, each.name, best[each.name])
            for each in scored
        ]
        chips = [f"{point.get('wafers', point['chips']):,}"] if several else []
        rows.append([_row_name(point), *chips, *figures, variables_text(point["variables"])])
    chips = ["wafers" if result.study.of_wafers else "chips"] if several else []
    print_table(("design", *chips, *(each.title for each in scored), "variables"), rows)
    if any("*" in figure for row in rows for figure in row[:-1]):
        typer.echo("* not distinguishable from the best of its column, by the errors of predicted ratios")
    if len(points) > len(rows):
        typer.echo(f"and {len(points) - len(rows)} more on the Pareto front: see --json")


def _row_name(point: Mapping[str, Any]) -> str:
    """The design of a row, and of which hardware where there are several."""
    parts = [str(point[name]) for name in ("space", "network") if name in point]
    return point["chip"] if "chip" in point else " ".join([f"{point['design']:,}", *parts])


def _unsure(point: Mapping[str, Any], name: str, best: float) -> str:
    """A mark where a measurement may not tell a figure from the best of the front."""
    told: Mapping[str, bool] = point.get("distinguishable", {})
    return "" if told.get(name, True) or point["objectives"][name] == best else " *"


def _levels(counts: dict[str, int]) -> str:
    """How many designs each level of fidelity left, in order."""
    return ", ".join(f"{counts[name]:,} {text}" for name, text in LEVELS.items() if name in counts)


def _infeasible(result: StudyResult) -> str:
    counts = result.document["counts"]
    if counts.get("kept") == 0:
        left_out = result.study.explored[-1].space.count().left_out
        tightest = max(left_out, key=lambda text: left_out[text])
        what = f"exclude all {counts['designs']:,} designs; {tightest} alone excludes {left_out[tightest]:,}"
        error = InputError("limits", what, "relax it")
    else:
        fix = "allow more memory, more chips, or more kinds of plans"
        error = InputError("study", f"no plan fits on any of {counts.get('kept', counts['searched']):,} designs", fix)
    return str(error)
