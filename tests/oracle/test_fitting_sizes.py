"""What fits, against every plan of small clusters: a size that fits does, and no plan fits twice of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_brute_force import every_plan, keeps_risk

from dovetail import frameworks, hardware
from dovetail.documents import validate
from dovetail.explanation.changed_hardware import with_memory
from dovetail.models import Job, Model
from dovetail.plans.space import Space
from dovetail.search.fitting_sizes import SizeQuestion, fitting_sizes, smallest_cluster
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate

#: Framework, chip, chips, and gigabytes of each.
QUESTIONS = (
    ("megatron", "h100-sxm", 2, 4),
    ("megatron", "h100-sxm", 4, 2.2),
    ("torchtitan", "h100-sxm", 2, 4),
    ("torchtitan", "h100-sxm", 4, 2.6),
    ("fsdp", "a100-80gb", 4, 2.2),
    ("deepspeed", "a100-80gb", 4, 8),
    ("maxtext", "tpu-v5p", 4, 2.5),
)
LONGEST = 16384


def small_job() -> Job:
    document = {
        "name": "small", "hidden": 1024, "vocab": 8000,
        "blocks": {
            "block": {
                "mixer": {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 128},
                "feed_forward": {"kind": "dense", "size": 4096},
            }
        },
        "layers": [{"blocks": ["block"], "repeat": 2}],
    }  # fmt: skip
    return Job(validate(Model, document, "small"), seq_len=4096, global_batch=1)


def question_of(name: str, chip: str, gigabytes: float) -> SizeQuestion:
    framework = frameworks.load(name)

    def cluster(chips: int):
        whole = hardware.cluster(chip, chips=chips)
        return with_memory(whole, gigabytes * 1e9 / whole.chip.hbm_bytes)

    return SizeQuestion(small_job(), cluster, framework, 16, memory_limit(cluster(1).chip, framework))


def any_fits(question: SizeQuestion, chips: int, recompute: str, micro_batch: int, seq_len: int) -> bool:
    job = question.job_on(chips, seq_len)
    if job.global_batch % micro_batch:
        return False
    where = (job, question.cluster(chips), question.framework)
    space = Space(recompute=(recompute,), recompute_share=(1.0,), micro_batch=(micro_batch,))
    plans = every_plan(*where, space)
    return any(keeps_risk(evaluate(plan, *where, energy=False), *where[1:]) for plan in plans)


@pytest.mark.parametrize("asked", QUESTIONS, ids=str)
def test_no_plan_fits_twice_what_fits(asked):
    name, chip, chips, gigabytes = asked
    question = question_of(name, chip, gigabytes)
    sizes = fitting_sizes(question, [chips], LONGEST)
    assert sizes
    for each in sizes:
        assert keeps_risk(each.evaluation, question.cluster(chips), question.framework)
        assert each.evaluation.plan.micro_batch == each.micro_batch
        assert each.evaluation.plan.recompute == each.recompute
        cell = (question, chips, each.recompute)
        if each.seq_len == question.job.seq_len:
            assert not any_fits(*cell, 2 * each.micro_batch, each.seq_len)
        elif 2 * each.seq_len <= LONGEST:
            assert not any_fits(*cell, 1, 2 * each.seq_len)
    found = {each.recompute for each in sizes}
    missing = {word for word in ("none", "selective", "full") if word in question.framework.recompute} - found
    assert not any(any_fits(question, chips, word, 1, 4096) for word in missing)


def test_the_smallest_cluster_is_the_first_with_a_plan_that_fits():
    question = replace(question_of("fsdp", "h100-sxm", 2.6), global_batch=16)
    smallest = smallest_cluster(question, 8)
    fits = [any(any_fits(question, chips, word, 1, 4096) for word in ("none", "full")) for chips in (1, 2, 4, 8)]
    assert smallest is not None
    assert smallest.chips == (1, 2, 4, 8)[fits.index(True)] > 1
    assert smallest_cluster(question_of("fsdp", "h100-sxm", 1.0), 8) is None
