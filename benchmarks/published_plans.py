"""Published plans against the plans our search finds, for every group of measured runs; by the model, not measured.

A group is what modelling.md compares plans in: equal family, architecture, chip, number of chips, sequence length,
global batch, precision and framework. Its published plan is the measured fastest that the model can evaluate.

    python benchmarks/published_plans.py                      every family
    python benchmarks/published_plans.py bloom mlperf         these families
    python benchmarks/published_plans.py --id mlperf50        runs whose id begins so
    python benchmarks/published_plans.py --no-search          only whether plans are in the space, and their times
    python benchmarks/published_plans.py --pinned             search only what the published plan says: is it found?
    python benchmarks/published_plans.py --page               the rows of docs/results/published-plans.md
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from dovetail.accuracy import MeasuredRun, published_runs, read_runs
from dovetail.errors import InputError
from dovetail.plans.plan_file import Task
from dovetail.plans.space import BY_BLOCK, Space, menu
from dovetail.plans.words import plan_words
from dovetail.search.membership import canonical, covers
from dovetail.step.evaluate import Evaluation, evaluate

try:
    from dovetail.search import plan as search
except ImportError:
    search = None

DATA = Path(__file__).parents[1] / "../shared/data/training_runs.csv"
#: Models of the page, as the runs' jobs call them.
PAGE = {
    "llama-3.1-405b": "Llama-3.1-405B",
    "deepseek-v3": "DeepSeek-V3",
    "gpt3-175b": "GPT-3 175B",
    "GPT-175B": "GPT-3 175B",
    "bloom-176b": "BLOOM-176B",
}
#: Families whose single figures are not ours to hand on.
UNPUBLISHED = ("vtrain-single", "vtrain-multi")
#: More than sums in another order can differ.
ROUNDING = 1e-9
#: Parts of a step that change by less than this part of it are no reason.
NOTABLE = 0.005


@dataclass(frozen=True)
class Published:
    """A group's published plan: the run that is measured fastest, and what the model says of it."""

    run: MeasuredRun
    evaluation: Evaluation
    missing: str | None

    @property
    def task(self) -> Task:
        return self.run.task


@dataclass(frozen=True)
class Found:
    """What the search said of a job, cluster and framework."""

    evaluation: Evaluation | None
    status: str
    gap: float
    cpu_s: float


@dataclass(frozen=True)
class Compared:
    """A published plan beside the one found; None where nothing was searched."""

    published: Published
    found: Found | None

    @property
    def gain(self) -> float | None:
        """How much longer the published plan takes by the model."""
        if self.found is None or self.found.evaluation is None:
            return None
        return self.published.evaluation.step_time_s / self.found.evaluation.step_time_s - 1

    @property
    def promised(self) -> bool:
        """Whether the search must do no worse: its space holds the published plan, which fits by the model."""
        return self.published.missing is None and self.published.evaluation.fits

    @property
    def broken(self) -> bool:
        """Whether it did worse nevertheless."""
        return self.found is not None and self.promised and (self.gain is None or self.gain < -ROUNDING)


def conditions(run: MeasuredRun) -> Hashable:
    """What runs of one group have in common."""
    job, cluster = run.task.job, run.task.cluster
    setting = (cluster.chip.name, cluster.chips, job.seq_len, job.global_batch, job.precision)
    return (run.family, run.architecture, *setting, run.framework)


