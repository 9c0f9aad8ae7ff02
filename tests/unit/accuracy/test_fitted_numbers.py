"""How many numbers are fitted, and that what is shipped says which."""

from __future__ import annotations

from collections import Counter

import pytest

from dovetail import frameworks
from dovetail.accuracy.left_out import left_out_values
from dovetail.accuracy.parameters import FITTED_EFFICIENCIES, FITTED_OVERHEADS
from dovetail.accuracy.priors import shipped_priors
from dovetail.cost.calibration import OTHERS, shipped
from dovetail.step.facts import Overheads

#: More would be describing runs instead of predicting them.
PER_GENERATION_AND_PRECISION, PER_FRAMEWORK = 6, 5

GENERATIONS = tuple(shipped().generations)


def figures(generation: str) -> dict[str, str]:
    """Number of a generation → what it rests on."""
    known = shipped().generations[generation]
    return {f"matrix.{row}": figure.how for row, figure in known.matrix.items()} | {
        name: getattr(known, name).how for name in OTHERS
    }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_few_numbers_of_a_generation_are_fitted_on_runs(generation):
    fitted = {name for name, how in figures(generation).items() if how.startswith("fitted on runs")}
    # a job at one precision depends on its own products and on those that stay in half precision
    assert len({name for name in fitted if not name.startswith("matrix.")}) + 2 <= PER_GENERATION_AND_PRECISION
    wanted = {name for name in FITTED_EFFICIENCIES if not name.startswith("matrix")}
    assert {name for name in fitted if not name.startswith("matrix.")} <= wanted
    assert len(FITTED_EFFICIENCIES) <= PER_GENERATION_AND_PRECISION


@pytest.mark.parametrize("name", frameworks.names())
def test_few_numbers_of_a_framework_are_fitted(name):
    framework = frameworks.load(name)
    memory = ("context_bytes", "allocator_overhead", "collective_buffer_bytes")
    fitted = {field for field in (*Overheads.__match_args__, *memory) if getattr(framework, field).status == "fitted"}
    assert len(fitted | set(FITTED_OVERHEADS.get(name, ()))) <= PER_FRAMEWORK
    # what is fitted says so, and what says so is fitted
    assert fitted & set(Overheads.__match_args__) == set(FITTED_OVERHEADS.get(name, ()))


def test_nothing_of_the_ideal_framework_is_fitted():
    assert "ideal" not in FITTED_OVERHEADS
    assert set(FITTED_OVERHEADS) <= set(frameworks.names())


def test_there_is_a_belief_for_every_fitted_number_and_no_other():
    priors = Counter(p.group for p in shipped_priors())
    assert set(priors) == {*GENERATIONS, *FITTED_OVERHEADS}
    for number, prior in shipped_priors().items():
        assert 0 < prior.value <= prior.high
        if number.group in FITTED_OVERHEADS:
            assert number.name in FITTED_OVERHEADS[number.group]
        else:
            name = number.name.partition(".")[0]
            assert name in FITTED_EFFICIENCIES or name == "network"  # which stays where nccl-tests put it
            assert prior.high == 1
            assert number.name in figures(number.group)
    for name, fields in FITTED_OVERHEADS.items():
        assert priors[name] == len(fields)


def test_shipped_overheads_lie_within_what_is_believed_possible():
    for number, prior in shipped_priors().items():
        if number.group in FITTED_OVERHEADS:
            allowance = getattr(frameworks.load(number.group), number.name)
            assert allowance.low <= allowance.value <= min(allowance.high, prior.high)


def test_left_out_numbers_are_those_that_are_fitted():
    values = left_out_values()
    assert len(values) > 5
    known = set(shipped_priors())
    for family, numbers in values.items():
        assert set(numbers) <= known, family
        assert all(0 < value <= shipped_priors()[number].high * 1.001 for number, value in numbers.items())
