"""What one chip stores per parameter under ZeRO: the formula, for one plan or many."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.arrays import Number, choose


class ParameterBytes(NamedTuple):
    """Bytes per parameter: of what every chip uses, and of one replica of the sharded state."""

    weight: float
    #: of a weight stored only as shards (ZeRO 3)
    sharded_weight: float
    #: accumulated, in a pipeline where there is one
    gradient: float
    optimizer: float
    #: of what the optimizer makes of its gradients for the update
    step_copy: float = 0.0
    #: of the layer at work: weight gradients that have not joined the accumulated ones yet, and those of a layer whose
    #: gradients are sharded, unless its working bytes have them
    layer_gradient: float = 0.0
    sharded_gradient: float = 0.0
    #: of a layer whose gradients are sharded: what its reduction sends
    reduce_buffer: float = 0.0
    #: sharded weights are gathered, and their gradients reduced, one by one instead of layer by layer
    by_weight: bool = False
    #: gradients are there from the backward of their layer on, where one micro-batch makes a step
    late_gradients: bool = False
    #: more optimizer state of embedding, head and vectors than of matrices of blocks (Muon)
    vector_state: float = 0.0


def state_bytes(
    used: Number, home: Number, zero_stage: Number, sizes: ParameterBytes, vectors: Number = 0.0
) -> tuple[Number, Number, Number]:
    """Weights, gradients and optimizer state of a chip (Rajbhandari et al. 2020, fig. 1).

    `used` parameters are what it computes with, `home` its share of them where they are sharded: the optimizer's state
    from ZeRO 1 on, gradients from 2 on, weights in 3. Of these `vectors` have more state than others (Muon); without
    them it is a lower bound.
    """
    return (
        choose(zero_stage == 3, home * sizes.sharded_weight, used * sizes.weight),
        choose(zero_stage >= 2, home, used) * sizes.gradient,
        choose(zero_stage >= 1, home, used) * sizes.optimizer + vectors * sizes.vector_state,
    )
