"""Which model of the catalogue a description is: the one whose figures are all the same, whatever it is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dovetail import models
from dovetail.documents import validate
from dovetail.models import Model
from dovetail.models.catalogue import document_of
from dovetail.plans.launch_models.megatron import blocks_of

#: Models of different names with the same figures differ in the longest sequence alone.
_LEFT_OUT = ("name", "source", "note", "published_parameters", "vocab", "max_seq_len", "blocks", "layers", "imbalance")

Document = dict[str, Any]


def same_model(document: Document, where: str) -> str | Document:
    """The name of the catalogue's model that a document describes, or the document itself."""
    model = validate(Model, document, where)
    found = [name for name in same_figures(model) if models.from_catalogue(name).vocab == model.vocab]
    if found:
        return min(found, key=lambda name: (abs(models.from_catalogue(name).max_seq_len - model.max_seq_len), name))
    return document_of(model)


def is_same(one: Model, other: Model) -> bool:
    """Whether two models have the same figures, vocabulary and constants included."""
    return one.vocab == other.vocab and _figures(one, frozenset()) == _figures(other, frozenset())


def same_figures(model: Model, unsaid: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Names of the catalogue's models with the same figures; vocabulary, longest sequence and what is unsaid aside.

    `unsaid`: constants (`norm_epsilon`, `rotary`, `routed_scale`) that a launch leaves to its framework.
    """
    return _catalogue_by_figures(unsaid).get(_figures(model, unsaid), ())


@lru_cache(maxsize=8)
def _catalogue_by_figures(unsaid: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
    by_figures: dict[str, tuple[str, ...]] = {}
    for name in models.names():
        key = _figures(models.from_catalogue(name), unsaid)
        by_figures[key] = (*by_figures.get(key, ()), name)
    return by_figures


def _figures(model: Model, unsaid: frozenset[str]) -> str:
    """What makes a model itself, whatever it and its blocks are called."""
    document = {key: value for key, value in model.model_dump(mode="json").items() if key not in {*_LEFT_OUT, *unsaid}}
    layers = [block.model_dump(mode="json") for block in blocks_of(model)]
    further = model.multi_token_prediction
    if further is not None:
        # its own block beside the others, whatever it is called
        document["multi_token_prediction"]["block"] = None
        layers.append(model.blocks[further.block].model_dump(mode="json"))
    for layer in layers:
        half: Document = layer["feed_forward"] or {}
        for left_out in ("imbalance", *unsaid):
            half.pop(left_out, None)
        if half.get("groups") == 1:
            half.pop("top_groups")
        if half.get("score") == "softmax" and half["renormalise"]:
            # a softmax over all, scaled to add up to one over the chosen, is a softmax over the chosen
            half["score"] = "top_k_softmax"
        mixer: Document = layer["mixer"] or {}
        if mixer.get("qk_norm") == "none":
            mixer.pop("qk_norm_kind")
    mixers: list[Document] = [layer["mixer"] for layer in layers if layer["mixer"] is not None]
    if not any(mixer.get("rotary") for mixer in mixers):
        document.pop("rotary", None)
    return json.dumps([document, layers], sort_keys=True)
