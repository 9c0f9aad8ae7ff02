#!/bin/bash
# Fine-tunes all weights of Llama 3.1 70B with the Trainer and ZeRO-3 on the hosts of a hostfile

export WANDB_PROJECT=llama-70b-sft
export NCCL_DEBUG=WARN
MODEL=${MODEL:-meta-llama/Llama-3.1-70B}
OUTPUT=${OUTPUT:-./output/llama-70b}
mkdir -p "$OUTPUT"

deepspeed --hostfile ./hostfile --master_port 29501 \
    run_clm.py \
    --deepspeed ./ds_zero3.json \
    --model_name_or_path "$MODEL" \
    --train_file data/train.jsonl \
    --validation_file data/valid.jsonl \
    --do_train --do_eval \
    --block_size 4096 \
    --per_device_train_batch_size 2 \
    --per_device_eval_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --gradient_checkpointing True \
    --bf16 True --tf32 True \
    --learning_rate 1e-5 --lr_scheduler_type cosine --warmup_ratio 0.03 --weight_decay 0. \
    --num_train_epochs 3 --save_strategy steps --save_steps 500 --save_total_limit 2 \
    --eval_strategy steps --eval_steps 500 --logging_steps 1 --report_to wandb \
    --output_dir "$OUTPUT" --overwrite_output_dir 2>&1 | tee "$OUTPUT/train.log"
