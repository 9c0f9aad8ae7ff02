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
    #: of a weight that is not trained, whole or sharded
    frozen: float = 0.0
    #: more optimizer state of embedding, head and vectors than of matrices of blocks (Muon)
    vector_state: float = 0.0

    def packed(self, overhead: float) -> ParameterBytes:
        """The same where what an allocator holds beyond tensors, a part of all of them, is to be of the others alone.

        Parameters and their state stay from the first step on and fill memory well.
        """
        return self._replace(
            weight=self.weight / (1 + overhead),
            sharded_weight=self.sharded_weight / (1 + overhead),
            gradient=self.gradient / (1 + overhead),
            optimizer=self.optimizer / (1 + overhead),
            step_copy=self.step_copy / (1 + overhead),
            frozen=self.frozen / (1 + overhead),
            vector_state=self.vector_state / (1 + overhead),
        )


def frozen_bytes(used: Number, home: Number, zero_stage: Number, sizes: ParameterBytes) -> Number:
    """Weights of a chip that are not trained, where it computes with `used` and has `home` of them in shards."""
    return choose(zero_stage == 3, home, used) * sizes.frozen


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
