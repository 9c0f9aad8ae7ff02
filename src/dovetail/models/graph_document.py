"""A model's graph as plain data: what a traced model file holds of its layers, and the same graph read from it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from dovetail.documents import IN_FULL, Spec, validate
from dovetail.graph import (
    Compressed,
    DerivedSize,
    Element,
    Exchange,
    Kind,
    LayerGraph,
    Mask,
    ModelGraph,
    Operand,
    Operator,
    Phase,
    Role,
    Run,
    Span,
    Tensor,
    Unit,
    Work,
)
from dovetail.graph.operator import Attribute
from dovetail.graph.size import DimSize
from dovetail.models.graph_checks import check_graph
from dovetail.models.limits import MAX_LAYERS, MAX_TOKENS, Layers, Name

MAX_CLASSES = 4096
MAX_OPERATORS = 20_000
MAX_TENSORS = 3 * MAX_OPERATORS
MAX_DIMS = 4096

#: Names inside a layer; those of traced modules are longer than a model's.
Inner = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
#: No operator or tensor of a layer has more dims, operands, or statements of one kind.
Dims = Annotated[tuple[Inner, ...], Field(strict=False, max_length=64)]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Words = Annotated[str, Field(max_length=100)]
#: A fraction as text: exact, unlike a number with a point.
Ratio = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,30}(/[1-9][0-9]{0,30})?$")]


#: What a part is that says no more than usual.
IN_SHORT = "in short"


def _form(value: object) -> str:
    return IN_FULL if isinstance(value, Mapping | Spec) else IN_SHORT


class DerivedSizeSpec(Spec):
    """The size of a dim that follows others: factor · numerator / denominator."""

    numerator: Dims
    """dims whose sizes are multiplied"""
    denominator: Dims = ()
    """dims whose sizes it is divided by"""
    factor: Ratio = "1"
    """as text: 3 or 1/8"""
    at_most: Count | None = None
    """the size where it would be larger"""
    imbalance: Annotated[float, Field(ge=1, le=1e9)] | None = None
    """largest part over mean part, where work along the dim is uneven"""

    def size(self) -> DerivedSize:
        """The same for use."""
        return DerivedSize(self.numerator, self.denominator, Fraction(self.factor), self.at_most, self.imbalance)


class TensorSpec(Spec):
    """A tensor that is not an activation in the job's precision; those are written as their dims alone."""

    dims: Dims
    role: Annotated[Role, Field(strict=False)] = Role.ACTIVATION
    """what it is for"""
    element: Annotated[Element, Field(strict=False)] = Element.COMPUTE
    """how wide an element is"""
    tied: Words = ""
    """weights of the same name are one, wherever in the model they stand"""
    active_share: Ratio = "1"
    """the part of a weight that one token uses, as text: 1/8"""
    frozen: bool = False
    """a weight that is not trained"""


class OperandSpec(Spec):
    """A tensor whose dims an operator calls otherwise."""

    tensor: Inner
    indices: Dims
    """the operator's name for each of the tensor's dims"""


class WorkSpec(Spec):
    """Other work than a product's multiply and add; that is written as its dims alone."""

    dims: Dims
    flops_per_point: Annotated[int, Field(ge=0, le=2**40)] = 2
    unit: Annotated[Unit, Field(strict=False)] = Unit.MATRIX


class ExchangeSpec(Spec):
    """What shards exchange when a dim is sharded."""

    dim: Inner
    dims: Dims
    """they exchange `values` numbers per point of these"""
    values: Annotated[int, Field(ge=1, le=2**40)] = 1
    passed_on: bool = False
    """to the next shard in order, instead of combined by all"""


class CompressedSpec(Spec):
    """Keys that each stand for several tokens of the past, behind all others on the key dim."""

    share: Ratio
    """the part of all keys that they are, as text: 1/5"""
    top_k: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """how many of them a query sees at most; left out: all of the past"""


class MaskSpec(Spec):
    """Which keys a query attends to."""

    causal: bool
    span: Annotated[Span, Field(strict=False)] = Span.ALL
    width: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    """keys a query sees in all, where the span is not all"""
    query: Inner = "seq"
    key: Inner = "key_seq"
    compressed: CompressedSpec | None = None
    """keys of another kind behind these"""

    def mask(self) -> Mask:
        """The same for use."""
        beside = self.compressed
        compressed = None if beside is None else Compressed(Fraction(beside.share), beside.top_k)
        return Mask(self.causal, self.span, self.width, self.query, self.key, compressed)


