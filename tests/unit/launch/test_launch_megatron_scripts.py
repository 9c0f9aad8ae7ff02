"""Megatron-LM launches as plans: scripts read as text, published runs, wrong files, options nobody knows."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from dovetail.errors import InputError
from dovetail.launch.megatron.read import read
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import question_of, task_of
from dovetail.plans.runs import check_runs
from dovetail.step.evaluate import evaluate

# Scripts.


SCRIPT = r"""#!/bin/bash
# Runs the "175B" model: don't stop at this quote
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"192"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=8; PP=${2:-16}
DATA_PATH=$1
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # chips
    --nnodes=$NNODES
)
MODEL="--num-layers 96 --hidden-size 12288 \
    --num-attention-heads 96"
BATCH_ARGS=(--micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 1)))
if [ "$TP" -gt 1 ] && [[ -z "$NO_SEQUENCE" ]]; then
    BATCH_ARGS+=( --sequence-parallel )
else
    BATCH_ARGS+=( --bf16 )
fi
if [ -n "${WANDB_API_KEY}" ]; then
    BATCH_ARGS+=(--wandb-project "${WANDB_PROJECT:-"it's mine"}")
fi
EXTRA='--lr 6.0e-5 --my-own-flag "a b"'
echo "starting pretrain_gpt.py --num-layers"
NCCL_DEBUG=WARN torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    ${MODEL} --seq-length 2048 --max-position-embeddings 2048 \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size "$PP" \
    ${BATCH_ARGS[@]} $EXTRA --fp16 --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --data-path $DATA_PATH $MORE_ARGS > log.txt 2>&1
"""


def test_a_script_is_read_without_running_it():
    reading = read(SCRIPT, "launch.sh")
    assert reading.cluster == {"chips": 1536}
    assert reading.job["model"] == "gpt3-175b"
    assert reading.job["global_batch"] == 1536
    assert reading.job["precision"] == "fp16"
    assert reading.plan["tensor_parallel"] == 8
    assert reading.plan["pipeline_parallel"] == 16
    assert reading.plan["sequence_parallel"] is True
    assert any(flag.startswith("--my-own-flag") for flag in reading.unknown)
    assert "--lr 6.0e-5" in reading.passed_over
    assert any("$MORE_ARGS" in entry for entry in (*reading.passed_over, *reading.unknown))


def test_the_number_of_chips_may_come_from_elsewhere():
    """Scripts say one node to begin with."""
    script = SCRIPT.replace('"192"', '"1"')
    with pytest.raises(InputError, match="makes 128 chips of 8"):
        read(script, "launch.sh")
    assert read(script, "launch.sh", 3072).cluster == {"chips": 3072}


ARGUMENTS = """--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1
--global-batch-size 128 --vocab-size 32000 --bf16 """


@pytest.mark.parametrize(
    "script",
    [
        'CMD="python pretrain_gpt.py ' + ARGUMENTS.replace("\n", " ") + '"\nsrun --label bash -c "$CMD"',
        "A=("
        + ARGUMENTS
        + ')\nA=("${A[@]}" --tensor-model-parallel-size=1)\npython -m torch.distributed.run m.py "${A[@]}"',
        ARGUMENTS.replace("\n", " \\\n"),
        ARGUMENTS.replace("--num-layers 32", "--num-layers 7 --num-layers 32"),
    ],
    ids=["text within text", "array in itself", "arguments alone", "twice: the last counts"],
)
def test_the_ways_scripts_are_written(script):
    reading = read(script, "launch.sh")
    assert reading.job["global_batch"] == 128
    assert reading.plan["tensor_parallel"] == 1
    model = task_of({"job": reading.job, "cluster": {"chip": "h100-sxm", "chips": 8}}, "read").job.model
    assert model.num_layers == 32
    assert reading.unknown == ()


@pytest.mark.parametrize(
    ("test", "taken"),
    [
        ('[ "$A" = 1 ]', True), ('[ "$A" = 2 ]', False), ('[[ $A != 1 ]]', False), ('[ ! -z "$A" ]', True),
        ('[ -n "$UNSET" ]', False), ('[ $A -ge 1 ]', True), ('[ $A -lt 1 ]', False),
        ('[ "$A" = 1 ] && [ "$A" = 2 ]', False), ('[ -f file ] && [ "$A" = 2 ]', False),
        ('[ "$A" = 2 ] || [ "$A" = 1 ]', True), ('[ -f file ] || [ "$A" = 1 ]', True),
        ('[ "$A" = 2 ]; then B=""; elif [ "$A" = 1 ]', True), ('[ "$A" = 1 ]; then B=""; elif [ "$A" = 1 ]', False),
        ('[ -f file ]', None), ('[ "$(nproc)" = 1 ]', None), ('[ -f file ] && [ "$A" = 1 ]', None),
        ('[ -f file ]; then :; elif [ "$A" = 1 ]', None),
    ],
)  # fmt: skip
def test_branches_are_taken_as_far_as_the_text_decides_them(test, taken):
    script = f"A=1; B=; if {test}; then B=--sequence-parallel; fi\n"
    script += "python m.py --tensor-model-parallel-size 2 $B " + ARGUMENTS.replace("\n", " ")
    if taken is None:
        with pytest.raises(InputError, match="set in a branch"):
            read(script, "launch.sh")
    else:
        assert read(script, "launch.sh").plan["sequence_parallel"] is taken


@pytest.mark.parametrize(
    ("total", "value"),
    [("8*4", 32), ("A * (2 + 6) / 4", 4), ("7 % 5 + ${A}", 4), ("A / 0", None), ("UNSET * 2", None), ("2 +", None)],
)
def test_sums_are_worked_out(total, value):
    script = f"A=2; T=$(({total}))\n"
    script += "python m.py --num-workers 1 --seq-length $T " + ARGUMENTS.replace("\n", " ").replace(
        "--seq-length 4096", ""
    )
    if value:
        assert read(script, "launch.sh").job["seq_len"] == value
    else:
        with pytest.raises(InputError, match=r"--seq-length: is .* which the file does not set"):
            read(script, "launch.sh")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no arguments of Megatron-LM"),
        ("echo hello; ls -la", "has no arguments of Megatron-LM"),
        ('{"train_batch_size": 512}', "has no arguments of Megatron-LM"),
        (ARGUMENTS + '"open', "a quote on line 2 that is not closed"),
        ("A=(--bf16", "an array A that is not closed"),
        (ARGUMENTS + "--tensor-model-parallel-size $TP", "is '$TP', which the file does not set"),
        (ARGUMENTS + "--tensor-model-parallel-size eight", "is 'eight'; it should be a whole number of 1 or more"),
        (ARGUMENTS + "--tensor-model-parallel-size", "--tensor-model-parallel-size: has no value"),
        (ARGUMENTS + "--context-parallel-size 1 2", "has the values '1 2'"),
        (ARGUMENTS + "--fp16", "--fp16: cannot be combined with --bf16"),
        (ARGUMENTS + "--optimizer soap", "--optimizer: is 'soap'"),
        (ARGUMENTS + "--pipeline-model-parallel-size 5", "is 5 for 32 layers"),
        (ARGUMENTS + "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|tt|L'", "3 stages of 3"),
        (ARGUMENTS + "--pipeline-model-parallel-layout 'hello'", "it should be stages of E, t, m and L"),
        (ARGUMENTS + "--recompute-granularity some", "--recompute-granularity: is 'some'"),
        (ARGUMENTS + "--recompute-granularity selective --recompute-modules attn", "lists 'attn'"),
        (ARGUMENTS + "--cp-comm-type a2a+p2p", "--cp-comm-type: is 'a2a+p2p'"),
        (ARGUMENTS + "--num-experts 8 --moe-layer-freq [0]*3", "--moe-layer-freq: is '[0]*3'"),
        (ARGUMENTS + "--use-distributed-optimizer --num-distributed-optimizer-instances 2", "say on how many chips"),
        (ARGUMENTS.replace("--vocab-size 32000", ""), "--vocab-size: is missing"),
        (ARGUMENTS.replace("--seq-length 4096", ""), "--seq-length: is missing"),
        ('if grep x y; then A="--bf16"; fi\npython m.py $A ' + ARGUMENTS.replace("\n", " "), "set in a branch"),
        ("A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 30 + "python m.py $A", "grow beyond 1000000 characters"),
        ("torchrun --nproc_per_node 8 p.py --context-parallel-size 3 " + ARGUMENTS.replace("\n", " "), "3 chips of 8"),
    ],
)  # fmt: skip
def test_a_wrong_file_makes_one_sentence(text, sentence):
    with pytest.raises(InputError) as error:
        read(text, "launch.sh")
    assert sentence in str(error.value)
    assert str(error.value).startswith("launch.sh")
    assert "\n" not in str(error.value)


def test_nothing_random_breaks_the_reader():
    """Pieces of a script in any order make a reading or a sentence."""
    draw = random.Random(4)  # noqa: S311
    pieces = [*SCRIPT.split(" "), *"\"'()${}`\\\n;&|#=", "$((", "if", "fi", "done", "case", "--num-layers 2"]
    for _ in range(300):
        text = " ".join(draw.choice(pieces) for _ in range(draw.randrange(120)))
        try:
            read(text, "launch.sh")
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


# What arguments mean where a plan has another word, or they leave something out.


def plan_of(more: str, chips: int | None = 64) -> dict[str, Any]:
    return dict(read(ARGUMENTS + more, "args", chips).plan)


def test_what_megatron_does_where_nothing_is_said():
    plan = plan_of("")
    assert plan["zero_stage"] == 0
    assert "recompute" not in plan
    assert plan_of("--context-parallel-size 2")["context_kind"] == "ring"
    assert plan_of("--sequence-parallel")["sequence_parallel"] is False
    assert read(ARGUMENTS.replace("--bf16", ""), "args").job["precision"] == "fp32"
    assert read(ARGUMENTS.replace("--global-batch-size 128", ""), "args", 64).job["global_batch"] == 64


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--recompute-activations", {"recompute": "selective"}),
        ("--checkpoint-activations", {"recompute": "full"}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 8",
         {"recompute": "full", "recompute_share": 0.25}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer",
         {"zero_stage": 3}),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", {"zero_stage": 1, "zero_group": 16}),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2", {"virtual_stages": 4}),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
         "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 2",
         {"virtual_stages": 2, "layers_per_stage": [3, 6, 6, 1, 3, 6, 6, 1]}),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ettt*10|t*20,L'",
         {"layers_per_stage": [12, 20]}),
    ],
)  # fmt: skip
def test_other_words_for_the_same(more, expected):
    plan = plan_of(more)
    assert {name: plan.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "flag",
    [
        "--use-checkpoint-args",
        "--use-torch-optimizer-for-cpu-offload",
        "--deepspeed_config ds.json",
        "--lr-wramup-iters 5",
    ],
)
def test_options_nobody_knows_are_listed(flag):
    """Among them those that may change the model or the state, and those that are misspelt."""
    reading = read(ARGUMENTS + flag, "args")
    assert reading.unknown == (flag,)
    assert reading.passed_over == ()


def test_groups_of_layers_that_keep_one_input_are_listed_as_not_understood():
    text = ARGUMENTS + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4"
    assert read(text, "args").unknown == ("--recompute-num-layers 4",)


# Published launches: figures, not files.


#: Arguments, chip, and seconds of a step as published.
PUBLISHED = {
    # Narayanan et al. 2021 (arXiv:2104.04473), table 1: 1008B on 3072 A100, 163 TFLOP/s a chip
    "megatron-1t": (
        """torchrun --nproc_per_node=8 --nnodes 384 pretrain_gpt.py --num-layers 128 --hidden-size 25600
        --num-attention-heads 160 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200
        --tensor-model-parallel-size 8 --pipeline-model-parallel-size 64 --micro-batch-size 1 --global-batch-size 3072
        --checkpoint-activations --fp16 --DDP-impl local --attention-backend unfused""",
        "a100-80gb", 102.6,
    ),
    # Smith et al. 2022 (arXiv:2201.11990), section 3.3: 530B on 280 servers, 60.1 s
    "mt-nlg-530b": (
        """torchrun --nproc_per_node=8 --nnodes 280 pretrain_gpt.py --num-layers 105 --hidden-size 20480
        --num-attention-heads 128 --seq-length 2048 --max-position-embeddings 2048 --vocab-file gpt2-vocab.json
        --merge-file gpt2-merges.txt --tensor-model-parallel-size 8 --pipeline-model-parallel-size 35
        --micro-batch-size 1 --global-batch-size 1920 --checkpoint-activations --bf16 --attention-backend unfused""",
        "a100-80gb", 60.1,
    ),
    # BigScience, tr11-176B-ml, and Le Scao et al. 2022 (arXiv:2211.05100), section 3.4: about 105 s
    "bloom-176b": (
        """torchrun --nproc_per_node 8 --nnodes 48 pretrain_gpt.py --num-layers 70 --hidden-size 14336
        --num-attention-heads 112 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 250680
        --position-embedding-type alibi --embed-layernorm --attention-dropout 0 --hidden-dropout 0
        --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 --micro-batch-size 2 --global-batch-size 2048
        --pp-partition-method 'type:transformer|embedding' --make-vocab-size-divisible-by 128 --padded-vocab-size 250880
        --checkpoint-activations --bf16 --zero-stage 1 --deepspeed --deepspeed_config ds.json""",
        "a100-80gb", 105.0,
    ),
    # MLPerf Training v5.0, NVIDIA, eos-dfw_n1024 (NeMo 25.01): 405B on 8192 H100, 5.18 s
    "llama-3.1-405b": (
        """torchrun --nproc_per_node 8 --nnodes 1024 pretrain_gpt.py --num-layers 126 --hidden-size 16384
        --ffn-hidden-size 53248 --num-attention-heads 128 --group-query-attention --num-query-groups 8
        --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --normalization RMSNorm --swiglu
        --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0
        --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 8
        --num-virtual-stages-per-pipeline-rank 8 --account-for-embedding-in-pipeline-split
        --account-for-loss-in-pipeline-split --context-parallel-size 2 --micro-batch-size 1 --global-batch-size 1536
        --bf16 --fp8-format hybrid --fp8-param-gather --use-distributed-optimizer --overlap-grad-reduce
        --overlap-param-gather --tp-comm-overlap""",
        "h100-sxm", 5.18,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_launches_become_plans(name):
    text, chip, seconds = PUBLISHED[name]
    reading = read(" ".join(text.split()), "launch.sh")
    assert reading.job["model"] == name
    assert reading.unknown == ()
    asked = question_of({"job": reading.job, "cluster": {"chip": chip, **reading.cluster}}, name)
    sizes = {"chips": asked.cluster.chips, "global_batch": asked.job.global_batch}
    spec = PlanSpec.model_validate(reading.plan)
    plan = resolve_plan(spec, **sizes, num_layers=asked.job.model.num_layers)
    # forks of these years ran models that today's arguments do not describe
    framework = replace(asked.framework, launch=None)
    check_runs(plan, asked.job, asked.cluster, framework)
    result = evaluate(plan, asked.job, asked.cluster, framework)
    assert result.step_time_s == pytest.approx(seconds, rel=0.35)


def test_embedding_and_loss_take_the_place_of_layers_at_the_ends():
    bloom, llama = (
        read(" ".join(PUBLISHED[name][0].split()), "launch.sh") for name in ("bloom-176b", "llama-3.1-405b")
    )
    # dealt evenly, spare layers go to the middle: nothing is left to say
    assert even_layers(12, 70) == (5, *[6] * 10, 5)
    assert even_layers(64, 126) == (1, *[2] * 62, 1)
    assert "layers_per_stage" not in bloom.plan
    assert "layers_per_stage" not in llama.plan
    assert llama.plan["virtual_stages"] == 8
