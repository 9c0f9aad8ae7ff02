"""Answers frozen with their questions: the same plans, statuses, seconds, bytes and joules."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from answers.compare import HERE, KINDS, Comparison, ask, compare, frozen, questions, relative, unit_of

#: Of every kind that is slow as a whole, some that are quick.
QUICK = {
    "plan": ("narrow-interleaved", "narrow-zero3", "narrow-context", "fsdp-gpt3-1.3b-8", "megatron-2022-gpt3-13b"),
    "explore": ("two-jobs",),
}
#: It does not fit and recomputes by block: each of a thousand changes is evaluated by itself, which takes a minute.
SLOW = ("ideal-02-deepseek-v3",)
MAX_BYTES = 1_500_000


def check(comparison: Comparison, cases: int) -> None:
    assert comparison.cases == cases
    assert comparison.differing == {}
    assert comparison.equal + len(comparison.corrected) >= cases


@pytest.mark.parametrize("kind", ["estimate", "place", "simulate"])
def test_answers_are_the_frozen_ones(kind):
    check(compare(kind, skipped=SLOW), len(frozen(kind).keys() - SLOW))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow_estimates_are_the_frozen_ones(name):
    check(compare("estimate", name), 1)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in QUICK.items() for name in names])
def test_quick_searches_answer_the_frozen_plans(kind, name):
    check(compare(kind, name), 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plan", "explore"])
def test_all_searches_answer_the_frozen_plans(kind):
    check(compare(kind), len(frozen(kind)))


def test_each_question_has_one_answer():
    least = {"estimate": 200, "plan": 60, "place": 10, "explore": 5, "simulate": 10}
    names = [question["id"] for kind in KINDS for question in questions(kind)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for kind in KINDS:
        assert [question["id"] for question in questions(kind)] == list(frozen(kind))
        assert len(frozen(kind)) >= least[kind]
        assert {record["exit"] for record in frozen(kind).values()} <= {0, 3}
    assert sum(path.stat().st_size for path in HERE.rglob("*.json*")) < MAX_BYTES


def test_corrections_name_questions_and_give_reasons():
    corrections = json.loads((HERE / "corrected.json").read_text(encoding="utf-8"))
    assert corrections.keys() <= {name for kind in KINDS for name in frozen(kind)}
    assert all(reason for fields in corrections.values() for reason in fields.values())


def test_a_difference_is_seen_where_it_is():
    before = ask("place", questions("place")[0])
    after = json.loads(json.dumps(before))
    after["answer"]["time_per_batch_s"] *= 1 + 1e-9
    after["answer"]["certificate"]["status"] = "feasible"
    comparison = Comparison()
    comparison.add(before, after, {})
    assert (comparison.equal, comparison.identical) == (0, 0)
    assert [text.split(":")[0] for text in comparison.differing[before["id"]]] == [
        "time_per_batch_s",
        "certificate.status",
    ]
    explained = Comparison()
    explained.add(before, after, {before["id"]: {"time_per_batch_s": "a reason", "certificate": "a reason"}})
    assert (explained.differing, len(explained.corrected)) == ({}, 1)


def test_units_and_differences():
    assert unit_of("memory_bytes.by_stage.weights[0]") == "bytes"
    assert unit_of("front[0].energy_j") == "joules"
    assert unit_of("breakdown.forward") == "seconds"
    assert unit_of("mfu") == "other"
    assert relative(0.0, 0.0 + 1e-30) == 1.0
    assert relative(1.0, 1.0 + 1e-13) < 1e-12
    assert relative(True, 1.0) == relative("a", "b") == relative(1.0, None) == float("inf")
