"""Files that start a launch: bash reads and runs them with launchers that only print, PyYAML reads the others."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import dovetail as dt
from dovetail.cli import main
from dovetail.errors import InputError
from dovetail.launch.starting.nodes import on_nodes
from dovetail.launch.starting.start_file import KINDS, start_file
from dovetail.launch.targets import EXPORTERS, Exporter, read_launch
from dovetail.plans.launch_limits import LAUNCHES
from starting_launches import CONFIG, DATA, MAXTEXT, RECIPE, STARTS, WORDS, cluster_of, launch_of

#: A launcher, or srun: prints its words, one on each line.
PRINTS = '#!/bin/bash\necho "ran ${0##*/}"\nprintf "%s\\n" "$@"\n'
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_NODEID=3 exec "$@"\n'
SCONTROL = "#!/bin/bash\nprintf 'node-7\\nnode-8\\n'\n"

PLAN = """\
job: {model: llama-3.1-8b, seq_len: 4096, global_batch: 64}
cluster: {chip: h100-sxm, chips: 16, framework: megatron}
plan: {tensor_parallel: 8, sequence_parallel: true, zero_stage: 1}
"""


def text_of(kind: str, target: str, chips: int = 8, chip: str = "h100-sxm") -> str:
    return start_file(kind, launch_of(target), target, cluster_of(chips, chip))[1]


def filled_in(target: str) -> dict[str, str]:
    return dict.fromkeys(STARTS[target].fill_in, "/data/a  b")


def run(script: str, folder: Path, **variables: str) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of a bash script whose launchers print."""
    commands = dict.fromkeys(("torchrun", "deepspeed", "accelerate", "python"), PRINTS)
    for name, text in (commands | {"srun": SRUN, "scontrol": SCONTROL}).items():
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": "/home/nobody"} | variables
    done = subprocess.run(
        ["bash"], input=script, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("target", STARTS)
def test_bash_reads_every_script(target):
    for chips in (1, 8, 64):
        _, files, _ = documents(text_of("kubernetes", target, chips))
        (task,) = documents(text_of("skypilot", target, chips))
        scripts = [text_of("script", target, chips), text_of("slurm", target, chips), task["run"]]
        for script in (*scripts, files["data"]["start.sh"]):
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("target", STARTS)
def test_a_script_runs_its_launcher_on_one_node(target, tmp_path):
    code, lines, err = run(text_of("script", target), tmp_path, **filled_in(target))
    assert (code, err) == (0, "")
    assert lines[0] == f"ran {STARTS[target].launcher}"
    assert lines[-len(WORDS[target]) :] == WORDS[target]
    files = {"torchtitan": RECIPE, "deepspeed": CONFIG, "maxtext": MAXTEXT, "accelerate": "distributed_type: FSDP\n"}
    written = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert written == ([files[target]] if target in files else [])


def test_launchers_are_told_the_nodes(tmp_path):
    where = {"NODE_RANK": "1", "MASTER_ADDR": "node-7", "MASTER_PORT": "1234"}
    expected = {
        "megatron": "--nnodes 8 --nproc_per_node 8 --node_rank 1 --master_addr node-7 --master_port 1234",
        "deepspeed": "--no_ssh --hostfile hostfile.1 --num_nodes 8 --num_gpus 8"
        " --node_rank 1 --master_addr node-7 --master_port 1234",
        "accelerate": "launch --config_file accelerate.yaml --num_machines 8 --num_processes 64"
        " --machine_rank 1 --main_process_ip node-7 --main_process_port 1234",
    }
    for target, words in expected.items():
        code, lines, err = run(text_of("script", target, 64), tmp_path, **filled_in(target), **where)
        assert (code, err) == (0, "")
        assert " ".join(lines[1 : -len(WORDS[target])]) == words
    # DeepSpeed takes the number of nodes from a hostfile alone
    assert (tmp_path / "hostfile.1").read_text() == "".join(f"node{n} slots=8\n" for n in range(1, 9))
    assert (tmp_path / "deepspeed.json").read_text() == CONFIG


def test_jax_is_told_the_nodes(tmp_path):
    script = text_of("script", "maxtext", 64).replace("python -m", "env; python -m")
    code, lines, _ = run(script, tmp_path, **filled_in("maxtext"), NODE_RANK="5", MASTER_ADDR="node-7")
    assert code == 0
    told = {"NNODES=8", "NODE_RANK=5", "JAX_COORDINATOR_IP=node-7", "JAX_COORDINATOR_PORT=29500"}
    assert {*told, "XLA_FLAGS=--xla_a=true --xla_b=2"} <= set(lines)


def test_the_environment_is_exported(tmp_path):
    script = text_of("script", "megatron").replace("torchrun", "env; torchrun", 1)
    lines = run(script, tmp_path, **filled_in("megatron"))[1]
    assert {"CUDA_DEVICE_MAX_CONNECTIONS=1", "NOTE=it's $HOME"} <= set(lines)


@pytest.mark.parametrize("kind", ["script", "slurm"])
@pytest.mark.parametrize("target", STARTS)
def test_what_is_not_filled_in_is_asked_for(kind, target, tmp_path):
    code, lines, err = run(text_of(kind, target), tmp_path)
    ((name, what),) = STARTS[target].fill_in.items()
    assert code != 0
    assert lines == []
    assert err.rstrip().endswith(f"{name}: {what}")


def test_several_nodes_need_a_rank_and_an_address(tmp_path):
    script = text_of("script", "megatron", 64)
    assert "NODE_RANK: the number of this node, from 0 to 7" in run(script, tmp_path, DATA_PATH="x")[2]
    assert "MASTER_ADDR: the address of node 0" in run(script, tmp_path, DATA_PATH="x", NODE_RANK="0")[2]


@pytest.mark.parametrize("target", STARTS)
def test_a_slurm_job_runs_the_command_on_its_nodes(target, tmp_path):
    job = {"SLURM_JOB_NODELIST": "node-[7-8]", **filled_in(target)}
    code, lines, err = run(text_of("slurm", target, 64), tmp_path, **job)
    assert (code, err) == (0, "")
    assert lines[0] == f"ran {STARTS[target].launcher}"
    assert lines[-len(WORDS[target]) :] == WORDS[target]
    if target != "maxtext":
        assert {"3", "node-7", "29500"} <= set(lines)


def test_a_slurm_job_asks_for_its_nodes():
    lines = text_of("slurm", "megatron", 64).splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert options == [
        *("--job-name=megatron-64-h100-sxm", "--nodes=8", "--ntasks-per-node=1", "--gpus-per-node=8"),
        *("--exclusive", "--output=%x-%j.out"),
    ]
    commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    assert max(number for number, line in enumerate(lines) if line.startswith("#SBATCH")) < commands[0]


@pytest.mark.parametrize("target", STARTS)
def test_a_skypilot_task_runs_the_command(target, tmp_path):
    (task,) = documents(text_of("skypilot", target, 16))
    assert (task["num_nodes"], task["resources"]) == (2, {"accelerators": "H100:8"})
    assert task["envs"] == dict.fromkeys(STARTS[target].fill_in)
    nodes = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n"}
    code, lines, err = run(task["run"], tmp_path, **nodes, **filled_in(target))
    assert (code, err) == (0, "")
    assert lines[-len(WORDS[target]) :] == WORDS[target]
    if target != "maxtext":
        assert {"1", "10.0.0.1"} <= set(lines)


def test_skypilot_has_names_of_its_own_for_chips():
    def asked(chips: int, chip: str) -> tuple[int, str]:
        (task,) = documents(text_of("skypilot", "maxtext", chips, chip))
        return task["num_nodes"], task["resources"]["accelerators"]

    assert asked(16, "a100-80gb") == (2, "A100-80GB:8")
    assert asked(64, "tpu-v5p") == (1, "tpu-v5p-128")
    assert asked(64, "tpu-v6e") == (1, "tpu-v6e-64")
    assert asked(16, "gaudi3") == (2, "FILL_IN:8")
    assert "#   accelerators  what your clouds call gaudi3" in text_of("skypilot", "maxtext", 16, "gaudi3")


@pytest.mark.parametrize("target", STARTS)
def test_a_kubernetes_job_runs_the_command(target, tmp_path):
    service, files, job = documents(text_of("kubernetes", target, 16))
    assert [each["kind"] for each in (service, files, job)] == ["Service", "ConfigMap", "Job"]
    name = f"{target}-16-h100-sxm"
    pod = job["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == {"app": name}
    assert service["metadata"]["name"] == pod["spec"]["subdomain"] == name
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    unfilled = dict.fromkeys(STARTS[target].fill_in, "FILL_IN")
    assert {each["name"]: each["value"] for each in container["env"]} == unfilled

    script = files["data"].pop("start.sh")
    for file, text in files["data"].items():
        (tmp_path / file).write_text(text)
    script = script.replace("cp /etc/launch/", "ls ")
    code, lines, err = run(script, tmp_path, JOB_COMPLETION_INDEX="1", **filled_in(target))
    assert (code, err) == (0, "")
    assert lines[-len(WORDS[target]) :] == WORDS[target]
    if target != "maxtext":
        assert {"1", f"{name}-0.{name}"} <= set(lines)
    assert dict(files["data"]) == dict(on_nodes(launch_of(target), target, cluster_of(16)).files)
    assert run(script, tmp_path, JOB_COMPLETION_INDEX="1", **unfilled)[0] != 0


def test_kubernetes_counts_chips_as_resources():
    def limits(chip: str) -> dict[str, int]:
        job = documents(text_of("kubernetes", "maxtext", 16, chip))[2]
        return job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]

    assert limits("mi300x") == {"amd.com/gpu": 8}
    assert limits("tpu-v5e") == {"google.com/tpu": 4}
    assert limits("ascend-910b") == {"huawei.com/Ascend910": 8}
    assert limits("ipu-mk2") == {"FILL_IN/chip": 16}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", STARTS)
def test_the_top_says_what_it_is_and_what_to_fill_in(kind, target):
    lines = [line for line in text_of(kind, target, 64).splitlines() if not line.startswith("#!")]
    top = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    assert LAUNCHES[target].title in top[0]
    assert top[0].endswith("on 64 chips (h100-sxm): 8 nodes of 8")
    asked = top[top.index("# Fill in before you start:") + 1 :]
    named = dict(line.removeprefix("#   ").split("  ", 1) for line in asked if line.startswith("#   "))
    for name, what in STARTS[target].fill_in.items():
        assert named[name].strip() == what
    own = {"script": "NODE_RANK", "slurm": "SBATCH_PARTITION", "skypilot": "setup", "kubernetes": "image"}
    assert own[kind] in named


def test_each_option_has_a_line():
    lines = [line.strip(" \\") for line in text_of("script", "megatron").splitlines()]
    assert {"pretrain_gpt.py", "--bf16", "--recompute-modules core_attn mlp", "--num-layers 61"} <= set(lines)


def test_hosts_may_be_smaller_than_the_innermost_tier():
    def nodes(chips: int, chip: str) -> tuple[int, int]:
        launch = on_nodes(launch_of("megatron"), "megatron", cluster_of(chips, chip))
        return launch.nodes, launch.chips_per_node

    assert nodes(144, "gb200") == (36, 4)
    assert nodes(6, "gb200") == (2, 3)
    assert nodes(1, "gb200") == nodes(1, "h100-sxm") == (1, 1)
    assert nodes(4, "h100-sxm") == (1, 4)
    assert nodes(16, "tpu-v5p") == (4, 4)


def test_names_are_labels_whatever_the_chip_is_called():
    cluster = cluster_of(64)
    chip = replace(cluster.chip, name=f"My_Chip v2.0; rm -rf /\n{'x' * 80}")
    launch = on_nodes(launch_of("megatron"), "megatron", replace(cluster, chip=chip))
    assert launch.name == "megatron-64-my-chip-v2-0-rm-rf-xxxxxxxxxxxxxxxxxxx"
    assert "\n" not in launch.title


def test_a_script_can_be_read_back():
    words = ("--num-layers", "32", "--hidden-size", "4096", "--num-attention-heads", "32", "--seq-length", "4096")
    batch = ("--vocab-size", "128256", "--micro-batch-size", "1", "--global-batch-size", "64")
    others = ("--tensor-model-parallel-size", "8", "--data-path", '"$DATA_PATH"')
    start = replace(STARTS["megatron"], program=("pretrain_gpt.py", *words, *batch, *others))
    launch = replace(launch_of("megatron"), start=start)
    for kind in ("script", "slurm"):
        text = start_file(kind, launch, "megatron", cluster_of(64))[1]
        reading = read_launch(text, "megatron.sh")
        assert (reading.cluster, reading.plan["tensor_parallel"]) == ({"chips": 64}, 8)
        assert reading.unknown == ()


def test_a_launch_that_does_not_say_how_it_is_started_is_refused():
    with pytest.raises(InputError, match=r"the launch for DeepSpeed [\d.]+ does not say how it is started"):
        start_file("slurm", replace(launch_of("deepspeed"), start=None), "deepspeed", cluster_of(8))
    with pytest.raises(InputError, match=r"--as: is 'slrum'; did you mean 'slurm'"):
        start_file("slrum", launch_of("deepspeed"), "deepspeed", cluster_of(8))


@pytest.fixture
def plan(tmp_path, monkeypatch) -> str:
    """A plan's file; its exporter says how the launch is started."""
    monkeypatch.setattr(Exporter, "export", lambda *_: launch_of("megatron"))
    (tmp_path / "plan.yaml").write_text(PLAN)
    return str(tmp_path / "plan.yaml")


def exported(kind: str) -> str:
    version = EXPORTERS["megatron"].version_of(None)
    return start_file(kind, launch_of("megatron"), "megatron", cluster_of(16), version)[1]


@pytest.fixture
def export(plan, capsys):
    """Runs the command on the plan; returns its exit code, and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["export", plan, *arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_command_line_writes_it(export, tmp_path):
    code, printed, _ = export("--to", "megatron", "--as", "slurm", "--json")
    answer = json.loads(printed)
    assert (code, answer["as"], answer["name"], answer["out"]) == (0, "slurm", "megatron.sbatch", None)
    out = tmp_path / "out.sbatch"
    assert export("--to", "megatron", "--as", "slurm", "--out", str(out))[0] == 0
    assert out.read_text() == answer["text"] == exported("slurm")
    assert json.loads(export("--to", "megatron", "--json")[1])["as"] is None
    assert "# Megatron-LM core 0.16 on 16" in export("--to", "megatron", "--as", "script", "--release", "0.16")[1]


def test_a_trace_is_not_started(export, plan):
    message = "--as: cannot be combined with --to perfetto; leave it out, a trace is not started.\n"
    assert export("--to", "perfetto", "--as", "script", "--out", "x.json") == (2, "", message)
    with pytest.raises(InputError, match="start: cannot be combined with perfetto"):
        dt.export(plan, "perfetto", start="script")


def test_the_library_returns_it(plan):
    launch = dt.export(plan, "megatron", start="kubernetes")
    assert (launch.name, launch.text) == ("megatron-k8s.yaml", exported("kubernetes"))
    assert DATA in launch.text
