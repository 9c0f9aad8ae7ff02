"""The modules a framework recomputes by name: Megatron's `--recompute-modules` as operators.

Megatron Core, transformer_config.py, `recompute_modules`. Output-discarding checkpointing drops the results of a few
operators and recomputes what is missing; the other modules are checkpointed functions, which save their input and are
recomputed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dovetail.graph import Kind, LayerGraph, Operator


@dataclass(frozen=True, slots=True)
class Module:
    """The operators a name stands for in a layer, and whether they are one checkpointed function."""

    operators: Callable[[LayerGraph], Iterable[str]]
    whole: bool = False


def attention_core(graph: LayerGraph) -> frozenset[str]:
    """The operators between queries, keys and values and the context: what Megatron calls selective.

    Korthikanti et al. 2022, section 5: large to save, cheap to recompute.
    """
    return frozenset(o.name for o in graph.operators if "key_seq" in o.dims and o.kind is not Kind.INDEXER)


def _named(*beginnings: str) -> Callable[[LayerGraph], Iterable[str]]:
    return lambda layer: (o.name for o in layer.operators if o.name.startswith(beginnings))


def _matching(test: Callable[[Operator], bool]) -> Callable[[LayerGraph], Iterable[str]]:
    return lambda layer: (o.name for o in layer.operators if test(o))


_LATENT_UP = ("query_content", "query_positional", "query_rotary", "query", "key_content", "key_rotary", "key", "value")


def _is_latent_up(layer: LayerGraph) -> Iterable[str]:
    latent = any(o.name == "kv_latent" for o in layer.operators)
    return (o.name for o in layer.operators if latent and o.name in _LATENT_UP)


MODULES: Mapping[str, Module] = {
    "core_attn": Module(attention_core, whole=True),
    "layernorm": Module(_matching(lambda o: o.name in ("mixer_norm", "feed_forward_norm"))),
    "mla_up_proj": Module(_is_latent_up),
    "mlp": Module(_named("mlp."), whole=True),
    "moe": Module(_named("router", "gates", "dispatch", "expert.", "combine"), whole=True),
    "moe_act": Module(_matching(lambda o: o.name == "expert.activation")),
    "shared_experts": Module(_named("shared."), whole=True),
}
