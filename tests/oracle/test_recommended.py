"""What is recommended is simpler than the fastest plan, and within the tie margin of it."""

from __future__ import annotations

import pytest

from dovetail import hardware, models
from dovetail.models import Job
from dovetail.plans.words import plan_words
from dovetail.search import TIE_MARGIN
from dovetail.search.answer import Answer
from dovetail.search.plan import plan
from dovetail.search.recommended import complexity

#: model, chips, batch, sequence, framework
QUESTIONS = tuple(
    (model, chips, batch, seq_len, framework)
    for model, seq_len, framework in (
        ("llama-3.1-8b", 8192, "megatron"),
        ("llama-3.1-8b", 8192, "torchtitan"),
        ("llama-3.1-70b", 8192, "megatron"),
        ("llama-3.1-70b", 8192, "torchtitan"),
        ("qwen3-32b", 4096, "megatron"),
        ("mixtral-8x7b", 4096, "megatron"),
        ("qwen3-30b-a3b", 4096, "torchtitan"),
        ("gpt3-13b", 2048, "megatron"),
        ("llama-2-13b", 4096, "maxtext"),
        ("llama-2-13b", 4096, "deepspeed"),
    )
    for chips, batch in ((32, 128), (64, 256), (256, 1024))
)


def answered(number: int) -> Answer:
    model, chips, batch, seq_len, framework = QUESTIONS[number]
    job = Job(models.load(model), seq_len=seq_len, global_batch=batch)
    return plan(job, hardware.cluster("h100-sxm", chips=chips), framework, tie_margin=TIE_MARGIN)


def check(answer: Answer) -> None:
    assert 0 <= answer.recommended_loss <= TIE_MARGIN * (1 + 1e-9)
    usable = answer.cluster.chip.usable_bytes
    simple = complexity(answer.plan, usable - answer.best.peak_bytes)
    fast = complexity(answer.fastest.plan, usable - answer.fastest.peak_bytes)
    assert simple <= fast
    assert answer.best.peak_bytes <= answer.limit_bytes


@pytest.mark.parametrize("number", [0, 27])
def test_recommended_plans_are_simpler_and_close(number):
    check(answered(number))


@pytest.mark.slow
def test_recommended_plans_of_thirty_questions(capsys):
    lines: list[str] = []
    for number, question in enumerate(QUESTIONS):
        answer = answered(number)
        if answer.evaluation is None:
            lines.append(f"{question}: nothing fits")
            continue
        check(answer)
        kept = "the fastest itself" if answer.recommended is None else plan_words(answer.plan)
        fast = plan_words(answer.fastest.plan)
        lines.append(f"{question}: {answer.recommended_loss:.2%}; {kept}; fastest {fast}")
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201
