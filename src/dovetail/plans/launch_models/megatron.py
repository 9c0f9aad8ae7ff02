"""A model as arguments of Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from dovetail.errors import InputError
from dovetail.models import Model
from dovetail.models.attention import Attention
from dovetail.models.block import Block
from dovetail.models.feed_forward import Dense, Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.plans.launch_models.megatron_lists import list_text

#: The release these are written from.
VERSION = "Megatron-LM core 0.16.1"

Arguments = list[tuple[str, ...]]

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
#: The clamp and offset of gpt-oss, the one family with clamped gates.
CLAMPED = (("--quick-geglu",), ("--activation-func-clamp-value", "7.0"), ("--glu-linear-offset", "1.0"))


def blocks_of(model: Model) -> list[Block]:
    """The blocks of a model from embedding to head."""
    return [model.blocks[name] for part in model.layers for name in part.blocks * part.repeat]


def model_arguments(model: Model, seq_len: int) -> Arguments:
    """The model's arguments; a model they cannot describe is refused."""
    blocks = blocks_of(model)
    _check_frame(model, blocks)
    arguments: Arguments = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden)),
        *_attention(blocks),
        *_feed_forward(blocks),
        *_positions(model, blocks, seq_len),
        ("--normalization", NORMS[blocks[0].norm]),
        ("--vocab-size", str(model.vocab)),
    ]
    if not model.head.tied:
        arguments.append(("--untie-embeddings-and-output-weights",))
    if not model.dropout:
        arguments += [("--attention-dropout", "0.0"), ("--hidden-dropout", "0.0")]
    if model.multi_token_prediction is not None:
        arguments.append(("--mtp-num-layers", str(model.multi_token_prediction.modules)))
    return arguments


def _no_arguments(what: str, fix: str = "export to a framework that has it, or change the model") -> NoReturn:
    raise InputError("job: model", f"{what}, which {VERSION} has no arguments for", fix)


def _check_frame(model: Model, blocks: Sequence[Block]) -> None:
    """What stands around mixers and feed-forwards."""
    embedding, head = model.embedding, model.head
    for present, what in (
        (embedding.token_types is not None, "has segments"),
        (embedding.width is not None, "has token embeddings of another width"),
        (embedding.norm is not None, "normalises its embeddings"),
        (head.bias, "has a bias on its logits"),
        (head.transform, "has a dense layer before its logits"),
        (head.softcap, "squashes its logits"),
        (any(block.parallel for block in blocks), "has parallel halves in its blocks"),
        (any(block.norm_position != "before" for block in blocks), "has norms that are not before its halves"),
        (any(block.mixer is None or block.feed_forward is None for block in blocks), "has blocks with one half"),
    ):
        if present:
            _no_arguments(what)
    norms = {head.norm, *(block.norm for block in blocks)}
    if len(norms) > 1 or not norms <= NORMS.keys():
        _no_arguments(f"has the norms {', '.join(sorted(map(str, norms)))}")
    further = model.multi_token_prediction
    if further is not None and model.blocks[further.block] != blocks[-1]:
        _no_arguments("predicts further tokens with another block than its last")


def _one(values: Sequence[object], what: str) -> None:
    if any(value != values[0] for value in values):
        _no_arguments(f"has layers with different {what}")


# Attention.


