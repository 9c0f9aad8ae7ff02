"""`explain`: where the seconds and bytes of the best plan go, what binds it, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.plans.plan import Plan
from dovetail.search.answer import Answer
from dovetail.search.binding import binding, doubts, spans
from dovetail.search.marginal import Marginal, StaysBest, marginals, stays_best
from dovetail.search.neighbours import Neighbour, neighbours
from dovetail.search.relief import Relief, reliefs
from dovetail.units import bytes_text, percent_text

#: Seconds each of the 20 to 40 searches around an answer may take, where nothing is said: what the answer itself took,
#: but within these. Most need a fraction.
LEAST_LIMIT_S, MOST_LIMIT_S = 10.0, 60.0


@dataclass(frozen=True, slots=True)
class StageBytes:
    """Memory of the chips of the fullest stage."""

    stage: int
    """counted from 1"""
    stages: int
    parts: Mapping[str, float]
    capacity_bytes: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan is best; where no plan fits, what the job lacks and what would do."""

    job: str
    cluster: str
    framework: str
    plan: Plan | None
    step_time_s: float | None
    mfu: float | None
    seconds: Mapping[str, float]
    tiers: Mapping[str, str]
    """the network that parts of the step go over"""
    bytes: StageBytes | None
    binding: str
    neighbours: tuple[Neighbour, ...]
    marginal: tuple[Marginal, ...]
    stays_best: tuple[StaysBest, ...]
    doubts: tuple[str, ...]
    relief: tuple[Relief, ...]
    """the least changes that make the job fit; empty where it does"""


def explain(answer: Answer, *, time_limit_s: float | None = None) -> Explanation:
    """All of it; the limit is for each search around the answer, and what it leaves unproven says so."""
    job, cluster = answer.job, answer.cluster
    if time_limit_s is None:
        time_limit_s = min(max(LEAST_LIMIT_S, answer.timing.get("seconds", 0.0)), MOST_LIMIT_S)
    names = (
        f"{job.model.name}, {job.global_batch} × {job.seq_len} tokens, {job.precision}",
        f"{cluster.chips} {cluster.chip.name}",
        answer.framework.name,
    )
    if answer.evaluation is None:
        found = reliefs(answer, time_limit_s)
        why = lacking(answer, found)
        return Explanation(*names, None, None, None, {}, {}, None, why, (), (), (), doubts(answer), found)
    best = answer.best
    others, values = neighbours(answer, time_limit_s), marginals(answer, time_limit_s)
    rivals = [*(a.plan for a in answer.alternatives), *(n.plan for n in others), *(m.plan for m in values)]
    kept = stays_best(answer, [plan for plan in rivals if plan is not None], time_limit_s)
    parts = {name: seconds for name, seconds in best.breakdown.items() if seconds}
    return Explanation(
        *names,
        plan=best.plan,
        step_time_s=best.step_time_s,
        mfu=best.mfu,
        seconds=parts,
        tiers={name: tier for name, tier in spans(best.plan, cluster).items() if name in parts},
        bytes=_fullest(answer),
        binding=binding(answer, values),
        neighbours=others,
        marginal=values,
        stays_best=kept,
        doubts=doubts(answer),
        relief=(),
    )


def _fullest(answer: Answer) -> StageBytes:
    stages = answer.best.memory_by_stage
    stage = max(range(len(stages)), key=lambda number: sum(stages[number].values()))
    parts = {name: held for name, held in stages[stage].items() if held}
    return StageBytes(stage + 1, len(stages), parts, answer.cluster.chip.memory_bytes)


def lacking(answer: Answer, found: tuple[Relief, ...]) -> str:
    """Which limit keeps every plan from fitting, and by how much."""
    if answer.certificate.status != "infeasible":
        return "unknown: time ran out before a plan that fits was found, and before it was proven that there is none"
    if not answer.certificate.counted:
        return f"no degrees of the space divide {answer.cluster.chips} chips, the model and the global batch"
    memory = next((relief for relief in found if relief.what.startswith("memory")), None)
    if memory is None:
        return "memory: no plan of the space fits with 64 times as much"
    lacks = memory.after - memory.before
    return (
        f"memory: a chip has {bytes_text(memory.before)}, the smallest plan found needs {bytes_text(memory.after)}, "
        f"{bytes_text(lacks)} ({percent_text(lacks / memory.before)}) more"
    )
