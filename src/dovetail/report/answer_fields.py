"""Answers as JSON: the fields that others rely on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dovetail.explanation.interval import prediction_interval
from dovetail.plans.provenance import provenance_fields
from dovetail.plans.words import plan_words
from dovetail.plans.write import cluster_part, job_part, plan_fields

if TYPE_CHECKING:
    from dovetail.explanation.explanation import Explanation
    from dovetail.frameworks import Framework
    from dovetail.hardware import Cluster
    from dovetail.memory.reserved import ReservedMemory
    from dovetail.models import Job
    from dovetail.plans.plan import Plan
    from dovetail.plans.plan_file import Question
    from dovetail.search.answer import Answer, Certificate
    from dovetail.search.pareto_front import FrontPoint, Training
    from dovetail.step.evaluation import Evaluation
    from dovetail.step.power import Ranged, StepPower

#: Fields that need a plan.
_OF_PLAN = (
    "step_time_s",
    "mfu",
    "tokens_per_s_per_chip",
    "breakdown",
    "memory_bytes",
    "energy_j",
    "energy_range_j",
    "power_w",
    "plan",
)


def evaluation_fields(
    result: Evaluation, job: Job, cluster: Cluster, framework: Framework, reserved: ReservedMemory | None = None
) -> dict[str, Any]:
    """What a plan costs, with the question it answers."""
    interval = prediction_interval(result.step_time_s, job, cluster, framework.name)
    return {
        "fits": result.fits,
        "step_time_s": result.step_time_s,
        "mfu": result.mfu,
        "tokens_per_s_per_chip": result.tokens_per_s_per_chip,
        "breakdown": dict(result.breakdown),
        "memory_bytes": {
            "peak": result.peak_bytes,
            "usable": result.usable_bytes,
            "headroom": result.headroom_bytes,
            "missing": result.missing_bytes,
            "fit_probability": result.fit_probability,
            "allocated": None if reserved is None else reserved.allocated_bytes,
            "reserved": None if reserved is None else reserved.reserved_bytes,
            "breaks_at": None if reserved is None else reserved.operator,
            "by_stage": [dict(parts) for parts in result.memory_by_stage],
            "phase_by_stage": list(result.fullest_phases),
            "by_phase": {when: dict(parts) for when, parts in result.memory_by_phase[result.fullest_stage].items()},
            **({"host": result.host_bytes} if result.plan.offload else {}),
        },
        **_traced_fields(result),
        "energy_j": result.energy_j,
        "energy_range_j": None if result.energy is None else [result.energy.low, result.energy.high],
        "power_w": None if result.power is None else _power_fields(result.power),
        "provenance": {**result.provenance, **provenance_fields(job, cluster, framework)},
        **_plan_and_words(result.plan),
        "interval_s": [interval.low_s, interval.high_s],
        **question_fields(job, cluster, framework),
    }


def answer_fields(
    answer: Answer,
    *,
    training: Training | None = None,
    ideal: Answer | None = None,
    explanation: Explanation | None = None,
) -> dict[str, Any]:
    """The JSON fields others rely on; without a plan those of the plan are null."""
    question = answer.job, answer.cluster, answer.framework
    if answer.evaluation is None:
        # that nothing fits rests on the same as an answer does
        # whether a plan fits is not known where time ran out
        fits = False if answer.certificate.status == "infeasible" else None
        fields = {"fits": fits, **dict.fromkeys(_OF_PLAN), "provenance": provenance_fields(*question)}
        fields |= question_fields(*question)
    else:
        fields = evaluation_fields(answer.best, *question)
        fastest = answer.fastest
        fields["fastest"] = {"step_time_s": fastest.step_time_s, **_plan_and_words(fastest.plan)}
        fields["recommended_loss"] = answer.recommended_loss
    fields |= {
        "certificate": certificate_fields(answer.certificate),
        "alternatives": [
            {"step_time_s": other.step_time_s, "loss": other.loss, **_plan_and_words(other.plan)}
            for other in answer.alternatives
        ],
    }
    timing = dict(answer.timing)
    if answer.simulated:
        fields["simulation"] = _simulation_fields(answer)
    if training is not None:
        fields["training"] = asdict(training)
    if ideal is not None:
        fields["ideal"] = ideal_fields(answer, ideal)
        timing |= {f"ideal_{name}": value for name, value in ideal.timing.items()}
    if explanation is not None:
        fields["explanation"] = explanation.fields()
    return fields | {"timing": timing}


def front_fields(
    points: Sequence[FrontPoint], best: FrontPoint | None, objective: str, question: Question
) -> dict[str, Any]:
    """The best plan for each number of chips; where there is none, its fields are null."""
    asked = question.job, question.cluster, question.framework
    parts, provenance = question_fields(*asked), provenance_fields(*asked)
    # each point has a cluster of its own
    parts["cluster"].pop("chips", None)
    digests = {name: text for name, text in provenance["digests"].items() if name != "cluster"}
    return {
        "objective": objective,
        "best_chips": None if best is None else best.chips,
        **parts,
        "front": [_point_fields(point) for point in points],
        "provenance": provenance | {"digests": digests},
    }


def _point_fields(point: FrontPoint) -> dict[str, Any]:
    answer, training = point.answer, point.training
    best = None if answer is None else answer.evaluation
    run = ("tokens", "steps", "train_s", "chip_hours", "cost_usd", "energy_j")
    return {
        "chips": point.chips,
        "step_time_s": None if best is None else best.step_time_s,
        "mfu": None if best is None else best.mfu,
        **{name: None if training is None else getattr(training, name) for name in run},
        "on_front": point.on_front,
        "on_cost_front": point.on_cost_front,
        "reason": point.reason or None,
        **({"plan": None, "words": None} if best is None else _plan_and_words(best.plan)),
        "certificate": None if answer is None else certificate_fields(answer.certificate),
    }


def certificate_fields(certificate: Certificate) -> dict[str, Any]:
    """A certificate as JSON; it names the time it is about where that is not the model's."""
    fields = asdict(certificate)
    if certificate.time == "modelled":
        del fields["time"]
    return fields


