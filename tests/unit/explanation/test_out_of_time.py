"""Searches around an answer that run out of time leave something unknown; an explanation then claims nothing of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dovetail import hardware, models
from dovetail.cli.pareto_front import _proof_text
from dovetail.cli.plan_view import infeasible, print_answer
from dovetail.explanation.explain import explain, shortfall
from dovetail.explanation.smallest_fix import CHIPS, MEMORY, smallest_fixes
from dovetail.models import Job
from dovetail.report.answer_fields import answer_fields
from dovetail.search import Space, pareto_front, plan
from dovetail.search.related_searches import RelatedSearches

MODEL = models.load("llama-3.1-8b")
SPACE = Space(
    context_parallel=(1,), virtual_stages=(1,), recompute=("none", "full"), recompute_share=(1.0,), micro_batch=(1,)
)
#: Words that only a proof allows.
CLAIMS = re.compile(
    r"no plan (of the space )?fits|none of|does not fit|64 times|proven optimal|gains nothing|is not the bottleneck"
    r"|nothing that there could be|no plan divides|chips are enough"
)
LIMITS = (0.0, 1e-6)


@pytest.fixture(scope="module")
def unfit():
    """Proven not to fit."""
    answer = plan(Job(MODEL, 8192, 8), hardware.cluster("h100-sxm", 1), space=SPACE)
    assert answer.certificate.status == "infeasible"
    return answer


@pytest.fixture(scope="module")
def unknown():
    """The same question as it stands when time runs out: it may fit or not."""
    answer = plan(Job(MODEL, 8192, 8), hardware.cluster("h100-sxm", 8), space=SPACE, time_limit_s=0)
    assert (answer.evaluation, answer.certificate.status) == (None, "feasible")
    return answer


@pytest.fixture(scope="module")
def fits():
    answer = plan(Job(MODEL, 8192, 8), hardware.cluster("h100-sxm", 8), space=SPACE)
    assert answer.certificate.status == "optimal"
    return answer


@pytest.mark.parametrize("limit", LIMITS)
def test_a_fix_that_was_not_found_in_time_may_exist(unfit, limit):
    fixes = smallest_fixes(unfit, limit)
    assert (fixes.found, set(fixes.unknown)) == ((), {MEMORY, CHIPS})
    why = shortfall(unfit, fixes)
    assert "not known in the time given" in why
    assert not CLAIMS.search(why)
    text = str(explain(unfit, time_limit_s=limit))
    # the answer itself is proven: that alone may be said
    assert "no plan fits" in text
    assert not CLAIMS.search(text.replace("no plan fits", "", 1))
    assert text.count("not known in the time given") == 3


@pytest.mark.parametrize("limit", LIMITS)
def test_the_nearest_chips_that_were_not_found_in_time_may_do(limit):
    seven = plan(Job(MODEL, 8192, 8), hardware.cluster("h100-sxm", 7), space=replace(SPACE, pipeline_parallel=(1,)))
    assert (seven.certificate.status, seven.certificate.counted) == ("infeasible", 0)
    fixes = smallest_fixes(seven, limit)
    assert (fixes.found, fixes.unknown) == ((), (CHIPS,))


def test_a_fix_above_one_that_ran_out_of_time_is_not_called_the_least(unfit, monkeypatch):
    """The search with double the memory runs out of time, the others do not."""
    asked, best = [], RelatedSearches.best

    def runs_out(searches, space, _, limit_bytes):
        asked.append(limit_bytes)
        return best(searches, space, 0 if len(asked) == 1 else None, limit_bytes)

    monkeypatch.setattr(RelatedSearches, "best", runs_out)
    fixes = {fix.what: fix for fix in smallest_fixes(unfit).found}
    assert not fixes[MEMORY].proven
    assert fixes[MEMORY].too_little is None
    assert "whether less is enough" in str(replace(explain(unfit, time_limit_s=0), smallest_fix=(fixes[MEMORY],)))


@pytest.mark.parametrize("limit", LIMITS)
def test_an_unknown_answer_is_not_called_infeasible(unknown, limit):
    found = explain(unknown, time_limit_s=limit)
    assert not found.proven
    assert not CLAIMS.search(str(found))
    assert "in the time given" in str(found)
    sentence = str(infeasible(unknown))
    assert not CLAIMS.search(sentence)
    assert "in the time given" in sentence
    assert answer_fields(unknown)["fits"] is None


def test_what_more_hardware_gains_is_not_called_nothing(fits):
    found = explain(fits, time_limit_s=0)
    # that the plan itself would not fit in less memory needs no search
    assert not CLAIMS.search(str(found).replace("below: it does not fit", ""))
    assert not any(value.proven for value in found.marginal)
    assert not any(other.proven for other in found.neighbours if other.field != "axis_order")
    assert "not known in the time given" in found.bottleneck or "at least" in found.bottleneck
    nodes = found.marginal[-1]
    assert (nodes.what, nodes.plan) == ("nodes", None)
    assert "nothing found in time" in str(found)


@pytest.mark.parametrize("limit", LIMITS)
def test_an_ideal_that_was_not_found_in_time_bounds_its_gain(fits, limit, capsys):
    ideal = plan(fits.job, fits.cluster, "ideal", time_limit_s=limit)
    print_answer(fits, ideal=ideal)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ideal"))
    assert not CLAIMS.search(line)
    fields = answer_fields(fits, ideal=ideal)["ideal"]
    assert (fields["gain"], fields["status"]) == (None, "feasible")
    assert fields["gain_at_most"] > 0


def test_an_ideal_without_any_bound_says_nothing_of_its_gain(fits):
    """Ended while its tables were made only what physics bounds is known; without that, nothing."""
    ideal = plan(fits.job, fits.cluster, "ideal", on_progress=lambda _: True)
    assert answer_fields(fits, ideal=ideal)["ideal"]["gain_at_most"] > 0
    unbounded = replace(ideal, certificate=replace(ideal.certificate, lower_bound_s=0.0))
    assert answer_fields(fits, ideal=unbounded)["ideal"]["gain_at_most"] is None


def test_a_front_that_ran_out_of_time_is_not_proven(fits):
    def search(job, cluster, framework, *, space):
        return plan(job, cluster, framework, space=space, time_limit_s=0 if cluster.chips == 16 else None)

    points = pareto_front.pareto_front(
        fits.job,
        lambda chips: hardware.cluster("h100-sxm", chips),
        "megatron",
        (8, 16),
        1e9,
        space=SPACE,
        search=search,
    )
    assert [point.proven for point in points] == [True, False]
    assert points[1].reason == "no plan that fits was found in the time given"
    assert _proof_text(points) == "not known in the time given: whether a plan fits on 16 chips"
