"""The model of a measured run: the published one if name and sizes agree, a plain block otherwise."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from dovetail import models
from dovetail.accuracy.architecture import Architecture, LatentSizes
from dovetail.documents import validate
from dovetail.errors import InputError, quoted
from dovetail.models import Model
from dovetail.models.assembly import GATED
from dovetail.models.attention import Attention
from dovetail.models.feed_forward import Dense, Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.models.model import MultiTokenPrediction, Repeat

#: Shorter names match too many models.
_SHORTEST_NAME = 6
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def published_model(name: str) -> Model:
    """The catalogue's model of a row that gives a name and no sizes."""
    candidates = [models.from_catalogue(candidate) for candidate in _candidates(name)]
    if not candidates:
        raise InputError("model", f"{quoted(name)} is not in the catalogue", "its layers and sizes have to be given")
    return candidates[0]


@lru_cache(maxsize=1024)
def model_of(sizes: Architecture, positions: int, *, dropout: bool) -> Model:
    """The model a row's sizes describe, for a sequence length."""
    for candidate in _candidates(sizes.name):
        model = models.from_catalogue(candidate)
        if _agrees(model, sizes):
            return _as_trained(_first_layers(model, sizes.layers), sizes, positions, dropout=dropout)
    return validate(Model, _document(sizes, positions, dropout=dropout), "model")


def side_by_side(model: Model) -> Model:
    """The same with parallel attention and feed-forward on one norm: MaxText's default block (layers/models.py)."""
    halves = {"parallel": True, "shared_norm": True}
    blocks = {name: block.model_copy(update=halves) for name, block in model.blocks.items()}
    return model.model_copy(update={"blocks": blocks})


def with_loads(model: Model, imbalance: float) -> Model:
    """The same with so many tokens on the fullest chip, of the mean; 1 where a benchmark forces equal loads."""
    blocks = dict(model.blocks)
    for name, block in blocks.items():
        if isinstance(block.feed_forward, Mixture):
            loaded = block.feed_forward.model_copy(update={"imbalance": imbalance})
            blocks[name] = block.model_copy(update={"feed_forward": loaded})
    return model.model_copy(update={"blocks": blocks})


