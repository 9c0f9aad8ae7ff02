"""The options of a Megatron-LM command line, each read once and none dropped in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.errors import InputError, one_of, quoted

#: Options of the launcher (torchrun and its forerunner) before the script.
LAUNCHER = frozenset({
    "--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port", "--rdzv_backend",
    "--rdzv_endpoint", "--rdzv_id", "--rdzv_conf", "--max_restarts", "--monitor_interval", "--log_dir", "--redirects",
    "--tee", "--standalone", "--start_method", "--role", "--module", "--no_python", "--local_addr",
})  # fmt: skip

#: Options that change nothing a plan has: paths, data, logging, schedules of learning rates, numerics, kernels.
_HARMLESS = """
    accumulate-allreduce-grads-in-fp32 adam-beta1 adam-beta2 adam-eps adlr-autoresume adlr-autoresume-interval
    app-tag-run-name app-tag-run-version apply-layernorm-1p apply-query-key-layer-scaling apply-wd-to-qk-layernorm
    async-ckpt-cpu-priority async-ckpt-io-priority async-ckpt-use-cpu-shm async-save async-strategy
    attention-softmax-in-fp32 auto-detect-ckpt-format calc-ft-timeouts calculate-per-token-loss
    check-for-large-grads check-for-nan-in-loss-and-grad check-for-spiky-loss
    check-weight-hash-across-dp-replicas-interval ckpt-assume-constant-structure ckpt-convert-format
    ckpt-convert-save ckpt-format ckpt-fully-parallel-load ckpt-fully-parallel-load-exchange-algo
    ckpt-fully-parallel-load-process-group ckpt-fully-parallel-save ckpt-fully-parallel-save-process-group ckpt-step
    clip-grad config-logger-dir create-all-gather-group cross-entropy-fusion-impl cross-entropy-loss-fusion
    cuda-graph-impl cuda-graph-scope cuda-graph-warmup-steps data-args-path data-cache-path data-impl
    data-parallel-random-init data-path dataloader-fast-cache-load dataloader-type ddp-average-in-collective
    ddp-bucket-size ddp-impl ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw
    ddp-reduce-scatter-with-fp32-accumulation decoupled-lr decoupled-min-lr deepspeed defer-embedding-wgrad-compute
    delay-wgrad-compute deterministic-mode disable-bf16-reduced-precision-matmul disable-ckpt-fully-parallel-save
    disable-gloo-process-groups disable-jit-fuser disable-msc disable-straggler-on-startup
    disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs
    disable-tp-comm-split-ag disable-tp-comm-split-rs dist-ckpt-format dist-ckpt-optim-fully-reshardable
    dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness dist-ckpt-workers
    distrib-optim-fully-reshardable-mem-efficient distributed-backend distributed-timeout-minutes
    distributed-timeout-seconds-after-init dump-param-to-param-group-map embedding-init-method-std
    empty-unused-memory-level enable-cuda-graph enable-experimental enable-ft-package enable-msc end-weight-decay
    eod-mask-loss error-injection-rate error-injection-type eval-global-batch-size eval-interval eval-iters
    eval-micro-batch-size exit-duration-in-mins exit-interval exit-on-missing-checkpoint exit-signal
    exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training external-cuda-graph
    fim-data fim-eod-token fim-fragment-rate fim-middle-token fim-no-prefix fim-pad-token fim-prefix-token fim-rate
    fim-split-sample fim-spm-rate fim-suffix-token finetune flight-recorder-dump-path
    flight-recorder-include-stack-trace flight-recorder-trace-buffer-size fp16-lm-cross-entropy
    fp32-residual-connection fp4-param-gather fp4-recipe fp8-amax-compute-algo fp8-amax-history-len fp8-interval
    fp8-margin fp8-param-gather fp8-recipe fsdp-double-buffer fsdp-manual-registration ft-num-warmup-iters
    full-validation fused-residual-rmsnorm grad-reduce-in-bf16 high-priority-a2a-comm-stream
    high-priority-stream-groups hysteresis inference-max-seq-length init-method-std init-method-xavier-uniform
    init-model-with-meta-device initial-loss-scale iterations-to-skip keep-fp8-transpose-cache lazy-mpu-init
    legacy-tokenizer load load-main-params-from-ckpt local-rank log-batch-size-to-tensorboard log-device-memory-used
    log-energy log-interval log-learning-rate-to-tensorboard log-loss-scale-to-tensorboard log-max-attention-logit
    log-memory-interval log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-progress log-straggler
    log-throughput log-timers-to-tensorboard log-validation-ppl-to-tensorboard log-world-size-to-tensorboard
    logging-level loss-scale loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction
    lr-warmup-init lr-warmup-iters lr-warmup-samples lr-wsd-decay-iters lr-wsd-decay-samples lr-wsd-decay-style
    make-vocab-size-divisible-by manual-gc manual-gc-interval mask-prob megatron-fsdp-max-pool-double-buffer
    memory-snapshot-path merge-file mid-level-dataset-surplus min-loss-scale min-lr mla-down-proj-fusion mock-data
    moe-aux-loss-coeff moe-deepep-num-sms moe-enable-deepep moe-flex-dispatcher-backend moe-flex-dispatcher-num-sms
    moe-grouped-gemm moe-hybridep-num-blocks-permute moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms
    moe-hybridep-num-sms-preprocessing moe-input-jitter-eps moe-per-layer-logging moe-permute-fusion
    moe-permute-fusion-into-hybridep moe-router-bias-update-rate moe-router-dtype moe-router-force-biased
    moe-router-force-load-balancing moe-router-fusion moe-router-load-balancing-type moe-router-padding-for-fp8
    moe-router-padding-for-quantization moe-router-topk-scaling-factor moe-shared-expert-overlap
    moe-token-dispatcher-type moe-use-legacy-grouped-gemm moe-z-loss-coeff mscale mscale-all-dim
    mtp-loss-scaling-factor multiple-validation-sets nccl-communicator-config-path no-align-grad-reduce
    no-align-param-gather no-async-tensor-model-parallel-allreduce no-barrier-with-level-1-timing
    no-bias-dropout-fusion no-bias-swiglu-fusion no-check-for-nan-in-loss-and-grad no-ckpt-fully-parallel-save
    no-ckpt-load-validate-sharding-integrity no-clone-scatter-output-in-embedding
    no-create-attention-mask-in-dataloader no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec
    no-flight-recorder-include-only-active no-gradient-accumulation-fusion no-gradient-reduce-div-fusion
    no-initialization no-load-optim no-load-rng no-log-loss-scale-to-tensorboard no-manual-gc-eval
    no-masked-softmax-fusion no-mmap-bin-files no-one-logger no-overlap-p2p-communication no-persist-layer-norm
    no-position-embedding no-rope-fusion no-save-optim no-save-rng no-scatter-gather-tensors-in-pipeline
    no-strict-fsdp-dtensor-load no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag
    no-tp-comm-overlap-rs no-tp-comm-split-ag no-tp-comm-split-rs no-use-tokenizer-model-from-checkpoint-args
    no-weight-decay-cond-type non-persistent-ckpt-type non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo
    non-persistent-local-ckpt-dir non-persistent-save-interval norm-epsilon null-tokenizer-eod-id
    null-tokenizer-pad-id num-dataset-builder-threads num-workers nvtx-ranges object-storage-cache-path
    one-logger-async one-logger-project one-logger-run-name overlap-grad-reduce overlap-moe-expert-parallel-comm
    overlap-p2p-communication-warmup-flush overlap-param-gather overlap-param-gather-with-optimizer-step
    override-ckpt-iteration override-opt-param-scheduler override-opt_param-scheduler per-dataset-sequences-path
    per-split-data-args-path persistent-save-interval pipeline-model-parallel-comm-backend pretrained-checkpoint
    profile profile-ranks profile-step-end profile-step-start pytorch-profiler-collect-callstack
    pytorch-profiler-collect-chakra pytorch-profiler-collect-shapes rampup-batch-size record-memory-history
    record-shapes rerun-mode reset-attention-mask reset-position-ids reuse-grad-buf-for-mxfp8-param-ag
    rope-scaling-factor rope-type rotary-base rotary-interleaved rotary-percent rotary-scaling-factor
    rotary-seq-len-interpolation-factor save save-interval save-params-interval save-retain-interval seed
    sharp-enabled-group short-seq-prob skip-train split start-eval-at-iter start-weight-decay straggler-ctrlr-port
    straggler-minmax-count suggested-communication-unit-size te-rng-tracker tensorboard-dir tensorboard-log-interval
    tensorboard-queue-size test-data-path test-mode tiktoken-num-special-tokens tiktoken-pattern
    tiktoken-special-tokens timing-log-level timing-log-option tokenizer-hf-include-special-tokens
    tokenizer-hf-no-include-special-tokens tokenizer-hf-no-use-fast tokenizer-hf-use-fast tokenizer-metadata
    tokenizer-model tokenizer-sentencepiece-legacy tokenizer-special-tokens tp-comm-bootstrap-backend
    tp-comm-overlap tp-comm-overlap-cfg tp-comm-overlap-rs-dgrad train-data-path train-iters train-samples
    train-sync-interval transformer-impl trust-remote-code use-checkpoint-opt-param-scheduler
    use-checkpoint-opt_param-scheduler use-cpu-initialization use-dist-ckpt use-flash-attn
    use-fused-weighted-squared-relu use-legacy-models use-mcore-models use-nccl-ub use-persistent-ckpt-worker
    use-pytorch-profiler use-ring-exchange-p2p use-rope-scaling use-sharp use-te-activation-func
    use-transformer-engine-op-fuser valid-data-path validation-set-names verify-integrity vocab-extra-ids vocab-file
    wandb-entity wandb-exp-name wandb-project wandb-save-dir weight-decay weight-decay-incr-style
    wgrad-deferral-limit
