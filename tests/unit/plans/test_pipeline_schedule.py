"""What a pipeline accepts, and what it refuses in one sentence."""

from __future__ import annotations

import pytest

from dovetail.pipeline import Pipeline, PipelineSchedule

INTERLEAVED, DUAL_PIPE = PipelineSchedule.INTERLEAVED, PipelineSchedule.DUAL_PIPE


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((PipelineSchedule.ONE_F_ONE_B, 0, 4), "num_stages"),
        ((PipelineSchedule.ONE_F_ONE_B, 4, 0), "num_microbatches"),
        ((PipelineSchedule.ONE_F_ONE_B, 4, -1), "num_microbatches"),
        ((PipelineSchedule.ONE_F_ONE_B, 4, 4, 2), "num_chunks"),
        ((PipelineSchedule.ZB_H1, 4, 4, 1, 4), "group_size"),
        ((PipelineSchedule.GPIPE, 64, 10**9), "num_microbatches"),
        ((INTERLEAVED, 4, 8, 1), "num_chunks"),
        ((INTERLEAVED, 4, 8, 2, 3), "group_size"),
        ((INTERLEAVED, 4, 8, 2, 9), "group_size"),
        ((INTERLEAVED, 4, 9, 2, 4), "group_size"),
        ((INTERLEAVED, 4, 2, 2, 1), "group_size"),
        ((INTERLEAVED, 4, 8, 2, 0), "group_size"),
        ((DUAL_PIPE, 3, 8), "num_stages"),
        ((DUAL_PIPE, 4, 9), "num_microbatches"),
        ((DUAL_PIPE, 4, 6), "num_microbatches"),
    ],
)
def test_a_wrong_pipeline_is_refused(refusal, arguments, field):
    assert refusal(Pipeline, *arguments).startswith(field)


@pytest.mark.parametrize(
    ("p", "m", "size"),
    [(4, 8, 4), (4, 4, 4), (4, 10, 5), (4, 11, 6), (4, 9, 5), (4, 3, 3), (1, 5, 1), (5, 7, 7)],
)
def test_microbatches_are_grouped_as_little_as_allowed(p, m, size):
    assert Pipeline(INTERLEAVED, p, m, 2).microbatch_group_size == size


def test_a_group_size_is_kept():
    assert Pipeline(INTERLEAVED, 2, 5, 2, 3).microbatch_group_size == 3


def test_places_count_along_the_model():
    assert Pipeline(INTERLEAVED, 3, 3, 2).places().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Pipeline(DUAL_PIPE, 4, 8).places().tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert Pipeline(PipelineSchedule.ZB_H1, 2, 8).places().tolist() == [[0], [1]]


def test_only_interleaving_closes_the_ring():
    assert Pipeline(INTERLEAVED, 3, 3, 2).num_links == 3
    assert Pipeline(DUAL_PIPE, 4, 8).num_links == 3
    assert Pipeline(PipelineSchedule.ONE_F_ONE_B, 1, 8).num_links == 0
