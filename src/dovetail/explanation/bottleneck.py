"""The bottleneck: what a plan is short of, and what its step waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.cost.calibration import calibration
from dovetail.explanation.changed_hardware import CAPACITY
from dovetail.explanation.marginal import Marginal
from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.search.answer import Answer
from dovetail.step.evaluation import Evaluation
from dovetail.units import percent_text

#: Parts of a step that are computation.
COMPUTATION = ("forward", "backward", "recompute", "optimizer")
#: Gains below this part of the step are not worth a word.
WORTH = 0.001

_BASES = {
    "own": "efficiencies are this chip's, as measured",
    "fitted": "efficiencies are fitted on measured runs of this chip at this precision",
    "transfer": "no measured runs of this chip at this precision: efficiencies are those of its generation or base",
    "assumed": "no measured runs of this chip or its generation: efficiencies are assumed",
}

#: Fields of chips that seconds rest on; fields of chips and frameworks that bytes do.
_RATES = ("hbm_bytes_per_s", "dense_flops", "clock_hz")
_MEMORY = (
    "hbm_bytes",
    "hbm_usable_bytes",
    "states",
    "context_bytes",
    "allocator_overhead",
    "collective_buffer_bytes",
    "logits_bytes",
)


def spans(plan: Plan, cluster: Cluster) -> dict[str, str]:
    """The tier that each communicating part of a step goes over, by the part's name."""
    t, c, d = plan.tensor_parallel, plan.context_parallel, plan.data_parallel
    replicated = plan.chips if plan.stages_inside else t * c * d
    chips = {
        "tensor-parallel": t,
        "context-parallel": t * c,
        "expert-parallel": plan.expert_tensor_parallel * plan.expert_parallel,
        "weight-gather": replicated,
        "data-parallel": replicated,
        "gradient reduction": replicated,
        "updated weights": replicated,
        "tied embeddings": plan.chips,
    }
    by_part = {name: cluster.tier_of(n) for name, n in chips.items()}
    return {name: tier.name for name, tier in by_part.items() if tier is not None}


def bottleneck(answer: Answer, values: Sequence[Marginal]) -> str:
    """One sentence: what a tenth more of gains most, where the seconds go, and whether memory is the bottleneck."""
    gains = {value.what: value.gain or 0.0 for value in values if value.same_plan_s is not None}
    proven = {value.what: value.proven for value in values}
    most = max(gains, key=lambda what: gains[what])
    # a search that ran out of time may have missed what gains more, of this and of all else
    first = f"{most}: 10 % more gains {'' if proven[most] else 'at least '}{percent_text(gains[most])}"
    if gains[most] < WORTH:
        first = "nothing that there could be 10 % more of"
        if not all(proven[what] for what in gains):
            first = "not known in the time given what 10 % more would gain most of"
    memory = _memory_words(answer, gains[CAPACITY], proven=proven[CAPACITY])
    return f"{first}; {_time_words(answer.best, answer.cluster)}; {memory}"


def _time_words(best: Evaluation, cluster: Cluster) -> str:
    step, tiers = best.step_time_s, spans(best.plan, cluster)
    computing = sum(best.breakdown.get(name, 0.0) for name in COMPUTATION) / step
    others = {name: s for name, s in best.breakdown.items() if name not in COMPUTATION}
    largest = max(others, key=lambda name: others[name])
    over = f" over {tiers[largest]}" if largest in tiers else ""
    rest = f"most of the rest is {largest}{over} ({percent_text(others[largest] / step)})"
    return f"computation is {percent_text(computing)} of the step, {rest}"


def _memory_words(answer: Answer, gain: float, *, proven: bool) -> str:
    full = percent_text(answer.best.peak_bytes / answer.cluster.chip.usable_bytes)
    if gain >= WORTH:
        gains = f"gains {'' if proven else 'at least '}{percent_text(gain)}"
        return f"memory is a bottleneck: the fullest chip is {full} full, and 10 % more {gains}"
    if not proven:
        return f"the fullest chip is {full} full, and what 10 % more memory gains is not known in the time given"
    return f"memory is not the bottleneck: the fullest chip is {full} full, but 10 % more gains nothing"


def doubts(answer: Answer) -> tuple[str, ...]:
    """What the figures rest on and what is unsure of them, the calibration first; without a plan those of memory."""
    chip, cluster, framework = answer.cluster.chip, answer.cluster, answer.framework
    if answer.evaluation is None:
        relevant = [(framework.name, d) for d in framework.doubts if d[0] in _MEMORY]
        relevant += [(chip.name, d) for d in chip.doubts if d[0] in _MEMORY]
        return tuple(f"{name}, {field}: {why}" for name, (field, why) in relevant)
    used = _relevant(answer.plan)
    relevant = [(framework.name, doubt) for doubt in framework.doubts if used.get(doubt[0], True)]
    relevant += [(chip.name, doubt) for doubt in chip.doubts if doubt[0] in _RATES or doubt[0] in _MEMORY]
    relevant += [(cluster.name, doubt) for doubt in cluster.doubts]
    first = [_BASES[calibration(chip, answer.job.precision).basis]]
    if answer.certificate.status != "optimal":
        gap = percent_text(answer.certificate.gap or 0.0)
        first.append(f"the plan is not proven the best: another may take up to {gap} less, and a neighbour be faster")
    return (*first, *(f"{name}, {field}: {why}" for name, (field, why) in relevant))


def _relevant(plan: Plan) -> Mapping[str, bool]:
    """Fields of a framework that matter for some plans alone, and whether for this one."""
    staged = plan.pipeline_parallel > 1
    return {
        "pipeline_schedules": staged,
        "interleaved_microbatches": plan.virtual_stages > 1,
        "uneven_stages": staged,
        "zero_stages": plan.zero_stage > 0,
        "zero_stages_with_pipeline": staged and plan.zero_stage > 1,
        "zero_group": plan.zero_stage > 0,
        "sequence_parallel": plan.sequence_parallel,
        "context_parallel": plan.context_parallel > 1,
        "expert_parallel": plan.expert_parallel > 1,
        "expert_tensor_parallel": plan.expert_parallel > 1,
        "recompute": plan.recompute_choices != ("none",),
        "recompute_modules": plan.recompute_choices != ("none",),
        "recompute_stops_early": "full" in plan.recompute_choices,
    }