def question_fields(job: Job, cluster: Cluster, framework: Framework) -> dict[str, Any]:
    """The question, as a plan file would have it."""
    return {"job": job_part(job), "cluster": cluster_part(cluster) | {"framework": framework.name}}


def ideal_fields(answer: Answer, ideal: Answer) -> dict[str, Any]:
    """What plans that no framework runs would gain."""
    best, certificate = ideal.evaluation, ideal.certificate
    bound = certificate.lower_bound_s
    return {
        "step_time_s": None if best is None else best.step_time_s,
        "gain": None if best is None else answer.step_time_s / best.step_time_s - 1,
        "gain_at_most": None if not bound else answer.step_time_s / bound - 1,
        "status": certificate.status,
        "plan": None if best is None else plan_fields(best.plan),
        "certificate": certificate_fields(certificate),
    }


def _traced_fields(result: Evaluation) -> dict[str, Any]:
    """What of a traced model is approximated or left out; nothing where nothing is."""
    fields: dict[str, Any] = {}
    if result.approximated:
        operators = [asdict(each) for each in result.approximated]
        fields |= {"approximated": operators, "approximated_share": result.approximated_share}
    return fields | ({"left_out": list(result.left_out)} if result.left_out else {})


def _power_fields(power: StepPower) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in ("chip", "system", "facility"):
        watts: Ranged | None = getattr(power, name)
        fields[name] = None if watts is None else watts.value
        fields[f"{name}_range"] = None if watts is None else [watts.low, watts.high]
    return fields


def _plan_and_words(plan: Plan) -> dict[str, Any]:
    return {"plan": plan_fields(plan), "words": plan_words(plan)}


def _simulation_fields(answer: Answer) -> dict[str, Any]:
    best = answer.simulated[0]
    return {
        "step_time_s": best.step_time_s,
        "model_step_time_s": best.model_s,
        "ratio": best.step_time_s / best.model_s,
        "plans": [asdict(replayed) | {"plan": plan_fields(replayed.plan)} for replayed in answer.simulated],
    }
