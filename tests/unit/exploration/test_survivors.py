"""Candidates between two levels: the same windows wherever they are, and only a window of them in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_study import STUDY

from dovetail.errors import InputError
from dovetail.exploration import drive, fidelity, survivors
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.resolving import study_of
from dovetail.exploration.store import Part, RunStore
from dovetail.exploration.study import Study
from dovetail.exploration.survivors import Survivors

WINDOW = 8


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "WINDOW_ROWS", WINDOW)


def part_of(number: int, first: int, rows: int) -> Part:
    codes = np.arange(first, first + rows)
    columns = {"code": codes, "least_s.a": codes / 7, "least_s.b": -codes / 3}
    return Part("physical", number, columns, {})


def filled(found: Survivors, sizes: list[int], store: RunStore | None = None) -> Survivors:
    for number, rows in enumerate(sizes):
        part = part_of(number, sum(sizes[:number]), rows)
        if store is not None:
            store.write(part)
        found.add(part)
    return found


def check(found: Survivors, total: int) -> None:
    windows = list(found.windows())
    expected = [WINDOW] * (total // WINDOW) + ([total % WINDOW] if total % WINDOW else [])
    assert [len(codes) for codes, _ in windows] == expected
    codes, bounds_s = found.whole()
    assert len(found) == total
    assert codes.tolist() == list(range(total))
    assert np.array_equal(bounds_s, np.stack([np.arange(total) / 7, -np.arange(total) / 3], axis=1))
    if windows:
        assert np.array_equal(np.concatenate([codes for codes, _ in windows]), codes)
        assert np.array_equal(np.concatenate([some for _, some in windows]), bounds_s)


@given(sizes=st.lists(st.integers(0, 3 * WINDOW), max_size=8))
def test_windows_hold_every_candidate_in_order(sizes: list[int]) -> None:
    check(filled(Survivors(InMemoryStore(), "physical", ("a", "b")), sizes), sum(sizes))


@pytest.mark.parametrize("sizes", [[], [8], [3, 5], [3, 6], [0, 20, 0, 1], [1] * 20])
def test_more_than_a_window_is_read_back(tmp_path: Path, sizes: list[int]) -> None:
    with RunStore.open(tmp_path / "run", {"name": "a"}, resume=False) as store:
        found = filled(Survivors(store, "physical", ("a", "b")), sizes, store)
        in_memory = sum(len(codes) for codes, _ in found._held.values())
        assert in_memory == (sum(sizes) if sum(sizes) <= WINDOW else 0)
        check(found, sum(sizes))


def test_a_part_that_is_lost_meanwhile_is_an_error(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run", {"name": "a"}, resume=False) as store:
        found = filled(Survivors(store, "physical", ("a", "b")), [8, 8], store)
        (tmp_path / "run" / "parts" / "physical-000001.parquet").unlink()
        with pytest.raises(InputError, match="lost batch 1 of level physical"):
            list(found.windows())


def test_a_study_in_small_windows_has_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(**vars(study_of(STUDY, "study")))
    monkeypatch.setattr(drive, "PHYSICAL", 2)
    monkeypatch.setattr(drive, "WINDOW_ROWS", WINDOW)
    monkeypatch.setattr(drive, "PROFILED_OF_MANY", 6)
    monkeypatch.setattr(fidelity, "AT_ONCE", 4)
    windowed = study.run(tmp_path / "run").document
    monkeypatch.undo()
    assert windowed["counts"]["physical"] > 2 * WINDOW
    assert study.run().document == windowed
