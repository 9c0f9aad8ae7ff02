"""`dovetail plan`: the best plan for a job on a cluster, proven; or the Pareto front over numbers of chips."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dovetail.cli.defects import DefectOptions, DefectRate, Defects, LinkDefectRate, Seed
from dovetail.cli.exit_codes import EXIT_ANSWERED, EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_NOTHING_FOUND
from dovetail.cli.figures import parse_tokens
from dovetail.cli.interrupt import Interrupt
from dovetail.cli.output import check_target, print_json
from dovetail.cli.plan_progress import PlanProgress
from dovetail.cli.plan_request import Objective, PlanRequest, Strategy
from dovetail.cli.plan_view import (
    covered_fields,
    infeasible,
    launch_fields,
    print_answer,
    print_launch_note,
    print_suggestions,
    suggestion_fields,
    write_plan,
)
from dovetail.cli.question import Asked, adapters_of, asked
from dovetail.cli.surviving import SurvivingPlan, surviving_on
from dovetail.errors import InputError, one_of, quoted
from dovetail.units import parse

if TYPE_CHECKING:
    from dovetail.plans.plan_file import Question
    from dovetail.search import Answer, Space
    from dovetail.search.pareto_front import Training
    from dovetail.search.progress import Listener, SearchProgress
    from dovetail.step.evaluation import Evaluation

#: Time limit of each search for a question to suggest.
SUGGESTION_SECONDS = 5.0
#: A search that took longer is not repeated for one.
LONG_SECONDS = 20.0
#: Time limit of `--ideal` by default: its space is far larger.
IDEAL_SECONDS = 30.0

_FIX = "Restrict a field of the plan, e.g. tensor_parallel=4,8; repeatable."
_OFFLOAD = "What hosts hold in all plans: optimizer, activations, or both; default: nothing."
_CHIPS = "Number of chips; 256,512 or 256..4096 (doubling) or 256..4096:256 (steps) gives the Pareto front over them."
_SIMULATE = "Simulate at most this many leading plans, and take the fastest."
_STRATEGY = "named: degrees of named strategies; free: every operator sharded its own way (framework wafer or ideal)."
_MEMORY = "Bytes of a chip that plans may take, e.g. 73GiB; default: as many as --fit-risk allows."
_RISK = "How likely the plan may run out of memory, by the errors of predicted memory; default: 0.02."
_TIE = "Recommend the simplest plan within this part of the fastest, e.g. 0.01; default: what the model errs by."
_COVERS = "Also say whether the search covered this plan, what it takes, and why it is not the answer."
_KEEP = "Start from what is left of this plan, made for the whole wafer, on the damaged one, and compare."
_LEND = "Stages on a wafer may hold activations for each other (--strategy free)."
_LORA = "Train adapters of this rank beside frozen weights (LoRA); default: train all weights."
_QLORA = "With --lora: store the frozen weights of linear layers in 4 bits (QLoRA)."
_TARGETS = "Linear layers with adapters: some of q, k, v, o, gate, up, down, or all; default: q,k,v,o."
_FRAMEWORK = "Framework that runs the plan; default: megatron."
_OBJECTIVE = "What to minimise over numbers of chips."
_MODEL = "A model of the catalogue, a model file, a config.json or its folder, or a Hugging Face id."


def plan(
    file: Annotated[Path | None, typer.Argument(help="A plan file that gives job and cluster.")] = None,
    model: Annotated[str | None, typer.Option("--model", help=_MODEL)] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="A cluster of the catalogue or its file.")] = None,
    chip: Annotated[str | None, typer.Option("--chip", help="A chip of the catalogue or its file.")] = None,
    chips: Annotated[str | None, typer.Option("--chips", help=_CHIPS)] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help="Sequences per step.")] = None,
    seq_len: Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence.")] = None,
    framework: Annotated[str | None, typer.Option("--framework", help=_FRAMEWORK)] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="Default: bf16.")] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="Default: adamw.")] = None,
    lora: Annotated[int | None, typer.Option("--lora", metavar="RANK", help=_LORA)] = None,
    lora_targets: Annotated[str | None, typer.Option("--lora-targets", metavar="NAME[,NAME]", help=_TARGETS)] = None,
    qlora: Annotated[bool, typer.Option("--qlora", help=_QLORA)] = False,
    offload: Annotated[str | None, typer.Option("--offload", metavar="PART[,PART]", help=_OFFLOAD)] = None,
    fix: Annotated[list[str] | None, typer.Option("--fix", metavar="FIELD=VALUE[,VALUE]", help=_FIX)] = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", help="Search for at most this many seconds, tables apart.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the bottleneck, and what more hardware would gain.")
    ] = False,
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Also show what plans that no framework runs would gain.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan file here (YAML).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    tokens: Annotated[str | None, typer.Option("--tokens", help="Tokens to train on, e.g. 15T or 1.5e12.")] = None,
    objective: Annotated[Objective | None, typer.Option("--objective", help=_OBJECTIVE)] = None,
    price: Annotated[float | None, typer.Option("--price-per-chip-hour", help="In USD; default: the chip's.")] = None,
    simulate_top: Annotated[int, typer.Option("--simulate-top", min=0, max=1000, help=_SIMULATE)] = 0,
    strategy: Annotated[Strategy, typer.Option("--strategy", help=_STRATEGY)] = "named",
    memory_limit: Annotated[str | None, typer.Option("--memory-limit", metavar="BYTES", help=_MEMORY)] = None,
    fit_risk: Annotated[float | None, typer.Option("--fit-risk", metavar="PART", help=_RISK)] = None,
    fastest: Annotated[bool, typer.Option("--fastest", help="Recommend the fastest plan, however involved.")] = False,
    tie_margin: Annotated[float | None, typer.Option("--tie-margin", metavar="PART", help=_TIE)] = None,
    covers: Annotated[Path | None, typer.Option("--covers", metavar="PLAN", help=_COVERS)] = None,
    defects: Defects = None,
    defect_rate: DefectRate = None,
    link_defect_rate: LinkDefectRate = None,
    seed: Seed = None,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="PLAN", help=_KEEP)] = None,
    lend: Annotated[bool, typer.Option("--lend", help=_LEND)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Find the fastest plan that fits, of all the framework runs, prove it, and recommend the simplest close to it."""
    given: dict[str, Any] = {"job.model": model, "job.seq_len": seq_len, "job.global_batch": global_batch}
    given |= {"job.precision": precision, "job.adapters": adapters_of(lora, lora_targets, quantized=qlora)}
    given |= {"job.optimizer": optimizer, "cluster.name": cluster, "cluster.chip": chip, "cluster.framework": framework}
    with Interrupt() as interrupt:
        question = asked(file, given, chips)
        if out is not None:
            _check_out(out, force=force)
        request = PlanRequest(
            _narrowed(fix, offload), _at_least_0("--time-limit", time_limit), explain, ideal, out,
            None if tokens is None else parse_tokens(tokens), objective, _at_least_0("--price-per-chip-hour", price),
            simulate_top, strategy, _bytes(memory_limit), fit_risk, _margin(tie_margin, fastest=fastest), covers,
            as_json, DefectOptions(defects, defect_rate, link_defect_rate, seed), keep, lend,
        )  # fmt: skip
        _answer(question, request, interrupt)


