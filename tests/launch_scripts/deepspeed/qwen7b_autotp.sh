#!/usr/bin/env bash
# Tensor-parallel training without code: AutoTP over four GPUs, ZeRO-1 over the rest
set -e

BASE=${BASE:-Qwen/Qwen2.5-7B}
TP_SIZE=4

cat > autotp.json <<EOF
{
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
  "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"},
  "tensor_parallel": {"autotp_size": ${TP_SIZE}},
  "gradient_clipping": "auto"
}
EOF

deepspeed --include localhost:0,1,2,3,4,5,6,7 --module sft.train \
    --deepspeed autotp.json --model_name_or_path $BASE --bf16 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 16 --model_max_length 4096 \
    --data_path alpaca.json --learning_rate 2e-5 --optim adamw_torch --num_train_epochs 1 --report_to none \
    --output_dir out/autotp --save_strategy no
