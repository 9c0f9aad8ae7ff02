#!/usr/bin/env bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8

# Qwen3-30B-A3B with experts over 8 ranks, flags after `activation_checkpoint:` last

NPROC=8
OPTIONS="--training.seq_len 4096 --training.local_batch_size 4 --training.global_batch_size 256"
OPTIONS+=" --parallelism.data_parallel_shard_degree 32 --parallelism.expert_parallel_degree 8"
if [ -z "${NO_COMPILE}" ]; then
    OPTIONS+=" --compile.enable --compile.components model,loss"
fi

srun --ntasks-per-node=1 python3 -m torch.distributed.run \
    --nnodes $SLURM_JOB_NUM_NODES --nproc-per-node $NPROC \
    --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE_IP}:29400" \
    -m torchtitan.train --module qwen3 --config qwen3_30b_a3b \
    $OPTIONS --training.disable_cuda_graphs --hf_assets_path ./assets/hf/Qwen3-30B-A3B \
    --checkpoint.enable --checkpoint.keep_latest_k 3 activation-checkpoint:full
