"""The picture of a step: each stage's items where they ran, in characters that say which."""

from __future__ import annotations

import re

import pytest

from dovetail.pipeline.work_order import WorkKind
from dovetail.report import pipeline_picture
from dovetail.report.pipeline_picture import picture
from simulated_steps import simulated


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


def rows(lines: list[str]) -> list[str]:
    return re.findall(r"^stage \d+ *\|(.*)\| +\d+%$", "\n".join(lines), flags=re.MULTILINE)


def test_items_stand_where_they_ran(folder):
    step = simulated("1f1b", folder)
    order, width = step.tasks.order, 400
    for stage, row in enumerate(rows(picture(step, width))):
        assert len(row) == width
        for item in range(order.starts[stage], order.starts[stage + 1]):
            middle = (
                step.timeline.start_s[step.tasks.begin[item, 0]] + step.timeline.end_s[step.tasks.end[item, 0]]
            ) / 2
            digits = "0123456789" if order.kind[item] == WorkKind.FORWARD else "abcdefghij"
            assert row[int(middle / step.step_time_s * width)] == digits[order.microbatch[item]]


def test_idle_columns_are_the_idle_part_of_the_step(folder):
    step = simulated("1f1b", folder)
    first = rows(picture(step, 1000))[0]
    working = sum(character.isalnum() for character in first) / 1000
    begin, end = step.timeline.start_s[step.tasks.begin[:, 0]], step.timeline.end_s[step.tasks.end[:, 0]]
    mine = slice(0, step.tasks.order.starts[1])
    assert working == pytest.approx((end - begin)[mine].sum() / step.step_time_s, abs=0.02)
    assert {"=", "#", "."} <= set(first)


def test_kinds_of_work_are_told_apart(folder):
    zero_bubble = picture(simulated("zb_h1", folder), 200)
    assert any("D its weight gradients" in line for line in zero_bubble)
    assert set("ABCDEFGH") <= set("".join(rows(zero_bubble)))
    both = "".join(rows(picture(simulated("dualpipe", folder), 300)))
    # items that run together share their columns
    assert re.search(r"(\d[a-j]){3}", both)
    assert "weight gradients" not in "".join(picture(simulated("1f1b", folder)))


def test_long_steps_show_their_ends(folder):
    step = simulated("interleaved", folder)
    whole, ends = picture(step, 400), picture(step, 60)
    assert not any(" ... " in row for row in rows(whole))
    assert all(len(row) == 60 and " ... " in row for row in rows(ends))
    assert "the beginning and the end of the step" in ends[-1]
    left, right = rows(ends)[0].split(" ... ")
    assert "0" in left
    assert "#" in right


def test_shares_are_those_of_kernels(folder):
    step = simulated("1f1b", folder)
    labels, timeline = step.tasks.labels, step.timeline
    kernels = labels.kind <= 4
    lines = [line for line in picture(step) if line.startswith("stage ")]
    for stage, line in enumerate(lines):
        mine = kernels & (labels.chip == stage)
        share = (timeline.end_s - timeline.start_s)[mine].sum() / step.step_time_s
        assert line.endswith(f" {share:.0%}")


def test_many_stages_are_thinned(folder, monkeypatch):
    monkeypatch.setattr(pipeline_picture, "MOST_STAGES", 2)
    lines = picture(simulated("1f1b", folder))
    assert [line.split("|")[0].strip() for line in lines if line.startswith("stage ")] == ["stage 0", "stage 2"]
    assert lines[-1] == "one of 2 stages is shown"


@pytest.mark.parametrize("width", [20, 57, 100])
@pytest.mark.parametrize("name", ["1f1b", "fsdp", "dualpipe"])
def test_any_width_is_kept(folder, name, width):
    step = simulated(name, folder)
    lines = picture(step, width)
    found = rows(lines)
    assert len(found) == step.plan.pipeline_parallel
    assert {len(row) for row in found} == {width}
    assert all(line.isascii() for line in lines)
