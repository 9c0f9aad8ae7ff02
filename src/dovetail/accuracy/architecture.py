"""The sizes of a model as a row of measured runs states them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dovetail.accuracy.table import TableRow
from dovetail.errors import InputError, quoted


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Multi-head latent attention."""

    query_rank: int | None
    """None: queries come straight from the stream"""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """A mixture of experts."""

    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    dense_layers: int
    """first layers with a dense feed-forward instead"""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a row says about its model; hashable, so that equal ones can be grouped."""

    name: str
    layers: int
    hidden: int
    ffn: int
    gated: bool
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mixture: MixtureSizes | None
    latent: LatentSizes | None
    prediction: bool
    """has a module that predicts a further token"""


_SIZE = re.compile(r"(expert_ffn|shared_ffn|dense_layers)=(\d{1,9})")
#: Megatron's flags for the same.
_FLAGS = {"moe-ffn-hidden-size": "expert_ffn", "moe-shared-expert-intermediate-size": "shared_ffn"}
_FLAG = re.compile(rf"({'|'.join(_FLAGS)}) (\d{{1,9}})")
_LATENT = re.compile(r"MLA\(q_lora=(\d{1,9}),kv_lora=(\d{1,9}),qk=(\d{1,9})\+(\d{1,9}),v=(\d{1,9})\)")


def read_architecture(row: TableRow) -> Architecture | None:
    """The sizes of a row; None if it gives none, as for a model known by name."""
    if not row.text("layers") and not row.text("hidden"):
        return None
    hidden, heads = row.needed("hidden"), row.needed("heads")
    ffn = row.needed("ffn_hidden")
    head_dim = _head_dim(row, hidden, heads)
    latent = _latent(row.text("moe_other"))
    if latent is None and "multi-latent-attention" in row.text("memory_features"):
        raise InputError("moe_other", "does not give the ranks of its latent attention", "the source has to state them")
    return Architecture(
        name=row.text("model"),
        layers=row.needed("layers"),
        hidden=hidden,
        ffn=ffn,
        gated=row.flag("gated_mlp"),
        heads=heads,
        kv_heads=row.count("kv_heads") or heads,
        head_dim=head_dim,
        vocab=row.needed("vocab"),
        mixture=_mixture(row, ffn),
        latent=latent,
        prediction=row.text("multi_token_prediction").casefold() == "yes",
    )


def _head_dim(row: TableRow, hidden: int, heads: int) -> int:
    """The width of a head; the nearest whole one where the source's heads share their whole width unevenly."""
    stated = row.number("head_dim")
    if stated is None:
        if hidden % heads:
            raise InputError("head_dim", f"is empty and {heads} heads do not divide {hidden}", "the source has to say")
        return hidden // heads
    if math.isclose(stated * heads, round(stated * heads), rel_tol=1e-9):
        return max(round(stated), 1)
    raise InputError("head_dim", f"is {stated:g}", f"{heads} heads of it should be a whole width")


def uneven_heads(row: TableRow) -> str:
    """What was assumed of heads whose width is no whole number; empty where it is one."""
    stated = row.number("head_dim")
    if stated is None or stated == round(stated):
        return ""
    return f"heads of {stated:.2f} are {round(stated)} wide ({round(stated) / stated - 1:+.1%} of attention's widths)"


def _mixture(row: TableRow, ffn: int) -> MixtureSizes | None:
    experts = row.count("experts")
    if experts is None:
        return None
    sizes = {name: int(size) for name, size in _SIZE.findall(row.text("moe_other"))}
    first = re.search(r"moe-layer-freq \(\[0\]\*(\d{1,4})\+", row.text("moe_other"))
    sizes |= {"dense_layers": int(first[1])} if first else {}
    sizes |= {_FLAGS[flag]: int(size) for flag, size in _FLAG.findall(row.text("moe_other"))}
    return MixtureSizes(
        experts=experts,
        top_k=row.needed("top_k"),
        expert_ffn=sizes.get("expert_ffn", ffn),
        shared_ffn=sizes.get("shared_ffn", 0),
        dense_layers=sizes.get("dense_layers", 0),
    )


def _latent(text: str) -> LatentSizes | None:
    match = _LATENT.search(text)
    if match is None:
        if "MLA" in text:
            fix = "it should be as in MLA(q_lora=1536,kv_lora=512,qk=128+64,v=128)"
            raise InputError("moe_other", f"is {quoted(text)}", fix)
        return None
    query_rank, *others = (int(size) for size in match.groups())
    return LatentSizes(query_rank or None, *others)