"""
HARMLESS = frozenset(f"--{name}" for name in _HARMLESS.split())

#: Options that stand alone; the others take what follows them.
_SWITCHES = """
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split add-qkv-bias attention-output-gate
    bf16 checkpoint-activations disable-bias-linear embed-layernorm fp16 fp8-e4m3 fp8-hybrid group-query-attention
    moe-router-enable-expert-bias moe-router-pre-softmax moe-shared-expert-gate multi-latent-attention
    no-bias-gelu-fusion qk-layernorm quick-geglu recompute-activations sequence-parallel squared-relu swiglu
    untie-embeddings-and-output-weights use-custom-fsdp use-distributed-optimizer use-megatron-fsdp
    use-rotary-position-embeddings use-torch-fsdp2 use-tp-pp-dp-mapping optimizer-cpu-offload
    overlap-cpu-optimizer-d2h-h2d use-precision-aware-optimizer
"""
SWITCHES = frozenset(f"--{name}" for name in _SWITCHES.split())


@dataclass(slots=True)
class Flags:
    """Options and the words behind them; what is asked for is marked as read."""

    where: str
    given: Mapping[str, tuple[str, ...]]
    stray: tuple[str, ...] = ()
    read: set[str] = field(default_factory=set[str])

    def has(self, flag: str) -> bool:
        """Whether an option is given, with or without words behind it."""
        self.read.add(flag)
        return flag in self.given

    def texts(self, flag: str) -> tuple[str, ...] | None:
        """The words behind an option; at least one."""
        if not self.has(flag):
            return None
        if not self.given[flag]:
            raise self.wrong(flag, "has no value", "give it one")
        return self.given[flag]

    def text(self, flag: str) -> str | None:
        """The one word behind an option."""
        texts = self.texts(flag)
        if texts is None:
            return None
        first, *more = texts
        if first.startswith(("$", "`")):
            return " ".join(texts)
        if more:
            raise self.wrong(flag, f"has the values {' '.join(texts)!r}", "it should have one")
        return first

    def choice(self, flag: str, choices: Iterable[str]) -> str | None:
        """One of the words an option takes."""
        text = self.text(flag)
        if text is not None and text not in (names := tuple(choices)):
            raise self.wrong(flag, f"is {quoted(text)}", one_of(names, text))
        return text

    def whole(self, flag: str, low: int = 1) -> int | None:
        """A whole number."""
        text = self.text(flag)
        if text is None:
            return None
        if text.startswith(("$", "`")):
            raise self.wrong(flag, f"is {quoted(text)}, which the file does not set", "write the number out")
        if not text.isascii() or not text.isdecimal() or len(text) > 15 or int(text) < low:
            raise self.wrong(flag, f"is {quoted(text)}", f"it should be a whole number of {low} or more")
        return int(text)

    def number(self, flag: str) -> float | None:
        """Any number."""
        text = self.text(flag)
        try:
            return None if text is None else float(text)
        except ValueError:
            raise self.wrong(flag, f"is {quoted(text)}", "it should be a number") from None

    def needed(self, flag: str) -> int:
        """A whole number Megatron-LM does not start without."""
        value = self.whole(flag)
        if value is None:
            raise self.wrong(flag, "is missing", "add it, or give the file that sets it")
        return value

    def wrong(self, flag: str, what: str, fix: str) -> InputError:
        """The sentence about an option."""
        return InputError(f"{self.where}: {flag}", what, fix)

    def rest(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Options nobody asked for: those that change nothing a plan has, and those nobody here knows."""
        left = [flag for flag in self.given if flag not in self.read]
        harmless = tuple(self._shown(flag) for flag in left if flag.lower() in HARMLESS)
        unknown = tuple(self._shown(flag) for flag in left if flag.lower() not in HARMLESS)
        return harmless, (*unknown, *self.stray)

    def _shown(self, flag: str) -> str:
        return " ".join((flag, *self.given[flag]))[:200]


