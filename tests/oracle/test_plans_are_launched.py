"""Every plan that is answered can be exported, or the question is refused before the search with the reason."""

from __future__ import annotations

import pytest

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.launch.targets import EXPORTERS
from dovetail.models import Job
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_job
from dovetail.search.plan import plan

LAUNCHED = ("megatron", "torchtitan", "deepspeed", "fsdp", "maxtext")
MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-2-13b", "llama-3.2-1b", "qwen3-0.6b", "qwen3-32b",
    "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v2-lite", "deepseek-v3",
    "gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b", "gpt3-13b", "gpt3-175b", "kimi-k2", "falcon-40b",
)  # fmt: skip
#: chips, sequences a step
SIZES = ((64, 256), (1024, 2048))


def outcome(framework: str, model: str, chips: int, batch: int) -> str:
    """What becomes of the question: the launch file's name, nothing fits, or why it is refused before the search."""
    job = Job(models.load(model), seq_len=2048, global_batch=batch)
    cluster, known = hardware.cluster("h100-sxm", chips=chips), frameworks.load(framework)
    try:
        check_job(job, known)
    except InputError as error:
        return f"refused: {error}"
    answer = plan(job, cluster, known, time_limit_s=20, tie_margin=0.03)
    if answer.evaluation is None:
        return f"no plan ({answer.certificate.status})"
    target = known.launch
    assert target is not None
    for chosen in (answer.plan, answer.fastest.plan):
        launch = EXPORTERS[target].export(Task(job, cluster, known, chosen))
    return launch.name


@pytest.mark.parametrize("framework", LAUNCHED)
def test_plans_are_launched(framework):
    assert not outcome(framework, "llama-3.1-8b", 16, 64).startswith(("refused", "no plan"))


@pytest.mark.slow
@pytest.mark.parametrize("framework", LAUNCHED)
def test_plans_of_twenty_models_are_launched(framework, capsys):
    rows = [(model, chips, outcome(framework, model, chips, batch)) for model in MODELS for chips, batch in SIZES]
    with capsys.disabled():
        for model, chips, found in rows:
            print(f"{framework} | {model} | {chips} | {found}")  # noqa: T201
