"""Plans of published runs, from file to step time: within 15 % before anything is fitted to them."""

from pathlib import Path

import pytest

from dovetail.plans.plan_file import load_task
from dovetail.step.evaluate import evaluate

FOLDER = Path(__file__).parent

#: File and measured seconds; Korthikanti et al. 2022, table 5, 175B on 64 A100.
MEASURED = [("korthikanti-175b-selective.yaml", 13.75), ("korthikanti-175b-full.yaml", 18.13)]


@pytest.mark.parametrize(("name", "seconds"), MEASURED)
def test_step_time_of_a_published_plan(name, seconds):
    task = load_task(FOLDER / name)
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    assert result.fits
    assert result.step_time_s == pytest.approx(seconds, rel=0.15)


def test_selective_recompute_with_sequence_parallelism_is_faster_than_full_recompute():
    """They measured a speedup of 1.32."""
    times = []
    for name, _ in MEASURED:
        task = load_task(FOLDER / name)
        times.append(evaluate(task.plan, task.job, task.cluster, task.framework).step_time_s)
    assert times[1] / times[0] == pytest.approx(18.13 / 13.75, rel=0.05)