def padded(model: Model, multiple: int) -> Model:
    """The model with its vocabulary padded to a multiple, as frameworks do that shard it evenly."""
    vocab = -(-model.vocab // multiple) * multiple
    return model if vocab == model.vocab else model.model_copy(update={"vocab": vocab})


def _candidates(name: str) -> list[str]:
    """Catalogue names that are a prefix of the row's name, the longest first, then names it is a prefix of."""
    given = _squashed(re.sub(r"\(.*?\)", "", name))
    if len(given) < _SHORTEST_NAME:
        return []
    by_squashed = {_squashed(entry): entry for entry in models.names()}
    within = sorted((short for short in by_squashed if given.startswith(short)), key=len, reverse=True)
    beyond = sorted((long for long in by_squashed if long.startswith(given) and long != given), key=len)
    return [by_squashed[short] for short in (*within, *beyond)]


def _squashed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _agrees(model: Model, sizes: Architecture) -> bool:
    """Whether every size the row states is one the published model has."""
    shorter = sizes.layers < model.num_layers and "layer" in sizes.name.casefold()
    if model.hidden != sizes.hidden or not (model.num_layers == sizes.layers or shorter):
        return False
    mixers = [block.mixer for block in model.blocks.values()]
    heads = (sizes.heads, sizes.kv_heads, sizes.head_dim)
    if sizes.latent is not None:
        stated = (sizes.heads, sizes.latent)
        if not any(isinstance(m, LatentAttention) and (m.heads, _latent_of(m)) == stated for m in mixers):
            return False
    elif not any(isinstance(m, Attention) and (m.heads, m.kv_heads, m.head_dim) == heads for m in mixers):
        return False
    return _feed_forward_agrees(model, sizes)


def _latent_of(mixer: LatentAttention) -> LatentSizes:
    return LatentSizes(mixer.query_rank, mixer.kv_rank, mixer.nope_dim, mixer.rope_dim, mixer.value_dim)


def _feed_forward_agrees(model: Model, sizes: Architecture) -> bool:
    parts = [block.feed_forward for block in model.blocks.values()]
    mixtures = {(p.experts, p.top_k, p.size) for p in parts if isinstance(p, Mixture)}
    given = sizes.mixture
    if mixtures != ({(given.experts, given.top_k, given.expert_ffn)} if given is not None else set()):
        return False
    dense = {(p.size, p.activation in GATED) for p in parts if isinstance(p, Dense)}
    return not dense or (sizes.ffn, sizes.gated) in dense


def with_tied_head(model: Model, *, tied: bool) -> Model:
    """The model whose head has weights of its own, or the embedding's."""
    return model.model_copy(update={"head": model.head.model_copy(update={"tied": tied})})


def _first_layers(model: Model, layers: int) -> Model:
    """The model truncated to a number of layers."""
    if layers == model.num_layers:
        return model
    order = [name for part in model.layers for _ in range(part.repeat) for name in part.blocks][:layers]
    used = {*order, *((model.multi_token_prediction.block,) if model.multi_token_prediction else ())}
    blocks = {name: block for name, block in model.blocks.items() if name in used}
    return model.model_copy(update={"blocks": blocks, "layers": (Repeat(blocks=tuple(order)),)})


def _as_trained(model: Model, sizes: Architecture, positions: int, *, dropout: bool) -> Model:
    """A published model with what a run may override: vocabulary, positions, dropout, prediction modules."""
    prediction = None
    if sizes.prediction:
        last = model.layers[-1].blocks[-1]
        prediction = model.multi_token_prediction or MultiTokenPrediction(modules=1, block=last)
    embedding = model.embedding
    if embedding.positions is not None and embedding.positions < positions:
        embedding = embedding.model_copy(update={"positions": positions})
    changes = {"vocab": sizes.vocab, "dropout": dropout, "multi_token_prediction": prediction, "embedding": embedding}
    return model.model_copy(update=changes)


def _document(sizes: Architecture, positions: int, *, dropout: bool) -> dict[str, Any]:
    """A Llama-like model if the feed-forward is gated, a GPT-like one otherwise, as a model file."""
    gpt = not sizes.gated
    dense = {"kind": "dense", "size": sizes.ffn, "activation": "gelu_tanh" if gpt else "swiglu", "bias": gpt}
    norm = "layer" if gpt else "rms"
    plain = {"mixer": _mixer(sizes, gpt=gpt), "feed_forward": dense, "norm": norm}
    sparse_layers = 0 if sizes.mixture is None else max(sizes.layers - sizes.mixture.dense_layers, 0)
    blocks: dict[str, Any] = {}
    order: list[dict[str, Any]] = []
    if sizes.layers > sparse_layers:
        blocks["dense"] = plain
        order.append({"blocks": ["dense"], "repeat": sizes.layers - sparse_layers})
    if sparse_layers:
        blocks["sparse"] = plain | {"feed_forward": _experts(sizes)}
        order.append({"blocks": ["sparse"], "repeat": sparse_layers})
    document: dict[str, Any] = {
        "name": _NOT_IN_A_NAME.sub("-", sizes.name).strip("-._")[:100] or "model",
        "hidden": sizes.hidden,
        "vocab": sizes.vocab,
        "max_seq_len": positions,
        "blocks": blocks,
        "layers": order,
        "dropout": dropout,
    }
    if gpt:
        document |= {"embedding": {"positions": positions}, "head": {"tied": True, "norm": "layer"}}
    if sizes.prediction:
        document["multi_token_prediction"] = {"modules": 1, "block": order[-1]["blocks"][0]}
    return document


def _mixer(sizes: Architecture, *, gpt: bool) -> dict[str, Any]:
    latent = sizes.latent
    if latent is not None:
        return {
            "kind": "latent_attention",
            "heads": sizes.heads,
            "query_rank": latent.query_rank,
            "kv_rank": latent.kv_rank,
            "nope_dim": latent.nope_dim,
            "rope_dim": latent.rope_dim,
            "value_dim": latent.value_dim,
        }
    plain = {"kind": "attention", "heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    return plain | ({"rotary": False, "qkv_bias": True, "output_bias": True} if gpt else {})


def _experts(sizes: Architecture) -> dict[str, Any]:
    mixture = sizes.mixture
    assert mixture is not None
    document: dict[str, Any] = {
        "kind": "mixture",
        "experts": mixture.experts,
        "top_k": mixture.top_k,
        "size": mixture.expert_ffn,
        "activation": "swiglu" if sizes.gated else "gelu_tanh",
    }
    return document | ({"shared_size": mixture.shared_ffn} if mixture.shared_ffn else {})
