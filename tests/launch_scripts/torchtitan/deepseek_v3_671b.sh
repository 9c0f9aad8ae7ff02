#!/bin/bash
# DeepSeek-V3 671B: the script writes the TOML, so that a run has one file
set -euo pipefail

CONFIG_FILE=./deepseek_v3_671b.toml
EP=${EP:-64}
STEPS=${STEPS:-10_000}

cat > ${CONFIG_FILE} <<EOF
[job]
dump_folder = "./outputs"
description = "DeepSeek-V3 671B on 512 GPUs, ${EP} ranks per set of experts"

[model]
name = "deepseek_v3"
flavor = "671B"
hf_assets_path = "./assets/hf/DeepSeek-V3.1-Base"

[optimizer]
name = "AdamW"
lr = 2.2e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 2_000
decay_ratio = 0.8
decay_type = "cosine"
min_lr_factor = 0.1

[training]
local_batch_size = 16
seq_len = 4096
max_norm = 1.0
steps = ${STEPS}
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
tensor_parallel_degree = 1
pipeline_parallel_degree = 8
pipeline_parallel_schedule = "Interleaved1F1B"
expert_parallel_degree = ${EP}
expert_tensor_parallel_degree = 1

[checkpoint]
enable = true
interval = 500
async_mode = "async_with_pinned_mem"

[activation_checkpoint]
mode = "selective"
selective_ac_option = 'op'

[compile]
enable = true
components = ["model", "loss"]
EOF

torchrun --nnodes=64 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=${MASTER_ADDR}:29500 \
    -m torchtitan.train --job.config_file "${CONFIG_FILE}" --metrics.enable_tensorboard --debug.moe_force_load_balance
