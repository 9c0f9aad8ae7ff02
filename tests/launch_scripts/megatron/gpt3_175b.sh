#!/bin/bash
#SBATCH --job-name=gpt3-175b
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --exclusive

# GPT-3 175B in bf16: 8-way tensor parallel inside a node, 16 stages of 6 layers, one layer per virtual stage
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_TIMEOUT=22
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=${MASTER_PORT:-6000}
GPUS_PER_NODE=${SLURM_GPUS_ON_NODE:-8}
NNODES=${SLURM_NNODES:-1}
WORLD_SIZE=$((GPUS_PER_NODE * NNODES))

CHECKPOINT_PATH=${1:-/checkpoints/gpt3-175b}
VOCAB_FILE=${2:-/data/gpt2-vocab.json}
MERGE_FILE=${3:-/data/gpt2-merges.txt}
DATA_PATH=${4:-/data/pile_text_document}

TP=8
PP=16
MICRO_BATCH=1
GLOBAL_BATCH=1536

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --rdzv_id $SLURM_JOB_ID
    --rdzv_backend c10d
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT
)

GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto
    --position-embedding-type learned_absolute
)

TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH
    --global-batch-size $GLOBAL_BATCH
    --rampup-batch-size 32 32 1953125
    --train-samples 146484375
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --bf16
    --lr 6.0e-5
    --min-lr 6.0e-6
    --lr-decay-style cosine
    --lr-decay-samples 126953125
    --lr-warmup-samples 183105
    --use-mcore-models
    --transformer-impl transformer_engine
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage 1
    --microbatch-group-size-per-virtual-pipeline-stage $PP
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

# selective recompute unless asked for more
RECOMPUTE=${RECOMPUTE:-selective}
if [ "$RECOMPUTE" = "full" ]; then
    MODEL_PARALLEL_ARGS+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
else
    MODEL_PARALLEL_ARGS+=(--recompute-granularity selective)
fi

DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --tokenizer-type GPT2BPETokenizer
    --split 949,50,1
    --num-workers 2
)

EVAL_AND_LOGGING_ARGS=(
    --log-interval 10
    --save-interval 1000
    --eval-interval 1000
    --eval-iters 10
    --save $CHECKPOINT_PATH
    --load $CHECKPOINT_PATH
    --ckpt-format torch_dist
    --async-save
    --dist-ckpt-optim-fully-reshardable
    --tensorboard-dir $CHECKPOINT_PATH/tensorboard
    --log-throughput
    --timing-log-level 1
)

echo "starting on $WORLD_SIZE GPUs"
srun --label torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${GPT_MODEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${MODEL_PARALLEL_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${EVAL_AND_LOGGING_ARGS[@]}" 2>&1 | tee "$CHECKPOINT_PATH/train.log"
