"""A model as arguments of Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from dovetail.errors import InputError
from dovetail.models import Model
from dovetail.models.attention import Attention
from dovetail.models.block import Block
from dovetail.models.feed_forward import Dense, Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.models.positions import Rotary, RotaryScaling
from dovetail.plans.launch_models.megatron_lists import list_text
from dovetail.plans.launch_models.unusual import unusual_attention, unusual_frame

#: Releases arguments are written for, the newest first.
RELEASES = ("0.19", "0.16")
VERSION = f"Megatron-LM core {RELEASES[0]}"

Arguments = list[tuple[str, ...]]

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
#: The clamp and offset of gpt-oss, the one family with clamped gates.
CLAMPED = (("--quick-geglu",), ("--activation-func-clamp-value", "7.0"), ("--glu-linear-offset", "1.0"))


def blocks_of(model: Model) -> list[Block]:
    """The blocks of a model from embedding to head."""
    return [model.blocks[name] for part in model.layers for name in part.blocks * part.repeat]


def model_arguments(model: Model, seq_len: int, release: str = RELEASES[0]) -> Arguments:
    """The model's arguments; a model they cannot describe is refused."""
    blocks = blocks_of(model)
    _check_frame(model, blocks)
    arguments: Arguments = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden)),
        *_attention(blocks),
        *_feed_forward(blocks),
        *_positions(model, blocks, seq_len),
        *_rotary(model, blocks, release),
        ("--normalization", NORMS[blocks[0].norm]),
        ("--norm-epsilon", plain(model.norm_epsilon)),
        ("--vocab-size", str(model.vocab)),
    ]
    if not model.head.tied:
        arguments.append(("--untie-embeddings-and-output-weights",))
    rate = "0.1" if model.dropout else "0.0"
    arguments += [("--attention-dropout", rate), ("--hidden-dropout", rate)]
    if model.multi_token_prediction is not None:
        arguments.append(("--mtp-num-layers", str(model.multi_token_prediction.modules)))
    return arguments


def check_structure(model: Model, seq_len: int) -> None:
    """Refuses a model whose parts have no arguments; constants that no time or memory depends on are left aside.

    A plan for such a model says what it would take, and its launch file is refused by the constant's name.
    """
    model_arguments(model.model_copy(update={"rotary": Rotary.unchecked()}), seq_len)


def check_constants(model: Model, seq_len: int, release: str) -> None:
    """Refuses what would be trained otherwise."""
    halves = [block.feed_forward for block in model.blocks.values()]
    if any(isinstance(half, Mixture) and half.groups > 1 and half.score != "sigmoid" for half in halves):
        # Megatron-LM ranks groups by the sum of their best scores, as DeepSeek-V3 does
        _no_arguments("chooses groups of experts by their best one")
    model_arguments(model, seq_len, release)


def _no_arguments(what: str, fix: str = "use a framework that has it, or change the model") -> NoReturn:
    raise InputError("job: model", f"{what}, which {VERSION} has no arguments for", fix)


def _check_frame(model: Model, blocks: Sequence[Block]) -> None:
    """What stands around mixers and feed-forwards."""
    for what in unusual_frame(model):
        _no_arguments(what)
    norms = {model.head.norm, *(block.norm for block in blocks)}
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
    for what in unusual_attention(mixer, norm):
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
    if mixture.routed_scale != 1:
        yield "--moe-router-topk-scaling-factor", plain(mixture.routed_scale)
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
        (mixture.renormalise and single, "has one expert a token and a gate that is always one"),
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
    yield "--position-embedding-type", "yarn" if kind == "rope" and _is_plain_yarn(model, blocks) else kind
    if kind == "rope" and not all(rotary):
        yield "--no-rope-freq", list_text([not turned for turned in rotary])
    yield "--max-position-embeddings", str(rows or max(model.max_seq_len, seq_len))


def _is_plain_yarn(model: Model, blocks: Sequence[Block]) -> bool:
    """YaRN outside latent attention, which has a position type of its own."""
    scaling = model.rotary.scaling
    return scaling is not None and scaling.kind == "yarn" and not isinstance(blocks[0].mixer, LatentAttention)


def _rotary(model: Model, blocks: Sequence[Block], release: str) -> Iterator[tuple[str, ...]]:
    """Base and scaling of rotary positions; what has no argument must have the value Megatron-LM gives it."""
    if not any(getattr(block.mixer, "rotary", False) for block in blocks):
        return
    rotary, latent = model.rotary, isinstance(blocks[0].mixer, LatentAttention)
    if not rotary.base.is_integer():
        _no_arguments(f"has the rotary base {rotary.base}, no whole number")
    yield "--rotary-base", str(int(rotary.base))
    if rotary.share != 1 and not latent:
        yield "--rotary-percent", plain(rotary.share)
    match rotary.scaling:
        case None:
            if latent:
                # latent attention is scaled by YaRN unless told otherwise
                yield "--rope-type", "rope"
        case RotaryScaling(kind="yarn") as yarn:
            yield from _yarn(yarn, release, latent=latent)
        case RotaryScaling(kind="llama3") as scaling if not latent:
            # the argument for the factor is parsed and never read (core 0.16.1 and 0.19.2)
            _fixed(scaling, {"factor": 8.0, "low_frequency": 1.0, "high_frequency": 4.0, "original_seq_len": 8192})
            yield ("--use-rope-scaling",)
        case RotaryScaling(kind="linear", factor=factor) if not latent and factor.is_integer():
            yield "--rotary-seq-len-interpolation-factor", str(int(factor))
        case RotaryScaling(kind=kind):
            _no_arguments(f"scales its rotary positions by {kind}")


def _yarn(scaling: RotaryScaling, release: str, *, latent: bool) -> Iterator[tuple[str, ...]]:
    _fixed(scaling, {"attention_factor": None})
    if latent:
        if scaling.mscale is None or scaling.mscale_all_dim is None:
            _no_arguments("has YaRN in latent attention without mscale or mscale_all_dim")
        _fixed(scaling, {"original_seq_len": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True})
        yield "--rope-type", "yarn"
    elif release == "0.16":
        fix = f"export for {RELEASES[0]}, which has it"
        raise InputError("job: model", "has YaRN outside latent attention, which core 0.16 has no arguments for", fix)
    else:
        yield "--yarn-original-max-position-embeddings", str(scaling.original_seq_len)
        yield "--yarn-beta-fast", plain(scaling.beta_fast)
        yield "--yarn-beta-slow", plain(scaling.beta_slow)
        yield (f"--{'' if scaling.truncate else 'no-'}yarn-correction-range-round-to-int",)
    yield "--rotary-scaling-factor", plain(scaling.factor)
    # as transformers: both corrections, or that of the whole head alone
    both = scaling.mscale is not None and scaling.mscale_all_dim is not None
    yield "--mscale", plain(scaling.mscale if both and scaling.mscale is not None else 1.0)
    yield "--mscale-all-dim", plain(scaling.mscale_all_dim if both and scaling.mscale_all_dim is not None else 0.0)


def _fixed(scaling: RotaryScaling, values: Mapping[str, object]) -> None:
    """Refuses a constant that Megatron-LM has another value for and no argument."""
    for name, value in values.items():
        if getattr(scaling, name) != value:
            _no_arguments(f"has {scaling.kind} rotary scaling with {name} {getattr(scaling, name)} instead of {value}")


def plain(value: float) -> str:
    """A number as people write it."""
    return f"{value:.12g}"
