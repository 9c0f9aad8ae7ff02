"""Launches of each target, by hand, as exporters make them: with words that a shell would take for something else."""

from __future__ import annotations

from dovetail import hardware
from dovetail.hardware import Cluster
from dovetail.launch.launch_file import Launch, Start

DATA = "the tokenized data: what preprocess_data.py wrote, without .bin"
CONFIG = '{\n  "zero_optimization": {"stage": 2},\n  "name": "it\'s $HOME `here`"\n}\n'
RECIPE = "def recipe():\n    return 'EOF'\n\n\n# $PATH and \\n stay\nEOF\n"
MAXTEXT = "model_name: llama3.1-8b\nici_fsdp_parallelism: 8\n"

STARTS = {
    "megatron": Start(
        "torchrun",
        (
            *("pretrain_gpt.py", "--num-layers", "61", "--moe-layer-freq", "'([0]*3+[1]*58)'", "--bf16"),
            *("--recompute-modules", "core_attn", "mlp", "--data-path", '"$DATA_PATH"'),
            *("--pipeline-model-parallel-layout", "'Et*3|(tt|)*29,L'", "--app-tag-run-name", "'it'\"'\"'s  two'"),
        ),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NOTE": "it's $HOME"},
        fill_in={"DATA_PATH": DATA},
    ),
    "torchtitan": Start(
        "torchrun",
        (
            *("-m", "torchtitan.train", "--module", "dovetail_recipe", "--config", "recipe"),
            *("--hf_assets_path", '"$ASSETS"'),
        ),
        files={"dovetail_recipe.py": RECIPE},
        environment={"PYTHONPATH": "."},
        fill_in={"ASSETS": 'the folder of the model\'s tokenizer: "${HOME}"/assets, or `pwd`'},
    ),
    "deepspeed": Start(
        "deepspeed",
        ('"$TRAIN"', "--deepspeed", "--deepspeed_config", "deepspeed.json"),
        files={"deepspeed.json": CONFIG},
        fill_in={"TRAIN": "your training program"},
    ),
    "accelerate": Start("accelerate", ('"$TRAIN"', "--seq", "'4 096'"), fill_in={"TRAIN": "your training program"}),
    "maxtext": Start(
        "python",
        ("-m", "maxtext.trainers.pre_train.train", "maxtext.yml", 'base_output_directory="$OUTPUT"', "'xla=a b'"),
        files={"maxtext.yml": MAXTEXT},
        environment={"XLA_FLAGS": "--xla_a=true --xla_b=2"},
        fill_in={"OUTPUT": "a folder or bucket for checkpoints"},
    ),
}
#: What the processes of a launch are given, besides what the launcher adds.
WORDS = {
    "megatron": [
        *("pretrain_gpt.py", "--num-layers", "61", "--moe-layer-freq", "([0]*3+[1]*58)", "--bf16"),
        *("--recompute-modules", "core_attn", "mlp", "--data-path", "/data/a  b"),
        *("--pipeline-model-parallel-layout", "Et*3|(tt|)*29,L", "--app-tag-run-name", "it's  two"),
    ],
    "torchtitan": [
        *("-m", "torchtitan.train", "--module", "dovetail_recipe", "--config", "recipe"),
        *("--hf_assets_path", "/data/a  b"),
    ],
    "deepspeed": ["/data/a  b", "--deepspeed", "--deepspeed_config", "deepspeed.json"],
    "accelerate": ["/data/a  b", "--seq", "4 096"],
    "maxtext": [
        *("-m", "maxtext.trainers.pre_train.train", "maxtext.yml", "base_output_directory=/data/a  b", "xla=a b"),
    ],
}


def launch_of(target: str) -> Launch:
    """A launch of a target."""
    name = {"accelerate": "accelerate.yaml"}.get(target, f"{target}.txt")
    return Launch(name, "distributed_type: FSDP\n", start=STARTS[target])


def cluster_of(chips: int, chip: str = "h100-sxm") -> Cluster:
    """So many chips, as they are sold."""
    return hardware.cluster_from({"name": "test", "chip": chip, "chips": chips}, "test")
