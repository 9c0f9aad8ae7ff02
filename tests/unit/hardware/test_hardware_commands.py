"""`dovetail chips`, `clusters`, `networks`, `frameworks`: the same facts for readers and programs; mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import dovetail as dt
from dovetail.cli import main

CATALOGUES = {
    "chips": dt.hardware.chip_names(),
    "clusters": dt.hardware.cluster_names(),
    "networks": dt.hardware.network_names(),
    "frameworks": dt.frameworks.names(),
}
EXAMPLES = {"chips": "h100-sxm", "clusters": "selene", "networks": "switch-72", "frameworks": "megatron"}

#: What programs may rely on.
CONTRACT = {
    "chips": {"name", "kind", "clock_hz", "dense_flops", "hbm_bytes", "hbm_bytes_per_s", "macs_per_cycle", "doubts"},
    "clusters": {"name", "chip", "chips", "tiers", "factors", "source", "doubts"},
    "networks": {"name", "title", "domain_chips", "tiers", "source", "doubts"},
    "frameworks": {"name", "version", "pipeline_schedules", "zero_stages", "states", "overlaps", "doubts"},
}

HEAVY = {"numpy", "torch", "numba", "ortools", "pyarrow", "optuna", "ray", "yaml"}


@pytest.fixture
def run(capsys):
    """Runs a command in this process; returns its exit code and what it printed."""

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


@pytest.mark.parametrize("command", CATALOGUES)
def test_list_names_the_whole_catalogue(command, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run(command, "list", "--json")
    assert (code, err) == (0, "")
    answers = json.loads(out)
    assert [answer["name"] for answer in answers] == list(CATALOGUES[command])
    assert all(answer.keys() >= CONTRACT[command] for answer in answers)
    code, out, err = run(command, "list")
    assert (code, err) == (0, "")
    assert all(name in out for name in CATALOGUES[command])


@pytest.mark.parametrize(("command", "name"), [(c, name) for c, names in CATALOGUES.items() for name in names])
def test_show_gives_every_entry(command, name, run):
    code, out, err = run(command, "show", name, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer.keys() >= CONTRACT[command]
    code, text, err = run(command, "show", name)
    assert (code, err) == (0, "")
    assert name in text
    assert answer["source"] in text
    assert all(why in text for why in answer["doubts"].values())


def test_show_gives_the_figures(run):
    answer = json.loads(run("chips", "show", "h100-sxm", "--json")[1])
    chip = dt.hardware.chip("h100-sxm")
    assert answer["macs_per_cycle"] == chip.macs_per_cycle
    assert answer["dense_flops"] == chip.dense_flops.published()
    assert answer["tiers"][0]["bytes_per_s"] == 450e9
    text = run("chips", "show", "h100-sxm")[1]
    for figure in ("989 TFLOPS", "3.35 TB/s", "450 GB/s", "1.83 GHz", "700 W"):
        assert figure in text
    assert "6 + 12/d" in run("frameworks", "show", "megatron")[1]


def test_a_cluster_is_shown_in_any_size(run):
    answer = json.loads(run("clusters", "show", "gb200", "--chips", "256", "--json")[1])
    assert (answer["chips"], answer["factors"]) == (256, [64, 4])
    assert "4 x 4 x 12" in run("clusters", "show", "tpu-v4-pod", "--chips", "192")[1]
    assert run("clusters", "show", "selene", "--chips", "1")[0] == 0


def test_a_network_is_shown_between_chips(run):
    answer = json.loads(run("networks", "show", "switch-72", "--chip", "b200", "--chips", "256", "--json")[1])
    assert [tier["size"] for tier in answer["cluster"]["tiers"]] == [64, 256]
    text = run("networks", "show", "fat-tree-2to1", "--chip", "b200", "--chips", "256")[1]
    assert all(figure in text for figure in ("256 x b200", "50 GB/s", "2:1", "32"))
    assert "the chip's links" in run("networks", "show", "fat-tree-2to1")[1]


def test_a_file_is_shown_like_the_catalogue(run, tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"name": "mine", "chip": "a100-80gb", "chips": 16}))
    answer = json.loads(run("clusters", "show", str(path), "--json")[1])
    assert (answer["name"], answer["factors"]) == ("mine", [8, 2])


MISTAKES = [
    (["chips"], "Missing command"),
    (["chip", "list"], "Did you mean"),
    (["chips", "show", "h100"], "did you mean 'h100-sxm'"),
    (["chips", "show", "absent.yaml"], "absent.yaml: cannot be read"),
    (["networks", "show", "torus"], "did you mean 'torus-3d'"),
    (["networks", "show", "torus-3d", "--chips", "8"], "--chip: is missing"),
    (["networks", "show", "torus-3d", "--chip", "b200", "--chips", "0"], "chips: is 0"),
    (["clusters", "show", "selen"], "did you mean 'selene'"),
    (["clusters", "show", "h100-sxm"], "chips: is missing"),
    (["clusters", "show", "h100-sxm", "--chips", "13"], "13 do not fill groups of 8"),
    (["clusters", "show", "h100-sxm", "--chips", "0"], "chips: is 0"),
    (["clusters", "show", "h100-sxm", "--chips", "9" * 40], "chips"),
    (["clusters", "show", "h100-sxm", "--chips", "many"], "--chips"),
    (["frameworks", "show", "megatrom"], "did you mean 'megatron'"),
    (["frameworks", "show", "a\nb"], "not in the catalogue"),
]


@pytest.mark.parametrize(("arguments", "named"), MISTAKES, ids=[" ".join(a)[:40] for a, _ in MISTAKES])
def test_a_mistake_ends_with_one_sentence(arguments, named, run):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.endswith(".\n")
    assert err.removesuffix("\n").isprintable()
    assert named in err


@pytest.mark.parametrize("command", CATALOGUES)
def test_json_is_the_same_bytes_in_every_run(command):
    runs = [
        subprocess.run(
            [sys.executable, "-m", "dovetail", command, "show", EXAMPLES[command], "--json"],
            capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONHASHSEED": seed, "COLUMNS": seed * 40},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout
    assert json.loads(runs[0].stdout)["name"] == EXAMPLES[command]


def test_help_loads_nothing_heavy():
    program = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\nprint(*sys.modules, file=sys.stderr)"
    )
    for command in CATALOGUES:
        done = subprocess.run(
            [sys.executable, "-c", program, command, "show", "--help"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0
        assert {name.partition(".")[0] for name in done.stderr.split()} & HEAVY == set()
