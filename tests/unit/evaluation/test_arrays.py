"""The arithmetic of an evaluation is array code: many chips or plans at once give what single calls give."""

import numpy as np
import pytest

from dovetail.evaluation.times import LayerTimes, busy_parts, chunk_times
from dovetail.placement.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.placement.stages import stage_contents
from dovetail.placement.step_time import step_time

CONTENTS = tuple({"block": 2} | ({"head": 1} if place == 39 else {}) for place in range(40))


def times(values):
    values = np.asarray(values, float)
    parts = {"forward": values, "backward": 2 * values}
    return LayerTimes(values, values, values, parts)


def test_many_at_once_give_what_each_gives():
    block, head = np.array([1.0, 2.0, 0.5]), np.array([0.1, 9.0, 1.0])
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 40, 64)
    stages = stage_contents(CONTENTS, pipeline)
    many = {"block": times(block), "head": times(head)}
    steps = step_time(pipeline, chunk_times(many, CONTENTS, np.zeros(())))
    parts = busy_parts(many, stages, 64)
    assert steps.shape == (3,)
    for i in range(3):
        one = {"block": times(block[i]), "head": times(head[i])}
        assert steps[i] == pytest.approx(float(step_time(pipeline, chunk_times(one, CONTENTS, np.zeros(())))))
        for name, seconds in busy_parts(one, stages, 64).items():
            assert parts[name][i] == pytest.approx(float(seconds))
