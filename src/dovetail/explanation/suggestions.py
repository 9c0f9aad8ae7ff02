"""What a question that divides badly could ask instead: a batch or a number of chips nearby, each one searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import Literal

from dovetail.errors import InputError
from dovetail.explanation.changed_hardware import with_chips
from dovetail.frozen import frozen
from dovetail.search.answer import Answer
from dovetail.search.related_searches import best_plan
from dovetail.step.evaluation import Evaluation
from dovetail.step.ties import TIE_MARGIN

#: Batches this part away from the one asked for are close enough to suggest.
NEAR = 0.1


@frozen
class Suggestion:
    """Another value of what was asked, and the tokens a chip would be through in a second, over those of the answer."""

    field: Literal["global_batch", "chips"]
    asked: int
    value: int
    gain: float


def suggestions(answer: Answer, time_limit_s: float | None = None) -> tuple[Suggestion, ...]:
    """Values nearby that are faster per chip by more than the tie margin; empty where the question divides well.

    Against an answer that a time limit left unproven a gain would say nothing: there is none.
    """
    if answer.certificate.status != "optimal":
        return ()
    found: list[Suggestion] = []
    for field, value in (*_batches(answer), *_chips(answer)):
        other = _asked(answer, field, value, time_limit_s)
        if other is None:
            continue
        gain = other.tokens_per_s_per_chip / answer.fastest.tokens_per_s_per_chip - 1
        if gain > TIE_MARGIN:
            asked = answer.job.global_batch if field == "global_batch" else answer.cluster.chips
            found.append(Suggestion(field, asked, value, gain))
    return tuple(found)


def _batches(answer: Answer) -> Iterator[tuple[Literal["global_batch"], int]]:
    """The nearest batch that has more divisors in common with the chips, where one is near."""
    batch, chips = answer.job.global_batch, answer.cluster.chips
    near = range(max(1, int(batch * (1 - NEAR))), int(batch * (1 + NEAR)) + 1)
    better = [other for other in near if gcd(other, chips) > gcd(batch, chips)]
    if better:
        best = max(gcd(other, chips) for other in better)
        yield "global_batch", min((b for b in better if gcd(b, chips) == best), key=lambda b: abs(b - batch))


def _chips(answer: Answer) -> Iterator[tuple[Literal["chips"], int]]:
    """The numbers of chips below and above that fill their nodes, where these are not full."""
    cluster = answer.cluster
    node = cluster.chip.tiers[0].size if cluster.chip.tiers else 1
    if cluster.chips > node and cluster.tiers and cluster.tiers[0].size < node:
        below = cluster.chips // node * node
        yield "chips", below
        yield "chips", below + node


def _asked(answer: Answer, field: str, value: int, time_limit_s: float | None) -> Evaluation | None:
    job, cluster = answer.job, answer.cluster
    try:
        if field == "global_batch":
            job = replace(job, global_batch=value)
        else:
            larger = with_chips(cluster, value)
            if larger is None:
                return None
            cluster = larger
        limit = answer.limit_on(cluster)
        return best_plan(job, cluster, answer.framework, answer.space, time_limit_s, limit).evaluation
    except InputError:
        return None
