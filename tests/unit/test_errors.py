"""The error style: one line that says where, what, and what would be right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InputError, one_of, quoted

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


def raise_error(where: str, what: str, fix: str) -> None:
    raise InputError(where, what, fix)


def test_the_sentence_says_where_what_and_what_would_be_right():
    error = InputError("model.yaml: hidden", "is -1", "it should be a whole number from 1")
    assert str(error) == "model.yaml: hidden: is -1; it should be a whole number from 1."
    assert (error.where, error.what, error.fix) == ("model.yaml: hidden", "is -1", "it should be a whole number from 1")
    assert isinstance(error, ValueError)


def test_there_is_one_full_stop(refusal):
    assert refusal(raise_error, "here", "is wrong", "do this.").endswith("do this.")


@given(where=st.text(), what=st.text(), fix=st.text())
def test_any_text_stays_on_one_line_without_control_characters(where, what, fix, refusal):
    refusal(raise_error, f"a{where}", f"is {what}", f"do {fix} this")


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\x1b[2J", "\u2028", "\x00", "\x85", "\ud800", "\t"])
def test_terminal_escapes_and_line_breaks_are_blanked(ending, refusal):
    assert ending not in refusal(raise_error, f"file{ending}name", "is wrong", "rename it")


@given(value=ANYTHING)
def test_a_quoted_value_is_short_and_printable(value):
    text = quoted(value)
    assert len(text) <= 60
    assert text.isprintable()


@pytest.mark.parametrize("value", [16**9999, [16**9999], {"a": -(16**9999)}], ids=["alone", "in a list", "below"])
def test_a_number_python_will_not_write_is_still_quoted(value):
    assert quoted(value) == "a number too long to show"


def test_a_long_value_is_shortened():
    assert quoted("x" * 1000, limit=10) == "'xxxxxx..."


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("lama", "did you mean 'llama'"),
        ("LLAMA", "did you mean 'llama'"),
        ("zzzz", "it should be one of falcon, llama, qwen"),
        (3, "it should be one of falcon, llama, qwen"),
        (None, "it should be one of falcon, llama, qwen"),
        ("l" * 10**6, "it should be one of falcon, llama, qwen"),
    ],
)
def test_the_likely_choice_or_all_are_named(given, fix):
    assert one_of(["qwen", "llama", "falcon"], given) == fix


def test_of_many_choices_some_are_named():
    assert one_of(f"name{n:02}" for n in range(20)).endswith("name07 and 12 more")


def test_no_choice_at_all_is_a_sentence_too():
    assert one_of([], "x") == "there is nothing to choose from"


def test_a_mistake_is_the_same_in_another_process():
    import copy
    import pickle

    error = InputError("here", "is wrong", "make it right")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert (again.where, again.what, again.fix, str(again)) == (error.where, error.what, error.fix, str(error))
