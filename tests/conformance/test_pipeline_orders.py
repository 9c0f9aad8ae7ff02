"""The work orders are those that PyTorch's schedules run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from torch.distributed.pipelining import schedules as torch_schedules

from dovetail.pipeline import Pipeline, PipelineSchedule, WorkKind, work_order

pytestmark = pytest.mark.torch

KINDS = {
    torch_schedules.FORWARD: WorkKind.FORWARD,
    torch_schedules.FULL_BACKWARD: WorkKind.BACKWARD,
    torch_schedules.BACKWARD_INPUT: WorkKind.INPUT_GRADIENT,
    torch_schedules.BACKWARD_WEIGHT: WorkKind.WEIGHT_GRADIENT,
}


def torch_order(schedule: PipelineSchedule, p: int, m: int, v: int):
    """Per stage the (kind, microbatch, chunk) that PyTorch would run; its bubbles and reductions left out."""
    stages = [
        SimpleNamespace(
            num_stages=p * v, group_size=p, group_rank=0, stage_index=p * chunk, is_first=False, is_last=False,
            has_backward=True, submod=None, stage_index_to_group_rank=None,
        )
        for chunk in range(v)
    ]  # fmt: skip
    single = {PipelineSchedule.GPIPE: "ScheduleGPipe", PipelineSchedule.ONE_F_ONE_B: "Schedule1F1B"}
    if schedule in single:
        made = getattr(torch_schedules, single[schedule])(stages[0], m, loss_fn=lambda *_: None)
    else:
        several = {
            PipelineSchedule.INTERLEAVED: "ScheduleInterleaved1F1B",
            PipelineSchedule.ZB_H1: "ScheduleInterleavedZeroBubble",
        }
        made = getattr(torch_schedules, several[schedule])(stages, m, loss_fn=lambda *_: None)
    return [
        [
            (KINDS[action.computation_type], action.microbatch_index, action.stage_index // p)
            for action in made.pipeline_order[rank]
            if action is not None and action.computation_type in KINDS
        ]
        for rank in range(p)
    ]


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"),
    [
        *(
            (s, p, m, 1)
            for s in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
            for p, m in [(4, 8), (2, 5), (6, 6)]
        ),
        *(
            (PipelineSchedule.INTERLEAVED, p, m, v)
            for p, m, v in [(4, 8, 2), (2, 6, 3), (4, 10, 2), (4, 3, 2), (3, 9, 4)]
        ),
        *((PipelineSchedule.ZB_H1, p, m, 1) for p, m in [(4, 8), (2, 2), (5, 15), (4, 3), (6, 2)]),
    ],
)
def test_order_is_pytorchs(schedule, p, m, v):
    order = work_order(Pipeline(schedule, p, m, v))
    ours = [[(item.kind, item.microbatch, item.chunk) for item in order.items(stage)] for stage in range(p)]
    theirs = torch_order(schedule, p, m, v)
    if schedule is PipelineSchedule.ONE_F_ONE_B:
        # PyTorch runs, but does not list, the last stage's forwards from number 0
        assert [item[0] for item in ours.pop()] == [item[0] for item in theirs.pop()]
    assert ours == theirs
