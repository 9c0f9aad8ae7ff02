"""Run directories: what goes in comes out, damage is repaired; local disks and other file systems."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_run import BATCHES, ENTRY, PART, STUDY, cut, files_of, finished, flip, part_of, run, undisturbed

from dovetail.errors import InputError
from dovetail.exploration.store import Part, RunStore


def test_what_goes_in_comes_out(tmp_path):
    columns = {
        "whole": np.array([-(2**63), 0, 2**63 - 1]),
        "real": np.array([math.nan, -math.inf, -0.0]),
        "yes": np.array([True, False, True]),
        "text": ["", None, "a\n\x00é"],
        "strided": np.arange(6.0)[::2],
    }
    facts = {"count": 3, "share": 0.1, "deep": {"é": [None, True]}}
    with RunStore.open(tmp_path / "run", STUDY, resume=False) as store:
        store.write(Part("warm_start", 7, columns, facts))
        store.write(Part("warm_start", 1_234_567, {"text": [None]}, {}))
    store = RunStore.view(tmp_path / "run")
    part = store.read("warm_start", 7)
    assert part is not None
    assert list(part.columns) == list(columns)
    for name, values in columns.items():
        found = part.columns[name]
        if isinstance(values, np.ndarray):
            assert isinstance(found, np.ndarray)
            assert found.dtype == values.dtype
            assert found.tobytes() == values.tobytes()
        else:
            assert found == values
    assert part.facts == facts
    assert store.numbers("warm_start") == {7, 1_234_567}
    assert store.numbers("search") == frozenset()
    assert store.read("warm_start", 8) is None
    assert store.study == STUDY
    assert store.repairs == []


def test_an_empty_part_keeps_its_columns(tmp_path):
    columns = {"a": np.zeros(0), "b": np.zeros(0, np.int64), "c": np.zeros(0, bool), "d": []}
    with RunStore.open(tmp_path / "run", STUDY, resume=False) as store:
        store.write(Part("warm_start", 0, columns, {"seen": 9}))
        part = store.read("warm_start", 0)
        assert part is not None
        assert [getattr(values, "dtype", "text") for values in part.columns.values()] == ["f8", "i8", "?", "text"]
        assert part.facts == {"seen": 9}
        assert store.table("warm_start").num_rows == 0


@pytest.mark.parametrize(
    "columns",
    [{}, {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(2, np.float32)}, {"a": np.array(["text"])}],
)
def test_only_columns_of_one_length_and_known_types_are_parts(tmp_path, columns):
    with RunStore.open(tmp_path / "run", STUDY, resume=False) as store, pytest.raises(AssertionError):
        store.write(Part("warm_start", 0, columns, {}))
    assert list((tmp_path / "run" / "parts").iterdir()) == []


def test_the_same_part_has_the_same_bytes_and_says_what_it_is(tmp_path):
    import pyarrow.parquet as pq

    assert finished(tmp_path / "other") == undisturbed()
    metadata = pq.read_metadata(tmp_path / "other" / "parts" / "warm_start-000001.parquet")
    assert metadata.metadata[b"dovetail.schema"] == b"1"
    assert metadata.metadata[b"dovetail.level"] == b"warm_start"
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_finished_study_returns_at_once(tmp_path, monkeypatch):
    run(tmp_path / "run").close()
    monkeypatch.setattr(RunStore, "read", lambda *_: pytest.fail("nothing is to be read"))
    monkeypatch.setattr(RunStore, "write", lambda *_: pytest.fail("nothing is to be written"))
    with run(tmp_path / "run") as store:
        assert store.result() == {"seen": 7 * 20 * 9, "front": [1.5, None]}
        assert store.repairs == []


def test_times_are_kept_with_the_result(tmp_path):
    run(tmp_path / "run").close()
    times = json.loads((tmp_path / "run" / "timing.json").read_text())["batches"]
    assert [(entry["level"], entry["number"]) for entry in times] == BATCHES


def test_the_index_is_listed_once(tmp_path, monkeypatch):
    with run(tmp_path / "run") as store:
        store.numbers("warm_start")
        monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("listed again"))
        store.write(part_of("warm_start", 9))
        assert store.numbers("warm_start") == {0, 1, 2, 3, 4, 5, 9}
        assert store.levels() == ("search", "warm_start")


def change_a_fact(path: Path) -> None:
    path.write_text(path.read_text().replace('"seen": 140', '"seen": 141'))


DAMAGE = {
    "part cut": (PART, cut, "part has"),
    "part emptied": (PART, lambda path: path.write_bytes(b""), "part has 0 bytes instead of"),
    "byte of part flipped": (PART, flip, "digest"),
    "part lost": (PART, Path.unlink, "part is missing"),
    "entry cut": (ENTRY, cut, "index entry is not complete JSON"),
    "entry emptied": (ENTRY, lambda path: path.write_bytes(b""), "index entry is not complete JSON"),
    "entry of other fields": (ENTRY, lambda path: path.write_text('{"rows": 3}'), "index entry has no valid 'bytes'"),
    "fact changed": (ENTRY, change_a_fact, "index entry does not match its part"),
}


@pytest.mark.parametrize(("name", "damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_batch_of_a_run_going_on_is_run_again(tmp_path, name, damage, says):
    where = tmp_path / "run"
    run(where).close()
    (where / "result.json").unlink()
    damage(where / name)
    with run(where) as store:
        (sentence,) = store.repairs
        assert sentence.startswith(f"{where}: batch 1 of level warm_start is run again because its ")
        assert says in sentence
    assert files_of(where) == undisturbed()


#: A fact is in the part too, and nobody who reads only a result needs it.
@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "fact changed"])
def test_a_finished_run_whose_part_is_damaged_is_repaired(tmp_path, kind):
    where = tmp_path / "run"
    run(where).close()
    name, damage, says = DAMAGE[kind]
    damage(where / name)
    with pytest.raises(InputError, match=f"^{where}: {name}: is damaged .*{says}.*; run its study with --resume"):
        RunStore.view(where).result()
    with run(where) as store:
        assert len(store.repairs) == 2
        assert says in store.repairs[0]
        assert store.repairs[0].endswith(f" ({name}).")
        assert "result.json is rebuilt because it is of parts that were damaged or lost" in store.repairs[1]
    assert files_of(where) == undisturbed()


def test_a_result_is_of_the_parts_it_was_made_of(tmp_path):
    where = tmp_path / "run"
    run(where).close()
    (where / ENTRY).unlink()  # a listing of parts does not show it
    with run(where) as store:
        assert "it is of parts that were damaged or lost" in store.repairs[0]
    assert files_of(where) == undisturbed()
    for name in (PART, ENTRY):  # intact, but of another batch
        shutil.copy(where / name.replace("1", "4"), where / name)
    with run(where) as store:
        assert any("does not match its part" in sentence for sentence in store.repairs)
    assert files_of(where) == undisturbed()


def test_a_finished_run_found_damaged_is_no_longer_finished(tmp_path):
    where = tmp_path / "run"
    run(where).close()
    flip(where / PART)
    with RunStore.open(where, STUDY, resume=True) as store:
        assert store.table("warm_start").num_rows == 100
        assert len(store.repairs) == 1
        assert store.result() is None
        assert len(store.repairs) == 1  # told once
        assert 1 not in store.numbers("warm_start")
    assert finished(where) == undisturbed()


def test_who_only_looks_changes_nothing(tmp_path):
    where = tmp_path / "run"
    run(where).close()
    flip(where / PART)
    before = files_of(where)
    store = RunStore.view(where)
    for look in (lambda: store.read("warm_start", 1), lambda: store.table("warm_start"), store.result, store.check):
        with pytest.raises(InputError, match=f"^{where}: {PART}: is damaged "):
            look()
    assert files_of(where) == before
    with pytest.raises(AssertionError):
        store.write(part_of("warm_start", 1))


def test_a_part_without_entry_is_not_finished(tmp_path):
    where = tmp_path / "run"
    run(where).close()
    (where / "result.json").unlink()
    (where / ENTRY).unlink()
    cut(where / PART)
    with RunStore.open(where, STUDY, resume=True) as store:
        assert store.numbers("warm_start") == {0, 2, 3, 4, 5}
        assert store.read("warm_start", 1) is None
        assert store.table("warm_start").num_rows == 100
        assert store.repairs == []
    assert finished(where) == undisturbed()


def test_entries_exchanged_are_found(tmp_path):
    where = tmp_path / "run"
    run(where).close()
    (where / "result.json").unlink()
    for name in (PART, ENTRY):  # both files of batch 4 in the place of batch 1
        shutil.copy(where / name.replace("1", "4"), where / name)
    with run(where) as store:
        assert len(store.repairs) == 1
    assert files_of(where) == undisturbed()


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_text("{}")])
def test_a_damaged_result_is_made_again(tmp_path, damage):
    where = tmp_path / "run"
    run(where).close()
    damage(where / "result.json")
    with run(where) as store:
        assert "result.json is rebuilt" in store.repairs[0]
    assert files_of(where) == undisturbed()


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    where = tmp_path / "run"
    run(where).close()
    for folder in (where, where / "parts", where / "index"):
        (folder / ".partial").write_text("half")
    assert finished(where) == undisturbed()
