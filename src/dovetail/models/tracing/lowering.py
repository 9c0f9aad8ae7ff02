"""From a trace to a model graph: rewrite, infer axes, cut into layers, write each layer, name what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import Kind, LayerGraph, ModelGraph, Run, flops, verify_chain
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.models.build import TOKEN_TABLE
from dovetail.models.model import EMBEDDING, HEAD
from dovetail.models.tracing.chain import LayerCall, TracedChain, chain_of
from dovetail.models.tracing.dim_names import dims_of, handed_dims
from dovetail.models.tracing.emissions import EMISSIONS
from dovetail.models.tracing.emit import Emitter
from dovetail.models.tracing.flow import Flow, Source
from dovetail.models.tracing.infer import Inference
from dovetail.models.tracing.infer_operators import OPERATOR_RULES
from dovetail.models.tracing.infer_views import VIEW_RULES
from dovetail.models.tracing.operator_names import renamed
from dovetail.models.tracing.rewrite import rewrite
from dovetail.models.tracing.rewrite_blocks import rewrite_blocks
from dovetail.models.tracing.rewrite_experts import fold_experts
from dovetail.models.tracing.rewrite_indexers import fold_indexers
from dovetail.models.tracing.trace import Node, Trace, Value

#: Functions of operators that are counted a second time: products, and convolutions that sum over channels.
_COUNTED = frozenset({"einsum", "dense"})
#: What modules that encode images are called.
_VISION = frozenset({"visual", "vision", "vision_tower", "vision_model", "vision_encoder"})


@frozen
class Lowered:
    """A model graph, what of it is approximated, and what it leaves out."""

    graph: ModelGraph
    approximated: Mapping[str, Mapping[str, str]]
    left_out: tuple[str, ...]
    hidden: int
    vocab: int
    #: rows of a table of positions
    positions: int | None
    #: places of a sample where no axis is a sequence of free length
    fixed_seq_len: int | None


def lower(trace: Trace, name: str) -> Lowered:
    """The model graph of a trace."""
    _attach_loss(trace)
    flow = Flow(trace)
    rewritten(flow)
    inf = Inference(flow, {**OPERATOR_RULES, **VIEW_RULES})
    chain = chain_of(flow)
    flow.tied.update(_tied(flow, chain))
    return _Lowering(inf, chain, name).result()


def _tied(flow: Flow, chain: TracedChain) -> dict[str, str]:
    """Parameters that several layers use: by other layers, or by a module that runs more than once."""
    users: dict[str, set[object]] = {}
    places: dict[object, set[str]] = {}
    for number, position in enumerate(chain.positions):
        places.setdefault(position.segment, set()).add(position.path or str(number))
    runs = [position.segment for position in chain.positions]
    for segment, nodes in chain.nodes.items():
        shared = runs.count(segment) > len(places.get(segment, ()))
        for node in nodes:
            for value in node.inputs():
                parameter = flow.parameter(value)
                if parameter is not None:
                    again = shared or parameter.name in flow.trace.shared
                    users.setdefault(parameter.name, set()).update((segment, "again") if again else (segment,))
    tables = (n.args[0] for n in flow.nodes if n.target == "embedding" and flow.of(n.args[1]) is Source.INDEX)
    table = next((p.name for each in tables if (p := flow.parameter(each)) is not None), "")
    return {name: TOKEN_TABLE if name == table else name for name, found in users.items() if len(found) > 1}


def rewritten(flow: Flow) -> None:
    """Rewrites in their order."""
    fold_experts(flow)
    fold_indexers(flow)
    rewrite(flow)
    rewrite_blocks(flow)


#: What stands between the tensor a loss is of and the number that a module returns.
_REDUCED = frozenset({"mean", "sum", "add", "sub", "mul", "div", "pow", "neg", "abs", "square", "_log_softmax",
                      "log_softmax", "nll_loss_forward", "cross_entropy", "mse_loss", "smooth_l1_loss", "clone",
                      "where", "binary_cross_entropy_with_logits", "_to_copy", "view", "slice", "transpose", "permute",
                      "unsqueeze", "_unsafe_view"})  # fmt: skip


def _attach_loss(trace: Trace) -> None:
    """The loss of what a module returns, or of what the number it returns is made of: of classes, or of a distance."""
    makers = {r.id: n for n in trace.nodes for r in n.results}
    out = _before_loss(trace.outputs[0], makers)
    maker = makers.get(out.id)
    while maker is not None and maker.target not in ("linear", "mm", "addmm") and maker.args:
        value = maker.args[0]
        maker = makers.get(value.id) if isinstance(value, Value) and value.shape[-1:] == out.shape[-1:] else None
    classes = maker is not None and len(out.shape) <= 3
    kind = "cross_entropy" if classes else "squared_error"
    highest = max(r.id for n in trace.nodes for r in n.results)
    loss = Value(highest + 1, (), "float32", "", "computed")
    trace.nodes.append(Node("loss", (out,), {"kind": kind}, (loss,), (), -1, max(1, len(trace.units))))
    trace.outputs = (loss,)


def _before_loss(out: Value, makers: Mapping[int, Node]) -> Value:
    """The largest tensor that a number is made of by what losses do; what a module returns where that is no number."""
    if out.shape:
        return out
    value = out
    while (maker := makers.get(value.id)) is not None and maker.target in _REDUCED:
        made = [v for v in maker.inputs() if v.id in makers and v.dtype.startswith(("float", "bfloat"))]
        if not made:
            break
        value = max(made, key=lambda v: prod(v.shape))
    if not value.shape:
        raise InputError("module", "returns a number that is the loss of no tensor", "it should return its logits")
    return value


class _Lowering:
    """Writes each layer class once."""

    def __init__(self, inf: Inference, chain: TracedChain, name: str) -> None:
        self._inf, self._chain, self._name = inf, chain, name
        self._layers: dict[str, LayerGraph] = {}
        self._approximated: dict[str, dict[str, str]] = {}
        self._left_out: dict[str, None] = dict.fromkeys(inf.flow.trace.notes)
        self._note_stops()
        self._note_rows()
        self._classes: dict[object, str] = {}
        self._orders: dict[int, tuple[int, ...]] = {}
        units = inf.flow.units
        #: what a layer that did not run hands on → what the one that ran in its place did
        self._stands_for = {
            call.handed.id: ran.id for call in units if call.handed and (ran := units[call.like].handed) is not None
        }
        # the stream of the last block is the hidden one
        ids = dict.fromkeys(v for p in (chain.positions[-1], *chain.positions) for v in (*p.taken, *p.handed))
        self._handed = handed_dims(inf, inf.flow.nodes, [chain.values[v] for v in ids])
        self._between = self._agreed()

    def _agreed(self) -> dict[int, str]:
        """One name for the atoms that stand in the same place of what a layer is handed and hands on."""
        found = dict(self._handed)
        for call in self._inf.flow.units:
            if call.taken is None or call.handed is None or call.taken == call.handed:
                continue
            pairs = [
                [a for axis in self._inf.of(value) for a in self._inf.atoms.leaves(axis)]
                for value in (call.taken, call.handed)
            ]  # fmt: skip
            if len(pairs[0]) == len(pairs[1]):
                for one, other in zip(*pairs, strict=True):
                    if one != other and one in found:
                        found[other] = found[one]
        return found

    def result(self) -> Lowered:
        """The verified chain."""
        runs: list[Run] = []
        for number, position in enumerate(self._chain.positions):
            layer = self._layer(position, number)
            if runs and runs[-1].layer == layer:
                runs[-1] = Run(layer, runs[-1].count + 1)
            else:
                runs.append(Run(layer, 1))
        graph = verify_chain(ModelGraph(self._name, self._layers, tuple(runs)))
        _check_samples(graph)
        missing = self._inf.flow.trace.num_parameters - graph.parameters()
        if missing:
            self._left_out[f"{missing:,} parameters on which the loss does not depend"] = None
        self._compare_products(graph)
        first = self._layers[runs[0].layer]
        stream = first.tensors[first.outputs[0]]
        sizes = {d: n for each in self._layers.values() for d, n in each.fixed_sizes().items() if isinstance(n, int)}
        hidden = sizes.get("hidden") or sizes[stream.dims[-1]]
        handed = [t for each in self._layers.values() for t in each.stream(each.outputs)]
        places = max(prod(sizes[d] for d in t.dims[:-1] if d in sizes) for t in handed)
        looked_up = [o for each in self._layers.values() for o in each.operators if o.kind is Kind.EMBEDDING]
        tables = [o.inputs[1].indices[0] for o in looked_up if "seq" in o.inputs[0].indices]
        return Lowered(
            graph, {k: v for k, v in self._approximated.items() if v}, tuple(self._left_out), hidden,
            sizes.get("vocab", 0), max((sizes[d] for d in tables if self._is_of_places(d, sizes[d])), default=None),
            places if not self._inf.sequences else self._inf.flow.trace.seq if self._inf.unrolled else None,
        )  # fmt: skip

    def _note_stops(self) -> None:
        """Where gradients stop, which the graph does not know."""
        flow = self._inf.flow
        trained = {v.id for v in flow.outputs}
        stops = 0
        for node in reversed(flow.nodes):
            if not any(r.id in trained for r in node.results) or node.target == "indexer":
                continue
            data = [v for v in (node.args[:3] if node.target == "attention" else node.inputs()) if flow.is_data(v)]
            stops += node.stops and bool(data)
            trained.update(v.id for v in data if v.dtype.startswith(("float", "bfloat")))
        if stops:
            what = f"gradients stop at {stops} operators, and a backward of what comes before is counted all the same"
            self._left_out[what] = None

    def _note_rows(self) -> None:
        """Rows picked by contents nobody knows."""
        for node in self._inf.flow.nodes:
            masks = [v for v in node.inputs() if v.dtype in ("bool", "uint8")] if node.target == "index" else []
            if node.target in ("nonzero", "masked_select") or (masks and self._inf.flow.is_data(node.args[0])):
                what = f"how many rows {node.target} picks is not known: one of each sample stands for them"
                self._left_out[what] = None

    def _is_of_places(self, dim: str, rows: int) -> bool:
        """Whether a table that positions are looked up in has a row for each, and not for classes of distances."""
        return dim.startswith("positions") and rows >= (self._inf.flow.trace.seq or 1)

    def _compare_products(self, graph: ModelGraph) -> None:
        """Notes where products of the graph are not those of the trace: axes that were taken for other ones."""
        trace = self._inf.flow.trace
        theirs = sum(products_of(n) for p in self._chain.positions for n in self._chain.nodes[p.segment])
        ours = 0.0
        for name, count in graph.counts().items():
            layer = graph.layers[name]
            sizes = layer.resolve(batch=trace.batch, seq=trace.seq or 1)
            # experts' products are not in the trace: their operator is recorded as one
            counted = [o for o in layer.operators if o.function in _COUNTED and not o.name.startswith("expert.")]
            ours += count * sum(float(flops(o, sizes)) for o in counted)
        if abs(ours - theirs) > 1e-3 * theirs:
            self._left_out[f"products of {theirs:.4g} FLOPs are {ours:.4g} in the graph"] = None

    def _layer(self, position: LayerCall, number: int) -> str:
        key = (position.segment, position.taken, position.handed)
        if key not in self._classes:
            name = self._class_name(position, number)
            graph, approximated = self._write(position, name)
            same = next((n for n, g in self._layers.items() if _equal(g, graph) and n not in (EMBEDDING, HEAD)), None)
            if same is None or name in (EMBEDDING, HEAD):
                self._layers[name] = graph
                self._approximated[name] = approximated
                same = name
            self._classes[key] = same
        return self._classes[key]

    def _class_name(self, position: LayerCall, number: int) -> str:
        if number == 0:
            return EMBEDDING
        if number == len(self._chain.positions) - 1:
            return HEAD
        parts = [p for p in position.path.split(".") if p and not p.isdigit()]
        base = (parts[-1].strip("_") if parts else "") or "between"
        base = "block" if base in ("layers", "h", "blocks", "layer", "block") else base
        side = "vision" if _VISION & set(parts) else next((p for p in parts if p in ("encoder", "decoder")), "")
        base = f"{side}_{base}" if side and side != base else base
        own, count = base, 2
        while own in self._layers:
            own, count = f"{base}_{count}", count + 1
        return own

    def _write(self, position: LayerCall, name: str) -> tuple[LayerGraph, dict[str, str]]:
        nodes, values = self._chain.nodes[position.segment], self._chain.values
        taken, handed = ([values[v] for v in ids] for ids in (position.taken, position.handed))
        dims = dims_of(self._inf, nodes, self._handed)
        emitter = Emitter(self._inf, name, dims, self._between, EMISSIONS)
        index, is_unit = position.segment
        emitter.below(self._inf.flow.units[index].path if is_unit else "")
        for number, value in enumerate(taken):
            order = self._orders.get(self._stands_for.get(value.id, value.id))
            emitter.input(value, f"x_{number}" if number else "x", order)
        emitter.run(nodes)
        outputs = handed or [nodes[-1].result]
        self._orders.update((v.id, emitter.leaves(emitter.full(v))) for v in handed)
        graph, before = renamed(emitter.build(outputs))
        approximated = {n: emitter.approximated[o] for n, o in before.items() if o in emitter.approximated}
        return graph, approximated


def products_of(node: Node) -> float:
    """FLOPs of a recorded product or convolution, by the shapes it was recorded with."""
    if node.target == "convolution":
        source, weight = node.args[:2]
        places = source if node.arg(6, "transposed", False) else node.result
        return 2.0 * prod(weight.shape) * places.shape[0] * prod(places.shape[2:])
    if node.target not in ("linear", "mm", "bmm", "addmm", "baddbmm"):
        return 0.0
    left = node.args[1] if node.target in ("addmm", "baddbmm") else node.args[0]
    return 2.0 * prod(node.result.shape) * left.shape[-1]


def _check_samples(graph: ModelGraph) -> None:
    """Refuses what sums over the samples of a batch: plans deal them to chips, each to be computed alone."""
    for layer in graph.layers.values():
        for operator in layer.operators:
            reads, makes = ({d for o in side for d in o.indices} for side in (operator.inputs, operator.outputs))
            # samples may go on as tokens of experts, or as part of another dim
            goes_on = {"batch", EXPERT_TOKENS} & makes or any(before == "batch" for before, _ in operator.regroups)
            if "batch" in reads and operator.kind is not Kind.LOSS and not goes_on:
                what = f"sums over the samples of a batch (in {layer.name}.{operator.name})"
                raise InputError("module", what, "trace it without that, or the parts before and behind it alone")


def _equal(one: LayerGraph, other: LayerGraph) -> bool:
    return replace(one, name="") == replace(other, name="")
