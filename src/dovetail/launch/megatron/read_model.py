"""The model that arguments of Megatron-LM describe: one of the catalogue where all figures agree, else written out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dovetail import models
from dovetail.documents import validate
from dovetail.errors import InputError, quoted
from dovetail.launch.catalogue_match import same_figures
from dovetail.launch.megatron.flags import Flags
from dovetail.models import Model
from dovetail.models.catalogue import document_of
from dovetail.models.feed_forward import Mixture
from dovetail.models.positions import Rotary
from dovetail.plans.launch_models.megatron import NORMS
from dovetail.plans.launch_models.megatron_lists import list_values

#: What tokenizers without a size of their own hold.
TOKENIZERS = {"GPT2BPETokenizer": 50257}
POSITIONS = ("learned_absolute", "rope", "mrope", "yarn", "none", "alibi", "rotary", "absolute")

Document = dict[str, Any]


def read_model(flags: Flags, seq_len: int, tensor_parallel: int) -> str | Document:
    """A name of the catalogue, or a model document."""
    vocab, padded = _vocabulary(flags, tensor_parallel)
    document = _document(flags, seq_len)
    probe = _validated({**document, "vocab": vocab or 1}, flags)
    matches = [
        name
        for name in same_figures(probe, _unsaid(flags))
        if vocab is None or vocab in (models.from_catalogue(name).vocab, padded(models.from_catalogue(name).vocab))
    ]
    if matches:
        rows = document["max_seq_len"]
        return min(matches, key=lambda name: (abs(models.from_catalogue(name).max_seq_len - rows), name))
    if vocab is None:
        raise flags.wrong("--vocab-size", "is missing, and no model of the catalogue matches", "add --vocab-size")
    return document_of(probe)


def _unsaid(flags: Flags) -> frozenset[str]:
    """Constants no argument states: a launch without them is taken for the model its sizes are of."""
    stated = {
        "norm_epsilon": ("--norm-epsilon",),
        "routed_scale": ("--moe-router-topk-scaling-factor",),
        "rotary": (
            "--rotary-base", "--rotary-percent", "--use-rope-scaling", "--rotary-scaling-factor",
            "--rotary-seq-len-interpolation-factor", "--rope-type",
        ),
    }  # fmt: skip
    return frozenset(name for name, each in stated.items() if not any(flag in flags.given for flag in each))


def assumed_constants(flags: Flags, model: str | Document) -> Iterator[str]:
    """What no argument states and a model of the catalogue has otherwise than Megatron-LM."""
    if not isinstance(model, str):
        return
    known, unsaid = models.from_catalogue(model), _unsaid(flags)
    if "rotary" in unsaid and known.rotary != Rotary() and known.embedding.positions is None:
        yield f"rotary positions of {model}: no argument states them, and Megatron-LM would take base 10000, unscaled"
    if "norm_epsilon" in unsaid and known.norm_epsilon != 1e-5:
        yield f"the epsilon {known.norm_epsilon:g} of {model}: no argument states it, and Megatron-LM would take 1e-5"
    halves = [block.feed_forward for block in known.blocks.values()]
    scales = {half.routed_scale for half in halves if isinstance(half, Mixture)}
    if "routed_scale" in unsaid and scales - {1.0}:
        yield f"the router's scale of {model}: no argument states it, and Megatron-LM would take none"


def _vocabulary(flags: Flags, tensor_parallel: int) -> tuple[int | None, Callable[[int], int]]:
    """Rows of the token table where the arguments say so, and how they pad others."""
    plain, padded = flags.whole("--vocab-size"), flags.whole("--padded-vocab-size")
    size = padded or plain
    if size is None:
        size = TOKENIZERS.get(flags.text("--tokenizer-type") or "GPT2BPETokenizer" * flags.has("--merge-file"))
    flags.read.add("--tokenizer-type")
    multiple = (flags.whole("--make-vocab-size-divisible-by") or 128) * tensor_parallel
    return size, lambda rows: -(-rows // multiple) * multiple


def _validated(document: Document, flags: Flags) -> Model:
    try:
        return validate(Model, document, "model")
    except InputError as error:
        fix = f"in the model they describe, {error.where.removeprefix('model: ')} {error.what}; {error.fix}"
        raise InputError(flags.where, "has arguments that do not describe a model", fix) from None


# The document.


def _document(flags: Flags, seq_len: int) -> Document:
    layers = flags.needed("--num-layers")
    norm = flags.choice("--normalization", NORMS.values()) or "LayerNorm"
    kind = {name: key for key, name in NORMS.items()}[norm]
    positions = flags.choice("--position-embedding-type", POSITIONS) or "learned_absolute"
    if flags.has("--use-rotary-position-embeddings"):
        positions = "rope"
    rows = flags.whole("--max-position-embeddings") or seq_len
    rotary = positions in ("rope", "mrope", "rotary", "yarn")
    turned = _per_layer(flags, "--no-rope-freq", layers, _every_last) if rotary else None
    windowed = _per_layer(flags, "--window-attn-skip-freq", layers, _all_but_every_last)
    sparse = _per_layer(flags, "--moe-layer-freq", layers, _every_first)
    window = _window(flags)
    experts = bool(flags.whole("--num-experts", low=0))
    order = [
        (
            window is not None and (windowed is None or bool(windowed[i])),
            rotary and not (turned is not None and turned[i]),
            experts and (sparse is None or bool(sparse[i])),
        )
        for i in range(layers)
    ]
    names = _names(order)
    hidden, bias = flags.needed("--hidden-size"), not flags.has("--disable-bias-linear")
    dense, mixture = _dense(flags, hidden, bias=bias), _mixture(flags, hidden, bias=bias)
    blocks = {
        names[key]: {
            "mixer": _mixer(
                flags, hidden, kind, window if key[0] else None, rotary=key[1], alibi=positions == "alibi", bias=bias
            ),
            "feed_forward": mixture if key[2] else dense,
            "norm": kind,
        }
        for key in names
    }
    document: Document = {
        "name": "imported", "hidden": hidden, "max_seq_len": rows, "blocks": blocks,
        "layers": _runs([names[key] for key in order]),
        "head": {"tied": not flags.has("--untie-embeddings-and-output-weights"), "norm": kind},
        "dropout": _dropout(flags),
    }  # fmt: skip
    epsilon = flags.number("--norm-epsilon")
    if epsilon is not None:
        document["norm_epsilon"] = epsilon
    if rotary:
        document["rotary"] = _rotary(flags, positions)
    if positions in ("learned_absolute", "absolute"):
        document["embedding"] = {"positions": rows}
    if flags.has("--embed-layernorm"):
        document["embedding"] = {**document.get("embedding", {}), "norm": "layer"}
    further = flags.whole("--mtp-num-layers", low=0)
    if further:
        document["multi_token_prediction"] = {"modules": further, "block": names[order[-1]]}
    return document


def _names(order: list[tuple[bool, bool, bool]]) -> dict[tuple[bool, bool, bool], str]:
    """A name for every kind of layer, of what tells it from the others."""
    kinds = list(dict.fromkeys(order))
    words = (("full", "sliding"), ("nope", "rope"), ("dense", "sparse"))
    differs = [len({kind[i] for kind in kinds}) > 1 for i in range(3)]
    return {kind: "_".join(words[i][kind[i]] for i in range(3) if differs[i]) or words[2][kind[2]] for kind in kinds}


def _runs(names: list[str]) -> list[Document]:
    size = len(names)
    for period in range(1, size):
        if size % period == 0 and names == names[:period] * (size // period):
            return [{"blocks": names[:period], "repeat": size // period}]
    runs: list[Document] = []
    for name in names:
        if runs and runs[-1]["blocks"] == [name]:
            runs[-1]["repeat"] += 1
        else:
            runs.append({"blocks": [name], "repeat": 1})
    return runs


def _every_first(period: int, layers: int) -> list[int]:
    return [int(i % period == 0) for i in range(layers)]


def _every_last(period: int, layers: int) -> list[int]:
    return [int((i + 1) % period == 0) for i in range(layers)]


def _all_but_every_last(period: int, layers: int) -> list[int]:
    return [int((i + 1) % period != 0) for i in range(layers)]


def _per_layer(flags: Flags, flag: str, layers: int, pattern: Callable[[int, int], list[int]]) -> list[int] | None:
    """A number for each layer: a list, or a period."""
    text = flags.text(flag)
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return pattern(max(int(text[:9]), 1), layers)
    values = list_values(text)
    if values is None or len(values) != layers:
        raise flags.wrong(flag, f"is {quoted(text)}", f"it should be a number, or a list of {layers} such as [0]*3+[1]")
    return values


def _window(flags: Flags) -> int | None:
    text = flags.text("--window-size")
    if text is None:
        return None
    left, _, right = text.strip("()").partition(",")
    if not left.strip().isdecimal() or right.strip() not in ("0", "-1", ""):
        raise flags.wrong("--window-size", f"is {quoted(text)}", "it should be keys before a query and 0, as in 4095,0")
    return int(left[:12]) + 1


def _dropout(flags: Flags) -> bool:
    rates = [flags.number(flag) for flag in ("--attention-dropout", "--hidden-dropout")]
    return any(rate is None or rate > 0 for rate in rates)


def _mixer(
    flags: Flags, hidden: int, norm: str, window: int | None, *, rotary: bool, alibi: bool, bias: bool
) -> Document:
    heads = flags.needed("--num-attention-heads")
    width = flags.whole("--kv-channels")
    if flags.has("--multi-latent-attention"):
        flags.has("--qk-layernorm")
        latent: Document = {
            "kind": "latent_attention", "heads": heads, "norm": norm, "rotary": rotary, "bias": bias,
            "kv_rank": flags.whole("--kv-lora-rank") or 32, "nope_dim": flags.whole("--qk-head-dim") or 128,
            "rope_dim": flags.whole("--qk-pos-emb-head-dim") or 64, "value_dim": flags.whole("--v-head-dim") or 128,
        }  # fmt: skip
        rank = flags.whole("--q-lora-rank")
        return latent if rank is None else {**latent, "query_rank": rank}
    if width is None and hidden % heads:
        raise flags.wrong("--num-attention-heads", f"is {heads} for {hidden} columns", "give --kv-channels too")
    groups = flags.whole("--num-query-groups")
    qkv = flags.has("--add-qkv-bias") or bias
    mixer: Document = {
        "kind": "attention", "heads": heads, "head_dim": width or hidden // heads, "rotary": rotary,
        "kv_heads": (groups or 1) if flags.has("--group-query-attention") else heads,
        "alibi": alibi, "qkv_bias": qkv, "output_bias": bias,
        "sinks": flags.choice("--softmax-type", _SOFTMAX) == "learnable",
    }  # fmt: skip
    if window is not None:
        mixer["window"] = window
    if flags.has("--qk-layernorm"):
        mixer |= {"qk_norm": "head", "qk_norm_kind": norm}
    if flags.has("--attention-output-gate"):
        mixer["output_gate"] = "channel"
    return mixer


def _rotary(flags: Flags, positions: str) -> Document:
    """Base, share and scaling of rotary positions, with Megatron-LM's values where no argument says."""
    base, share = flags.number("--rotary-base"), flags.number("--rotary-percent")
    rotary: Document = {"base": base or 10_000.0, "share": 1.0 if share is None else share}
    factor = flags.number("--rotary-scaling-factor")
    mscale, all_dim = flags.number("--mscale"), flags.number("--mscale-all-dim")
    latent = flags.has("--multi-latent-attention")
    type_of_latent = flags.choice("--rope-type", ("rope", "yarn")) or "yarn"
    length = flags.whole("--rotary-seq-len-interpolation-factor")
    flags.number("--rope-scaling-factor")
    yarn: Document = {
        "kind": "yarn", "factor": factor or 1.0,
        "original_seq_len": flags.whole("--yarn-original-max-position-embeddings") or 4096,
        "beta_fast": flags.number("--yarn-beta-fast") or 32.0, "beta_slow": flags.number("--yarn-beta-slow") or 1.0,
        "truncate": not flags.has("--no-yarn-correction-range-round-to-int"),
    }  # fmt: skip
    flags.has("--yarn-correction-range-round-to-int")
    mscales = (1.0 if mscale is None else mscale, all_dim or 0.0)
    if mscales != (1.0, 0.0):
        yarn |= {"mscale": mscales[0], "mscale_all_dim": mscales[1]}
    if positions == "yarn" or (latent and type_of_latent == "yarn"):
        # angles over one are as they were
        return rotary if yarn["factor"] == 1 else {**rotary, "scaling": yarn}
    if flags.has("--use-rope-scaling"):
        # whatever --rope-scaling-factor says: Megatron-LM never reads it
        return {**rotary, "scaling": {"kind": "llama3", "factor": 8.0, "original_seq_len": 8192}}
    if length is not None and length > 1:
        return {**rotary, "scaling": {"kind": "linear", "factor": float(length)}}
    return rotary


