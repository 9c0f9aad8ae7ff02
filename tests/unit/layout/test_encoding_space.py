"""The space of an operator: what is listed is all there is, each once; samples are even; changes reach everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import pytest
from encoded_jobs import block, operator
from sampled_operators import SampledOperatorSpace

from dovetail.graph import Exchange
from dovetail.layout.encoding import REPLICATE, Factor, MeshAxis, Strings
from dovetail.layout.encoding.canonical import canonical_strings
from dovetail.layout.encoding.factor import places
from dovetail.layout.encoding.operator_space import count_operator, dominated, enumerate_operator
from dovetail.layout.encoding.rules import is_free, operator_violations

#: Batch and sequence so short that dims run out; 6 has two primes, so orders of unequal factors matter.
SIZES = block().resolve(batch=2, seq=6)
TILES = ((1, 1), (2, 1), (2, 2), (3, 2), (2, 4), (6, 1), (4, 4))


def raw_strings(size: int, dims: tuple[str, ...], most: int = 3) -> Iterator[tuple[Factor, ...]]:
    """Every string up to a length, factors of 1 and equal neighbours included."""
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    for length in range(1, most + 1):
        for factors in product(divisors, repeat=length):
            if prod(factors) == size:
                for labels in product([(d, s) for d in dims for s in (False, True)], repeat=length):
                    yield tuple(Factor(n, *label) for n, label in zip(factors, labels, strict=True))


@pytest.mark.parametrize(
    ("name", "rows", "cols"),
    [
        *product(["mlp.up", "attention", "mixer_residual"], [2], [2]),
        *product(["mlp.up", "attention"], [3], [2]),
        *product(["mixer_residual"], [6], [1]),
        pytest.param("mlp.up", 6, 1, marks=pytest.mark.slow),
        pytest.param("attention", 6, 1, marks=pytest.mark.slow),
        pytest.param("mixer_residual", 6, 4, marks=pytest.mark.slow),
    ],
)
def test_listed_are_the_canonical_forms_of_all_valid_strings(name: str, rows: int, cols: int) -> None:
    """The rules decide, string by string, and canonical forms are gathered: none missing, none too many."""
    own = operator(name)
    most = 2 if rows == 6 else 1  # 2 factors tell the orders of 2 × 3 apart
    each = [list(raw_strings(n, (*own.dims, REPLICATE), most)) for n in (rows, cols)]
    found = set()
    for pair in product(*each):
        strings = Strings(*pair)
        if not list(operator_violations(own, SIZES, strings, rows, cols)):
            found.add(canonical_strings(strings, rows, cols))
    assert set(enumerate_operator(own, SIZES, rows, cols)) == found


@pytest.mark.parametrize("name", ["mlp.up", "query", "attention", "mixer_norm"])
@pytest.mark.parametrize(("rows", "cols"), TILES)
@pytest.mark.parametrize("kept", [True, False])
def test_counts_equal_lists_and_all_listed_are_members(name: str, rows: int, cols: int, kept: bool) -> None:
    own = operator(name)
    space = SampledOperatorSpace(own, SIZES, rows, cols, dominated=kept)
    listed = list(space)
    assert len(set(listed)) == len(listed) == space.count() == count_operator(own, SIZES, rows, cols, dominated=kept)
    for strings in listed:
        assert strings in space
        assert list(operator_violations(own, SIZES, strings, rows, cols)) == []
        assert kept or not dominated(own, SIZES, strings)


def test_dominated_replication_is_what_the_option_deletes() -> None:
    for name, (rows, cols) in product(("mlp.up", "attention"), TILES):
        every = set(enumerate_operator(operator(name), SIZES, rows, cols))
        kept = set(enumerate_operator(operator(name), SIZES, rows, cols, dominated=False))
        assert kept == {s for s in every if not dominated(operator(name), SIZES, s)}


def test_replication_stays_where_nothing_is_left_to_cut() -> None:
    """A batch of 2, a sequence of 3 and 64 · 3 ffn: copies are dominated as long as ffn or batch can be cut in two."""
    sizes = {"batch": 2, "seq": 3, "hidden": 8, "ffn": 2}
    own = operator("mlp.up")
    copies = Strings((Factor(2, REPLICATE),), (Factor(2, "hidden"),))
    assert dominated(own, sizes, copies)
    full = Strings((Factor(2, "batch"), Factor(2, REPLICATE)), (Factor(2, "ffn"),))
    assert not dominated(own, sizes, full)  # hidden could be cut, but that leaves partial sums
    assert dominated(own, {**sizes, "seq": 4}, full)
    three = Strings((Factor(2, "batch"), Factor(3, REPLICATE)), (Factor(2, "ffn"),))
    assert dominated(own, sizes, three)


def test_a_dim_whose_shards_tell_each_other_something_is_not_free() -> None:
    gate = operator("mlp.activation")
    assert is_free(gate, "ffn")
    assert not is_free(replace(gate, exchanges=(Exchange("ffn", ("batch", "seq")),)), "ffn")
    assert not is_free(operator("mlp.down"), "ffn")
    assert not is_free(operator("attention"), "key_seq")
    assert not is_free(operator("mixer_norm"), "hidden")


def test_what_is_not_canonical_is_no_member() -> None:
    space = SampledOperatorSpace(operator("mlp.up"), block().resolve(batch=4, seq=8), 4, 4)
    batch, seq = Factor(4, "batch"), Factor(4, "seq")
    assert Strings((batch,), (seq,)) in space
    assert Strings((seq,), (batch,)) not in space  # the transposed one
    assert Strings((Factor(2, "batch"), Factor(2, "batch")), (seq,)) not in space
    assert Strings((Factor(1, "ffn"), batch), (seq,)) not in space
    assert Strings((Factor(2, "batch"),), (seq,)) not in space
    assert Strings((Factor(4, "vocab"),), (seq,)) not in space
    assert Strings((Factor(2, "batch"), Factor(2, "ffn", True)), (seq,)) not in space


@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (2, 1)])
def test_samples_are_even(rows: int, cols: int) -> None:
    space = SampledOperatorSpace(operator("mlp.up"), SIZES, rows, cols)
    random, every = Random(1), list(space)  # noqa: S311
    drawn = Counter(space.sample(random) for _ in range(100 * len(every)))
    assert set(drawn) == set(every)
    assert 50 < min(drawn.values()) <= max(drawn.values()) < 150


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (2, 4), (3, 2), (6, 1)])
def test_changes_reach_the_whole_space(rows: int, cols: int, kept: bool) -> None:
    space = SampledOperatorSpace(operator("mlp.up"), SIZES, rows, cols, dominated=kept)
    every = set(space)
    waiting = [min(every)]
    reached = set(waiting)
    while waiting:
        for strings in space.neighbours(waiting.pop()):
            assert strings in every
            if strings not in reached:
                reached.add(strings)
                waiting.append(strings)
    assert reached == every


def test_a_change_is_another_member_one_step_away() -> None:
    space = SampledOperatorSpace(operator("attention"), SIZES, 2, 4)
    random = Random(3)  # noqa: S311
    current = space.sample(random)
    seen = set()
    for _ in range(300):
        changed = space.mutate(current, random)
        assert changed in space
        assert changed in space.neighbours(current)
        seen.add(changed)
        current = changed
    assert len(seen) > 100


def test_one_die_has_one_encoding() -> None:
    space = SampledOperatorSpace(operator("attention"), SIZES, 1, 1)
    assert list(space) == [Strings()]
    assert space.sample(Random(0)) == space.mutate(Strings(), Random(0)) == Strings()  # noqa: S311


def test_the_first_factor_lies_on_neighbouring_dies() -> None:
    """Innermost first: of 4 × batch, 2 × seq the sequence's parts lie 4 dies apart."""
    lying = [(p.low, p.high, p.factor.dim) for p in places((Factor(4, "batch"), Factor(2, "seq")))]
    assert lying == [(1, 4, "batch"), (4, 8, "seq")]
    assert [axis.other for axis in MeshAxis] == [MeshAxis.COLS, MeshAxis.ROWS]
