"""The TMAC study: mappings of a job on a small wafer, rows that are asked once, and the tables made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tmac
from baselines.named_strategies import BASELINES, tuned
from baselines.stored import best_of, fitting, with_store
from tmac_mappings import FRAMEWORK, PUBLISHED, TUNED, JobOnWafers, StudyLimits, what_if
from tmac_tables import by_place, memory_cells, print_tables, ratio, ratio_cell

from dovetail import models
from dovetail.models import Job
from dovetail.plans.wafer_part import STORE_CHOICES
from dovetail.step.evaluate import evaluate

SMALL = replace(what_if("watos-buildable", 2.0, 12.0), rows=2, cols=2, name="small")
TINY = replace(SMALL, die=replace(SMALL.die, hbm_bytes=1e9), store_bytes=1e12, store_bytes_per_s=1e12)
JOB = Job(models.load("gpt3-1.3b"), seq_len=1024, global_batch=8)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    rows = tmac.MappedJobs(tmp_path_factory.mktemp("study") / "rows.jsonl")
    tmac.answered(rows, "points", JobOnWafers(JOB, SMALL, 1), StudyLimits(20.0, 0.0))
    return rows


def test_a_point_has_every_mapping_and_none_that_fits_is_faster_than_free_layouts(rows):
    (place,) = by_place(rows.rows, "points")
    assert set(place) == {"free", *TUNED, *PUBLISHED}
    assert place["free"].fits
    times = [ratio(place, mapping) for mapping in (*TUNED, *PUBLISHED) if place[mapping].fits]
    assert len(times) >= len(BASELINES)
    assert all(each is not None and each >= 1 - 1e-9 for each in times)
    step_s, lower_bound_s = place["free"].step_s, place["free"].lower_bound_s
    assert step_s is not None
    assert lower_bound_s is not None
    assert lower_bound_s <= step_s * (1 + 1e-9)


def test_rows_are_read_back_and_not_asked_again(rows, monkeypatch):
    again = tmac.MappedJobs(rows._file)
    assert again.rows == rows.rows
    monkeypatch.setattr(JobOnWafers, "row", lambda *_: pytest.fail("asked again"))
    free = tmac.answered(again, "points", JobOnWafers(JOB, SMALL, 1), StudyLimits(20.0, 0.0))
    assert free == rows.rows[-1]
    assert len(again.rows) == len(rows.rows)


def test_a_plan_of_a_row_takes_as_long_where_it_is_read(rows):
    free = rows.rows[-1]
    (evaluation,) = JobOnWafers(JOB, SMALL, 1).evaluated([free])
    assert evaluation.step_time_s == pytest.approx(free.step_s, rel=1e-12)
    assert not list(JobOnWafers(JOB, replace(TINY, store_bytes=0.0), 1).evaluated([free]))


def test_free_layouts_are_never_slower_than_what_is_known():
    place = JobOnWafers(JOB, TINY, 1)
    known = place.mapped("points", "Megatron, full recompute")
    assert known.fits
    assert place.free("points", StudyLimits(0.0, 0.0), [known]).step_s == known.step_s
    # a plan with a store is none where there is no store
    assert "store" in known.words
    assert not list(JobOnWafers(JOB, SMALL, 1).evaluated([known]))


def test_tables_say_what_is_missing_and_how_much_longer_others_take(rows, capsys):
    (place,) = by_place(rows.rows, "points")
    lacks = replace(place["AccPar"], missing_gb=3.0)
    assert ratio_cell({**place, "AccPar": lacks}, "AccPar") == "lacks 3 GB"
    none = replace(place["AccPar"], step_s=None, words="nothing found that fits")
    assert ratio_cell({**place, "AccPar": none}, "AccPar") == "none found"
    free, twice = (
        replace(place["free"], mapping=name, step_s=step_s) for name, step_s in (("free", 3.0), ("AccPar", 6.0))
    )
    assert ratio_cell({"free": free, "AccPar": twice}, "AccPar") == "2.00"
    print_tables(rows.rows)
    assert f"| {JOB.model.name} | 1 × small |" in capsys.readouterr().out


def test_memory_at_equal_speed_is_that_of_the_leanest_plan_that_is_as_fast():
    base = JobOnWafers.of("gpt3-1.3b", what_if("watos-buildable", 2.0, 70.0)).row(
        "memory", "free", lambda: (None, None)
    )
    found = [
        replace(base, memory_gb=gb, step_s=step_s, peak_gb=gb, lower_bound_s=step_s)
        for gb, step_s in ((60.0, 1.0), (40.0, 2.0), (20.0, 4.0))
    ]
    other = replace(base, mapping="AccPar", step_s=3.0, peak_gb=80.0)
    assert memory_cells(found, other)[-3:] == ["40.0", "2.00", "4.00"]


def test_tuned_strategies_recompute_as_they_are_named_and_are_proven():
    for name, words in zip(BASELINES, (("full",), ("selective",), ("none", "full")), strict=True):
        evaluation, bound_s = tuned(name, JOB, SMALL.cluster(), FRAMEWORK, 20.0)
        assert evaluation is not None
        assert evaluation.plan.recompute in words
        assert bound_s == pytest.approx(evaluation.step_time_s)
        nothing = replace(SMALL, die=replace(SMALL.die, hbm_bytes=1e9)).cluster()
        assert tuned(name, JOB, nothing, FRAMEWORK, 20.0) == (None, float("inf"))


def test_a_store_takes_what_small_dies_cannot_hold():
    evaluation, bound_s = tuned("Megatron, full recompute", JOB, TINY.cluster(), FRAMEWORK, 20.0)
    assert evaluation is not None
    assert evaluation.fits
    assert evaluation.plan.wafer is not None
    assert evaluation.plan.wafer.store
    assert bound_s is None
    bare = evaluate(replace(evaluation.plan, wafer=None), JOB, TINY.cluster(), FRAMEWORK)
    assert not bare.fits
    # where the store holds all it can and that is too much, nothing else is tried
    nothing = replace(TINY, die=replace(TINY.die, hbm_bytes=1e6))
    (only,) = with_store(evaluation.plan, JOB, nothing.cluster(), FRAMEWORK)
    assert only.plan.wafer is not None
    assert only.plan.wafer.store == STORE_CHOICES[-1]
    assert tuned("Megatron, full recompute", JOB, nothing.cluster(), FRAMEWORK, 20.0) == (None, float("inf"))


def test_the_largest_micro_batch_that_fits_is_found():
    asked: list[int] = []
    evaluation, _ = tuned("DeepSpeed ZeRO-3", JOB, SMALL.cluster(), FRAMEWORK, 20.0)
    assert evaluation is not None

    def of_batch(batch: int):
        asked.append(batch)
        return [replace(evaluation, fits=batch <= 4, step_time_s=1 / batch)]

    best = best_of(fitting((1, 2, 3, 4, 6, 8), of_batch))
    assert best is not None
    assert best.step_time_s == 1 / 4
    assert len(asked) <= 3
    assert best_of([]) is None
