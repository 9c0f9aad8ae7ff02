"""Small random layers: products, norms, vector operators and residual adds, and few dims that may be cut."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dovetail.graph import LayerGraph, Operator
from dovetail.graph.builder import LayerBuilder

TOKENS = ("batch", "seq")
SIZES = {"hidden": 48, "wide": 96, "narrow": 24}


def random_graph(draw: Random, most: int) -> LayerGraph:
    """A layer of at most so many operators, from the residual stream to the residual stream."""
    builder = LayerBuilder("random", SIZES)
    stream = builder.input("x", (*TOKENS, "hidden"))
    here, dim, left = stream, "hidden", draw.randint(1, most - 1)
    earlier = [stream]
    while left or dim != "hidden":
        name = f"op{left}"
        wanted = draw.choice(tuple(d for d in SIZES if d != dim)) if left > 1 else "hidden"
        if left >= 4 and draw.random() < 0.6:
            # two products of one tensor, multiplied or (terms that may be left open) added
            halves = [_product(builder, f"{name}.{half}", here, dim, wanted) for half in ("left", "right")]
            here, dim, left = builder.elementwise(name, draw.choice(("swiglu", "add")), *halves), wanted, left - 3
        elif wanted != dim and (left <= 1 or draw.random() < 0.5):
            here, dim, left = _product(builder, name, here, dim, wanted), wanted, max(left - 1, 0)
        else:
            here, left = _vector(builder, draw, name, here, dim), left - 1
        earlier += [here] if dim == "hidden" else []
    if draw.random() < 0.7:
        # of the stream, or of something written on the way, then perhaps a sum its writer left open
        source = stream if len(earlier) < 3 or draw.random() < 0.4 else draw.choice(earlier[1:-1])
        here = builder.elementwise("residual", draw.choice(("add", "add", "multiply")), source, here)
    else:
        here = builder.elementwise("close", draw.choice(("gelu", "dropout", "scale")), here)
    return builder.build(here)


def _product(builder: LayerBuilder, name: str, here: str, dim: str, wanted: str) -> str:
    return builder.contraction(name, here, builder.weight(f"{name}.weight", (dim, wanted)), (*TOKENS, wanted))


def _vector(builder: LayerBuilder, draw: Random, name: str, here: str, dim: str) -> str:
    match draw.choice(("norm", "layer", "bias", "gelu", "relu", "dropout", "scale")):
        case "norm":
            return builder.normalisation(name, "rms", here, (dim,), (builder.weight(f"{name}.weight", (dim,)),))
        case "layer":
            weights = tuple(builder.weight(f"{name}.{part}", (dim,)) for part in ("weight", "bias"))
            return builder.normalisation(name, "layer", here, (dim,), weights)
        case "bias":
            return builder.elementwise(name, "add", here, builder.weight(f"{name}.bias", (dim,)))
        case function:
            return builder.elementwise(name, function, here)


def random_allowed(draw: Random, graph: LayerGraph, share: float) -> Callable[[Operator, str], bool]:
    """Dims that may be cut, operator by operator."""
    kept = {(o.name, dim) for o in graph.operators for dim in o.dims if draw.random() < share}

    def allowed(operator: Operator, dim: str) -> bool:
        return (operator.name, dim) in kept

    return allowed
