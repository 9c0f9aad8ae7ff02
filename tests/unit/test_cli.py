"""The command line: quick to start, the same facts for readers and programs, the same bytes every time."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from typing import Any

import pytest
import yaml

import dovetail as dt
from dovetail.cli import main
from dovetail.cli.commands import PLACES

CONFIG = {
    "model_type": "mixtral", "hidden_size": 128, "vocab_size": 1000, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 256, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 2048,
}  # fmt: skip

#: What programs may rely on.
CONTRACT = {"name", "parameters", "active_parameters", "layers", "hidden", "flops_per_token", "source"}

#: Packages that only commands which need them may load.
HEAVY = {"numpy", "torch", "numba", "ortools", "pyarrow", "optuna", "ray", "yaml"}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "Mixtral-small" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def run(capsys):
    """Runs a command in this process; returns what it printed."""

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return call


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_takes_less_than_half_a_second():
    seconds: list[float] = []
    for _ in range(3):
        start = children_seconds()
        done = command("-m", "dovetail", "--help")
        seconds.append(children_seconds() - start)
        assert done.returncode == 0
        assert "models" in done.stdout
    assert statistics.median(seconds) < 0.5


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["models", "--help"], ["models", "show", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    program = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\nprint(*sys.modules, file=sys.stderr)"
    )
    done = command("-c", program, *arguments)
    assert done.returncode == 0
    assert {name.partition(".")[0] for name in done.stderr.split()} & HEAVY == set()


@pytest.mark.parametrize("name", ["estimate", "models"])
def test_a_command_loads_no_other(name):
    program = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\nprint(*sys.modules, file=sys.stderr)"
    )
    done = command("-c", program, name, "--help")
    loaded = set(done.stderr.split())
    commands = {place.partition(":")[0] for place in PLACES.values()}
    assert loaded & commands == {f"dovetail.cli.{name}"}


def test_a_command_looks_for_no_packages_that_extend_pydantic():
    program = (
        "import importlib.metadata, sys\nimportlib.metadata.entry_points = None\nfrom dovetail.__main__ import main\n"
        "main()"
    )
    assert "megatron" in command("-c", program, "frameworks", "list").stdout


def test_every_command_is_in_the_help(run):
    lines = run("--help").partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == list(PLACES)
    for name in PLACES:
        assert f" {name} [OPTIONS]" in run(name, "--help")


def test_the_version_is_the_packages(run):
    assert run("--version") == f"dovetail {dt.__version__}\n"


def test_list_names_every_model_of_the_catalogue(run):
    names = dt.models.names()
    assert names
    answers: list[dict[str, Any]] = json.loads(run("models", "list", "--json"))
    assert [answer["name"] for answer in answers] == list(names)
    assert all(answer.keys() >= CONTRACT for answer in answers)
    text = run("models", "list")
    assert "parameters" in text
    assert all(name in text for name in names)


def test_show_gives_the_facts_of_the_contract(run):
    name = "llama-3-8b"
    answer = json.loads(run("models", "show", name, "--json"))
    summary = dt.models.summarise(dt.models.load(name))
    assert answer.keys() >= CONTRACT
    for field in CONTRACT:
        assert answer[field] == getattr(summary, field)
    assert type(answer["parameters"]) is int
    assert answer["source"]
    text = run("models", "show", name)
    assert f"{summary.parameters:,}" in text
    assert summary.source in text


def test_show_counts_at_the_sequence_length_asked_for(run):
    short, long = (json.loads(run("models", "show", "llama-3-8b", "--json", "--seq-len", n)) for n in ("1024", "8192"))
    assert (short["seq_len"], long["seq_len"]) == (1024, 8192)
    assert short["parameters"] == long["parameters"]
    assert short["flops_per_token"] < long["flops_per_token"]


def test_only_causal_attention_has_a_causal_figure(run):
    assert "with causal attention" in run("models", "show", "llama-3-8b")
    assert "causal" not in run("models", "show", "bert-base")
    assert "at 1 token\n" in run("models", "show", "llama-3-8b", "--seq-len", "1")


def test_an_existing_file_is_replaced_only_by_force(config, tmp_path):
    out = tmp_path / "model.yaml"
    out.write_text("mine")
    with pytest.raises(SystemExit):
        main(["models", "import", config, "--out", str(out)])
    assert out.read_text() == "mine"


def test_force_replaces_a_file(run, config, tmp_path):
    out = tmp_path / "model.yaml"
    out.write_text("old")
    run("models", "import", config, "--out", str(out), "--force")
    assert dt.models.load(str(out)) == dt.models.from_huggingface(config)


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dt.models, "names", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["models", "list"])
    assert ended.value.code == 130
    assert capsys.readouterr().out == ""


def test_an_experts_models_active_parameters_are_shown(run, config):
    answer = json.loads(run("models", "import", config, "--json"))
    assert answer["name"] == "mixtral-small"
    assert answer["active_parameters"] < answer["parameters"]
    assert "active per token" in run("models", "import", config)


def test_an_imported_model_is_shown_alike_from_its_file(run, config, tmp_path):
    out = tmp_path / "model.yaml"
    imported = run("models", "import", config, "--out", str(out), "--json")
    assert run("models", "show", str(out), "--json") == imported
    assert run("models", "show", str(out)) == run("models", "import", config)
    assert dt.models.load(str(out)) == dt.models.from_huggingface(config)
    as_json = tmp_path / "model.json"
    as_json.write_text(json.dumps(yaml.safe_load(out.read_text())))
    assert run("models", "show", str(as_json), "--json") == imported


@pytest.mark.parametrize("arguments", [["list"], ["show", "deepseek-v3"], ["import", "CONFIG"]])
def test_json_is_the_same_bytes_in_every_run(arguments, config):
    arguments = [config if argument == "CONFIG" else argument for argument in arguments]
    runs = [
        command("-m", "dovetail", "models", *arguments, "--json", PYTHONHASHSEED=seed, COLUMNS=columns)
        for seed, columns in (("1", "40"), ("2", "200"))
    ]
    assert runs[0].returncode == 0
    assert runs[0].stdout == runs[1].stdout
    json.loads(runs[0].stdout)


def test_a_name_of_any_script_becomes_a_model_name(tmp_path, run):
    path = tmp_path / "modèle №7" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    assert json.loads(run("models", "import", str(path), "--json"))["name"] == "mod-le--7"


def test_a_config_may_hold_an_infinite_number_that_is_not_read(tmp_path, run):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"time_step_limit": [0.0, float("inf")]}))
    assert json.loads(run("models", "import", str(path), "--json"))["layers"] == 4


def test_a_reader_that_stops_early_ends_the_command_quietly():
    shell = f"{sys.executable} -m dovetail models list --json | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[\n"
    assert done.stderr == ""