def published_plans(runs: Iterable[MeasuredRun]) -> Iterator[Published]:
    """The published plan of every group that has one."""
    groups: defaultdict[Hashable, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[conditions(run)].append(run)
    for group in groups.values():
        evaluated = map(evaluated_run, sorted(group, key=lambda run: run.step_time_s))
        yield from [found for found in evaluated if found is not None][:1]


def evaluated_run(run: MeasuredRun) -> Published | None:
    """A run with its plan evaluated; None where the model refuses it."""
    task = run.task
    try:
        evaluation = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    except InputError:
        return None
    if not math.isfinite(evaluation.step_time_s):
        return None
    return Published(run, evaluation, covers(task.plan, task.job, task.cluster, task.framework).reason)


def one_per_task(plans: Iterable[Published]) -> list[Published]:
    """Of published plans with equal job, cluster and framework the one measured fastest."""
    best: dict[str, Published] = {}
    for plan in sorted(plans, key=lambda plan: plan.run.step_time_s):
        best.setdefault(question(plan.task), plan)
    return [plan for plan in plans if best[question(plan.task)] is plan]


def question(task: Task) -> str:
    """Job, cluster and framework as a key: models hold mappings, which have no hash."""
    return repr((task.job, task.cluster, task.framework))


class Searches:
    """Every question searched once."""

    def __init__(self, time_limit_s: float | None, *, pinned: bool) -> None:
        self._limit, self._pinned = time_limit_s, pinned
        self._known: dict[tuple[str, Space | None], Found] = {}

    def compare(self, published: Published) -> Compared:
        """A published plan beside the best that is found for its task."""
        if search is None:
            return Compared(published, None)
        space = pinned_space(published.task) if self._pinned else None
        key = (question(published.task), space)
        if key not in self._known:
            self._known[key] = self._found(published.task, space)
        return Compared(published, self._known[key])

    def _found(self, task: Task, space: Space | None) -> Found:
        before = time.process_time()
        try:
            answer = search(task.job, task.cluster, task.framework, space=space, time_limit_s=self._limit)
        except InputError as error:
            return Found(None, f"refused: {error}", math.nan, time.process_time() - before)
        certificate = answer.certificate
        return Found(answer.evaluation, certificate.status, certificate.gap, time.process_time() - before)


def pinned_space(task: Task) -> Space:
    """Only what a plan says: its cut, and its recompute where blocks choose by themselves, stay free."""
    plan = canonical(task.plan, task.job, task.cluster, task.framework)
    offered = menu(task.job, task.framework)
    has_experts = any("experts" in layer.sizes for layer in task.job.graph().layers.values())
    return Space(
        tensor_parallel=(plan.tensor_parallel,),
        context_parallel=(plan.context_parallel,),
        context_kind=(plan.context_kind,) if plan.context_parallel > 1 else None,
        pipeline_parallel=(plan.pipeline_parallel,),
        virtual_stages=(plan.virtual_stages,),
        pipeline_schedule=(plan.pipeline_schedule,) if plan.pipeline_parallel > 1 else None,
        expert_parallel=(plan.expert_parallel,),
        expert_tensor_parallel=(plan.expert_tensor_parallel,) if has_experts else None,
        sequence_parallel=(plan.sequence_parallel,),
        micro_batch=(plan.micro_batch,),
        zero_stage=(plan.zero_stage,),
        zero_group=(plan.zero_group,) if plan.zero_stage else None,
        recompute=offered if offered == (BY_BLOCK,) else (plan.recompute,),
        recompute_share=None if offered == (BY_BLOCK,) else (plan.recompute_share,),
        axis_order=(plan.axis_order,),
    )


def reason(published: Evaluation, found: Evaluation) -> str:
    """Which parts of the step change most, in seconds."""
    before, after = published.breakdown, found.breakdown
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in dict.fromkeys((*before, *after))}
    notable = [name for name, s in changes.items() if abs(s) >= NOTABLE * published.step_time_s]
    notable.sort(key=lambda name: -abs(changes[name]))
    return ", ".join(f"{name} {seconds(changes[name])}" for name in notable[:4]) or "as good"


def seconds(value: float) -> str:
    return f"{value:+.3g} s".replace("-", "−", 1)


def percent(part: float) -> str:
    return f"{100 * part:.1f} %".replace("-", "−")


def change(part: float) -> str:
    return f"{100 * part:+.1f} %".replace("-", "−")


def page_row(compared: Compared) -> str:
    """A row of docs/results/published-plans.md."""
    published, found = compared.published, compared.found
    run, job, cluster = published.run, published.task.job, published.task.cluster
    where = (
        f"{cluster.chips:,} {cluster.chip.name}, {job.precision}, {job.global_batch} × {job.seq_len}, {run.framework}"
    )
    predicted = published.evaluation.step_time_s
    times = f"{run.step_time_s:.2f} | {predicted:.2f} ({change(predicted / run.step_time_s - 1)})"
    left = f"| {where} | {plan_words(published.task.plan)} | {times} |"
    if found is None:
        return f"{left} TODO | TODO | TODO | TODO |"
    if found.evaluation is None:
        return f"{left} none ({found.status}) | | | |"
    best, gain = found.evaluation, compared.gain
    assert gain is not None
    proof = found.status if found.status == "optimal" else f"{found.status}, gap {percent(found.gap)}"
    why = reason(published.evaluation, best)
    return f"{left} {plan_words(best.plan)} | {best.step_time_s:.2f} ({proof}) | {change(gain)} | {why} |"


