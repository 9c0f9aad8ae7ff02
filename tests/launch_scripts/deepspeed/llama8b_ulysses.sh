#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:8
# 128k tokens with Ulysses: eight GPUs of a node share each sequence

MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
LAUNCHER="torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE --rdzv_backend c10d"
LAUNCHER="$LAUNCHER --rdzv_endpoint $MASTER:6000"

srun $LAUNCHER train_ulysses.py --deepspeed --deepspeed_config ds_ulysses.json \
    --model_name_or_path meta-llama/Llama-3.1-8B-Instruct --max_length 131072 \
    --attn_implementation flash_attention_2 --output_dir out --max_steps 1000
