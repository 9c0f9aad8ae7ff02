#!/bin/bash
set -x

# Qwen3-30B-A3B: one string of options per topic, run by bash on every node

MODEL_SIZE=A3B
NODES=${NODES:-4}
GPUS=8
TP=2
PP=2
EP=8
MICRO_BATCH_SIZE=2
GLOBAL_BATCH_SIZE=512
PR=${PR:-bf16}
AC=${AC:-sel}

if [ $MODEL_SIZE = A3B ]; then
    NUM_LAYERS=48
    HIDDEN_SIZE=2048
    NUM_ATTN_HEADS=32
    INTERMEDIATE_SIZE=6144
    MOE_INTERMEDIATE_SIZE=768
    NUM_KEY_VALUE_HEADS=4
elif [ $MODEL_SIZE = A22B ]; then
    NUM_LAYERS=94
    HIDDEN_SIZE=4096
    NUM_ATTN_HEADS=64
    INTERMEDIATE_SIZE=12288
    MOE_INTERMEDIATE_SIZE=1536
    NUM_KEY_VALUE_HEADS=4
fi

gqa_options=" \
        --group-query-attention \
        --num-query-groups ${NUM_KEY_VALUE_HEADS}"

moe_options=" \
        --moe-grouped-gemm \
        --moe-token-dispatcher-type alltoall \
        --moe-router-topk 8 \
        --num-experts 128 \
        --expert-tensor-parallel-size 1 \
        --expert-model-parallel-size ${EP} \
        --moe-ffn-hidden-size ${MOE_INTERMEDIATE_SIZE} \
        --moe-router-load-balancing-type aux_loss \
        --moe-aux-loss-coeff 0.001 \
        --moe-layer-freq '([1]*48)'"

if [ $AC = full ]; then
    activation_options="--recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
    activation_options="--recompute-activations"
elif [ $AC = none ]; then
    activation_options=""
fi

if [ $PR = fp16 ]; then
    pr_options="--fp16 --apply-query-key-layer-scaling"
else
    pr_options="--bf16"
fi

megatron_options=" \
        --lr 1e-5 \
        --min-lr 1e-6 \
        --lr-decay-style cosine \
        --weight-decay 0.1 \
        --adam-beta1 0.9 \
        --adam-beta2 0.95 \
        --clip-grad 1.0 \
        --init-method-std 0.008 \
        --attention-dropout 0.0 \
        --hidden-dropout 0.0 \
        --lr-warmup-iters 50 \
        --train-iters 10000 \
        --micro-batch-size ${MICRO_BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --ffn-hidden-size ${INTERMEDIATE_SIZE} \
        --kv-channels 128 \
        --qk-layernorm \
        --seq-length 4096 \
        --max-position-embeddings 40960 \
        --log-interval 1 \
        --log-throughput \
        --eval-interval 10000 \
        --eval-iters 0 \
        --save-interval 1000 \
        --tensor-model-parallel-size ${TP} \
        --pipeline-model-parallel-size ${PP} \
        --no-load-optim \
        --no-load-rng \
        --num-workers 8 \
        --vocab-size 151936 \
        --tokenizer-type NullTokenizer \
        --mock-data \
        --swiglu \
        --normalization RMSNorm \
        --norm-epsilon 1e-6 \
        --use-rotary-position-embeddings \
        --position-embedding-type rope \
        --rotary-base 1000000 \
        --disable-bias-linear \
        --untie-embeddings-and-output-weights \
        --use-distributed-optimizer \
        --sequence-parallel \
        --overlap-grad-reduce \
        --overlap-param-gather \
        --ckpt-format torch_dist"

run_cmd="torchrun --nproc_per_node ${GPUS} --nnodes ${NODES} --node_rank ${RANK:-0} --master_addr ${MASTER_ADDR:-localhost} \
 --master_port ${MASTER_PORT:-6000} pretrain_gpt.py ${megatron_options} ${gqa_options} ${moe_options} \
 ${activation_options} ${pr_options}"

echo ${run_cmd}
eval ${run_cmd}
