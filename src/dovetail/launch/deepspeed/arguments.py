"""Arguments around a DeepSpeed configuration: of its launcher, of torchrun, and of the Trainer of transformers."""

from __future__ import annotations

#: Options of the launchers that stand alone; the others take a word.
SWITCHES = frozenset(
    (
        *("module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid"),
        *("bind_cores_to_rank", "quiet", "q", "standalone", "run_path"),
    )
)
_LAUNCHER = """
    hostfile include exclude num_nodes num_gpus num_accelerators master_port master_addr node_rank launcher
    launcher_args module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid enable_each_rank_log
    autotuning bind_cores_to_rank bind_core_list ssh_port venv_script log_level quiet
    nproc_per_node nnodes rdzv_id rdzv_backend rdzv_endpoint rdzv_conf local_addr max_restarts monitor_interval
    start_method role log_dir redirects tee local_ranks_filter standalone run_path
    """
#: What launchers know.
LAUNCHER = frozenset(_LAUNCHER.split())
#: Short names of the launcher's options.
SHORT = {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"}

#: Arguments of the Trainer (transformers 5.22 and the years before), of its language-modelling examples and of
#: supervised fine-tuning that change nothing a plan has.
_PASSED_OVER = """
    accelerator_config adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices batch_eval_metrics
    bf16_full_eval data_seed dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug disable_tqdm
    do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay eval_do_concat_batches
    eval_on_start eval_steps eval_strategy eval_use_gather_object evaluation_strategy fp16_backend fp16_full_eval
    fp16_opt_level full_determinism gradient_checkpointing_kwargs greater_is_better group_by_length
    half_precision_backend hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token
    ignore_data_skip include_for_metrics include_inputs_for_metrics include_num_input_tokens_seen label_names
    label_smoothing_factor learning_rate length_column_name liger_kernel_config load_best_model_at_end local_rank
    log_level log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model
    neftune_noise_alpha no_cuda num_train_epochs optim_args output_dir overwrite_output_dir parallelism_config
    past_index per_device_eval_batch_size prediction_loss_only project push_to_hub ray_scope remove_unused_columns
    report_to restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node
    save_only_model save_safetensors save_steps save_strategy save_total_limit seed skip_memory_metrics tf32
    torch_empty_cache_steps trackio_space_id train_sampling_strategy use_cache use_cpu use_liger_kernel warmup_ratio
    warmup_steps weight_decay

    cache_dir config_name dtype low_cpu_mem_usage model_revision model_type token tokenizer_name torch_dtype
    trust_remote_code use_auth_token use_fast_tokenizer
    assistant_only_loss conversation_template data_path dataset_batch_size dataset_config dataset_config_name
    dataset_name dataset_num_proc dataset_path dataset_test_split dataset_text_field dataset_train_split eval_data_path
    keep_linebreaks lazy_preprocess max_eval_samples max_train_samples overwrite_cache packing
    preprocessing_num_workers streaming tokenizer_name_or_path train_file validation_file validation_split_percentage
    wandb_project

    deepscale deepscale_config
    """
PASSED_OVER = frozenset(_PASSED_OVER.split())

#: Arguments that name the length of sequences.
LENGTHS = ("max_seq_length", "model_max_length", "block_size", "max_length", "max_seq_len", "seq_length")

#: How `--optim` begins → the optimizer of the catalogue.
OPTIMIZERS = {"adamw_torch": "adamw", "adamw_hf": "adamw", "adamw_apex": "adamw", "lion_32bit": "lion", "sgd": "sgd"}
