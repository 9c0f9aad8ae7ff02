"""The functions of `import dovetail as dt`; what takes a plan also takes its file or the answer of `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from dovetail.errors import InputError, one_of, quoted

if TYPE_CHECKING:
    from dovetail.explanation.differences import Comparison
    from dovetail.explanation.explanation import Explanation
    from dovetail.explanation.fitting_changes import FittingChange
    from dovetail.explanation.study_reasons import StudyReasons
    from dovetail.exploration.result import StudyResult
    from dovetail.exploration.study import Study
    from dovetail.frameworks import Framework
    from dovetail.hardware import Cluster
    from dovetail.launch.launch_file import Launch
    from dovetail.models import Job
    from dovetail.plans.plan import Plan
    from dovetail.plans.plan_file import Task
    from dovetail.plans.space import Space
    from dovetail.search import Answer
    from dovetail.search.request import SearchKeywords
    from dovetail.simulation import Simulation
    from dovetail.step.evaluation import Evaluation

#: What `export` writes besides launch files: a simulated step for ui.perfetto.dev.
PERFETTO = "perfetto"


def plan(
    job: Job,
    cluster: Cluster,
    framework: Framework | str = "megatron",
    *,
    space: Space | None = None,
    **options: Unpack[SearchKeywords],
) -> Answer:
    """The fastest plan that fits, of all that the framework can run, with a certificate; and the simplest close to it.

    Args:
        job: What is trained.
        cluster: What it is trained on.
        framework: The training framework, or its name, whose plans are searched.
        space: Values that fields of the plan may take; left out all that the framework runs.
        options: Those below.

    Keyword Args:
        time_limit_s (float | None): Seconds to search once the tables stand; an answer that is not proven by then has
            status `feasible` and a gap.
        below_s (float): Plans that take as long or longer are of no interest; the bound that is proven where none is
            faster.
        simulate_top (int): How many leading plans to simulate at most, to answer with the fastest by simulation.
        on_progress (Callable): Told a few times a second the best plan so far, the lower bound, the gap and how many
            plans are open (a `SearchProgress`); where it returns True the search ends with the best plan so far.
        memory_limit_bytes (float | None): Bytes of a chip that plans may take; left out, so many that a run of the plan
            is out of memory with `fit_risk` alone.
        fit_risk (float | None): How likely a plan may run out of memory, by the errors of predicted memory; left out
            0.02.
        tie_margin (float | None): The simplest plan that takes no longer than the fastest by more than this part of it
            is recommended; left out, what the model errs by on the ratio of two plans, at most 3 %. 0 recommends the
            fastest.
        keep_tables (bool): Whether the answer keeps the tables of its search, with which `explain` costs less.
    """
    from dovetail import frameworks
    from dovetail.plans.narrowed_space import within
    from dovetail.search.plan import plan
    from dovetail.step.ties import TIE_MARGIN

    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    if space is not None:
        space = within(space, job, cluster, framework, where="space:")
    if options.get("tie_margin") is None:
        options["tie_margin"] = TIE_MARGIN
    return plan(job, cluster, framework, space=space, **options)


def explain(answer: Answer, *, time_limit_s: float | None = None) -> Explanation:
    """Why a plan is best: seconds and bytes by part, the bottleneck, neighbouring plans, what more hardware gains.

    Where no plan fits: what is missing, and the smallest changes that make the job fit.

    Args:
        answer: What `plan` returned.
        time_limit_s: Seconds for each of 20 to 40 searches around the answer; left out as long as the answer took,
            within 10 to 60 seconds.
    """
    from dovetail.explanation.explain import explain

    return explain(answer, time_limit_s=time_limit_s)


def evaluate(
    plan: Plan | Answer | Path | str,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
    *,
    energy: bool = True,
) -> Evaluation:
    """What a plan costs: seconds, bytes and joules of one training step, and where they go.

    Args:
        plan: A plan, the answer of `plan`, or the path of a plan file.
        job: What is trained; left out for an answer or a plan file, which name it.
        cluster: What it is trained on; left out likewise.
        framework: The training framework or its name; `megatron` unless the plan names another.
        energy: Whether to add up joules, a sixth of the work.
    """
    from dovetail.step.evaluate import evaluate

    task = _task(plan, job, cluster, framework)
    return evaluate(task.plan, task.job, task.cluster, task.framework, energy=energy)


def fitting_changes(
    plan: Plan | Answer | Path | str,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
) -> tuple[FittingChange, ...]:
    """The least changes that make a plan fit on the same chips: single ones and pairs, the fastest plan first.

    A change counts where the plan then keeps the risk of running out of memory that searched plans keep; where none
    does, those count with which it is more likely to fit than not. Empty where the plan fits as it is.

    Args:
        plan: A plan, the answer of `plan`, or the path of a plan file.
        job: What is trained; left out for an answer or a plan file, which name it.
        cluster: What it is trained on; left out likewise.
        framework: The training framework or its name; `megatron` unless the plan names another.
    """
    from dovetail.explanation.fitting_changes import fitting_changes

    return fitting_changes(_task(plan, job, cluster, framework))


def simulate(
    plan: Plan | Answer | Path | str,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
    *,
    exact: bool = False,
    rates: bool = False,
) -> Simulation:
    """One step of a plan, simulated kernel by kernel and message by message, with messages that share links.

    Args:
        plan: A plan, the answer of `plan`, or the path of a plan file.
        job: What is trained; left out for an answer or a plan file, which name it.
        cluster: What it is trained on; left out likewise.
        framework: The training framework or its name; `megatron` unless the plan names another.
        exact: Whether to simulate each chip; otherwise one chip stands for its pipeline stage.
        rates: Whether to record when the rate of each message changes, for a trace.
    """
    from dovetail.simulation.simulate import simulate

    task = _task(plan, job, cluster, framework)
    return simulate(task.plan, task.job, task.cluster, task.framework, exact=exact, rates=rates)


def diff(
    ours: Plan | Answer | Path | str,
    other: Plan | Answer | Path | str,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
) -> Comparison:
    """What differs between two plans of one job on one cluster, and what each change to the first would gain.

    Args:
        ours: A plan, an answer of `plan`, or the path of a plan file.
        other: The plan to compare it with, given in any of these ways.
        job: What is trained; for plans that do not name it.
        cluster: What it is trained on; likewise.
        framework: The training framework or its name; likewise.
    """
    from dovetail.explanation.differences import compare
    from dovetail.plans.plan import Plan

    def task(plan: Plan | Answer | Path | str) -> Task:
        return _task(plan, job, cluster, framework) if isinstance(plan, Plan) else _task(plan)

    return compare(task(ours), task(other))


def export(
    plan: Plan | Answer | Path | str,
    to: str,
    out: Path | str | None = None,
    *,
    start: str | None = None,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
) -> Launch:
    """A plan as a launch file, as a file that starts it, or as a trace of its simulated step.

    Args:
        plan: A plan, the answer of `plan`, or the path of a plan file.
        to: `megatron`, `torchtitan`, `deepspeed`, `accelerate`, `maxtext`, or `perfetto` for the trace.
        out: Where to write the file; left out it is only returned.
        start: `script`, `slurm`, `skypilot` or `kubernetes`, for a file that starts the launch; left out the launch
            file alone.
        job: What is trained; left out for an answer or a plan file, which name it.
        cluster: What it is trained on; left out likewise.
        framework: The training framework or its name; `megatron` unless the plan names another.
    """
    from dovetail.launch.launch_file import Launch
    from dovetail.launch.targets import EXPORTERS

    targets = (*EXPORTERS, PERFETTO)
    if to not in targets:
        raise InputError("to", f"is {quoted(to)}", one_of(targets, to))
    if to == PERFETTO and start is not None:
        raise InputError("start", "cannot be combined with perfetto", "leave it out, a trace is not started")
    task = _task(plan, job, cluster, framework)
    if to == PERFETTO:
        from dovetail.report.step_trace import step_trace
        from dovetail.simulation.simulate import simulate

        step = simulate(task.plan, task.job, task.cluster, task.framework, rates=True)
        launch = Launch("trace.json", "".join(step_trace(step).parts()))
    else:
        launch = EXPORTERS[to].export(task)
        if start is not None:
            from dovetail.launch.starting.start_file import started

            launch = started(start, launch, to, task.cluster, EXPORTERS[to].version_of(None))
    _write(out, launch.text)
    return launch


def explore(
    study: Study | Path | str,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    recompute: bool = False,
    executor: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    simulate_top: int | None = None,
) -> StudyResult:
    """The best design of a study with its best plans, or the Pareto front of several objectives, with a proof.

    Args:
        study: A study, or the path of a study file.
        out: The run directory; left out what the study says, or none.
        resume: Whether to continue the run in the directory, if the same code, calibration and data computed it.
        recompute: Whether to discard a run to resume that something else computed, instead of refusing it.
        executor: `inline` or `ray`; left out what the study says.
        address: Where Ray is: `local`, `auto` or `ray://host:port`.
        workers: Workers of a local Ray; left out all cores.
        simulate_top: How many leading designs to simulate at most.
    """
    from dovetail.exploration.study import Study

    question = study if isinstance(study, Study) else Study.load(study)
    return question.run(
        out,
        resume=resume,
        recompute=recompute,
        executor=executor,
        address=address,
        workers=workers,
        simulate_top=simulate_top,
    )


def reasons(result: StudyResult, *, most_searches: int | None = None) -> StudyReasons:
    """Why a study answers as it does: runner-ups, what more of each variable gains, bottlenecks, parts, limits.

    Args:
        result: What `explore` or `Study.run` returned.
        most_searches: Plan searches around the best designs at most; left out 200.
    """
    from dovetail.explanation.study_reasons import MOST_SEARCHES, study_reasons

    return study_reasons(result, most_searches=MOST_SEARCHES if most_searches is None else most_searches)


def plot(
    plan: Plan | Answer | Simulation | Path | str,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
    *,
    out: Path | str | None = None,
) -> str:
    """The pipeline of a simulated step as SVG: a row for each stage, time from left to right.

    Args:
        plan: A plan, the answer of `plan`, the path of a plan file, or a step that `simulate` returned.
        job: What is trained; left out for all but a plan.
        cluster: What it is trained on; left out likewise.
        framework: The training framework or its name; `megatron` unless the plan names another.
        out: Where to write the picture; left out it is only returned.
    """
    from dovetail.report.pipeline_svg import pipeline_svg
    from dovetail.simulation.simulate import Simulation

    step = plan if isinstance(plan, Simulation) else simulate(plan, job, cluster, framework)
    text = pipeline_svg(step)
    _write(out, text)
    return text


def _task(
    plan: Plan | Answer | Path | str,
    job: Job | None = None,
    cluster: Cluster | None = None,
    framework: Framework | str | None = None,
) -> Task:
    """A plan with its job, cluster and framework, whichever way they are given."""
    from dovetail import frameworks
    from dovetail.plans.plan import Plan
    from dovetail.plans.plan_file import Task, load_task

    if isinstance(plan, Plan):
        for name, value in (("job", job), ("cluster", cluster)):
            if value is None:
                raise InputError(name, "is missing", "a plan alone does not name it; or give a plan file")
        name = "megatron" if framework is None else framework
        loaded = frameworks.load(name) if isinstance(name, str) else name
        return Task(cast("Job", job), cast("Cluster", cluster), loaded, plan)
    for name, value in (("job", job), ("cluster", cluster), ("framework", framework)):
        if value is not None:
            other = "a plan file" if isinstance(plan, str | Path) else "an answer"
            raise InputError(name, f"cannot be combined with {other}", "leave it out, the plan already names it")
    if isinstance(plan, str | Path):
        return load_task(plan)
    return Task(plan.job, plan.cluster, plan.framework, plan.plan)


def _write(out: Path | str | None, text: str) -> None:
    """Writes a file where one is asked for."""
    if out is not None:
        from dovetail.documents import write_text

        write_text(Path(out), text)
