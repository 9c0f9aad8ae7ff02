"""`dovetail spaces`: the same facts for readers and programs; mistakes in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import dovetail as dt
from dovetail.cli import main, spaces

#: What programs may rely on.
CONTRACT = {"name", "base", "technology", "size", "set", "axes", "references", "derive", "define", "limits", "source"}


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process; returns its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


def test_list_names_the_whole_catalogue(run):
    answers = json.loads(run("spaces", "list", "--json")[1])
    assert [answer["name"] for answer in answers] == list(dt.hardware.space_names())
    assert all(answer.keys() >= CONTRACT for answer in answers)
    code, out, err = run("spaces", "list")
    assert (code, err) == (0, "")
    assert all(name in out for name in dt.hardware.space_names())


def test_show_counts_what_limits_leave_out(run):
    answer = json.loads(run("spaces", "show", "phaze-grid", "--json")[1])
    assert answer.keys() >= CONTRACT
    assert answer["size"] == 75_712 == answer["counts"]["kept"] + sum(answer["counts"]["left_out"].values())
    assert answer["axes"][0]["values"]["tensor_cores"] == [2.0**n for n in range(13)]
    space = dt.hardware.space("phaze-grid")
    assert space.keeps([example["index"] for example in answer["examples"]]).all()
    code, text, err = run("spaces", "show", "phaze-grid")
    assert (code, err) == (0, "")
    for part in (*answer["limits"], "75,712 = 13 x 13 x 8 x 8 x 7", "2 MiB, 4 MiB", f"{answer['counts']['kept']:,}"):
        assert part in text
    assert f"{answer['examples'][0]['index']:,}" in text


def test_a_large_space_is_counted_when_asked(run, monkeypatch):
    monkeypatch.setattr(spaces, "COUNTED_AT_ONCE", 1000)
    answer = json.loads(run("spaces", "show", "phaze-grid", "--json")[1])
    assert answer["counts"] is None
    assert answer["examples"]
    assert "--count" in run("spaces", "show", "phaze-grid")[1]
    assert json.loads(run("spaces", "show", "phaze-grid", "--count", "--json")[1])["counts"]["kept"]


def test_a_file_is_shown_like_the_catalogue(run, tmp_path):
    (tmp_path / "listed.csv").write_text("depth,width\n8,16\n32,4\n")
    path = tmp_path / "space.yaml"
    path.write_text(
        "name: mine\nbase: h100-sxm\ncoefficients: high\nset: {link_ports: 20}\nvary:\n"
        "  core_sram_bytes_per_s: {range: [100 GB/s, 200 GB/s], step: 1 GB/s}\n"
        "  listed: {table: listed.csv, columns: {rows: depth, cols: width}}\nderive: {vector_cores: rows / 16}\n"
    )
    code, text, err = run("spaces", "show", str(path))
    assert (code, err) == (0, "")
    for part in ("mine", "link_ports 20", "high end", "100 GB/s, 101 GB/s, 102 GB/s, ... 200 GB/s", "listed: rows"):
        assert part in text
    assert "vector_cores is a whole number from 1 to 4,096" in text
    systolic = path.read_text().replace("h100-sxm", "tpu-v4").replace("derive", "limits: [rows > 40]\nderive")
    path.write_text(systolic.replace("  listed:", "  dataflow: [weight, output]\n  listed:"))
    code, text, err = run("spaces", "show", str(path))
    assert (code, err) == (0, "")
    assert "weight, output" in text
    assert "0.0 %" in text


MISTAKES = [
    (["spaces"], "Missing command"),
    (["spaces", "show", "phaze"], "design space: 'phaze' is not in the catalogue"),
    (["spaces", "show", "absent.yaml"], "absent.yaml: cannot be read"),
    (["spaces", "show", "a\nb"], "not in the catalogue"),
]


@pytest.mark.parametrize(("arguments", "named"), MISTAKES, ids=[" ".join(a)[:40] for a, _ in MISTAKES])
def test_a_mistake_ends_with_one_sentence(arguments, named, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.endswith(".\n")
    assert err.removesuffix("\n").isprintable()
    assert named in err


def test_chips_are_listed_without_arrays():
    program = "import sys, dovetail as dt\nprint(dt.hardware.chip('tpu-v4').name, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "tpu-v4 False\n"