def _narrowed(fix: list[str] | None, offload: str | None = None) -> Space:
    from dovetail.plans.narrowed_space import narrowed

    return narrowed([*(fix or ()), *([] if offload is None else [f"offload={_offloaded(offload)}"])])


def _offloaded(text: str) -> str:
    """What `--offload` names, as a space has it."""
    from dovetail.frameworks.framework import Offloaded

    words, names = [word.strip() for word in text.split(",")], get_args(Offloaded)
    for word in words:
        if word not in names:
            raise InputError("--offload", f"is {quoted(text)}", one_of(names, word))
    return "+".join(name for name in names if name in words)


def _answer(question: Asked, request: PlanRequest, interrupt: Interrupt) -> None:
    if request.strategy == "free":
        _check_free(request, several=bool(question.counts))
    if not question.counts:
        _answer_plan(question, request, interrupt)
        return
    if request.simulate_top:
        raise InputError(
            "--simulate-top", "cannot be combined with several numbers of chips", "give one, e.g. --chips 256"
        )
    from dovetail.cli.pareto_front import answer_front

    answer_front(question, request, interrupt)


def _answer_plan(asked_for: Asked, request: PlanRequest, interrupt: Interrupt) -> None:
    question = asked_for.question()
    question = replace(question, cluster=request.defects.damaged(question.cluster))
    _check_damaged(question, request)
    if request.objective is not None:
        raise InputError("--objective", "compares numbers of chips", "give several, e.g. --chips 256..4096")
    if request.ideal and question.framework.name == "ideal":
        raise InputError("--ideal", "cannot be combined with --framework ideal", "drop one of them")
    kept = None if request.keep is None else surviving_on(question, request.keep)
    answer = _searched(question, request, interrupt, None if kept is None else kept.kept)
    if answer.evaluation is None:
        code = _say_none(answer, request, interrupt)
    else:
        code = EXIT_ANSWERED
        _show(answer, asked_for, question, request, interrupt, kept)
    raise typer.Exit(EXIT_INTERRUPTED if interrupt.asked else code)


