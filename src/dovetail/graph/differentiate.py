"""The backward graph of a layer, derived: input gradients and weight gradients as operators of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from dovetail.frozen import frozen
from dovetail.graph.function import FUNCTIONS
from dovetail.graph.layer import LayerGraph
from dovetail.graph.operator import (
    Exchange,
    Kind,
    Operand,
    Operator,
    Phase,
    Work,
    matrix_work,
    union,
    vector_work,
)
from dovetail.graph.tensor import Element, Role, Tensor
from dovetail.graph.verify import verify


@frozen
class Backward:
    """A layer's backward: its graph, the gradients it is handed, and where each result stands."""

    graph: LayerGraph
    #: forward output → the tensor in which its gradient arrives
    seeds: Mapping[str, str]
    #: forward input or weight → the tensor that ends up holding its gradient
    gradients: Mapping[str, str]


def differentiate(forward: LayerGraph) -> Backward:
    """Reverse-mode differentiation: each operator's rule appends its gradient operators."""
    tape = _Tape(forward)
    for operator in reversed(forward.operators):
        arriving = {o.tensor: tape.gradient(o.tensor) for o in operator.outputs}
        if any(arriving.values()):
            RULES[operator.kind](operator, tape)
    return tape.finish()


class _Tape:
    """Gradient operators collected so far, and the contributions to each tensor's gradient."""

    def __init__(self, forward: LayerGraph) -> None:
        self.forward = forward
        self.needed = needing_gradient(forward)
        self.seeds: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = {}
        self._operators: list[Operator] = []
        self._contributions: dict[str, list[str]] = {}
        self._final: dict[str, str] = {}
        for name in forward.outputs:
            if name in self.needed:
                self.seeds[name] = self._declare(f"{name}.grad", name)
                self._contributions[name] = [self.seeds[name]]

    def gradient(self, name: str) -> str | None:
        """The complete gradient of a forward tensor: its contributions, summed where there are several."""
        parts = self._contributions.get(name, [])
        if not parts or name in self._final:
            return self._final.get(name)
        if len(parts) == 1:
            self._final[name] = parts[0]
            return parts[0]
        total = self._declare(f"{name}.grad.sum", name)
        dims = self.forward.tensors[name].dims
        self._operators.append(
            Operator(
                total,
                Kind.ELEMENTWISE,
                "sum",
                tuple(Operand(part, dims) for part in parts),
                (Operand(total, dims),),
                work=vector_work(dims, len(parts) - 1),
                phase=self._phase([name]),
            )
        )
        self._final[name] = total
        return total

    def arriving(self, operator: Operator, position: int = 0) -> Operand:
        """The gradient of one of an operator's outputs, indexed as that output is."""
        output = operator.outputs[position]
        name = self.gradient(output.tensor)
        assert name is not None, f"{output.tensor} has no gradient"
        return Operand(name, output.indices)

    def pass_through(self, operator: Operator, target: Operand) -> None:
        """The gradient of an input is the output's gradient itself."""
        self._contributions.setdefault(target.tensor, []).append(self.arriving(operator).tensor)

    def emit(
        self,
        operator: Operator,
        function: str,
        reads: Iterable[Operand],
        targets: Iterable[Operand],
        work: tuple[Work, ...],
        exchanges: tuple[Exchange, ...] = (),
    ) -> None:
        """Appends one gradient operator that writes a contribution to each target's gradient.

        Statistics are saved, so most gradients are linear over the dims the forward is not:
        only rules that still mix shards state exchanges.
        """
        targets = tuple(t for t in targets if t.tensor in self.needed)
        if not targets:
            return
        outputs = tuple(self._contribution(operator, t) for t in targets)
        name = f"{operator.name}.{function}"
        self._operators.append(
            replace(
                operator,
                name=name if all(o.name != name for o in self._operators) else f"{name}.{targets[0].tensor}",
                function=function,
                inputs=tuple(reads),
                outputs=outputs,
                work=work,
                saves=(),
                exchanges=exchanges,
                phase=self._phase(t.tensor for t in targets),
                fusion=f"{operator.fusion}.grad" if operator.fusion else "",
            )
        )

    def finish(self) -> Backward:
        """The verified backward graph."""
        sources = (*self.forward.inputs, *(w.name for w in self.forward.weights()))
        gradients = {n: g for n in sources if (g := self.gradient(n)) is not None}
        given = {o.tensor for operator in self._operators for o in operator.inputs}
        given -= {o.tensor for operator in self._operators for o in operator.outputs}
        used = [t for t in self.forward.tensors.values() if t.name in given]
        tensors = {t.name: t for t in used} | self._tensors
        inputs = list(self.seeds.values())
        inputs += [t.name for t in used if t.role not in (Role.WEIGHT, Role.CONSTANT)]
        graph = LayerGraph(
            f"{self.forward.name}.backward",
            self.forward.sizes,
            tensors,
            tuple(self._operators),
            tuple(inputs),
            tuple(dict.fromkeys(gradients.values())),
        )
        return Backward(verify(graph), self.seeds, gradients)

    def _contribution(self, operator: Operator, target: Operand) -> Operand:
        parts = self._contributions.setdefault(target.tensor, [])
        base = f"{target.tensor}.grad.{operator.name}"
        name = base if base not in self._tensors else f"{base}.{len(parts)}"
        parts.append(self._declare(name, target.tensor))
        return Operand(name, target.indices)

    def _declare(self, name: str, of: str) -> str:
        source = self.forward.tensors[of]
        role = Role.WEIGHT_GRADIENT if source.role is Role.WEIGHT else Role.GRADIENT
        element = Element.COMPUTE if role is Role.WEIGHT_GRADIENT else source.element
        self._tensors[name] = Tensor(name, source.dims, role, element)
        return name

    def _phase(self, names: Iterable[str]) -> Phase:
        # A kernel that returns both kinds at once (attention sinks, state-space A) runs with the input gradients.
        only_weights = all(self.forward.tensors[n].role is Role.WEIGHT for n in names)
        return Phase.WEIGHT_GRADIENT if only_weights else Phase.INPUT_GRADIENT


