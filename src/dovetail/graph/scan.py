"""Recurrences along the sequence: linear attention, state-space models, short convolutions."""

from __future__ import annotations

from dovetail.graph.builder import LayerBuilder, Reference
from dovetail.graph.operator import Exchange, Kind, Operand, Operator, Unit, Work, vector_work
from dovetail.graph.tensor import Role

#: The dim of a chunked scan's blocks; its size is the kernel's choice, 64 to 256.
CHUNK = "chunk"


def linear_attention(
    builder: LayerBuilder,
    name: str,
    function: str,
    operands: tuple[Reference, ...],
    *,
    scale: float = 1.0,
) -> str:
    """State S of key_dim × value_dim per head: S ← decay·S + k⊗v, out = q·S.

    `gated_delta` (q, k, v, log decay, beta) writes β·(v − k·S) instead of v: Yang et al. 2024, eq. 10;
    a log decay that has `key_dim` is Kimi Delta Attention's. `decay` (q, k, v, log decay) is lightning
    attention. Work is that of the chunked form with blocks of `chunk` tokens.
    """
    inputs = tuple(builder.use(r) for r in operands)
    _, k, v = inputs[:3]
    key_dim, value_dim = k.indices[-1], v.indices[-1]
    heads = v.indices[:-1]
    out = (*heads, value_dim)
    builder.tensor(name, out)
    keys, values, state = (*heads, CHUNK, key_dim), (*heads, CHUNK, value_dim), (*heads, key_dim, value_dim)
    # delta rule: k·kᵀ, q·kᵀ and T·k over keys; T·v and A·v over values; w·S, q·S and kᵀ·v on the state
    boxes = ((keys, 3), (values, 2), (state, 3)) if function == "gated_delta" else ((keys, 1), (values, 1), (state, 2))
    return builder.append(
        Operator(
            name,
            Kind.LINEAR_ATTENTION,
            function,
            inputs,
            (Operand(name, out),),
            work=(*_chunked(*boxes), *vector_work((*heads, CHUNK), 2)),
            saves=_saved(builder, inputs),
            exchanges=(Exchange("seq", (*(d for d in heads if d != "seq"), key_dim, value_dim), passed_on=True),),
            # the delta rule reads k·S at every token: a split key_dim would leave it partial there
            indivisible=(key_dim,) if function == "gated_delta" else (),
            attributes={"scale": scale},
        )
    )


def state_space(builder: LayerBuilder, name: str, operands: tuple[Reference, ...]) -> str:
    """Structured state-space duality: h ← exp(dt·A)·h + dt·B⊗x, y = C·h + D·x.

    Dao & Gu 2024 (Mamba-2), section 6. Operands: x, dt, A, B, C, D.
    """
    inputs = tuple(builder.use(r) for r in operands)
    x, b = inputs[0], inputs[3]
    rows, channel, state = x.indices[:-1], x.indices[-1], b.indices[-1]
    builder.tensor(name, x.indices)
    boxes = (
        ((*b.indices[:-1], CHUNK, state), 1),
        ((*rows, CHUNK, channel), 1),
        ((*rows, channel, state), 2),
    )
    return builder.append(
        Operator(
            name,
            Kind.STATE_SPACE,
            "ssd",
            inputs,
            (Operand(name, x.indices),),
            work=(*_chunked(*boxes), *vector_work((*rows, CHUNK), 3)),
            saves=_saved(builder, inputs),
            exchanges=(Exchange("seq", (*(d for d in rows if d != "seq"), channel, state), passed_on=True),),
            # partial outputs of a split state would each hold the skip D·x
            indivisible=(state,),
        )
    )


def convolution(builder: LayerBuilder, name: str, reference: Reference, weight: Reference, kernel: str) -> str:
    """Depthwise causal convolution along `seq`; a split of the sequence exchanges a halo."""
    x, w = builder.use(reference), builder.use(weight)
    builder.tensor(name, x.indices)
    size = builder.sizes[kernel]
    assert isinstance(size, int)
    return builder.append(
        Operator(
            name,
            Kind.CONVOLUTION,
            "causal",
            (x, w),
            (Operand(name, x.indices),),
            work=vector_work((*x.indices, kernel), 2),
            saves=(x.tensor,),
            exchanges=(Exchange("seq", tuple(d for d in x.indices if d != "seq"), size - 1, passed_on=True),),
            indivisible=(kernel,),
        )
    )


def _chunked(*boxes: tuple[tuple[str, ...], int]) -> tuple[Work, ...]:
    return tuple(Work(dims, 2 * times, Unit.MATRIX) for dims, times in boxes)


def _saved(builder: LayerBuilder, operands: tuple[Operand, ...]) -> tuple[str, ...]:
    names = dict.fromkeys(o.tensor for o in operands)
    return tuple(n for n in names if builder.tensors[n].role not in (Role.WEIGHT, Role.CONSTANT))
