"""`explain`: where the seconds and bytes of the best plan go, its bottleneck, and what would change it."""

from __future__ import annotations

from dovetail.explanation.bottleneck import bottleneck, doubts, spans
from dovetail.explanation.explanation import Explanation, StageBytes
from dovetail.explanation.interval import prediction_interval
from dovetail.explanation.marginal import marginals, stays_best
from dovetail.explanation.neighbourhood import Neighbourhood
from dovetail.explanation.neighbours import neighbours
from dovetail.explanation.smallest_fix import MEMORY, Fixes, smallest_fixes
from dovetail.search.answer import Answer
from dovetail.units import bytes_text, percent_text

#: Seconds each of the 20 to 40 searches around an answer may take, where nothing is said: what the answer itself took,
#: but within these. Most need a fraction.
MIN_LIMIT_S, MAX_LIMIT_S = 10.0, 60.0


def explain(answer: Answer, *, time_limit_s: float | None = None) -> Explanation:
    """Where seconds and bytes go, the bottleneck, what else was close, what more hardware is worth, and what is unsure.

    Where no plan fits: what is missing, and the smallest changes that would do. The limit is for each search around the
    answer, and what it leaves unproven says so; left out it is what the answer took, but 10 to 60 seconds.
    """
    # what else was close and what hardware is worth are about the fastest plan, as the certificate is
    answer = answer.of_fastest()
    job, cluster = answer.job, answer.cluster
    if time_limit_s is None:
        time_limit_s = min(max(MIN_LIMIT_S, answer.timing.get("seconds", 0.0)), MAX_LIMIT_S)
    names = (
        f"{job.model.name}, {job.global_batch} × {job.seq_len} tokens, {job.precision}"
        + ("" if job.adapters is None else f", {job.adapters.words}"),
        f"{cluster.chips} {cluster.chip.name}",
        answer.framework.name,
    )
    if answer.evaluation is None:
        fixes = smallest_fixes(answer, time_limit_s)
        why = shortfall(answer, fixes)
        proven = answer.certificate.status == "infeasible"
        return Explanation(
            *names, None, None, None, {}, {}, None, why, (), (), (), doubts(answer), fixes.found, None, proven,
            fixes.unknown,
        )  # fmt: skip
    best = answer.best
    around = Neighbourhood(answer, time_limit_s)
    others, values = neighbours(around), marginals(around)
    rivals = [*(a.plan for a in answer.alternatives), *(n.plan for n in others), *(m.plan for m in values)]
    ranges = stays_best(around, [plan for plan in rivals if plan is not None])
    parts = {name: seconds for name, seconds in best.breakdown.items() if seconds}
    return Explanation(
        *names,
        plan=best.plan,
        step_time_s=best.step_time_s,
        mfu=best.mfu,
        seconds=parts,
        tiers={name: tier for name, tier in spans(best.plan, cluster).items() if name in parts},
        bytes=_fullest(answer),
        bottleneck=bottleneck(answer, values),
        neighbours=others,
        marginal=values,
        stays_best=ranges,
        doubts=doubts(answer),
        smallest_fix=(),
        interval=prediction_interval(answer.step_time_s, job, cluster, answer.framework.name),
    )


def _fullest(answer: Answer) -> StageBytes:
    stages = answer.best.memory_by_stage
    stage = max(range(len(stages)), key=lambda number: sum(stages[number].values()))
    parts = {name: amount for name, amount in stages[stage].items() if amount}
    return StageBytes(stage + 1, len(stages), parts, answer.cluster.chip.usable_bytes)


def shortfall(answer: Answer, fixes: Fixes) -> str:
    """Which limit no plan meets, and by how much."""
    if answer.certificate.status != "infeasible":
        return "unknown: time ran out before a plan that fits was found, and before it was proven that there is none"
    if not answer.certificate.counted:
        return f"no degrees of the space divide {answer.cluster.chips} chips, the model and the global batch"
    memory = next((fix for fix in fixes.found if fix.what == MEMORY), None)
    if memory is None and answer.space.offload:
        host = answer.cluster.chip.host.chip_bytes(answer.cluster.chips)
        return f"memory of chips, or that of hosts, which have {bytes_text(host)} for each of them"
    if memory is None and MEMORY in fixes.unknown:
        return "memory: how much would be enough is not known in the time given"
    if memory is None:
        return "memory: no plan of the space fits with 64 times as much"
    lacks = memory.after - memory.before
    return (
        f"memory: plans may take {bytes_text(memory.before)} of a chip, the smallest plan found needs "
        f"{bytes_text(memory.after)}, {bytes_text(lacks)} ({percent_text(lacks / memory.before)}) more"
    )
