"""Elementwise functions and their slopes, each written down from its definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from zlib import crc32

import numpy as np
from interpreter_call import Array, Call, Rule, align

Point = Callable[..., Array]

DROPPED = 0.25
_erf = np.vectorize(math.erf, otypes=[np.float64])
_TANH_GELU = math.sqrt(2 / math.pi)


def sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x / 2)) / 2


def _gelu(x: Array) -> Array:
    return x * (1 + _erf(x / math.sqrt(2))) / 2


def _gelu_slope(x: Array) -> Array:
    return (1 + _erf(x / math.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(_TANH_GELU * (x + 0.044715 * x**3)))


def _gelu_tanh_slope(x: Array) -> Array:
    t = np.tanh(_TANH_GELU * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * _TANH_GELU * (1 + 3 * 0.044715 * x * x)


def _swish(x: Array, rate: float = 1.0) -> Array:
    return x * sigmoid(rate * x)


def _swish_slope(x: Array, rate: float = 1.0) -> Array:
    s = sigmoid(rate * x)
    return s + rate * x * s * (1 - s)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _step(x: Array) -> Array:
    return (x > 0).astype(np.float64)


#: Functions of one input: value, and slope read off the input.
FROM_INPUT: Mapping[str, tuple[Point, Point]] = {
    "gelu": (_gelu, _gelu_slope),
    "gelu_tanh": (_gelu_tanh, _gelu_tanh_slope),
    "quick_gelu": (lambda x: _swish(x, 1.702), lambda x: _swish_slope(x, 1.702)),
    "silu": (_swish, _swish_slope),
    "relu2": (lambda x: _relu(x) ** 2, lambda x: 2 * _relu(x)),
    "softplus": (lambda x: np.logaddexp(0, x), sigmoid),
    # any function whose slope is read off its inputs stands for those of a trace
    "pointwise": (np.sin, np.cos),
}

#: Functions of one input: value, and slope read off the output.
FROM_OUTPUT: Mapping[str, tuple[Point, Point]] = {
    "relu": (_relu, _step),
    "sigmoid": (sigmoid, lambda y: y * (1 - y)),
    "tanh": (np.tanh, lambda y: 1 - y * y),
}

#: Functions of a gate and a value: what the gate is turned into, and its slope.
GATES: Mapping[str, tuple[Point, Point]] = {
    "multiply": (lambda x: x, np.ones_like),
    "swiglu": (_swish, _swish_slope),
    "geglu": (_gelu, _gelu_slope),
    "geglu_tanh": (_gelu_tanh, _gelu_tanh_slope),
    "reglu": (_relu, _step),
    "sigmoid_gate": (sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x))),
}


def _clamped(gate: Array, up: Array) -> Array:
    return (np.clip(up, -7, 7) + 1) * _swish(np.minimum(gate, 7), 1.702)


def _clamped_slopes(gate: Array, up: Array) -> tuple[Array, Array]:
    of_gate = (np.clip(up, -7, 7) + 1) * _swish_slope(np.minimum(gate, 7), 1.702) * (gate < 7)
    return of_gate, _swish(np.minimum(gate, 7), 1.702) * (np.abs(up) < 7)


def _log_decay(x: Array, bias: Array, rate: Array) -> Array:
    return -np.exp(rate) * np.logaddexp(0, x + bias)


def _log_decay_slopes(x: Array, bias: Array, rate: Array) -> tuple[Array, Array, Array]:
    of_x = -np.exp(rate) * sigmoid(x + bias)
    return of_x, of_x, _log_decay(x, bias, rate)


def _waves(*arrays: Array) -> Array:
    return np.prod([np.sin(a + i) for i, a in enumerate(arrays)], axis=0)


def _waves_slopes(*arrays: Array) -> tuple[Array, ...]:
    waves = [np.sin(a + i) for i, a in enumerate(arrays)]
    return tuple(
        np.cos(a + i) * np.prod([w for j, w in enumerate(waves) if j != i], axis=0) for i, a in enumerate(arrays)
    )


def _gated(gate: Point) -> Point:
    return lambda g, x: gate(g) * x


def _gated_slopes(gate: Point, slope: Point) -> Callable[..., tuple[Array, ...]]:
    return lambda g, x: (slope(g) * x, gate(g) * np.ones_like(x))


def pointwise(function: Point) -> Rule:
    """A forward rule: operands spread over the output's dims, then the function."""

    def rule(call: Call, *arrays: Array) -> tuple[Array]:
        space = call.outputs[0]
        return (function(*(call.spread(a, d, space) for a, d in zip(arrays, call.inputs, strict=True))),)

    return rule


