"""Recurrences along the sequence, one token at a time, and their adjoints against time."""

from __future__ import annotations

import numpy as np
from interpreter_call import Array, Call, Dims, align, only

SEQ = "seq"


def _lead(rows: Dims) -> Dims:
    """Token first: `seq` before the dims that only enumerate independent recurrences."""
    return (SEQ, *(d for d in rows if d != SEQ))


def _spread(call: Call, arrays: tuple[Array, ...], dims: tuple[Dims, ...], spaces: tuple[Dims, ...]) -> list[Array]:
    return [call.spread(a, d, s) for a, d, s in zip(arrays, dims, spaces, strict=True)]


def _gathered(call: Call, grads: list[Array], spaces: tuple[Dims, ...], dims: tuple[Dims, ...]) -> tuple[Array, ...]:
    full = tuple(call.gather(g, s, d) for g, s, d in zip(grads, spaces, dims, strict=True))
    return call.select(dims, full)


def _linear_spaces(dims: tuple[Dims, ...], rows: Dims) -> tuple[Dims, ...]:
    """Where q, k, v, log decay and beta live once they are spread over all heads."""
    key, value = dims[1][-1], dims[2][-1]
    lead = _lead(rows)
    return ((*lead, key), (*lead, key), (*lead, value), (*lead, key), lead)[: len(dims)]


def gated_delta(call: Call, *arrays: Array) -> tuple[Array]:
    """S ← exp(g)·S, then S ← S + k⊗β(v - kᵀS), out = scale · qᵀS."""
    dims = call.inputs
    spaces = _linear_spaces(dims, dims[2][:-1])
    q, *rest = _spread(call, arrays, dims, spaces)
    states, _, _ = _delta_states(*rest)
    out = call.attribute("scale") * np.einsum("...k,...kv->...v", q, states)
    return (align(out, spaces[2], call.outputs[0]),)


def _delta_states(k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array, Array]:
    """All states, the decayed ones before each write, and what each token writes."""
    states, decayed, written = [], [], []
    state = np.zeros((*k.shape[1:], v.shape[-1]))
    for t in range(len(k)):
        faded = np.exp(g[t])[..., None] * state
        u = beta[t][..., None] * (v[t] - np.einsum("...k,...kv->...v", k[t], faded))
        state = faded + k[t][..., None] * u[..., None, :]
        states.append(state)
        decayed.append(faded)
        written.append(u)
    return np.stack(states), np.stack(decayed), np.stack(written)


def gated_delta_gradient(call: Call, arriving: Array, *arrays: Array) -> tuple[Array, ...]:
    dims = call.inputs[1:]
    spaces = _linear_spaces(dims, dims[2][:-1])
    q, k, v, g, beta = _spread(call, arrays, dims, spaces)
    do = call.attribute("scale") * align(arriving, call.inputs[0], spaces[2])
    states, decayed, written = _delta_states(k, v, g, beta)
    dq, dk, dv, dg, dbeta = (np.zeros_like(a) for a in (q, k, v, g, beta))
    ds = np.zeros_like(states[0])
    for t in reversed(range(len(k))):
        dq[t] = np.einsum("...v,...kv->...k", do[t], states[t])
        ds = ds + q[t][..., None] * do[t][..., None, :]
        # state = faded + k ⊗ u, u = beta · error, error = v - kᵀ·faded
        du = np.einsum("...k,...kv->...v", k[t], ds)
        error = v[t] - np.einsum("...k,...kv->...v", k[t], decayed[t])
        dbeta[t] = (du * error).sum(axis=-1)
        dv[t] = beta[t][..., None] * du
        dk[t] = np.einsum("...kv,...v->...k", ds, written[t]) - np.einsum("...kv,...v->...k", decayed[t], dv[t])
        dfaded = ds - k[t][..., None] * dv[t][..., None, :]
        dg[t] = (dfaded * decayed[t]).sum(axis=-1)
        ds = np.exp(g[t])[..., None] * dfaded
    return _gathered(call, [dq, dk, dv, dg, dbeta], spaces, dims)


def decay(call: Call, *arrays: Array) -> tuple[Array]:
    """S ← exp(-|decay|)·S + k⊗v, out = scale · qᵀS."""
    dims = call.inputs
    spaces = _linear_spaces(dims, dims[2][:-1])
    q, k, v, rate = _spread(call, arrays, dims, spaces)
    states = _decay_states(k, v, -np.abs(rate))
    out = call.attribute("scale") * np.einsum("...k,...kv->...v", q, states[1:])
    return (align(out, spaces[2], call.outputs[0]),)


def _decay_states(k: Array, v: Array, g: Array) -> Array:
    """The state before each token and after the last."""
    states = [np.zeros((*k.shape[1:], v.shape[-1]))]
    for t in range(len(k)):
        states.append(np.exp(g[t])[..., None] * states[-1] + k[t][..., None] * v[t][..., None, :])
    return np.stack(states)


