"""Hypothesis profiles, commands run in this process, and the one check every refusal of a mistake must pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dovetail.cli import main
from dovetail.errors import InputError

# Examples are bounded by CPU time where time matters; a deadline in wall time would measure the machine's other work.
settings.register_profile("default", max_examples=200, derandomize=True, deadline=None)
settings.register_profile(
    "thorough",
    max_examples=2000,
    derandomize=False,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

Refusal = Callable[..., str]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process: exit code, what it printed, what it complained of."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def refusal() -> Refusal:
    """Calls something that must be refused; returns the sentence, known to be in the error style."""

    def call(function: Callable[..., Any], *args: Any, **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            function(*args, **options)
        sentence = str(caught.value)
        assert sentence.isprintable(), f"not one line of plain text: {sentence!r}"
        assert sentence.endswith(".")
        assert not sentence.endswith("..")
        error = caught.value
        assert error.where
        assert error.what
        assert error.fix
        assert sentence == f"{error.where}: {error.what}; {error.fix}."
        return sentence

    return call
