#!/usr/bin/bash
# Llama 3 70B with flags alone: torchtitan 0.3 has recipes instead of TOML
set -ex

NGPU=${NGPU:-"8"}
NNODES=${NNODES:-"16"}
export LOG_RANK=${LOG_RANK:-0}
MODULE=${MODULE:-"llama3"}
CONFIG=${CONFIG:-"llama3_70b"}
TRAIN_FILE=${TRAIN_FILE:-"torchtitan.train"}
TORCHFT_LIGHTHOUSE=${TORCHFT_LIGHTHOUSE:-"http://localhost:29510"}

PARALLEL_FLAGS=(
    --parallelism.data_parallel_replicate_degree 2
    --parallelism.data_parallel_shard_degree 8
    --parallelism.tensor_parallel_degree 8
    --parallelism.fsdp_reshard_after_forward always
)

PYTORCH_ALLOC_CONF="expandable_segments:True" \
TORCHFT_LIGHTHOUSE=${TORCHFT_LIGHTHOUSE} \
torchrun --nnodes=${NNODES} --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="${HEAD_NODE}:29500" \
    --local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
    -m ${TRAIN_FILE} --module ${MODULE} --config ${CONFIG} \
    "${PARALLEL_FLAGS[@]}" \
    --training.local_batch_size 2 --training.global_batch_size 256 --training.seq_len 8192 --training.steps 5000 \
    --compile.enable --compile.enable_async_tensor_parallel \
    --metrics.log_freq 5 --metrics.enable_wandb --checkpoint.enable --checkpoint.interval 250 \
    --dataloader.dataset c4 --profiler.enable_profiling "$@"