def _attention(blocks: Sequence[Block]) -> Iterator[tuple[str, ...]]:
    mixers = [block.mixer for block in blocks]
    first = mixers[0]
    if isinstance(first, LatentAttention):
        _one(mixers, "attention")
        yield from _latent(first, blocks[0].norm)
        return
    kinds = {mixer.kind for mixer in mixers if mixer is not None and not isinstance(mixer, Attention)}
    if kinds or not isinstance(first, Attention):
        _no_arguments(f"has {', '.join(sorted(kinds))} among its mixers")
    plain = [m.model_copy(update={"window": None, "rotary": True}) for m in mixers if isinstance(m, Attention)]
    _one(plain, "attention")
    _check_attention(first, blocks[0].norm)
    yield "--num-attention-heads", str(first.heads)
    yield "--kv-channels", str(first.head_dim)
    if first.kv_heads < first.heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", str(first.kv_heads)
    if first.qk_norm != "none":
        yield ("--qk-layernorm",)
    if first.sinks:
        yield "--softmax-type", "learnable"
    if first.output_gate != "none":
        yield ("--attention-output-gate",)
    yield from _windows([m.window for m in mixers if isinstance(m, Attention)])
    yield from _biases(blocks, qkv=first.qkv_bias, output=first.output_bias)


def _check_attention(mixer: Attention, norm: str) -> None:
    for present, what in (
        (not mixer.causal, "has attention to later tokens"),
        (mixer.value_dim not in (None, mixer.head_dim), "has values of another width than keys"),
        (mixer.chunk is not None, "has chunked attention"),
        (mixer.qk_norm not in ("none", "head"), "normalises queries and keys over all heads"),
        (mixer.qk_norm != "none" and mixer.qk_norm_kind != norm, "normalises queries and keys in its own way"),
        (mixer.value_norm, "normalises values"),
        (mixer.key_is_value, "has keys that are values"),
        (mixer.output_gate == "head" or mixer.gate_bias, "has gates on its attention heads"),
        (mixer.indexer is not None, "chooses its keys by an indexer"),
    ):
        if present:
            _no_arguments(what)


def _latent(mixer: LatentAttention, norm: str) -> Iterator[tuple[str, ...]]:
    if mixer.bias or not mixer.rotary or mixer.norm != norm or mixer.indexer is not None:
        _no_arguments("has latent attention with biases, without rotary positions, or with an indexer")
    yield ("--multi-latent-attention",)
    yield "--num-attention-heads", str(mixer.heads)
    yield "--kv-channels", str(mixer.value_dim)
    if mixer.query_rank is not None:
        yield "--q-lora-rank", str(mixer.query_rank)
    yield "--kv-lora-rank", str(mixer.kv_rank)
    yield "--qk-head-dim", str(mixer.nope_dim)
    yield "--qk-pos-emb-head-dim", str(mixer.rope_dim)
    yield "--v-head-dim", str(mixer.value_dim)
    # of the latents
    yield ("--qk-layernorm",)
    yield ("--disable-bias-linear",)


def _windows(windows: Sequence[int | None]) -> Iterator[tuple[str, ...]]:
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return
    if len(sizes) > 1:
        _no_arguments("has windows of different sizes")
    # keys before the query, and behind it
    yield "--window-size", f"{sizes.pop() - 1},0"
    if None in windows:
        yield "--window-attn-skip-freq", list_text([window is not None for window in windows])


def _biases(blocks: Sequence[Block], *, qkv: bool, output: bool) -> Iterator[tuple[str, ...]]:
    """Megatron-LM has biases on all projections, on none, or on those to queries, keys and values."""
    others = {output}
    for block in blocks:
        match block.feed_forward:
            case Dense() as dense:
                others.add(dense.bias)
            case Mixture() as mixture:
                others |= {mixture.bias, mixture.router_bias}
                if mixture.shared_size is not None:
                    others.add(mixture.shared_bias)
            case _:
                pass
    if len(others) > 1 or (True in others and not qkv):
        _no_arguments("has biases on some projections")
    if others == {False}:
        yield ("--disable-bias-linear",)
        if qkv:
            yield ("--add-qkv-bias",)


# Feed-forward.