def slopes(function: Callable[..., tuple[Array, ...]]) -> Rule:
    """A gradient rule: arriving gradient times one of the slopes, summed to the dims of the target."""

    def rule(call: Call, arriving: Array, *saved: Array) -> tuple[Array]:
        space = call.inputs[0]
        spread = [call.spread(a, d, space) for a, d in zip(saved, call.inputs[1:], strict=True)]
        return (call.gather(arriving * function(*spread)[call.position], space, call.outputs[0]),)

    return rule


def add(call: Call, *arrays: Array) -> tuple[Array]:
    space = call.outputs[0]
    return (sum((call.spread(a, d, space) for a, d in zip(arrays, call.inputs, strict=True)), np.zeros(())),)


def summed(call: Call, arriving: Array) -> tuple[Array]:
    return (call.gather(arriving, call.inputs[0], call.outputs[0]),)


def scale(call: Call, x: Array) -> tuple[Array]:
    return (align(x * call.attribute("scale", 1.0), call.inputs[0], call.outputs[0]),)


def softcap(call: Call, x: Array) -> tuple[Array]:
    cap = call.attribute("cap", 30.0)
    return (cap * np.tanh(x / cap),)


def softcap_gradient(call: Call, arriving: Array, y: Array) -> tuple[Array]:
    return (arriving * (1 - (y / call.attribute("cap", 30.0)) ** 2),)


def rotary(call: Call, x: Array) -> tuple[Array]:
    return (_rotated(call, x, 1),)


def rotary_gradient(call: Call, arriving: Array) -> tuple[Array]:
    return (_rotated(call, arriving, -1),)


def _rotated(call: Call, x: Array, direction: int) -> Array:
    dims = call.inputs[0]
    half = x.shape[-1] // 2
    angles = direction * (1.0 + np.arange(call.sizes["seq"]))[:, None] * 0.7 ** np.arange(half)
    angles = align(angles, ("seq", dims[-1]), dims)
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, left * sin + right * cos, rest], axis=-1)


def dropout(call: Call, x: Array) -> tuple[Array, Array]:
    draws = np.random.default_rng(crc32(call.operator.name.encode())).random(x.shape)
    mask = draws >= DROPPED
    return x * mask / (1 - DROPPED), mask


def dropout_gradient(call: Call, arriving: Array, mask: Array) -> tuple[Array]:
    return (arriving * mask / (1 - DROPPED),)


def _table() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for name, (value, slope) in {**FROM_INPUT, **FROM_OUTPUT}.items():
        table |= {name: pointwise(value), f"{name}.grad": slopes(lambda saved, slope=slope: (slope(saved),))}
    for name, (gate, slope) in GATES.items():
        table |= {name: pointwise(_gated(gate)), f"{name}.grad": slopes(_gated_slopes(gate, slope))}
    return table | {
        "swiglu_clamped": pointwise(_clamped),
        "swiglu_clamped.grad": slopes(_clamped_slopes),
        **{name: pointwise(_waves) for name in ("pointwise2", "pointwise3")},
        **{f"{name}.grad": slopes(_waves_slopes) for name in ("pointwise2", "pointwise3")},
        "log_decay": pointwise(_log_decay),
        "log_decay.grad": slopes(_log_decay_slopes),
        "add": add,
        "sum": add,
        "sum.grad": summed,
        "scale": scale,
        "scale.grad": scale,
        "softcap": softcap,
        "softcap.grad": softcap_gradient,
        "rotary": rotary,
        "rotary.grad": rotary_gradient,
        "dropout": dropout,
        "dropout.grad": dropout_gradient,
    }


RULES: Mapping[str, Rule] = _table()
