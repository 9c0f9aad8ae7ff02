"""The orders as their papers draw them."""

from __future__ import annotations

from collections import deque

import pytest

from dovetail.pipeline import Pipeline, PipelineSchedule, WorkKind, needs, work_order

LETTER = {WorkKind.FORWARD: "F", WorkKind.BACKWARD: "B", WorkKind.INPUT_GRADIENT: "I", WorkKind.WEIGHT_GRADIENT: "W"}


def drawn(pipeline: Pipeline, stage: int, *, chunks: bool = False) -> str:
    """A stage's order in letters and microbatches (counted from 1 as in the papers' figures), chunks as a, b, ..."""
    return " ".join(
        f"{LETTER[item.kind]}{item.microbatch + 1}{'ab'[item.chunk] if chunks else ''}{'&' * item.joined}"
        for item in work_order(pipeline).items(stage)
    )


def test_gpipe():
    assert drawn(Pipeline(PipelineSchedule.GPIPE, 4, 3), 1) == "F1 F2 F3 B1 B2 B3"


def test_one_f_one_b_of_narayanan_2021_figure_3():
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 8)
    assert drawn(pipeline, 0) == "F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8"
    assert drawn(pipeline, 3) == "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8"


def test_one_f_one_b_with_few_microbatches():
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 2)
    assert [drawn(pipeline, stage) for stage in range(4)] == ["F1 F2 B1 B2"] * 3 + ["F1 B1 F2 B2"]


def test_interleaved_of_narayanan_2021_figure_4():
    pipeline = Pipeline(PipelineSchedule.INTERLEAVED, 4, 8, 2)
    # the last device: a warm-up of one group through the first chunk
    assert drawn(pipeline, 3, chunks=True) == (
        "F1a F2a F3a F4a F1b B1b F2b B2b F3b B3b F4b B4b "
        "F5a B1a F6a B2a F7a B3a F8a B4a F5b B5b F6b B6b F7b B7b F8b B8b B5a B6a B7a B8a"
    )
    assert drawn(pipeline, 0, chunks=True).startswith("F1a F2a F3a F4a F1b F2b F3b F4b F5a F6a F7a B1b F8a B2b F5b B3b")


def test_interleaved_groups_of_megatron():
    # the table in Megatron-LM's source: 2 stages, groups of 3, 5 microbatches, 2 chunks
    pipeline = Pipeline(PipelineSchedule.INTERLEAVED, 2, 5, 2, 3)
    forwards = " ".join(word for word in drawn(pipeline, 0, chunks=True).split() if word.startswith("F"))
    assert forwards == "F1a F2a F3a F1b F2b F3b F4a F5a F4b F5b"


def test_zb_h1_of_qi_2023_figure_3():
    pipeline = Pipeline(PipelineSchedule.ZB_H1, 4, 8)
    assert drawn(pipeline, 0).startswith("F1 F2 F3 F4 I1 W1 F5 I2 W2")
    assert drawn(pipeline, 3) == ("F1 I1 F2 I2 F3 I3 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 F8 I8 W5 W6 W7 W8")
    assert drawn(pipeline, 2) == ("F1 F2 I1 F3 I2 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 F8 I7 W5 I8 W6 W7 W8")


@pytest.mark.parametrize(("p", "m"), [(2, 1), (5, 2), (5, 3), (5, 4), (4, 4), (8, 3)])
def test_zb_h1_with_few_microbatches_does_everything(p, m):
    pipeline = Pipeline(PipelineSchedule.ZB_H1, p, m)
    for stage in range(p):
        words = drawn(pipeline, stage).split()
        assert sorted(words) == sorted(f"{kind}{i + 1}" for kind in "FIW" for i in range(m))
        assert words.index("I1") < words.index("W1")


def published_dual_pipe(p: int, m: int, rank: int) -> list[str]:
    """DualPipe written as its published code runs: step by step, with counters and a queue of weight gradients."""
    half, far = p // 2, rank >= p // 2
    near = min(rank, p - 1 - rank)
    done, queue, words = {"F0": 0, "F1": 0, "B0": 0, "B1": 0}, deque(), []

    def word(letter, phase):
        counted = f"{'F' if letter == 'F' else 'B'}{phase}"
        reverse = phase != far  # phase 0 is the direction that enters at the nearer end
        microbatch = done[counted] + (m // 2 if reverse else 0)
        done[counted] += 1
        return f"{letter}{microbatch + 1}{'ab'[reverse]}"

    def forward(phase):
        words.append(word("F", phase))

    def backward(phase, *, zero_bubble=False):
        words.append(word("I" if zero_bubble else "B", phase))
        if zero_bubble:
            queue.append(words[-1][1:])

    def weight():
        words.append("W" + queue.popleft())

    def both(ahead, back):
        words.append(word("F", ahead) + "&")
        backward(back)

    for _ in range((half - near - 1) * 2):
        forward(0)
    for _ in range(near + 1):
        forward(0)
        forward(1)
    for _ in range(half - near - 1):
        backward(1, zero_bubble=True)
        weight()
        forward(1)
    for i in range(m // 2 - p + near + 1):
        if i == 0 and near == half - 1:
            forward(0)
            backward(1)
        else:
            both(0, 1)
        both(1, 0)
    for _ in range(half - near - 1):
        backward(1)
        both(1, 0)
    zero_bubble = False
    for i in range(near + 1):
        if i == (near + 1) // 2 and near % 2 == 1:
            zero_bubble = True
        backward(1, zero_bubble=zero_bubble)
        if i == (near + 1) // 2 and near % 2 == 0:
            zero_bubble = True
        backward(0, zero_bubble=zero_bubble)
    for _ in range(half - near - 1):
        weight()
        backward(0, zero_bubble=True)
    for _ in range(near + 1):
        weight()
    assert not queue
    return words


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 14), (6, 12), (8, 20), (10, 20)])
def test_dual_pipe_is_the_published_program(p, m):
    pipeline = Pipeline(PipelineSchedule.DUAL_PIPE, p, m)
    for rank in range(p):
        assert drawn(pipeline, rank, chunks=True).split() == published_dual_pipe(p, m, rank)


def test_what_an_item_needs_comes_over_a_link():
    order = work_order(Pipeline(PipelineSchedule.INTERLEAVED, 2, 2, 2))
    required = needs(order)
    items = [(stage, *item) for stage in range(2) for item in astuples(order.items(stage))]
    found = {
        item: (None if need < 0 else items[need], int(link))
        for item, need, link in zip(items, required.item.tolist(), required.link.tolist(), strict=True)
    }
    assert found[0, "F", 0, 0] == (None, -1)
    assert found[1, "F", 0, 0] == ((0, "F", 0, 0), 0)
    assert found[0, "F", 1, 1] == ((1, "F", 1, 0), 1)  # the ring closes over the last link
    assert found[1, "B", 1, 0] == ((0, "B", 1, 1), 1)
    assert found[1, "B", 0, 1] == ((1, "F", 0, 1), -1)


def astuples(items):
    return [(LETTER[item.kind], item.microbatch, item.chunk) for item in items]
