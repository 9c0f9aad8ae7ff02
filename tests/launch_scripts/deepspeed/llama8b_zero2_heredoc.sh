#!/bin/bash
# Llama 3.1 8B with ZeRO-2: the script writes its own configuration

NUM_NODES=${NUM_NODES:-2}
NUM_GPUS=${NUM_GPUS:-8}
MICRO_BATCH=4
ACCUMULATION=4
WORLD=$((NUM_NODES * NUM_GPUS))
GLOBAL_BATCH=$((MICRO_BATCH * ACCUMULATION * WORLD))
ZERO_STAGE=2
DS_CONFIG=ds_config_zero${ZERO_STAGE}.json

cat <<EOT > $DS_CONFIG
{
  "train_batch_size": $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "gradient_accumulation_steps": $ACCUMULATION,
  "steps_per_print": 10,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 5e8,
    "allgather_bucket_size": 5e8
  },
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
  "wall_clock_breakdown": false,
  "tensorboard": {"enabled": true, "output_path": "logs"}
}
EOT

cat > hosts.txt <<'EOT'
node-0 slots=8
node-1 slots=8
EOT

deepspeed --hostfile hosts.txt --num_nodes $NUM_NODES --num_gpus $NUM_GPUS --no_ssh_check \
    train.py --deepspeed --deepspeed_config $DS_CONFIG \
    --model_name_or_path NousResearch/Meta-Llama-3.1-8B \
    --model_max_length 8192 --data_path ./data/tokens --seed 42 --max_steps 20000 --learning_rate 3e-4
