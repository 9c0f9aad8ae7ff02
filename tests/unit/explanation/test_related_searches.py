"""Searches that share tables and begin with what others found have the answers of separate searches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import hardware, models
from dovetail.explanation.changed_hardware import CAPACITY, knobs, with_a_node
from dovetail.explanation.explain import explain
from dovetail.explanation.marginal import MORE
from dovetail.explanation.neighbourhood import Neighbourhood
from dovetail.models import Job
from dovetail.search import Space, plan
from dovetail.search.answer import Answer
from dovetail.search.best_first import BestFirst, BoundedSkeletons
from dovetail.search.related_searches import RelatedSearches

SMALL = Space(
    tensor_parallel=(1, 2),
    context_parallel=(1,),
    pipeline_parallel=(1, 2),
    virtual_stages=(1, 2),
    micro_batch=(1, 2),
    recompute=("none", "full"),
    recompute_share=(1.0,),
)
BY_BLOCK = replace(SMALL, recompute=None, recompute_share=None, virtual_stages=(1,))
STAGED = replace(SMALL, pipeline_parallel=(2, 4), pipeline_schedule=("1f1b", "gpipe"))
#: Dense, a mixture, layers that deal unevenly, and blocks with policies of their own: model, chips, batch, framework.
JOBS = {
    "dense": ("llama-3.2-1b", 8, 16, "megatron", SMALL),
    "mixture": ("deepseek-v2-lite", 16, 32, "megatron", replace(SMALL, expert_parallel=(4, 8))),
    "uneven": ("llama-3.1-8b", 8, 16, "megatron", STAGED),
    "by block": ("llama-3.2-1b", 4, 8, "ideal", BY_BLOCK),
}
SLOW = ("mixture", "uneven", "by block")
PARAMS = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in JOBS]


@pytest.fixture(scope="module", params=PARAMS)
def answer(request) -> Answer:
    model, chips, batch, framework, space = JOBS[request.param]
    found = plan(Job(models.load(model), 4096, batch), hardware.cluster("h100-sxm", chips), framework, space=space)
    assert found.evaluation is not None
    return found


def separately(answer, cluster, space):
    limit = answer.limit_on(cluster)
    return plan(answer.job, cluster, answer.framework, space=space, memory_limit_bytes=limit)


def agree(seconds, proven, alone):
    assert proven == (alone.certificate.status != "feasible")
    if alone.evaluation is None:
        assert seconds is None
    else:
        assert seconds == pytest.approx(alone.step_time_s, rel=1e-9)


def test_all_of_an_explanation_is_as_by_separate_searches(answer):
    around, found = Neighbourhood(answer), explain(answer)
    assert [(n.field, n.value) for n in found.neighbours if n.field != "axis_order"] == [
        (field, value) for field, value, _ in around.forced
    ]
    for other, (_, _, narrowed) in zip(found.neighbours, around.forced, strict=False):
        agree(other.step_time_s, other.proven, separately(answer, answer.cluster, narrowed))
    *values, nodes = found.marginal
    for value, knob in zip(values, knobs(answer.cluster), strict=True):
        agree(value.step_time_s, value.proven, separately(answer, knob.turned(answer.cluster, MORE), around.space))
    agree(nodes.step_time_s, nodes.proven, separately(answer, with_a_node(answer.cluster), answer.space))


@pytest.fixture(scope="module")
def kept(answer) -> Answer:
    """The same answer with its search, which remembers skeletons as one that opens many pairs of degrees does."""
    found = plan(answer.job, answer.cluster, answer.framework, space=answer.space, keep_tables=True)
    search = found.search
    assert isinstance(search, BestFirst)
    every = search._pairs.exists
    search._skeletons = BoundedSkeletons(every, *search._bounded_skeletons(every))
    return found


def test_tables_of_the_search_change_no_explanation(answer, kept):
    assert kept.search is not None
    assert explain(kept) == explain(answer)


@pytest.mark.parametrize("size", [1, 2])
def test_a_narrower_space_has_no_skeleton_of_the_search_before(answer, kept, size):
    around = Neighbourhood(answer)
    searches = RelatedSearches(answer.job, answer.cluster, answer.framework, around.space, kept.search)
    narrow = replace(around.space, micro_batch=(size,))
    found = searches.best(narrow)
    assert found.evaluation is not None
    assert found.evaluation.plan.micro_batch == size
    agree(found.evaluation.step_time_s, found.proven, separately(answer, answer.cluster, narrow))


def test_a_plan_that_needs_more_memory_is_not_taken_for_known(answer):
    """What was found within double the memory says nothing about less."""
    around = Neighbourhood(answer)
    searches = RelatedSearches(answer.job, answer.cluster, answer.framework, around.space)
    roomy = searches.best(around.space, limit_bytes=answer.limit_bytes * 2)
    assert roomy.evaluation is not None
    assert roomy.evaluation.step_time_s <= answer.step_time_s * (1 + 1e-9)
    tight = answer.best.peak_bytes * (1 - 1e-6)
    within = searches.best(around.space, limit_bytes=tight)
    alone = plan(answer.job, answer.cluster, answer.framework, space=around.space, memory_limit_bytes=tight)
    agree(within.evaluation and within.evaluation.step_time_s, within.proven, alone)
    assert within.evaluation is None or within.evaluation.peak_bytes <= tight


def test_capacity_changes_no_seconds(answer):
    (knob,) = (knob for knob in knobs(answer.cluster) if knob.name == CAPACITY)
    around = Neighbourhood(answer)
    assert around.searches.evaluated(answer.plan).step_time_s == answer.step_time_s
    larger = RelatedSearches(answer.job, knob.turned(answer.cluster, MORE), answer.framework, around.space)
    assert larger.evaluated(answer.plan).step_time_s == answer.step_time_s
