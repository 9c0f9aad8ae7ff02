"""The sizes of a model as a row of measured runs states them."""

from __future__ import annotations

import math
import re

from dovetail.accuracy.table import TableRow
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen


@frozen
class LatentSizes:
    """Multi-head latent attention."""

    query_rank: int | None
    """None: queries come straight from the stream"""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@frozen
class MixtureSizes:
    """A mixture of experts."""

    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    dense_layers: int
    """first layers with a dense feed-forward instead"""


@frozen
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


#: No attention is wider.
_WIDEST = 2**20

_SIZE = re.compile(r"(expert_ffn|shared_ffn|dense_layers)=(\d{1,9})")
#: Megatron's flags for the same.
_FLAGS = {"moe-ffn-hidden-size": "expert_ffn", "moe-shared-expert-intermediate-size": "shared_ffn"}
_FLAG = re.compile(rf"({'|'.join(_FLAGS)}) (\d{{1,9}})")
_LATENT = re.compile(r"MLA\(q_lora=(\d{1,9}),kv_lora=(\d{1,9}),qk=(\d{1,9})\+(\d{1,9}),v=(\d{1,9})\)")


def read_architecture(row: TableRow) -> Architecture | None:
    """The sizes of a row; None if it gives none, as for a model known by name."""
    if not row.text("layers") and not row.text("hidden"):
        return None
    hidden = row.needed("hidden")
    heads, kv_heads, head_dim = _heads(row, hidden)
    ffn = row.needed("ffn_hidden")
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
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=row.needed("vocab"),
        mixture=_mixture(row, ffn),
        latent=latent,
        prediction=row.text("multi_token_prediction").casefold() == "yes",
    )


def _heads(row: TableRow, hidden: int) -> tuple[int, int, int]:
    """Heads, heads of keys, and the width of one.

    Frameworks refuse heads that do not share their width evenly, so a source with a fraction has the number of heads
    wrong and not the width: the nearest number that divides it has the same products.
    """
    heads, stated = row.needed("heads"), row.number("head_dim")
    kv_heads = row.count("kv_heads") or heads
    if stated is None:
        if hidden % heads:
            raise InputError("head_dim", f"is empty and {heads} heads do not divide {hidden}", "the source has to say")
        return heads, kv_heads, hidden // heads
    if stated == round(stated):
        return heads, kv_heads, row.needed("head_dim")
    width = round(stated * heads)
    if kv_heads != heads or not math.isclose(stated * heads, width, rel_tol=1e-9) or width > _WIDEST:
        raise InputError("head_dim", f"is {stated:g}", f"{heads} heads of it should be a whole width")
    even = min((number for number in range(1, width + 1) if width % number == 0), key=lambda n: abs(n - heads))
    return even, even, width // even


def uneven_heads(row: TableRow) -> str:
    """What was assumed of heads that do not share their width evenly; empty where they do."""
    stated = row.number("head_dim")
    if stated is None or stated == round(stated):
        return ""
    heads, _, head_dim = _heads(row, row.needed("hidden"))
    return f"{row.text('heads')} heads do not share a width of {heads * head_dim}: read as {heads} of {head_dim}"


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
