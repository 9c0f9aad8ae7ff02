"""Commands that start DeepSpeed: chips, the configuration they name, and what the Trainer is told beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.launch.companions import Companions
from dovetail.launch.deepspeed.read import read
from dovetail.launch.shell.script import read_script
from dovetail.launch.targets import read_launch

AUTO = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3},
}  # fmt: skip
FIXED = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}


def files(config=FIXED, **more):
    return Companions(None, {"ds.json": json.dumps(config), **more})


def reading_of(script, config=FIXED, chips=None, **more):
    return read(script, "train.sh", chips, files(config, **more))


def test_the_trainer_fills_in_auto():
    script = """deepspeed --num_gpus 8 --num_nodes 4 run.py --deepspeed ds.json --per_device_train_batch_size 2 \\
        --gradient_accumulation_steps=4 --bf16 --gradient_checkpointing True --model_name_or_path Qwen/Qwen3-8B \\
        --model_max_length 2048 --learning_rate 1e-5 --mine 3 "$@" """
    reading = reading_of(script, AUTO)
    assert reading.job == {"precision": "bf16", "global_batch": 256, "seq_len": 2048, "model": "qwen3-8b"}
    assert reading.cluster == {"chips": 32}
    assert (reading.plan["micro_batch"], reading.plan["data_parallel"], reading.plan["recompute"]) == (2, 32, "full")
    assert reading.unknown == ("--mine",)
    assert "--learning_rate" in reading.passed_over


def test_what_the_trainer_takes_by_default():
    reading = reading_of("torchrun --nproc_per_node 4 run.py --deepspeed ds.json", AUTO)
    assert (reading.plan["micro_batch"], reading.job) == (8, {"precision": "fp32", "global_batch": 32})
    assert "seq_len" not in reading.job


def test_a_program_of_ones_own():
    reading = reading_of("deepspeed --num_gpus=2 train.py --deepspeed --deepspeed_config ds.json", FIXED)
    assert (reading.cluster, reading.job["global_batch"]) == ({"chips": 2}, 4)
    assert reading_of("deepspeed train.py --deepspeed_config ds.json", FIXED).cluster == {}
    with_chips = reading_of("deepspeed train.py --deepspeed_config ds.json", FIXED, 16)
    assert (with_chips.cluster, with_chips.plan["data_parallel"]) == ({"chips": 16}, 16)
    train = FIXED | {"train_batch_size": 64}
    assert reading_of("deepspeed --num_gpus=2 t.py --deepspeed_config ds.json", train).job["global_batch"] == 64


@pytest.mark.parametrize(
    ("options", "chips"),
    [
        ("-H hosts", 20), ("--hostfile=hosts --num_nodes 2", 16), ("--hostfile hosts --num_gpus 4", 12),
        ("--hostfile hosts --num_nodes 3 --num_gpus 8", 24), ("-H hosts -i a@c", 12), ("--include b:0,1@c:3", 3),
        ("--hostfile hosts --exclude a", None), ("", None), ("--num_nodes 2", None), ("--num_gpus $N", None),
    ],
)  # fmt: skip
def test_chips(options, chips):
    hosts = "# comment\na slots=8\nb slots=8  # more\n\nc slots=4\n"
    reading = reading_of(f"deepspeed {options} --master_port 1 t.py --deepspeed_config ds.json", hosts=hosts)
    assert reading.cluster == ({} if chips is None else {"chips": chips})


def test_configurations_of_the_folder(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ds.json").write_text(json.dumps(FIXED))
    script = "deepspeed --num_gpus 8 t.py --deepspeed_config conf/ds.json"
    assert read_launch(script, "elsewhere/train.sh", folder=tmp_path).plan["zero_stage"] == 1


@pytest.mark.parametrize(
    "written",
    [
        "cat > $C <<EOF\n{}\nEOF", "cat <<'EOF' > $C\n{}\nEOF", 'cat <<-EOF >"$C"\n\t{}\n\tEOF',
        "cat << EOF | tee $C\n{}\nEOF",
    ],
)  # fmt: skip
def test_configurations_that_the_script_writes(written):
    script = "C=out.json; Z=2\n" + written.replace("{}", json.dumps(FIXED)) + "\ndeepspeed t.py --deepspeed_config $C"
    assert read(script, "train.sh").plan["zero_stage"] == 1
    stage = json.dumps(FIXED).replace('"stage": 1', '"stage": ${Z}')
    script = "C=out.json; Z=2\n" + written.replace("{}", stage) + "\ndeepspeed t.py --deepspeed_config $C"
    if "'" not in written:
        assert read(script, "train.sh").plan["zero_stage"] == 2


def test_models():
    def model(name):
        script = f"deepspeed --num_gpus 1 t.py --deepspeed ds.json --model_name_or_path {name}"
        return reading_of(script, AUTO)

    for name in ("meta-llama/Llama-3.1-8B-Instruct", "/models/Llama-3.1-8B/", "llama-3.1-8b"):
        assert model(name).job["model"] == "llama-3.1-8b"
    mine = model("./my-model")
    assert "model" not in mine.job
    assert mine.unknown == ("--model_name_or_path ./my-model (not in the catalogue; name the model with --model)",)


def test_optimizers_and_attention():
    script = "deepspeed --num_gpus 1 t.py --deepspeed ds.json --attn_implementation eager --optim "
    assert reading_of(script + "adamw_torch_fused", AUTO).job["optimizer"] == "adamw"
    assert reading_of(script + "adamw_torch_fused", AUTO).job["attention"] == "unfused"
    assert reading_of(script + "adafactor", AUTO).unknown == ("--optim adafactor",)


@pytest.mark.parametrize(
    ("script", "config", "words"),
    [
        ("deepspeed t.py --deepspeed_config no.json", FIXED, "train.sh: --deepspeed_config: names 'no.json'"),
        ("deepspeed t.py --deepspeed_config $C", FIXED, "is '$C', which the file does not set"),
        ("deepspeed t.py --deepspeed", FIXED, "--deepspeed_config: is missing"),
        ("deepspeed t.py --deepspeed_config ds.json\n" * 2, FIXED, "more than once"),
        ("echo deepspeed --deepspeed ds.json", FIXED, "has no command that starts DeepSpeed"),
        ("deepspeed --num_gpus x t.py --deepspeed ds.json", FIXED, "--num_gpus: is 'x'"),
        ("deepspeed -H hosts t.py --deepspeed ds.json", FIXED, "hosts: has the line 'a 8'"),
        ("deepspeed -H none t.py --deepspeed ds.json", FIXED, "or say --chips"),
        ("deepspeed -i a t.py --deepspeed ds.json", FIXED, "--include: names 'a' without its chips"),
        ("deepspeed t.py --deepspeed ds.json --per_device_train_batch_size 4", FIXED,
         "ds.json: train_micro_batch_size_per_gpu: is 2, and --per_device_train_batch_size is 4"),
        ("deepspeed t.py --deepspeed ds.json --bf16 false", FIXED,
         "ds.json: bf16.enabled: is True, and --bf16 is false"),
        ("deepspeed t.py --deepspeed ds.json --bf16 maybe", AUTO, "it should be true or false"),
        ("deepspeed t.py --deepspeed ds.json --block_size 8 --max_length 9", AUTO, "--block_size 8 and --max_length 9"),
        ("deepspeed --num_gpus 6 t.py --deepspeed ds.json", AUTO | {"tensor_parallel": {"autotp_size": 4}},
         "has degrees of 4, which do not divide 6 chips"),
        ("deepspeed t.py --deepspeed ds.json", AUTO | {"zero_optimization": {"stage": 3, "mics_shard_size": 8}},
         "ds.json: zero_optimization.mics_shard_size: was removed from DeepSpeed"),
        ("deepspeed t.py --deepspeed ds.json", AUTO | {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
         "ds.json: zero_optimization.zero_hpz_partition_size: is 8, which plans cannot express"),
    ],
)  # fmt: skip
def test_wrong_commands_take_one_sentence(script, config, words, refusal):
    sentence = refusal(reading_of, script, config, hosts="a 8\n")
    assert words in sentence


def test_only_plain_files_are_read(tmp_path, refusal):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("binary.json", "is not UTF-8 text"),
        (".", "there is no file"),
        ("/dev/zero", "there is no file"),
    ):
        script = f"deepspeed t.py --deepspeed_config {name}"
        assert words in refusal(read, script, "train.sh", None, Companions(Path(tmp_path)))


# Scripts in general.


def test_slurm_tells_its_numbers():
    header = "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gres=gpu:a100:8\n#SBATCH --ntasks-per-node=8\n"
    script = read_script(header + "run $SLURM_NNODES $SLURM_GPUS_ON_NODE ${SLURM_NTASKS:-1}", "a.sh")
    assert (script.commands, script.tasks) == ((("run", "4", "8", "32"),), 32)


def test_a_script_within_a_heredoc():
    script = read_script("N=2\nsbatch <<EOT\n#!/bin/bash\nrun --nodes $N \\$HOST\nEOT\nlast\n", "a.sh")
    assert script.commands == (("run", "--nodes", "2", "$HOST"), ("last",))


def test_what_is_evaluated_or_only_printed():
    script = read_script("CMD=\"run --freq '(1 2)' $(hostname -i):80\"\necho $CMD\neval $CMD\n", "a.sh", ("CMD",))
    assert script.commands == (("run", "--freq", "(1 2)", "$(hostname -i):80"),)
    assert script.variables["CMD"].startswith("run --freq")


def test_code_in_heredocs_is_not_read():
    code = "cat > t.py <<EOF\nprint('it''s \"\nEOF\ncat > a.txt <<EOF\npython x.py '\nEOF\nrun\n"
    script = read_script(code, "a.sh")
    assert (script.commands[-1], script.files) == (("run",), {})


def test_a_file_that_is_moved():
    script = read_script('cat > a."$R" <<\'EOF\'\nx = \'$R.py \nEOF\nmv a."$R" b\n', "a.sh")
    assert script.files["b"] == "x = '$R.py \n"