def needing_gradient(graph: LayerGraph) -> frozenset[str]:
    """The tensors whose gradient leads to that of a trained weight or of the layer's input."""
    differentiable = (Role.ACTIVATION, Role.LOSS)
    needed = {w.name for w in graph.weights() if not w.frozen}
    needed |= {n for n in graph.inputs if graph.tensors[n].role is Role.ACTIVATION}
    for operator in graph.operators:
        if any(o.tensor in needed for o in operator.inputs):
            outputs = (o.tensor for o in operator.outputs)
            needed |= {n for n in outputs if graph.tensors[n].role in differentiable}
    return frozenset(needed)


def _contraction(operator: Operator, tape: _Tape) -> None:
    for position, target in enumerate(operator.inputs):
        others = [o for i, o in enumerate(operator.inputs) if i != position]
        reads = (tape.arriving(operator), *others)
        box = union(o.indices for o in (*reads, target))
        tape.emit(operator, f"einsum.grad{position}", reads, (target,), matrix_work(box))


def _elementwise(operator: Operator, tape: _Tape) -> None:
    rule = FUNCTIONS[operator.function]
    arriving = tape.arriving(operator)
    saved = [operator.inputs[i] for i in rule.saves_inputs]
    saved += [operator.outputs[0]] if rule.saves_output else []
    saved += [operator.outputs[1]] if rule.saves_mask else []
    for position, target in enumerate(operator.inputs):
        if target.tensor not in tape.needed:
            continue
        if rule.additive and target.indices == arriving.indices:
            tape.pass_through(operator, target)
        elif rule.additive:
            tape.emit(operator, f"sum.grad{position}", (arriving,), (target,), vector_work(arriving.indices, 1))
        else:
            work = vector_work(arriving.indices, rule.gradient_flops)
            tape.emit(operator, f"{operator.function}.grad{position}", (arriving, *saved), (target,), work)


def _normalisation(operator: Operator, tape: _Tape) -> None:
    arriving = tape.arriving(operator)
    source, *weights = operator.inputs
    statistics = operator.outputs[1:]
    points = arriving.indices
    reads = (arriving, source, *statistics, *weights[:1])
    tape.emit(operator, f"{operator.function}.grad0", reads, (source,), vector_work(points, 8), operator.exchanges)
    if weights:
        reads = (arriving, source, *statistics)
        tape.emit(operator, f"{operator.function}.grad1", reads, weights[:1], vector_work(points, 3))
    for bias in weights[1:]:
        tape.emit(operator, f"{operator.function}.grad2", (arriving,), (bias,), vector_work(points, 1))


def _softmax(operator: Operator, tape: _Tape) -> None:
    arriving = tape.arriving(operator)
    reads = (arriving, operator.outputs[0])
    # the output is normalised already: shards exchange Σ gradient · output alone
    exchanges = tuple(replace(e, values=1) for e in operator.exchanges)
    work = vector_work(arriving.indices, 4)
    tape.emit(operator, "softmax.grad0", reads, operator.inputs, work, exchanges)