def decay_gradient(call: Call, arriving: Array, *arrays: Array) -> tuple[Array, ...]:
    dims = call.inputs[1:]
    spaces = _linear_spaces(dims, dims[2][:-1])
    q, k, v, rate = _spread(call, arrays, dims, spaces)
    do = call.attribute("scale") * align(arriving, call.inputs[0], spaces[2])
    states = _decay_states(k, v, -np.abs(rate))
    dq, dk, dv, drate = (np.zeros_like(a) for a in (q, k, v, rate))
    ds = np.zeros_like(states[0])
    for t in reversed(range(len(k))):
        dq[t] = np.einsum("...v,...kv->...k", do[t], states[t + 1])
        ds = ds + q[t][..., None] * do[t][..., None, :]
        dk[t] = np.einsum("...kv,...v->...k", ds, v[t])
        dv[t] = np.einsum("...kv,...k->...v", ds, k[t])
        ds = np.exp(-np.abs(rate[t]))[..., None] * ds
        drate[t] = -np.sign(rate[t]) * (ds * states[t]).sum(axis=-1)
    return _gathered(call, [dq, dk, dv, drate], spaces, dims)


def _ssd_spaces(dims: tuple[Dims, ...]) -> tuple[Dims, ...]:
    """Where x, dt, A, B, C and D live once they are spread over all heads."""
    lead, channel, state = _lead(dims[0][:-1]), dims[0][-1], dims[3][-1]
    return (*lead, channel), lead, lead, (*lead, state), (*lead, state), lead


def ssd(call: Call, *arrays: Array) -> tuple[Array]:
    """h ← exp(-exp(A)·dt)·h + dt·x⊗B, y = h·C + D·x."""
    spaces = _ssd_spaces(call.inputs)
    x, dt, a, b, c, d = _spread(call, arrays, call.inputs, spaces)
    states = _ssd_states(x, dt, a, b)
    y = np.einsum("...cn,...n->...c", states[1:], c) + d[..., None] * x
    return (align(y, spaces[0], call.outputs[0]),)


def _ssd_states(x: Array, dt: Array, a: Array, b: Array) -> Array:
    """The state before each token and after the last."""
    states = [np.zeros((*x.shape[1:], b.shape[-1]))]
    for t in range(len(x)):
        kept = np.exp(-np.exp(a[t]) * dt[t])[..., None, None] * states[-1]
        states.append(kept + dt[t][..., None, None] * x[t][..., None] * b[t][..., None, :])
    return np.stack(states)


def ssd_gradient(call: Call, arriving: Array, *arrays: Array) -> tuple[Array, ...]:
    dims = call.inputs[1:]
    spaces = _ssd_spaces(dims)
    x, dt, a, b, c, d = _spread(call, arrays, dims, spaces)
    dy = align(arriving, call.inputs[0], spaces[0])
    states = _ssd_states(x, dt, a, b)
    dx, ddt, da, db, dc = (np.zeros_like(array) for array in (x, dt, a, b, c))
    dh = np.zeros_like(states[0])
    for t in reversed(range(len(x))):
        dc[t] = np.einsum("...cn,...c->...n", states[t + 1], dy[t])
        dh = dh + dy[t][..., None] * c[t][..., None, :]
        into_b = np.einsum("...cn,...n->...c", dh, b[t])
        dx[t] = d[t][..., None] * dy[t] + dt[t][..., None] * into_b
        db[t] = dt[t][..., None] * np.einsum("...cn,...c->...n", dh, x[t])
        # h = kept · before + dt · x ⊗ B, kept = exp(-exp(A) · dt)
        kept, rate = np.exp(-np.exp(a[t]) * dt[t]), np.exp(a[t])
        fading = (dh * states[t]).sum(axis=(-1, -2)) * kept
        ddt[t] = (into_b * x[t]).sum(axis=-1) - rate * fading
        da[t] = -rate * dt[t] * fading
        dh = kept[..., None, None] * dh
    return _gathered(call, [dx, ddt, da, db, dc, (x * dy).sum(axis=-1)], spaces, dims)


def convolution(call: Call, x: Array, w: Array) -> tuple[Array]:
    """Depthwise: y[t] = Σ_j w[j] · x[t - j], tokens before the first count as zero."""
    dims, weight = call.inputs
    y = np.zeros_like(x)
    for lag, tap in _taps(w, weight, dims):
        y = y + tap * _delayed(x, dims.index(SEQ), lag)
    return (align(y, dims, call.outputs[0]),)


def convolution_input_gradient(call: Call, arriving: Array, w: Array) -> tuple[Array]:
    dims, weight = call.inputs
    x = np.zeros_like(arriving)
    for lag, tap in _taps(w, weight, dims):
        x = x + np.flip(_delayed(np.flip(tap * arriving, dims.index(SEQ)), dims.index(SEQ), lag), dims.index(SEQ))
    return (align(x, dims, call.outputs[0]),)


def convolution_weight_gradient(call: Call, arriving: Array, x: Array) -> tuple[Array]:
    dims, (weight,) = call.inputs[0], call.outputs
    kernel = only(weight, dims)
    channels = tuple(d for d in weight if d != kernel)
    source = align(x, call.inputs[1], dims)
    lags = [
        call.gather(arriving * _delayed(source, dims.index(SEQ), lag), dims, channels)
        for lag in range(call.sizes[kernel])
    ]
    return (align(np.stack(lags), (kernel, *channels), weight),)


def _taps(w: Array, weight: Dims, dims: Dims) -> list[tuple[int, Array]]:
    kernel = only(weight, dims)
    ordered = np.moveaxis(w, weight.index(kernel), 0)
    return [(lag, align(tap, tuple(d for d in weight if d != kernel), dims)) for lag, tap in enumerate(ordered)]


def _delayed(x: Array, axis: int, lag: int) -> Array:
    moved = np.moveaxis(x, axis, 0)
    late = np.concatenate([np.zeros_like(moved[:lag]), moved[: max(len(moved) - lag, 0)]])
    return np.moveaxis(late[: len(moved)], 0, axis)
