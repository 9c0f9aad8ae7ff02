"""`dovetail fit`: its JSON and its view say the same, and wrong input is one sentence."""

from __future__ import annotations

import json

import pytest

from dovetail.cli import main

QUESTION = ["fit", "--model", "llama-3.2-1b", "--chip", "h100-sxm", "--chips", "1,2"]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_rows_and_the_smallest_cluster(capsys):
    code, out, _ = run([*QUESTION, "--json"], capsys)
    answer = json.loads(out)
    assert code == 0
    by_cell = {(row["largest"], row["chips"], row["recompute"]): row[row["largest"]] for row in answer["rows"]}
    assert len(by_cell) == len(answer["rows"])
    assert {chips for _, chips, _ in by_cell} == {1, 2}
    for largest in ("micro_batch", "seq_len"):
        # more chips and more recompute fit no less
        for chips in (1, 2):
            assert by_cell[largest, chips, "none"] <= by_cell[largest, chips, "full"]
        for recompute in ("none", "full"):
            assert by_cell[largest, 1, recompute] <= by_cell[largest, 2, recompute]
    assert all(row["fit_probability"] >= 0.98 for row in answer["rows"])
    assert answer["smallest_cluster"]["chips"] == 1


def test_nothing_fits(capsys):
    code, out, err = run(["fit", "--model", "llama-3.1-70b", "--chip", "h100-sxm", "--chips", "1"], capsys)
    assert code == 3
    assert "nothing fits on 1 chip\n" in out
    assert err.count("\n") == 1


def test_no_plan_divides(capsys):
    question = [*QUESTION[:-1], "7", "--global-batch", "4", "--framework", "deepspeed"]
    code, _, err = run(question, capsys)
    assert code == 3
    assert "no plan of deepspeed divides" in err


def test_a_batch_limits_micro_batches_and_not_sequences(capsys):
    """With one sequence a step micro-batches cannot grow, and sequences as long fit as with many."""
    rows = [json.loads(run([*QUESTION, "--global-batch", batch, "--json"], capsys)[1])["rows"] for batch in ("1", "64")]
    one, many = ({row["recompute"]: row for row in each if row["chips"] == 1} for each in rows)
    assert one["full"]["seq_len"] == many["full"]["seq_len"] > 4096
    limited = {row["micro_batch"]: row["limited_by_memory"] for row in rows[0] if row["largest"] == "micro_batch"}
    assert limited == {1: False}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fit-risk", "2"], "--fit-risk: is 2"),
        (["--framework", "nothing"], "--framework"),
        (["--seq-len", "0"], "--seq-len"),
        (["--global-batch", "-1"], "--global-batch"),
        (["--precision", "fp64"], "--precision"),
    ],
)
def test_wrong_input_is_one_sentence(more, said, capsys):
    code, out, err = run([*QUESTION, *more], capsys)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "--chip", "h100-sxm"], "dovetail fit: needs --model"),
        (["fit", "--model", "llama-3.2-1b"], "dovetail fit: needs --chip"),
        ([*QUESTION[:-1], "8192"], "--chips: has 8192"),
        ([*QUESTION[:-1], "some"], "--chips: is 'some'"),
        (["fit", "--model", "llama-3.2-1b", "--chip", "a100-40gb", "--chips", "10"], "--chips: 10 do not fill"),
    ],
)
def test_what_is_missing_is_named(arguments, said, capsys):
    code, _, err = run(arguments, capsys)
    assert code == 2
    assert err.startswith(said)