AnySize = Annotated[Annotated[Count, Tag(IN_SHORT)] | Annotated[DerivedSizeSpec, Tag(IN_FULL)], Discriminator(_form)]
AnyTensor = Annotated[Annotated[Dims, Tag(IN_SHORT)] | Annotated[TensorSpec, Tag(IN_FULL)], Discriminator(_form)]
AnyOperand = Annotated[Annotated[Inner, Tag(IN_SHORT)] | Annotated[OperandSpec, Tag(IN_FULL)], Discriminator(_form)]
AnyWork = Annotated[Annotated[Dims, Tag(IN_SHORT)] | Annotated[WorkSpec, Tag(IN_FULL)], Discriminator(_form)]


class GraphOperatorSpec(Spec):
    """One operator of the forward; the backward is derived."""

    name: Inner
    kind: Annotated[Kind, Field(strict=False)]
    function: Words
    """which member of the kind, such as gelu or rms"""
    inputs: Annotated[tuple[AnyOperand, ...], Field(strict=False, max_length=64)]
    outputs: Annotated[tuple[AnyOperand, ...], Field(strict=False, min_length=1, max_length=64)]
    work: Annotated[tuple[AnyWork, ...], Field(strict=False, max_length=64)] = ()
    saves: Dims = ()
    """tensors that its backward reads, except weights"""
    exchanges: Annotated[tuple[ExchangeSpec, ...], Field(strict=False, max_length=64)] = ()
    indivisible: Dims = ()
    """dims that stay whole on a chip"""
    regroups: Annotated[
        tuple[Annotated[tuple[Inner, Inner], Field(strict=False)], ...], Field(strict=False, max_length=64)
    ] = ()
    """an input dim and the output dim it becomes"""
    mask: MaskSpec | None = None
    fusion: Words = ""
    """operators with the same label run as one kernel"""
    attributes: dict[Inner, Attribute] = Field(default_factory=dict[str, Attribute], max_length=64)

    def operator(self, tensors: Mapping[str, Tensor]) -> Operator:
        """The same for use."""
        return Operator(
            self.name,
            self.kind,
            self.function,
            tuple(_operand(each, tensors) for each in self.inputs),
            tuple(_operand(each, tensors) for each in self.outputs),
            work=tuple(_work(each) for each in self.work),
            saves=self.saves,
            exchanges=tuple(Exchange(e.dim, e.dims, e.values, e.passed_on) for e in self.exchanges),
            indivisible=self.indivisible,
            regroups=self.regroups,
            mask=None if self.mask is None else self.mask.mask(),
            fusion=self.fusion,
            attributes=dict(self.attributes),
        )


class LayerSpec(Spec):
    """A layer class."""

    sizes: Annotated[dict[Inner, AnySize], Field(max_length=MAX_DIMS)]
    """of every dim but batch and seq"""
    inputs: Dims
    """what it is handed; of a block the stream, called x"""
    outputs: Dims
    """what it hands on"""
    tensors: Annotated[dict[Inner, AnyTensor], Field(max_length=MAX_TENSORS)]
    """all of them, weights too, by name"""
    operators: Annotated[tuple[GraphOperatorSpec, ...], Field(strict=False, max_length=MAX_OPERATORS)]
    """in an order in which they can run"""

    def layer(self, name: str) -> LayerGraph:
        """The same for use."""
        sizes: dict[str, DimSize] = {
            dim: size.size() if isinstance(size, DerivedSizeSpec) else size for dim, size in self.sizes.items()
        }
        tensors = {each: _tensor(each, spec) for each, spec in self.tensors.items()}
        operators = tuple(spec.operator(tensors) for spec in self.operators)
        return LayerGraph(name, sizes, tensors, operators, self.inputs, self.outputs)


class RunSpec(Spec):
    """Layers of one class in a row."""

    layer: Name
    count: Layers = 1


class GraphSpec(Spec):
    """A chain of layer classes: embedding, blocks, head, and modules that predict further tokens."""

    layers: Annotated[dict[Name, LayerSpec], Field(min_length=1, max_length=MAX_CLASSES)]
    """layer classes by name"""
    chain: Annotated[tuple[RunSpec, ...], Field(strict=False, min_length=1, max_length=MAX_LAYERS)]
    """which of them follow each other, from the embedding to the loss"""

    @model_validator(mode="after")
    def _consistent(self) -> GraphSpec:
        check_graph(self.graph("graph"))
        return self

    def graph(self, name: str) -> ModelGraph:
        """The graph of a model of this name."""
        layers = {each: spec.layer(each) for each, spec in self.layers.items()}
        return ModelGraph(name, layers, tuple(Run(run.layer, run.count) for run in self.chain))


