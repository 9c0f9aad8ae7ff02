"""How a framework runs a layer's forward and backward, as far as memory is concerned."""

from __future__ import annotations

from dovetail.frozen import frozen
from dovetail.graph import Kind, Operator

#: Activations that multiply by a gate.
_GATED = frozenset({"swiglu", "geglu", "geglu_tanh", "reglu", "swiglu_clamped", "sigmoid_gate"})


@frozen
class Saving:
    """What is saved, in which width, and when it is freed."""

    #: the width in which matrix products save their inputs over the width in which these were written: below 1 where
    #: products run in fewer bits and save what they multiplied
    operand_share: float = 1.0
    #: a whole layer recomputes only what leads to a tensor the backward needs: not the last product and the sum after
    stops_early: bool = False
    #: the backward of an operator frees what it was the last to read, as autograd does; else all at the layer's end
    frees_by_operator: bool = False
    #: what is saved beyond a fused kernel's where norms or activations run operator by operator, in copies
    #: of the operator's input
    copies: tuple[tuple[str, float], ...] = ()
    #: the backward of an embedding whose table is sharded fills a gradient of the whole table first
    whole_tables: bool = False
    #: parts the logits come in, forward and backward, one at a time
    loss_chunks: int = 1
    #: per parameter of the layer at work: its weight gradients, whole until they are reduced
    layer_gradient_bytes: float = 0.0
    #: what a block saves goes to the host, and comes back for its backward
    offloads: bool = False

    def extra_saved(self, operator: Operator) -> float:
        """What an operator saves beyond a fused kernel, in copies of its input."""
        copies = dict(self.copies)
        if operator.kind is Kind.NORMALISATION:
            return copies.get("norm", 0.0)
        if operator.kind is not Kind.ELEMENTWISE:
            return 0.0
        if operator.function in _GATED:
            return copies.get("gated", 0.0)
        return copies.get(operator.function, 0.0)


#: A compiler lays the backward out: everything recomputed and the largest tensor besides are there together.
PLANNED = Saving()
