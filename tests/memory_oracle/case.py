"""What one traced training step trains, on how many ranks, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass

RECOMPUTE = ("none", "full", "op_sac")
OPTIMIZERS = ("foreach", "fused")
FAMILIES = ("llama", "gpt2")
WRAPPINGS = ("separate", "root")


@dataclass(frozen=True)
class Case:
    """One model, its parallel plan and its training settings.

    `wrapping` says which modules share an FSDP unit: "separate", as torchtitan since 2025, gives the embedding one and
    [final norm, head] another, which stays gathered from its forward to its backward; "root", as torchtitan in 2024,
    leaves embedding, final norm and head to the root's unit, freed after the forward, and keeps the last block
    gathered. In both, blocks are freed after their forward where `reshard_after_forward` says so.

    `early_stop` ends a recomputation at the last tensor the backward needs (PyTorch's default; torchtitan switches it
    off and computes the block's end once more). `vocab_parallel_loss` keeps the logits of a tensor-parallel head
    sharded over the vocabulary through the loss, as torchtitan does; otherwise every rank gathers them all.

    With a `lora_rank`, the linear layers of attention (or `lora_all` of a block) have adapters in fp32 and every other
    parameter is frozen, in bf16; the embedding's output requires a gradient, as transformers'
    `enable_input_require_grads` has it. `quantized` linear layers of the blocks store 4 bits, four numbers in an
    element of bf16, as bitsandbytes does for FSDP.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq_len: int
    micro_batch: int
    shards: int
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    optimizer: str = "foreach"
    micro_batches: int = 1
    reshard_after_forward: bool = True
    eager_loss: bool = True
    family: str = "llama"
    wrapping: str = "separate"
    early_stop: bool = False
    vocab_parallel_loss: bool = True
    lora_rank: int = 0
    lora_all: bool = False
    quantized: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("recompute", self.recompute, RECOMPUTE),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("family", self.family, FAMILIES),
            ("wrapping", self.wrapping, WRAPPINGS),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")
        if self.heads % self.kv_heads or self.kv_heads % self.tensor_parallel:
            raise ValueError("tensor_parallel must divide kv_heads, and kv_heads must divide heads")
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError("sequence_parallel needs tensor_parallel > 1")
        if self.logits == self.tokens * self.hidden:
            raise ValueError("logits are known by their number, so a rank's vocabulary must differ from hidden")
        if self.family == "gpt2" and (self.tensor_parallel > 1 or self.kv_heads != self.heads):
            raise ValueError("the gpt2 family has neither tensor parallelism nor grouped heads here")

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch of one rank."""
        return self.micro_batch * self.seq_len

    @property
    def logits(self) -> int:
        """Logits of one micro-batch that one rank's loss reads."""
        return self.tokens * self.vocab // (self.tensor_parallel if self.vocab_parallel_loss else 1)