def print_page(plans: Sequence[Published], searches: Searches | None) -> list[Compared]:
    """A table for every model, each row as soon as it is known."""
    compared: list[Compared] = []
    for name in dict.fromkeys(PAGE.values()):
        rows = [plan for plan in plans if PAGE[plan.task.job.model.name] == name]
        if not rows:
            continue
        columns = [
            "on",
            "published plan",
            "measured s",
            "predicted s",
            "found plan",
            "predicted s",
            "gain",
            "what changes",
        ]
        print(f"\n## {name}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for plan in sorted(rows, key=lambda p: (p.task.cluster.chip.name, p.task.job.precision, p.task.cluster.chips)):
            compared.append(searches.compare(plan) if searches else Compared(plan, None))
            print(page_row(compared[-1]), flush=True)
    return compared


def group_row(compared: Compared) -> str:
    """One line of a group."""
    published, found = compared.published, compared.found
    line = f"{published.run.family} | {published.run.id} | {plan_words(published.task.plan)}"
    line += f" | {published.missing or 'in the space'} | {'fits' if published.evaluation.fits else 'does not fit'}"
    line += f" | {published.run.step_time_s:.4g} | {published.evaluation.step_time_s:.4g}"
    if found is None:
        return f"| {line} |"
    if found.evaluation is None:
        return f"| {line} | none | | {found.status} | {found.cpu_s:.1f} |"
    gain = f"{change(compared.gain or 0.0)}{' SLOWER' if compared.broken else ''}"
    status = f"{found.status}, gap {percent(found.gap)}"
    return f"| {line} | {found.evaluation.step_time_s:.4g} | {gain} | {status} | {found.cpu_s:.1f} |"


def family_row(name: str, group: Sequence[Compared]) -> str:
    """Counts and gains of a family, or of all."""
    inside = sum(c.published.missing is None for c in group)
    fitting = sum(c.published.evaluation.fits for c in group)
    line = f"| {name} | {len(group)} | {inside} ({percent(inside / len(group))}) | {fitting}"
    gains = [gain for c in group if (gain := c.gain) is not None]
    if not any(c.found for c in group):
        return f"{line} |"
    promised = [c for c in group if c.promised and c.found]
    kept = f"{sum(not c.broken for c in promised)} of {len(promised)}"
    optimal = sum(c.found is not None and c.found.status == "optimal" for c in group)
    best = f"{change(median(gains))} | {change(max(gains))}" if gains else "|"
    spent = sum({id(c.found): c.found.cpu_s for c in group if c.found}.values())
    return f"{line} | {kept} | {optimal} | {best} | {spent:.0f} |"


def print_table(compared: Sequence[Compared]) -> None:
    """Families and totals, then what the space lacks, and plans that the search did not reach."""
    families: defaultdict[str, list[Compared]] = defaultdict(list)
    for one in compared:
        families[one.published.run.family].append(one)
    columns = ["family", "groups", "in the space", "published fits"]
    if any(c.found for c in compared):
        columns += ["no slower", "proven", "median gain", "largest gain", "CPU s"]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, group in sorted(families.items()):
        print(family_row(name, group))
    print(family_row("all", compared))
    lacking = Counter(c.published.missing for c in compared if c.published.missing)
    print("\nWhat the space lacks:", "nothing" if not lacking else "")
    for feature, count in lacking.most_common():
        ids = ", ".join(c.published.run.id for c in compared if c.published.missing == feature)
        print(f"- {feature}: {count} ({ids})")
    large = [c.published for c in compared if not c.published.evaluation.fits]
    print("\nPublished plans too large by the model, so none that the search may find:", "" if large else "none")
    for published in large:
        over = published.evaluation.missing_bytes / published.evaluation.peak_bytes
        print(f"- {published.run.id} by {percent(over)}")


def chosen_plans(options: argparse.Namespace) -> list[Published]:
    """The published plans that are asked for."""
    runs = read_runs(DATA) if DATA.exists() else published_runs()
    wanted = [
        run
        for run in runs.runs
        if (not options.families or run.family in options.families) and run.id.startswith(options.id)
    ]
    if not options.page:
        return list(published_plans(wanted))
    page = [run for run in wanted if run.task.job.model.name in PAGE and run.family not in UNPUBLISHED]
    return one_per_task(list(published_plans(page)))


def print_groups(plans: Sequence[Published], searches: Searches | None, *, each: bool) -> list[Compared]:
    """The table of families, after a row for each group where asked for."""
    compared: list[Compared] = []
    for number, plan in enumerate(plans, 1):
        compared.append(searches.compare(plan) if searches else Compared(plan, None))
        if each:
            print(group_row(compared[-1]), flush=True)
        elif (found := compared[-1].found) is not None:
            print(f"{number} of {len(plans)}: {plan.run.id}, {found.status}", file=sys.stderr, flush=True)
    if compared:
        print_table(compared)
    return compared


def main() -> int:
    """Prints the tables; fails where a plan of the space was not reached."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("families", nargs="*", help="source families; all where none is named")
    arguments.add_argument("--id", default="", help="only runs whose id begins so")
    arguments.add_argument("--no-search", action="store_true", help="do not search")
    arguments.add_argument("--pinned", action="store_true", help="search only what the published plan says")
    arguments.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="of every search (default 60)")
    arguments.add_argument("--each", action="store_true", help="a row for every group")
    arguments.add_argument("--page", action="store_true", help="the rows of docs/results/published-plans.md")
    options = arguments.parse_args()
    searches = None if options.no_search else Searches(options.time_limit, pinned=options.pinned)
    plans = chosen_plans(options)
    compared = print_page(plans, searches) if options.page else print_groups(plans, searches, each=options.each)
    broken = [one.published.run.id for one in compared if one.broken]
    if broken:
        print(f"\nFound plans slower than published ones of the space: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