def _attention(operator: Operator, tape: _Tape) -> None:
    # Dao et al. 2022, algorithm 4: scores recomputed, dV, dP, dQ, dK: five products for the forward's two.
    scores, values, *rest = operator.work
    work = (_times(scores, 3), _times(values, 2), *(_times(w, 2) for w in rest))
    reads = (tape.arriving(operator), *operator.inputs, *operator.outputs)
    tape.emit(operator, "softmax.grad", reads, operator.inputs, work)


def _scan(operator: Operator, tape: _Tape) -> None:
    # States are not saved: the backward recomputes the forward's products, then each product's two gradients.
    reads = (tape.arriving(operator), *operator.inputs)
    work = tuple(_times(w, 3) for w in operator.work)
    # shards hand the state on once more and its gradient back
    exchanges = tuple(replace(e, values=2 * e.values) for e in operator.exchanges)
    tape.emit(operator, f"{operator.function}.grad", reads, operator.inputs, work, exchanges)


def _convolution(operator: Operator, tape: _Tape) -> None:
    arriving = tape.arriving(operator)
    source, weight = operator.inputs
    tape.emit(operator, "causal.grad0", (arriving, weight), (source,), operator.work, operator.exchanges)
    tape.emit(operator, "causal.grad1", (arriving, source), (weight,), operator.work, operator.exchanges)


def _embedding(operator: Operator, tape: _Tape) -> None:
    arriving = tape.arriving(operator)
    ids, table = operator.inputs
    tape.emit(operator, "lookup.grad", (arriving, ids), (table,), vector_work(arriving.indices, 1))


def _movement(operator: Operator, tape: _Tape) -> None:
    for position, target in enumerate(operator.inputs):
        tape.emit(operator, f"{operator.function}.grad{position}", (tape.arriving(operator),), (target,), ())


def _routing(operator: Operator, tape: _Tape) -> None:
    logits = operator.inputs[0]
    choice = operator.outputs[1]
    reads = (tape.arriving(operator), logits, choice)
    # experts sharded: a shard sends the scores of the chosen ones it holds, and the maximum and sum of a softmax
    experts = operator.exchanges[0].dim
    exchanges = (Exchange(experts, choice.indices),)
    if operator.function == "softmax":
        exchanges += (Exchange(experts, choice.indices[:-1], 2),)
    work = vector_work(logits.indices, 8)
    tape.emit(operator, f"{operator.function}.grad", reads, (logits,), work, exchanges)


def _dispatch(operator: Operator, tape: _Tape) -> None:
    tokens, choice = operator.inputs
    box = (*choice.indices, tokens.indices[-1])
    tape.emit(operator, "gather.grad", (tape.arriving(operator), choice), (tokens,), vector_work(box, 1))


def _combine(operator: Operator, tape: _Tape) -> None:
    arriving = tape.arriving(operator)
    results, gates, choice = operator.inputs
    box = (*gates.indices, arriving.indices[-1])
    tape.emit(operator, "weighted_sum.grad0", (arriving, gates, choice), (results,), vector_work(box, 1))
    tape.emit(operator, "weighted_sum.grad1", (arriving, results, choice), (gates,), vector_work(box, 2))


def _loss(operator: Operator, tape: _Tape) -> None:
    logits, labels = operator.inputs
    reads = (tape.arriving(operator), operator.outputs[1], labels)
    tape.emit(operator, "cross_entropy.grad", reads, (logits,), vector_work(logits.indices, 2))


def _times(work: Work, factor: int) -> Work:
    return Work(work.dims, work.flops_per_point * factor, work.unit)


#: One rule per differentiable kind; an indexer passes no gradient and an optimizer has no backward.
RULES: Mapping[Kind, Callable[[Operator, _Tape], None]] = {
    Kind.CONTRACTION: _contraction,
    Kind.ATTENTION: _attention,
    Kind.LINEAR_ATTENTION: _scan,
    Kind.STATE_SPACE: _scan,
    Kind.CONVOLUTION: _convolution,
    Kind.ELEMENTWISE: _elementwise,
    Kind.NORMALISATION: _normalisation,
    Kind.SOFTMAX: _softmax,
    Kind.EMBEDDING: _embedding,
    Kind.ROUTING: _routing,
    Kind.DISPATCH: _dispatch,
    Kind.COMBINE: _combine,
    Kind.MOVEMENT: _movement,
    Kind.LOSS: _loss,
}