def _searched(question: Question, request: PlanRequest, interrupt: Interrupt, start: Evaluation | None) -> Answer:
    """The answer of a search; `start` is a plan that is known to fit."""
    with PlanProgress(as_json=request.as_json) as shown:

        def notice(progress: SearchProgress) -> bool:
            shown(progress)
            return interrupt.notice(progress)

        if request.strategy == "free":
            return _free(question, request, start, notice)
        return _named(question, request, notice)


def _free(question: Question, request: PlanRequest, start: Evaluation | None, notice: Listener) -> Answer:
    from dovetail.mapping.tiles.free_plan import FreeLimits, free_plan

    return free_plan(
        question.job,
        question.cluster,
        question.framework,
        FreeLimits(time_limit_s=request.time_limit_s),
        simulate_top=request.simulate_top,
        lends=request.lend,
        start=start,
        on_progress=notice,
    )


def _named(question: Question, request: PlanRequest, notice: Listener) -> Answer:
    from dovetail.plans.narrowed_space import within
    from dovetail.plans.runs import check_job
    from dovetail.search import plan as best_plan
    from dovetail.step.capacity import check_fit_risk, check_memory_limit

    job, cluster, framework = question.job, question.cluster, question.framework
    check_job(job, framework)
    space, most_bytes = within(request.space, job, cluster, framework), request.memory_limit_bytes
    check_memory_limit(cluster.chip, most_bytes, "--memory-limit")
    check_fit_risk(request.fit_risk, most_bytes, "--fit-risk")
    return best_plan(
        job,
        cluster,
        framework,
        space=space,
        time_limit_s=request.time_limit_s,
        simulate_top=request.simulate_top,
        memory_limit_bytes=most_bytes,
        fit_risk=request.fit_risk,
        tie_margin=request.tie_margin,
        keep_tables=request.explain,
        on_progress=notice,
    )


def _say_none(answer: Answer, request: PlanRequest, interrupt: Interrupt) -> int:
    """Why there is no plan; returns the exit code that says whether that is proven."""
    explanation = interrupt.unless(lambda: _explained(answer, request))
    sentence = interrupt.unless(lambda: infeasible(answer)) or infeasible(answer, fix_s=0.0)
    if request.as_json:
        from dovetail.report.answer_fields import answer_fields

        print_json(answer_fields(answer, explanation=explanation))
    elif explanation is not None:
        typer.echo(str(explanation))
    typer.echo(str(sentence), err=True)
    return EXIT_INFEASIBLE if answer.certificate.status == "infeasible" else EXIT_NOTHING_FOUND


def _show(
    answer: Answer,
    asked_for: Asked,
    question: Question,
    request: PlanRequest,
    interrupt: Interrupt,
    kept: SurvivingPlan | None,
) -> None:
    """The plan with all that was asked for; after an interrupt without what would take further searches."""
    written = () if request.out is None else write_plan(answer, asked_for, request.out)
    training = None if request.tokens is None else _training(answer, request.tokens, request.price_per_chip_hour)
    ideal = interrupt.unless(lambda: _ideal(question, request)) if request.ideal else None
    explanation = interrupt.unless(lambda: _explained(answer, request))
    suggested = None if request.strategy == "free" else interrupt.unless(lambda: _suggested(answer))
    held = None if request.covers is None else _covered(answer, request.covers)
    if request.as_json:
        from dovetail.report.answer_fields import answer_fields

        fields = answer_fields(answer, training=training, ideal=ideal, explanation=explanation)
        keep = {} if kept is None else {"keep": kept.fields(answer)}
        fields |= launch_fields(answer)
        print_json(fields | suggestion_fields(suggested) | covered_fields(held) | keep)
    else:
        print_answer(answer, training=training, ideal=ideal, explanation=explanation)
        print_suggestions(suggested)
        print_launch_note(answer.job, answer.framework)
        if held is not None:
            typer.echo(f"\n{request.covers}: {held.why}")
        if kept is not None:
            typer.echo(f"\n{request.keep}: {kept.sentence(answer)}")
        if written:
            typer.echo(f"\nwrote {' and '.join(map(str, written))}")


