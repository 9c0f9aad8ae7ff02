"""The IR: operators over named dims, layer graphs, differentiation, verification."""

from dovetail.graph.builder import LayerBuilder
from dovetail.graph.count import (
    active_parameters,
    bytes_read,
    bytes_written,
    flops,
    matmul_flops,
    parameters,
    saved_bytes,
)
from dovetail.graph.differentiate import Backward, differentiate
from dovetail.graph.layer import LayerGraph
from dovetail.graph.mask import Compressed, Mask, Span
from dovetail.graph.model import ModelGraph, Run, verify_chain
from dovetail.graph.operator import DimSplit, Exchange, Kind, Operand, Operator, Phase, Unit, Work
from dovetail.graph.optimizer import OPTIMIZERS, Orthogonalized, optimizer_step, orthogonalized
from dovetail.graph.size import DerivedSize
from dovetail.graph.tensor import HALF_PRECISION, Element, Role, Tensor
from dovetail.graph.verify import GraphError, verify

__all__ = [
    "HALF_PRECISION",
    "OPTIMIZERS",
    "Backward",
    "Compressed",
    "DerivedSize",
    "DimSplit",
    "Element",
    "Exchange",
    "GraphError",
    "Kind",
    "LayerBuilder",
    "LayerGraph",
    "Mask",
    "ModelGraph",
    "Operand",
    "Operator",
    "Orthogonalized",
    "Phase",
    "Role",
    "Run",
    "Span",
    "Tensor",
    "Unit",
    "Work",
    "active_parameters",
    "bytes_read",
    "bytes_written",
    "differentiate",
    "flops",
    "matmul_flops",
    "optimizer_step",
    "orthogonalized",
    "parameters",
    "saved_bytes",
    "verify",
    "verify_chain",
]