_SOFTMAX = ("vanilla", "off-by-one", "learnable")


def _activation(flags: Flags, *, bias: bool) -> str:
    if flags.has("--swiglu"):
        return "swiglu"
    if flags.has("--squared-relu"):
        flags.has("--no-bias-gelu-fusion")
        return "relu2"
    if flags.has("--quick-geglu"):
        if flags.number("--activation-func-clamp-value") is None:
            raise flags.wrong("--quick-geglu", "needs a clamp", "add --activation-func-clamp-value")
        flags.number("--glu-linear-offset")
        return "swiglu_clamped"
    return "gelu" if flags.has("--no-bias-gelu-fusion") or not bias else "gelu_tanh"


def _dense_size(flags: Flags, hidden: int) -> int:
    gated = flags.has("--swiglu")
    return flags.whole("--ffn-hidden-size") or (int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden)


def _dense(flags: Flags, hidden: int, *, bias: bool) -> Document:
    activation = _activation(flags, bias=bias)
    return {"kind": "dense", "size": _dense_size(flags, hidden), "activation": activation, "bias": bias}


def _mixture(flags: Flags, hidden: int, *, bias: bool) -> Document:
    sigmoid = flags.choice("--moe-router-score-function", ("softmax", "sigmoid")) == "sigmoid"
    before, shared = flags.has("--moe-router-pre-softmax"), flags.whole("--moe-shared-expert-intermediate-size", 0)
    mixture: Document = {
        "kind": "mixture", "experts": flags.whole("--num-experts", low=0) or 1,
        "top_k": flags.whole("--moe-router-topk") or 2,
        "size": flags.whole("--moe-ffn-hidden-size") or _dense_size(flags, hidden),
        "activation": _activation(flags, bias=bias), "bias": bias, "router_bias": bias,
        "score": "sigmoid" if sigmoid else "softmax" if before else "top_k_softmax",
        "renormalise": sigmoid or not before,
        "correction_bias": flags.has("--moe-router-enable-expert-bias"),
        "groups": flags.whole("--moe-router-num-groups") or 1,
        "routed_scale": flags.number("--moe-router-topk-scaling-factor") or 1.0,
    }  # fmt: skip
    if mixture["groups"] > 1:
        mixture["top_groups"] = flags.whole("--moe-router-group-topk") or mixture["groups"]
    else:
        flags.has("--moe-router-group-topk")
    if shared:
        mixture |= {"shared_size": shared, "shared_bias": bias, "shared_gate": flags.has("--moe-shared-expert-gate")}
    latent = flags.whole("--moe-latent-size")
    return mixture if latent is None else {**mixture, "latent": latent}
