"""What frameworks recompute by name, as operators: Megatron's modules, and policies of torchtitan and MaxText.

Megatron Core, transformer_config.py, `recompute_modules`: output-discarding checkpointing drops the results of a few
operators and recomputes what is missing; the other modules are checkpointed functions, which save their input and are
recomputed as a whole. Policies name what is saved instead, and everything else is recomputed where the backward needs
it: torchtitan's `selective` (distributed/activation_checkpoint.py) and MaxText's `remat_policy` (layers/decoders.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dovetail.frozen import frozen
from dovetail.graph import Kind, LayerGraph, Operator


@frozen
class Module:
    """The operators a name stands for in a layer."""

    operators: Callable[[LayerGraph], Iterable[str]]
    #: they are one checkpointed function
    whole: bool = False
    #: the name says what is saved of a block: the rest is recomputed together, before its backward
    policy: bool = False
    #: operators whose results are saved even if nothing reads them
    results: Callable[[LayerGraph], Iterable[str]] = lambda _: ()


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


def op_sac(layer: LayerGraph) -> Iterable[str]:
    """What torchtitan's selective recompute computes again: all but attention and every second matrix product."""
    saved = set(_op_sac_results(layer))
    return (o.name for o in layer.operators if o.name not in saved)


def _op_sac_results(layer: LayerGraph) -> Iterable[str]:
    products = [o.name for o in layer.operators if o.kind is Kind.CONTRACTION]
    return (*products[::2], *(o.name for o in layer.operators if o.kind is Kind.ATTENTION))


def _saving(*tensors: str) -> Callable[[LayerGraph], Iterable[str]]:
    """What is recomputed where tensors are saved, by MaxText's names: projections, and `context` for attention."""

    def recomputed(layer: LayerGraph) -> Iterable[str]:
        core = attention_core(layer)
        return (o.name for o in layer.operators if _maxtext_name(o, o.name in core) not in tensors)

    return recomputed


def _maxtext_name(operator: Operator, in_core: bool) -> str:
    """What MaxText calls the result of an operator; empty where no policy names it."""
    name = operator.name.removesuffix(".biased")
    if in_core:
        return "context"
    if operator.kind is not Kind.CONTRACTION and name == operator.name:
        return ""
    if name == "output":
        return "out_proj"
    if name.endswith(".down"):
        return "mlpwo"
    if name.endswith((".gate", ".up")):
        return "mlpwi"
    return "qkv_proj" if name.startswith(("query", "key", "value")) else "other"


_PROJECTIONS = ("qkv_proj", "out_proj", "mlpwi", "mlpwo", "other")

MODULES: Mapping[str, Module] = {
    "core_attn": Module(attention_core, whole=True),
    "layernorm": Module(_matching(lambda o: o.name in ("mixer_norm", "feed_forward_norm"))),
    "mla_up_proj": Module(_is_latent_up),
    "mlp": Module(_named("mlp."), whole=True),
    "moe": Module(_named("router", "gates", "dispatch", "expert.", "combine"), whole=True),
    "moe_act": Module(_matching(lambda o: o.name == "expert.activation")),
    "shared_experts": Module(_named("shared."), whole=True),
    "op_sac": Module(op_sac, policy=True, results=_op_sac_results),
    "minimal": Module(_saving(*_PROJECTIONS), policy=True),
    "minimal_with_context": Module(_saving(*_PROJECTIONS, "context"), policy=True),
    "save_dot_except_mlp": Module(_saving("qkv_proj", "out_proj"), policy=True),
    "save_dot_except_mlpwi": Module(_saving("qkv_proj", "out_proj", "mlpwo"), policy=True),
    "save_dot_with_context_except_mlp": Module(_saving("qkv_proj", "out_proj", "context"), policy=True),
    "save_qkv_proj": Module(_saving("qkv_proj"), policy=True),
    "save_out_proj": Module(_saving("out_proj"), policy=True),
}