def document_of_graph(graph: ModelGraph) -> GraphSpec:
    """A graph as plain data; one that a file must not hold is refused."""
    assert all(name == layer.name for name, layer in graph.layers.items()), "layers bear the names of their classes"
    chain = tuple({"layer": run.layer, "count": run.count} for run in graph.chain)
    fields = {"layers": {name: _layer_fields(layer) for name, layer in graph.layers.items()}, "chain": chain}
    return validate(GraphSpec, fields, "graph")


def _layer_fields(layer: LayerGraph) -> dict[str, Any]:
    return {
        "sizes": {dim: size if isinstance(size, int) else _size_fields(size) for dim, size in layer.sizes.items()},
        "inputs": layer.inputs,
        "outputs": layer.outputs,
        "tensors": {name: _tensor_fields(tensor) for name, tensor in layer.tensors.items()},
        "operators": tuple(_operator_fields(operator, layer.tensors) for operator in layer.operators),
    }


def _size_fields(size: DerivedSize) -> dict[str, Any]:
    fields: dict[str, Any] = {"numerator": size.numerator, "denominator": size.denominator, "factor": str(size.factor)}
    return fields | {"at_most": size.at_most, "imbalance": size.imbalance}


def _tensor_fields(tensor: Tensor) -> object:
    if tensor == Tensor(tensor.name, tensor.dims):
        return tensor.dims
    fields = {"dims": tensor.dims, "role": tensor.role, "element": tensor.element, "tied": tensor.tied}
    return fields | {"active_share": str(tensor.active_share), "frozen": tensor.frozen}


def _operator_fields(operator: Operator, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    assert operator.phase is Phase.FORWARD, f"{operator.name} is no operator of a forward"
    mask = operator.mask
    return {
        "name": operator.name,
        "kind": operator.kind,
        "function": operator.function,
        "inputs": tuple(_operand_fields(each, tensors) for each in operator.inputs),
        "outputs": tuple(_operand_fields(each, tensors) for each in operator.outputs),
        "work": tuple(_work_fields(each) for each in operator.work),
        "saves": operator.saves,
        "exchanges": tuple(
            {"dim": e.dim, "dims": e.dims, "values": e.values, "passed_on": e.passed_on} for e in operator.exchanges
        ),
        "indivisible": operator.indivisible,
        "regroups": operator.regroups,
        "mask": None if mask is None else _mask_fields(mask),
        "fusion": operator.fusion,
        "attributes": dict(operator.attributes),
    }


def _mask_fields(mask: Mask) -> dict[str, Any]:
    fields = {"causal": mask.causal, "span": mask.span, "width": mask.width, "query": mask.query, "key": mask.key}
    beside = mask.compressed
    return fields | {"compressed": None if beside is None else {"share": str(beside.share), "top_k": beside.top_k}}


def _operand_fields(operand: Operand, tensors: Mapping[str, Tensor]) -> object:
    own = operand.indices == tensors[operand.tensor].dims
    return operand.tensor if own else {"tensor": operand.tensor, "indices": operand.indices}


def _work_fields(work: Work) -> object:
    if (work.flops_per_point, work.unit) == (2, Unit.MATRIX):
        return work.dims
    return {"dims": work.dims, "flops_per_point": work.flops_per_point, "unit": work.unit}


def _tensor(name: str, spec: tuple[str, ...] | TensorSpec) -> Tensor:
    if not isinstance(spec, TensorSpec):
        return Tensor(name, spec)
    return Tensor(name, spec.dims, spec.role, spec.element, spec.tied, Fraction(spec.active_share), spec.frozen)


def _operand(spec: str | OperandSpec, tensors: Mapping[str, Tensor]) -> Operand:
    if isinstance(spec, OperandSpec):
        return Operand(spec.tensor, spec.indices)
    # a tensor that is not declared is refused where the layer is checked
    return Operand(spec, tensors[spec].dims if spec in tensors else ())


def _work(spec: tuple[str, ...] | WorkSpec) -> Work:
    if isinstance(spec, WorkSpec):
        return Work(spec.dims, spec.flops_per_point, spec.unit)
    return Work(spec, 2, Unit.MATRIX)
