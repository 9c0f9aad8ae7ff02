#!/bin/bash
#SBATCH -J deepseek-v3
#SBATCH -N 128
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH -t 04:00:00
#SBATCH -o logs/%x-%j.out

# DeepSeek-V3 on 1024 Hopper GPUs with DeepEP, blockwise fp8 and a pipeline layout of 16 stages.

export NCCL_NVLS_ENABLE=0
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1
export CUDA_DEVICE_MAX_CONNECTIONS=1

OUTPUT_PATH=${OUTPUT_PATH:-/lustre/output}
TP=1
PP=16
EP=64
ETP=1

TRAINING_PARAMS=(
    # distributed
    --distributed-timeout-minutes 60
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size ${PP}
    --expert-model-parallel-size ${EP}
    --expert-tensor-parallel-size ${ETP}
    --context-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --pipeline-model-parallel-layout "Et*2|(tt|)*29t|mL"
    # training
    --use-mcore-models
    --sequence-parallel
    --use-flash-attn
    --disable-bias-linear
    --micro-batch-size 1
    --global-batch-size 8192
    --train-samples 585937500
    --exit-duration-in-mins 220
    --no-check-for-nan-in-loss-and-grad
    --no-rope-fusion
    --cross-entropy-loss-fusion
    --cross-entropy-fusion-impl native
    --manual-gc
    --manual-gc-interval 10
    --transformer-impl transformer_engine
    # data
    --seq-length 4096
    --data-cache-path ${OUTPUT_PATH}/cache
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model deepseek-ai/DeepSeek-V3
    --data-path ${DATA_PATH}
    --split 99,1,0
    --no-mmap-bin-files
    --no-create-attention-mask-in-dataloader
    --num-workers 6
    # network
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --kv-channels 128
    --max-position-embeddings 163840
    --position-embedding-type rope
    --rope-type yarn
    --rotary-base 10000
    --rotary-scaling-factor 40
    --mscale 1.0
    --mscale-all-dim 1.0
    --make-vocab-size-divisible-by 1280
    --vocab-size 129280
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --untie-embeddings-and-output-weights
    --multi-latent-attention
    --qk-layernorm
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.1
    # regularization and learning rate
    --clip-grad 1.0
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --lr-decay-samples 584765624
    --lr-warmup-samples 1536000
    --lr-warmup-init 3.9e-7
    --lr 3.9e-6
    --min-lr 3.9e-7
    --lr-decay-style cosine
    # experts
    --num-experts 256
    --moe-layer-freq "([0]*3+[1]*58)"
    --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048
    --moe-router-load-balancing-type seq_aux_loss
    --moe-router-topk 8
    --moe-token-dispatcher-type flex
    --moe-enable-deepep
    --moe-router-pre-softmax
    --moe-grouped-gemm
    --moe-aux-loss-coeff 1e-4
    --moe-router-group-topk 4
    --moe-router-num-groups 8
    --moe-router-topk-scaling-factor 2.5
    --moe-router-score-function sigmoid
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 1e-3
    --moe-router-dtype fp32
    --moe-permute-fusion
    # recompute
    --recompute-granularity selective
    --recompute-modules mla_up_proj mlp moe_act layernorm
    # precision
    --bf16
    --fp8-recipe blockwise
    --fp8-format e4m3
    --fp8-param-gather
    --use-precision-aware-optimizer
    --main-grads-dtype fp32
    --main-params-dtype fp32
    # checkpoints and logs
    --save ${OUTPUT_PATH}/checkpoints
    --load ${OUTPUT_PATH}/checkpoints
    --save-interval 500
    --auto-detect-ckpt-format
    --dist-ckpt-strictness log_all
    --eval-iters 32
    --eval-interval 200
    --log-timers-to-tensorboard
    --log-memory-to-tensorboard
    --log-num-zeros-in-grad
    --log-params-norm
    --log-validation-ppl-to-tensorboard
    --log-throughput
    --log-interval 1
    --logging-level 40
    --tensorboard-dir ${OUTPUT_PATH}/tensorboard
)

srun --mpi=pmix -l --container-image=${IMAGE} --container-mounts="${MOUNTS}" \
    python -u pretrain_gpt.py "${TRAINING_PARAMS[@]}"
