#!/usr/bin/env bash
# Continued pre-training of Llama 3.1 70B at 32k tokens with context parallelism.
# Usage on every node: NODE_RANK=0 MASTER_ADDR=node-0 bash llama3_70b_long_context.sh

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FUSED_ATTN=1

GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${NNODES:-32}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-29500}

TP=${TP:-8}
CP=${CP:-2}
PP=${PP:-4}
SEQ_LEN=${SEQ_LEN:-32768}
MBS=1
# 4M tokens per step
GBS=$((4 * 1024 * 1024 / SEQ_LEN))

TORCHRUN_ARGS="--nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES} --node_rank ${NODE_RANK} \
    --master_addr ${MASTER_ADDR} --master_port ${MASTER_PORT}"

MODEL_ARGS="
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --rotary-base 500000
    --rotary-percent 1.0
    --use-rope-scaling
    --rope-scaling-factor 8.0
    --max-position-embeddings 131072
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --vocab-size 128256
    --make-vocab-size-divisible-by 1
"

PARALLEL_ARGS="
    --tensor-model-parallel-size ${TP}
    --context-parallel-size ${CP}
    --cp-comm-type p2p
    --pipeline-model-parallel-size ${PP}
    --num-virtual-stages-per-pipeline-rank 5
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
"
if [[ ${TP} -gt 1 ]]; then
    PARALLEL_ARGS="${PARALLEL_ARGS} --sequence-parallel --tp-comm-overlap"
fi

torchrun ${TORCHRUN_ARGS} pretrain_gpt.py \
    ${MODEL_ARGS} \
    ${PARALLEL_ARGS} \
    --seq-length ${SEQ_LEN} \
    --micro-batch-size ${MBS} \
    --global-batch-size ${GBS} \
    --bf16 \
    --grad-reduce-in-bf16 \
    --attention-backend flash \
    --cross-entropy-loss-fusion \
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 \
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --weight-decay 0.1 --clip-grad 1.0 \
    --lr 2.0e-5 --min-lr 2.0e-6 --lr-decay-style cosine --lr-warmup-iters 100 --train-iters 2000 \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER:-/models/Llama-3.1-70B}" \
    --data-path ${DATA_PATH:-/data/long_documents} --split 99,1,0 --reset-position-ids --eod-mask-loss \
    --save /checkpoints/llama3-70b-32k --load /checkpoints/llama3-70b --finetune --no-load-optim --no-load-rng \
    --save-interval 200 --log-interval 1 --eval-interval 500 --eval-iters 5 \
    --wandb-project long-context --wandb-exp-name "tp${TP}-cp${CP}-pp${PP}" \
    --distributed-timeout-minutes 60