def _feed_forward(blocks: Sequence[Block]) -> Iterator[tuple[str, ...]]:
    halves = [block.feed_forward for block in blocks]
    dense = [half for half in halves if isinstance(half, Dense)]
    mixtures = [half for half in halves if isinstance(half, Mixture)]
    if len(dense) + len(mixtures) < len(halves):
        _no_arguments("has dense feed-forwards in parallel to mixtures")
    _one(dense, "feed-forwards")
    _one(mixtures, "mixtures of experts")
    first = (dense or mixtures)[0]
    if any(half.activation != first.activation for half in (*dense, *mixtures)):
        _no_arguments("has layers with different activations")
    yield "--ffn-hidden-size", str(first.size)
    yield from _activation(first.activation, bias=first.bias)
    if mixtures:
        yield from _mixture(mixtures[0])
        if mixtures[0].bias:
            yield ("--no-bias-dropout-fusion",)
        if dense:
            yield "--moe-layer-freq", list_text([isinstance(half, Mixture) for half in halves])


def _activation(name: str, *, bias: bool) -> Iterator[tuple[str, ...]]:
    match name:
        case "swiglu":
            yield ("--swiglu",)
        case "swiglu_clamped":
            yield from CLAMPED
        case "relu2":
            yield ("--squared-relu",)
            if bias:
                yield ("--no-bias-gelu-fusion",)
        case "gelu_tanh" if bias:
            # the kernel that adds the bias approximates by a tanh
            return
        case "gelu":
            if bias:
                yield ("--no-bias-gelu-fusion",)
        case _:
            _no_arguments(f"has the activation {name}{'' if bias else ' without biases'}")


def _mixture(mixture: Mixture) -> Iterator[tuple[str, ...]]:
    _check_mixture(mixture)
    yield "--num-experts", str(mixture.experts)
    yield "--moe-ffn-hidden-size", str(mixture.size)
    yield "--moe-router-topk", str(mixture.top_k)
    if mixture.score == "sigmoid":
        yield "--moe-router-score-function", "sigmoid"
    elif not mixture.renormalise:
        yield ("--moe-router-pre-softmax",)
    if mixture.correction_bias:
        yield ("--moe-router-enable-expert-bias",)
    if mixture.groups > 1:
        yield "--moe-router-num-groups", str(mixture.groups)
        yield "--moe-router-group-topk", str(mixture.top_groups)
    if mixture.shared_size is not None:
        yield "--moe-shared-expert-intermediate-size", str(mixture.shared_size)
        if mixture.shared_gate:
            yield ("--moe-shared-expert-gate",)
    if mixture.latent is not None:
        yield "--moe-latent-size", str(mixture.latent)
    yield "--moe-router-dtype", "fp32"
    yield ("--moe-grouped-gemm",)


def _check_mixture(mixture: Mixture) -> None:
    single, sigmoid = mixture.top_k == 1, mixture.score == "sigmoid"
    for present, what in (
        (mixture.router_scale, "scales what its router reads"),
        (mixture.trained_correction, "trains the bias that balances its experts"),
        (mixture.correction_bias and not sigmoid, "balances experts by a bias without sigmoid gates"),
        (sigmoid and not mixture.renormalise and not single, "has sigmoid gates that do not add up to one"),
        (mixture.score == "top_k_softmax" and not mixture.renormalise, "has gates that do not add up to one"),
        (not sigmoid and mixture.renormalise and single, "has one expert a token and a gate that is always one"),
    ):
        if present:
            _no_arguments(what)


# Positions.


def _positions(model: Model, blocks: Sequence[Block], seq_len: int) -> Iterator[tuple[str, ...]]:
    rotary = [getattr(block.mixer, "rotary", False) for block in blocks]
    rows = model.embedding.positions
    if rows is not None and any(rotary):
        _no_arguments("has learned and rotary positions")
    kind = "learned_absolute" if rows is not None else "rope" if any(rotary) else "none"
    yield "--position-embedding-type", kind
    if kind == "rope" and not all(rotary):
        yield "--no-rope-freq", list_text([not turned for turned in rotary])
    yield "--max-position-embeddings", str(rows or max(model.max_seq_len, seq_len))