def flags_of(words: Iterable[str], where: str) -> Flags:
    """The options among words; where one is given twice, the last counts, as in the parser of Megatron-LM."""
    given: dict[str, tuple[str, ...]] = {}
    stray: list[str] = []
    current: str | None = None
    for word in words:
        if word.startswith("--") and len(word) > len("--"):
            name, equals, value = word.partition("=")
            given[name] = (value,) if equals else ()
            current = None if equals or name in SWITCHES else name
        elif current is not None:
            given[current] = (*given[current], word)
        else:
            stray.append(word)
    return Flags(where, given, tuple(stray))


def launched(words: Iterable[str], where: str) -> tuple[Flags, Flags]:
    """The options of the launcher and those of the script it starts."""
    given = list(words)
    script = next((i for i, word in enumerate(given) if word.endswith(".py")), None)
    if script is not None:
        launcher = [word.replace("-", "_").replace("__", "--", 1) if word.startswith("--") else word for word in given]
        return flags_of(launcher[:script], where), flags_of(given[script + 1 :], where)
    first = next((i for i, word in enumerate(given) if word.startswith("--")), 0)
    both = flags_of(given[first:], where)
    named = {flag: flag.replace("-", "_").replace("__", "--", 1) for flag in both.given}
    before = {named[flag]: values for flag, values in both.given.items() if named[flag] in LAUNCHER}
    after = {flag: values for flag, values in both.given.items() if named[flag] not in LAUNCHER}
    return Flags(where, before), Flags(where, after, both.stray)