def _check_damaged(question: Question, request: PlanRequest) -> None:
    """Refuses what cannot be asked of a damaged wafer, and what only one can be asked."""
    damaged = bool(question.cluster.defects)
    if damaged and request.strategy == "named":
        what = f"has dead dies or links on {question.cluster.name}, which degrees alone do not go around"
        raise InputError("--strategy", what, "plan with --strategy free and --framework wafer or ideal")
    if request.keep is not None and request.defects == DefectOptions() and not damaged:
        raise InputError("--keep", "compares with a damaged wafer", "give --defects or --defect-rate")


def _check_free(request: PlanRequest, *, several: bool) -> None:
    """Refuses options that only plans of named strategies have."""
    offload = request.space.offload is not None
    refused: dict[str, bool] = {
        "--offload": offload,
        "--fix": not offload and request.space != _narrowed(None),
        "--explain": request.explain,
        "--ideal": request.ideal,
        "--chips": several,
    }
    refused["--memory-limit"] = request.memory_limit_bytes is not None
    refused["--fit-risk"] = request.fit_risk is not None
    for flag in (flag for flag, given in refused.items() if given):
        fix = "give one number" if flag == "--chips" else "leave it out"
        raise InputError(flag, "cannot be combined with --strategy free", fix)


def _suggested(answer: Answer) -> Any:
    """What else could be asked, where the question divides badly and another search does not take long."""
    if answer.timing["seconds"] > LONG_SECONDS:
        return None
    from dovetail.explanation.suggestions import suggestions

    return suggestions(answer, SUGGESTION_SECONDS)


def _covered(answer: Answer, file: Path) -> Any:
    """The plan of a file held against the answer."""
    from dovetail.documents import read_document
    from dovetail.explanation.covered import covered

    return covered(answer, read_document(file), str(file))


def _training(answer: Answer, tokens: float, price_per_chip_hour: float | None) -> Training:
    from dovetail.search.pareto_front import price, training_of

    return training_of(answer.best, answer.job, tokens, price(answer.cluster, price_per_chip_hour))


def _ideal(question: Question, request: PlanRequest) -> Answer:
    """The same job without the limits of a framework."""
    from dovetail.search import plan as best_plan

    limit = IDEAL_SECONDS if request.time_limit_s is None else request.time_limit_s
    most, risk = request.memory_limit_bytes, request.fit_risk
    job, cluster = question.job, question.cluster
    return best_plan(job, cluster, "ideal", time_limit_s=limit, memory_limit_bytes=most, fit_risk=risk)


def _explained(answer: Answer, request: PlanRequest) -> Any:
    if not request.explain:
        return None
    from dovetail.explanation.explain import explain

    return explain(answer, time_limit_s=request.time_limit_s)


def _check_out(out: Path, *, force: bool) -> None:
    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(str(out), "does not end in .yaml", "a plan file is YAML: give it that ending")
    check_target(out, force=force)


def _bytes(limit: str | None) -> float | None:
    return None if limit is None else parse(limit, "bytes", "--memory-limit")


def _margin(given: float | None, *, fastest: bool) -> float:
    """The tie margin asked for; 0 for the fastest plan."""
    from dovetail.step.ties import TIE_MARGIN

    if given is not None and fastest:
        raise InputError("--tie-margin", "cannot be combined with --fastest", "drop one of them")
    if given is not None and not 0 <= given <= 1:
        raise InputError("--tie-margin", f"is {quoted(given)}", "it should be from 0 to 1, e.g. 0.02")
    return 0.0 if fastest else TIE_MARGIN if given is None else given


def _at_least_0(flag: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise InputError(flag, f"is {quoted(value)}", "it should be a number of 0 or more")
    return value
