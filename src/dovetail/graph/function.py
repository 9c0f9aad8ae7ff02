"""Elementwise functions: what each costs per element and what its backward needs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.frozen import frozen


@frozen
class Function:
    """An elementwise function y = f(x0, x1, ...)."""

    flops: int
    #: positions of the inputs that the backward reads
    saves_inputs: tuple[int, ...] = ()
    saves_output: bool = False
    #: writes a 1-byte mask as second output, which the backward reads
    saves_mask: bool = False
    #: the gradient with respect to each input is the output's gradient itself
    additive: bool = False
    gradient_flops: int = 1
    #: mixes the points of the last dim, which must stay whole
    whole_last_dim: bool = False


#: FLOPs per element are those of a straightforward kernel (an exponential or a division counts once).
FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "add": Function(1, additive=True),
        "scale": Function(1),
        "rotary": Function(3, gradient_flops=3, whole_last_dim=True),
        "dropout": Function(2, saves_mask=True),
        "multiply": Function(1, saves_inputs=(0, 1)),
        "relu": Function(1, saves_output=True),
        "sigmoid": Function(3, saves_output=True, gradient_flops=3),
        "tanh": Function(4, saves_output=True, gradient_flops=3),
        "softcap": Function(6, saves_output=True, gradient_flops=4),
        "gelu": Function(8, saves_inputs=(0,), gradient_flops=13),
        "gelu_tanh": Function(9, saves_inputs=(0,), gradient_flops=15),
        "quick_gelu": Function(5, saves_inputs=(0,), gradient_flops=8),
        "silu": Function(4, saves_inputs=(0,), gradient_flops=7),
        "relu2": Function(2, saves_inputs=(0,), gradient_flops=2),
        "softplus": Function(3, saves_inputs=(0,), gradient_flops=4),
        # gated forms take (gate, up) and run as one kernel
        "swiglu": Function(5, saves_inputs=(0, 1), gradient_flops=9),
        "geglu": Function(9, saves_inputs=(0, 1), gradient_flops=15),
        "geglu_tanh": Function(10, saves_inputs=(0, 1), gradient_flops=17),
        "reglu": Function(2, saves_inputs=(0, 1), gradient_flops=3),
        # GPT-OSS: (up + 1) · gate · sigmoid(1.702 · gate), both clamped at 7
        "swiglu_clamped": Function(9, saves_inputs=(0, 1), gradient_flops=14),
        # sigmoid(gate) · x, the output gates of Qwen3-Next and Kimi
        "sigmoid_gate": Function(4, saves_inputs=(0, 1), gradient_flops=7),
        # Kimi Delta Attention, Gated DeltaNet: log decay = -exp(a) · softplus(x + bias), per head
        "log_decay": Function(6, saves_inputs=(0, 1, 2), gradient_flops=8),
        # a traced function we have no name for, of one, two or three values
        "pointwise": Function(4, saves_inputs=(0,), gradient_flops=6),
        "pointwise2": Function(4, saves_inputs=(0, 1), gradient_flops=6),
        "pointwise3": Function(5, saves_inputs=(0, 1, 2), gradient_flops=8),
    }
)
