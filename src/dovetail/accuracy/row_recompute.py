"""What a run recomputes: the words of papers and recipes as a plan's `recompute`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from dovetail.accuracy.table import TableRow
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, ModelGraph, Operator
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION
from dovetail.profile.modules import MODULES


@frozen
class RecomputeReading:
    """A plan's recompute choice, the share of blocks it applies to, and what was assumed."""

    choice: str | tuple[str, ...]
    share: float = 1.0
    assumption: str = ""


def read_recompute(row: TableRow, graph: ModelGraph, layers_per_part: Fraction) -> RecomputeReading:
    """The recompute of a row; `layers_per_part` is how many blocks a chunk of a stage has."""
    plain = {"none": "none", "selective": "selective", "full": "full", "unknown": "unknown"}
    stated, written = row.choice("recompute", plain, "unknown"), row.text("recompute_as_written").casefold()
    if stated == "unknown":
        raise InputError("recompute", "is not stated", "it should be none, selective or full")
    if stated == "full":
        match = re.search(r"num_layers=(\d{1,6})", written)
        share = min(Fraction(int(match[1])) / layers_per_part, Fraction(1)) if match and int(match[1]) else Fraction(1)
        return RecomputeReading("full", float(share))
    if stated == "none":
        return RecomputeReading("none")
    for words, reading in _SELECTIVE.items():
        if words in written:
            return reading(written, graph)
    assumption = "" if not written or "attention" in written else f"selective means attention ({written})"
    return RecomputeReading("selective", assumption=assumption)


def _modules(written: str, graph: ModelGraph) -> RecomputeReading:
    """Megatron's `--recompute-modules` (transformer_config.py): the outputs of these are not saved."""
    words = [word for word in MODULES if re.search(rf"\b{word}\b", written)]
    also = [word for word in _CHEAP if re.search(rf"\b{word}\b", written)]
    names = _names(graph, lambda layer: (o.name for o in layer.operators if any(_CHEAP[word](o) for word in also)))
    named = dict.fromkeys((*words, *(_MODULE_OF.get(name, name) for name in names)))
    return RecomputeReading(tuple(named) or "none")


def _operators(written: str, graph: ModelGraph) -> RecomputeReading:
    """Torchtitan's operator-level choice."""
    del written, graph
    return RecomputeReading(("op_sac",))


def _all_but_products(written: str, graph: ModelGraph) -> RecomputeReading:
    """MaxText's policy of that name."""
    del written, graph
    return RecomputeReading(("minimal",))


def _cheap(written: str, graph: ModelGraph) -> RecomputeReading:
    """Kwai's balance of memory and compute: the cheapest per byte first, norms and activations."""
    names = _modules("norm,act", graph)
    return RecomputeReading(names.choice, assumption=f"norms and activations are recomputed ({written})")


def _alternate_layers(written: str, graph: ModelGraph) -> RecomputeReading:
    del written, graph
    return RecomputeReading("full", 0.5)


def _custom(written: str, graph: ModelGraph) -> RecomputeReading:
    del graph
    return RecomputeReading("full", assumption=f"everything but a layer's input is recomputed ({written})")


def _ratio(written: str, graph: ModelGraph) -> RecomputeReading:
    del graph
    return RecomputeReading("full", assumption=f"every block is recomputed ({written})")


def _but_attention(written: str, graph: ModelGraph) -> RecomputeReading:
    """Attention outputs of all or part of the sequence are saved besides the inputs of layers."""
    del graph
    return RecomputeReading("full", assumption=f"everything but a layer's input is recomputed ({written})")


def _fused(written: str, graph: ModelGraph) -> RecomputeReading:
    """A fused kernel recomputes its scores by itself: nothing else."""
    del written, graph
    return RecomputeReading("none")


_SELECTIVE: Mapping[str, Callable[[str, ModelGraph], RecomputeReading]] = {
    "modules": _modules,
    "norm,act": _modules,
    "balanced partial": _cheap,
    "(op)": _operators,
    "every other layer": _alternate_layers,
    "remat_policy=minimal": _all_but_products,
    "remat_policy=custom": _custom,
    "ratio not stated": _ratio,
    "selective checkpoint": _but_attention,
    "half of the sequence": _but_attention,
    "fused sdpa": _fused,
}


#: Names in other recipes of the operators that are cheapest to recompute.
_CHEAP: Mapping[str, Callable[[Operator], bool]] = {
    "norm": lambda o: o.name in ("mixer_norm", "feed_forward_norm"),
    "act": lambda o: o.name.endswith(".activation"),
}


#: The modules that have these operators and no others.
_MODULE_OF = {"mixer_norm": "layernorm", "feed_forward_norm": "layernorm", "expert.activation": "moe_act"}


def _names(graph: ModelGraph, recomputed: Callable[[LayerGraph], Iterable[str]]) -> tuple[str, ...]:
    """Names over all layer classes; embedding and head are never recomputed."""
    blocks = [layer for name, layer in graph.layers.items() if name not in (EMBEDDING, HEAD, PREDICTION)]
    return tuple(dict.fromkeys(name for layer in blocks for name in recomputed(layer)))
