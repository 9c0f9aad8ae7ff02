"""`dovetail validate`: the scoreboard for readers and programs; wrong files are answered by one sentence."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import PLAIN

from dovetail.cli import main

HEAVY = {"numpy", "torch", "numba", "ortools", "pyarrow", "optuna", "ray", "yaml"}

#: Three plans under equal conditions, a run of another family with a memory, one that is refused, one of tier C.
ROWS: tuple[dict[str, str], ...] = (
    {"id": "a"},
    {"id": "b", "pp": "1", "dp": "8", "step_time_s": "1.2"},
    {"id": "c", "tp": "4", "dp": "2", "step_time_s": "2.4"},
    {"id": "d", "source_family": "theirs", "peak_memory_bytes": "9e9", "memory_kind": "reserved", "model": "GPT-other"},
    {"id": "e", "chip": "abacus"},
    {"id": "f", "tier": "C"},
)


def write(path: Path, rows: tuple[dict[str, str], ...] = ROWS) -> None:
    full = [PLAIN | row for row in rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in full for name in row)), restval="")
        writer.writeheader()
        writer.writerows(full)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the command beside a file of small runs; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write(tmp_path / "runs.csv")

    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["validate", *arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return command


def test_json_is_the_scoreboard(call):
    code, out, err = call("--runs", "runs.csv", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["rows"]["read"] == 6
    assert answer["rows"]["used"] == 4
    (refused,) = answer["rows"]["refused"]
    assert refused["id"] == "e"
    assert "abacus" in refused["reason"]
    assert answer["by"].keys() == {"ours", "theirs"}
    assert answer["by"]["ours"]["rows"] == 3
    families = [part["step_time"]["mape"] for part in answer["by"].values()]
    assert answer["macro"]["mape"] == pytest.approx(sum(families) / 2)
    assert answer["memory"].keys() == {"reserved"}
    assert answer["ranking"]["groups"] == 1
    assert answer["ranking"]["pairs"] == 3
    assert call("--runs", "runs.csv", "--json")[1] == out


@pytest.mark.parametrize(
    ("by", "names"), [("chip", {"a100-80gb"}), ("framework", {"megatron-2022"}), ("model", {"GPT-small", "GPT-other"})]
)
def test_the_table_is_split_by_what_is_asked_for(call, by, names):
    answer = json.loads(call("--runs", "runs.csv", "--by", by, "--json")[1])
    assert answer["grouped_by"] == by
    assert answer["by"].keys() == names
    view = call("--runs", "runs.csv", "--by", by)[1]
    assert f" {by} " in view
    assert all(f" {name} " in view for name in names)


def test_the_view_has_the_same_figures_and_fits_a_terminal(call):
    code, view, err = call("--runs", "runs.csv")
    assert (code, err) == (0, "")
    answer = json.loads(call("--runs", "runs.csv", "--json")[1])
    lines = view.splitlines()
    assert lines[0] == "runs       runs.csv: 4 predicted, 1 refused, 1 of another tier"
    assert lines[1].startswith(f"step time  MAPE {answer['macro']['mape']:.1%} (mean over 2 families)")
    assert f"{answer['ranking']['mean_regret']:.1%} slower than the best measured" in view
    assert f"Kendall tau {answer['ranking']['kendall_tau']:.2f} over all pairs" in view
    errors = answer["by"]["ours"]["step_time"]
    shares = [f"{errors[figure]:.1%}" for figure in ("mape", "median_ape")]
    row = next(line.split() for line in lines if line.startswith(" ours "))
    assert row[1:5] == ["3", *shares, f"{errors['bias']:+.1%}"]
    assert f" {answer['memory']['reserved']['mape']:.1%} " in view
    assert answer["rows"]["refused"][0]["reason"] in view
    assert [line for line in lines if len(line) > 80 and "abacus" not in line] == []


def test_reasons_are_shortened_where_there_are_many(call, tmp_path):
    wrong = tuple({"id": f"wrong {n}", "chip": f"abacus {n}"} for n in range(9))
    write(tmp_path / "runs.csv", (*ROWS, *wrong))
    view = call("--runs", "runs.csv")[1]
    assert view.count("is not in the catalogue") == 5
    assert "and 5 more for 5 other reasons: see --json" in view


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.csv", None, "cannot be read"),
        ("empty.csv", "", "has no columns"),
        ("header.csv", ",".join(PLAIN) + "\n", "there is none that can be scored among 0 rows"),
        ("columns.csv", "id,chip\na,h100-sxm\n", "has no columns"),
        ("cells.csv", ",".join(PLAIN) + "\na,b\n", "has 2 cells"),
        ("quotes.csv", ",".join(PLAIN) + '\n"a"b,\n', "is not CSV"),
        ("latin.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_wrong_file_is_one_sentence(call, tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for options in ((), ("--json",)):
        code, out, err = call("--runs", name, *options)
        assert (code, out) == (2, "")
        assert err.startswith(name)
        assert words in err
        assert err.count("\n") == 1
        assert err.endswith(".\n")


def test_a_file_of_which_nothing_can_be_predicted_says_why(call, tmp_path):
    write(tmp_path / "runs.csv", ({"id": "e", "chip": "abacus"}, {"id": "f", "tier": "C"}))
    code, out, err = call("--runs", "runs.csv")
    assert (code, out) == (2, "")
    assert err.startswith("runs.csv: there is none that can be scored among 2 rows; the first refused is e, chip: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--by", "colour"], ["--runs"], ["runs.csv"]])
def test_wrong_arguments_are_one_sentence(call, arguments):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_help_loads_nothing_heavy():
    program = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "validate", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert {name.partition(".")[0] for name in done.stderr.split()} & HEAVY == set()
