"""torchtitan's TOML: alone, behind a script's flags, under the names its versions had; wrong files in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import models
from dovetail.documents import validate
from dovetail.launch.companions import Companions
from dovetail.launch.targets import read_launch
from dovetail.launch.torchtitan.flavors import model_of
from dovetail.launch.torchtitan.options import TitanOptions
from dovetail.launch.torchtitan.read import read, read_options
from dovetail.models import Model
from dovetail.models.summary import summarise
from dovetail.plans.plan_file import task_of

BASE: dict[str, dict[str, Any]] = {
    "model": {"name": '"llama3"', "flavor": '"8B"'},
    "training": {"local_batch_size": 2, "seq_len": 4096},
    "parallelism": {"data_parallel_shard_degree": 8},
    "activation_checkpoint": {"mode": '"full"'},
}


def toml(**sections):
    merged = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {**BASE, **sections}}
    lines = []
    for section, values in merged.items():
        lines += [
            f"[{section.replace('__', '.')}]",
            *(f"{key} = {value}" for key, value in values.items() if value != ""),
        ]
    return "\n".join(lines) + "\n"


def titan(**sections):
    return read(toml(**sections), "train.toml")


def test_a_file_alone():
    reading = titan(training={"steps": 10, "global_batch_size": 64}, compile={"enable": "true"})
    assert reading.job == {"model": "llama-3.1-8b", "seq_len": 4096, "precision": "bf16", "global_batch": 64}
    assert reading.cluster == {"chips": 8}
    assert (reading.framework, reading.unknown) == ("torchtitan", ())
    assert reading.passed_over == ("training.steps",)
    assert read_launch(toml(), "anything").plan["data_parallel"] == 8


def test_what_a_file_leaves_open_is_the_default():
    reading = read('[model]\nname = "llama3"\nflavor = "70B"\n[activation_checkpoint]\nmode = "none"\n', "a.toml")
    assert (reading.job["seq_len"], reading.plan["micro_batch"]) == (2048, 8)
    assert reading.cluster == {}
    with_chips = read('[model]\nflavor = "70B"\n[activation_checkpoint]\nmode = "none"\n', "a.toml", 16)
    assert (with_chips.plan["data_parallel"], with_chips.job["global_batch"]) == (16, 128)


def test_switches_that_are_off():
    assert titan(compile={"enable": "false"}).framework == "fsdp"
    assert titan(compile={"enable": "true"}).framework == "torchtitan"


def test_names_of_earlier_versions():
    reading = titan(
        training={"local_batch_size": "", "batch_size": 4, "compile": "true"},
        parallelism={"tensor_parallel_degree": 2, "enable_async_tensor_parallel": "true"},
        model={"converters": '["float8"]', "tokenizer_path": '"t"'},
        float8={"recipe_name": '"rowwise"'},
    )
    assert reading.unknown == ()
    assert (reading.plan["micro_batch"], reading.plan["overlap_tensor_parallel"]) == (4, True)
    assert reading.job["precision"] == "fp8"
    new = titan(model={"converters": '["quantize.linear.mx"]'}, quantize__linear__mx={"recipe_name": '"mxfp8"'})
    assert (new.job["precision"], new.unknown) == ("fp8", ())
    assert titan(model={"converters": "[]"}).job["precision"] == "bf16"


def test_stages_by_their_first_layers():
    points = {"pipeline_parallel_degree": 4, "pipeline_parallel_split_points": '["layers.9", "layers.17", "layers.25"]'}
    plan = titan(parallelism=points, training={"local_batch_size": 8}).plan
    assert (plan["layers_per_stage"], plan["micro_batch"]) == ([9, 8, 8, 7], 1)


@pytest.mark.parametrize(
    ("section", "recompute"),
    [
        ({"mode": '"none"'}, "none"),
        ({"mode": '"selective"', "selective_ac_option": '"op"'}, "selective"),
        ({"mode": '"selective"', "selective_ac_option": "1"}, "full"),
    ],
)
def test_recompute(section, recompute):
    assert titan(activation_checkpoint=section).plan["recompute"] == recompute


FLAVORS = [
    *(("llama3", flavor) for flavor in ("8B", "70B", "405B", "8B_flex")),
    *(("llama4", flavor) for flavor in ("17bx16e", "17bx128e", "17bx16e_irope", "17bx128e_irope")),
    *(("deepseek_v3", flavor) for flavor in ("16B", "236B", "671B")),
    *(("qwen3", flavor) for flavor in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")),
    *(("gpt_oss", flavor) for flavor in ("20b", "120b")),
]
#: Parameters in billions, as the names say.
BILLIONS = {
    "8B_flex": 8, "17bx16e": 107, "17bx128e": 400, "17bx16e_irope": 107, "17bx128e_irope": 400, "0.6B": 0.6,
    "30B-A3B": 30.5, "235B-A22B": 235, "16B": 15.7, "20b": 20.9, "120b": 117, "14B": 14.8,
}  # fmt: skip


@pytest.mark.parametrize(("name", "flavor"), FLAVORS)
def test_flavors_are_models_of_their_size(name, flavor):
    found = model_of(name, flavor)
    assert found is not None
    model = models.load(found) if isinstance(found, str) else validate(Model, found, "model")
    expected = BILLIONS.get(flavor) or float(flavor.rstrip("Bb"))
    assert summarise(model).parameters / 1e9 == pytest.approx(expected, rel=0.04)


def test_models_that_the_catalogue_does_not_have_are_written_out():
    reading = titan(model={"name": '"qwen3"', "flavor": '"14B"'}, compile={"enable": "true"})
    job = dict(reading.job)
    assert job["model"]["name"] == "qwen3-14b"
    task = task_of({"job": job, "cluster": {"chip": "h100-sxm", "chips": 8, "framework": "ideal"}}, "x")
    assert task.job.model.num_layers == 40
    unknown = titan(model={"flavor": '"mine"'})
    assert "model" not in unknown.job
    assert unknown.unknown == ("[model] llama3 mine (not a model we know; name it with --model)",)


def test_unknown_keys_are_listed():
    reading = titan(parallelism={"rotate": 1}, mine={"x": 1}, metrics={"log_freq": 1}, optimizer={"lr": 1e-4})
    assert reading.unknown == ("parallelism.rotate", "mine.x")
    assert reading.passed_over == ("metrics.log_freq", "optimizer.lr")


# Scripts.

SCRIPT = "CONFIG_FILE={} NGPU=8 ./run_train.sh --training.seq_len=1024 --compile.enable --metrics.log-freq 1\n"


def test_flags_of_a_script_go_before_the_file(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.toml").write_text(toml(compile={"enable": "false"}))
    script = SCRIPT.format("./configs/a.toml")
    reading = read_launch(script, "train.sh", folder=tmp_path)
    assert (reading.job["seq_len"], reading.plan["micro_batch"]) == (1024, 2)
    assert (reading.cluster, reading.framework) == ({"chips": 8}, "torchtitan")
    assert reading.unknown == ()
    direct = f"torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file {tmp_path}/configs/a.toml"
    assert read_launch(direct, "train.sh", folder=tmp_path).job["seq_len"] == 4096


def test_a_file_that_the_script_writes():
    script = f"FLAVOR=70B\ncat > my.toml <<EOF\n{toml().replace('8B', '$FLAVOR')}EOF\n" + SCRIPT.format("my.toml")
    reading = read(script, "train.sh")
    assert reading.job["model"] == "llama-3.1-70b"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("nowhere.toml", "train.sh: --job.config_file: names 'nowhere.toml', and there is no file"),
        ("$ELSEWHERE", "train.sh: --job.config_file: is '$ELSEWHERE', which the file does not set"),
        ("folder", "there is no file"),
    ],
)
def test_files_that_cannot_be_read(config, words, refusal, tmp_path):
    (tmp_path / "folder").mkdir()
    assert words in refusal(read, SCRIPT.format(config), "train.sh", None, Companions(tmp_path))
    assert "the launch file by its path" in refusal(read, SCRIPT.format("a.toml"), "train.sh")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"parallelism": {"tensor_parallel_degree": '"two"'}},
         "train.toml: parallelism.tensor_parallel_degree: is 'two'"),
        ({"parallelism": {"data_parallel_shard_degree": 3}, "training": {"enable_cpu_offload": "true"}},
         "cannot express"),
        ({"parallelism": {"context_parallel_rotate_method": '"alltoall"'}},
         "is 'alltoall', which plans cannot express"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_split_points": '["layers.40"]'}},
         "it should name layers of the model in order"),
        ({"activation_checkpoint": {"mode": '"selective"'}}, "is '2', recompute of some layers"),
        ({"activation_checkpoint": {"mode": '"memory_budget"'}}, "memory budget"),
        ({"activation_checkpoint": {"mode": '"maybe"'}}, "it should be none, selective or full"),
        ({"optimizer": {"name": '"Muon"'}}, "optimizer.name: is 'Muon', which plans cannot express"),
        ({"fault_tolerance": {"enable": "true"}}, "fault_tolerance.enable: is 'True'"),
        ({"training": {"seq_len": "1" * 5000}}, "train.toml"),
    ],
)  # fmt: skip
def test_wrong_values_take_one_sentence(sections, words, refusal):
    assert words in refusal(titan, **sections)


@pytest.mark.parametrize(
    "text", ["[model", "a = 1\na = 2", "[a]\n" + "x." * 200 + "y = 1", "x = " + "[" * 9999, "#" * 2**19]
)
def test_wrong_files_take_one_sentence(text, refusal):
    assert refusal(read, text, "x.toml").startswith("x.toml")


def test_batches_in_tokens():
    flags = "--module llama3 --config llama3_8b --parallelism.data_parallel_shard_degree 4 "
    tokens = "--training.max_context_length 4096 --training.num_tokens_per_microbatch_per_dp_rank 8192 "
    reading = read(flags + tokens + "--training.num_tokens_per_train_step 131072", "flags")
    assert (reading.job["seq_len"], reading.job["global_batch"], reading.plan["micro_batch"]) == (4096, 32, 2)
    staged = (
        "--parallelism.pipeline_parallel_degree 2 --parallelism.num_pp_microbatches 8 --training.disable_cuda_graphs"
    )
    reading = read(flags + tokens + staged, "flags")
    assert (reading.job["global_batch"], reading.plan["micro_batch"]) == (64, 2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--training.num_tokens_per_train_step 8192", "needs --training.max_context_length"),
        ("--training.max_context_length 100 --training.num_tokens_per_microbatch_per_dp_rank 250", "no multiple"),
        ("--training.max_context_length x", "is 'x'; it should be a whole number"),
    ],
)
def test_tokens_that_make_no_sequences(flags, words, refusal):
    assert words in refusal(read, f"--module llama3 --config llama3_8b {flags}", "flags")


def test_options_by_themselves_make_a_reading():
    options = {"parallelism.data_parallel_shard_degree": ("4",), "training.seq_len": ("512",), "no.such": ("1",)}
    given = TitanOptions("recipe.py", options=options, model="qwen3-8b", sets={"training.local_batch_size": 3})
    reading = read_options(given)
    assert reading.job == {"model": "qwen3-8b", "seq_len": 512, "precision": "bf16", "global_batch": 12}
    assert reading.unknown == ("--no.such",)
