"""A job: what it refuses, its tokens a step, the width of its numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from valid_documents import MODEL_FILES

import dovetail as dt
from dovetail.documents import validate
from dovetail.graph import OPTIMIZERS, Element
from dovetail.models.job import MAX_TOKENS_PER_STEP

MODEL = validate(dt.models.Model, MODEL_FILES["dense"], "dense")
ENCODER = validate(dt.models.Model, MODEL_FILES["encoder"], "encoder")


def job(**fields: Any) -> dt.Job:
    return dt.Job(**{"model": MODEL, "seq_len": 4096, "global_batch": 256} | fields)


@given(seq_len=st.integers(1, 2**25), global_batch=st.integers(1, 2**25))
def test_tokens_per_step_are_sequences_times_their_length(seq_len, global_batch):
    assert job(seq_len=seq_len, global_batch=global_batch).tokens_per_step == seq_len * global_batch


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp16", 2), ("fp8", 2), ("fp4", 2), ("fp32", 4)])
def test_only_the_compute_element_follows_the_precision(precision, width):
    widths = job(precision=precision).element_bytes()
    assert widths == {Element.COMPUTE: width, Element.FLOAT32: 4, Element.BYTE: 1, Element.INT64: 8, Element.NF4: 1}
    assert set(widths) == set(Element)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_of_the_graph_is_a_choice(optimizer):
    assert job(optimizer=optimizer).optimizer == optimizer


def test_a_job_is_a_value():
    assert job() == job()
    assert job() != job(seq_len=2048)
    with pytest.raises(AttributeError):
        job().seq_len = 1  # type: ignore[misc]


def test_the_graph_is_the_models_with_or_without_fused_attention():
    fused, plain = job().graph(), job(fused_attention=False).graph()
    assert fused.parameters() == plain.parameters() == dt.models.summarise(MODEL).parameters
    assert len(plain.layers["full"].operators) > len(fused.layers["full"].operators)


NO_COUNT = st.integers(max_value=0) | st.floats() | st.text(max_size=9) | st.booleans() | st.none() | st.just([1])


@given(field=st.sampled_from(["seq_len", "global_batch"]), value=NO_COUNT | st.integers(2**50 + 1, 10**40))
def test_a_wrong_count_is_refused(field, value, refusal):
    assert f"job: {field}: " in refusal(job, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("precision", value) for value in ("bf17", "", None, 16, ["bf16"], {"bf16": 1})],
        *[("optimizer", value) for value in ("adam", "", None, 3, ["adamw"], {"adamw": 1})],
        *[("fused_attention", value) for value in (None, 1, "yes", [])],
        *[("model", value) for value in (None, "llama-3-8b", {}, 3)],
        ("seq_len", math.nan),
        pytest.param("seq_len", 16**9999, id="long seq_len"),
    ],
)
def test_other_wrong_fields_are_refused(field, value, refusal):
    assert f"job: {field}: " in refusal(job, **{field: value})


def test_the_likely_choice_is_named(refusal):
    assert "did you mean 'adamw'" in refusal(job, optimizer="adam")
    assert "did you mean 'bf16'" in refusal(job, precision="BF16")


def test_a_step_is_bounded(refusal):
    assert job(seq_len=2**20, global_batch=2**30).tokens_per_step == MAX_TOKENS_PER_STEP
    assert "job: global_batch" in refusal(job, seq_len=2**20, global_batch=2**30 + 1)


def test_learned_positions_bound_the_sequence(refusal):
    assert job(model=ENCODER, seq_len=512).seq_len == 512
    assert "512" in refusal(job, model=ENCODER, seq_len=513)
