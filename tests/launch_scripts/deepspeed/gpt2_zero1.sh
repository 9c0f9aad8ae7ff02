#!/bin/bash
# GPT-2 XL in fp16 with ZeRO-1 on two hosts of the hostfile

HOSTS="worker-1@worker-2:0,1,2,3,4,5,6,7"
ARGS=(
    --deepspeed
    --deepspeed_config=ds_zero1.json
    --model_name_or_path gpt2-xl
    --dataset_name openwebtext
    --block_size 1024
    --gradient_checkpointing
    --max_steps 10000
    --seed ${SEED:-1234}
    --output_dir ${OUT:-out}
)

if [[ -n "$EXTRA_ARGS" ]]; then
    ARGS+=($EXTRA_ARGS)
fi

deepspeed -H hostfile -i "$HOSTS" --launcher pdsh train_gpt2.py "${ARGS[@]}"
