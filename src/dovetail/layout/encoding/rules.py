"""What an operator's strings must obey, each rule with its name; a broken one becomes a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from dovetail.frozen import frozen
from dovetail.graph import Operator
from dovetail.graph.size import Sizes, as_array
from dovetail.layout.encoding.factor import REPLICATE, Factor, MeshAxis, Strings, extent, sharded_by
from dovetail.layout.encoding.stream import streamed_operand
from dovetail.layout.layout import PARTIAL

#: Every rule an encoding can break.
RULES: Mapping[str, str] = MappingProxyType(
    {
        "product": "the factors of a string multiply to the rows or columns of the tile",
        "dim": "a factor shards a dim of its operator",
        "divides": "the parts of a dim are equal: its factors divide its size (except padded dims)",
        "heads": "heads are atomic: a dim inside a head is not sharded",
        "indivisible": "a dim an operator must see whole is not sharded",
        "partial_sums": "partial sums are complete before anything that is not linear in them",
        "streamed": "at most one operand of an operator is streamed",
        "one_hop": "what is streamed takes one hop a round: streamed factors come first in their string",
        "nested": "the strings of a stage end where groups of dies nest",
        "home": "a home exists, has weights to hold, and is sharded along factors that replicate them",
        "helper": "what is saved on a helper goes to another stage of the job",
        "layers": "stages contain every layer of the model once, in order",
        "operators": "every operator of every layer class on a stage is encoded, and no other",
        "inside": "a tile is on the wafer",
        "live": "a tile has no dead die",
        "connected": "the dies of a tile reach each other over its own links",
        "disjoint": "a die belongs to one stage",
        "memory": "the peak memory of a die, stream buffers included, fits",
        "physical": "the wafer is within the limits of area, shoreline, wires, power and yield",
    }
)

#: Dims inside a head, of attention, of a linear attention or of a state-space model.
HEAD_DIMS = frozenset({"head_dim", "value_dim", "nope_dim", "rope_dim", "index_dim", "key_dim", "channel", "state"})

#: Dims that frameworks pad to whole parts.
PADDED_DIMS = frozenset({"vocab"})

#: Functions that are linear in all their inputs together: they may run on terms of a sum.
LINEAR_FUNCTIONS = frozenset({"add", "sum"})


@frozen
class Violation:
    """A broken rule: its name, where, and what is wrong there."""

    rule: str
    where: str
    sentence: str

    def __post_init__(self) -> None:
        assert self.rule in RULES, self.rule

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence} (rule {self.rule}: {RULES[self.rule]})."


def divides(dim: str, sizes: Sizes, parts: int) -> bool:
    """Whether a dim can be sharded into so many parts.

    Padded dims and means (tokens of an expert) need no equal parts, but something in each.
    """
    size = sizes[dim]
    if type(size) is int and dim not in PADDED_DIMS:
        return size % parts == 0
    return bool(float(as_array(size).min()) >= parts)


def may_shard(operator: Operator, dim: str) -> bool:
    """Whether a factor may name a dim, whatever its size."""
    return dim in operator.dims and dim not in HEAD_DIMS and operator.split(dim) is not None


def is_free(operator: Operator, dim: str) -> bool:
    """Whether sharding the dim needs no communication: every output has it, and no statistics are exchanged."""
    split = operator.split(dim) if may_shard(operator, dim) else None
    if split is None or split.partial or split.exchanges:
        return False
    return all(output.tensor in split.sharded for output in operator.outputs)


def operator_violations(
    operator: Operator, sizes: Sizes, strings: Strings, rows: int, cols: int, where: str = ""
) -> Iterator[Violation]:
    """The rules an operator's strings break on a tile of rows × cols dies."""
    where = where or operator.name
    for axis, size in ((MeshAxis.ROWS, rows), (MeshAxis.COLS, cols)):
        string = strings.along(axis)
        if extent(string) != size:
            sizes_text = " × ".join(str(factor.size) for factor in string) or "no factor"
            yield Violation("product", where, f"{sizes_text} along {axis} is not {size}")
        first = next((i for i, factor in enumerate(string) if not factor.streamed), len(string))
        for factor in string[first:]:
            if factor.streamed and factor.size > 1:
                sentence = (
                    f"{_text(factor)} along {axis} comes after a resident factor, so its parts are several hops apart"
                )
                yield Violation("one_hop", where, sentence)
    yield from _dim_violations(operator, sizes, strings, where)
    yield from _stream_violations(operator, sizes, strings, where)


def _dim_violations(operator: Operator, sizes: Sizes, strings: Strings, where: str) -> Iterator[Violation]:
    for dim, parts in sharded_by(strings).items():
        if dim == REPLICATE:
            continue
        if dim == PARTIAL:
            if operator.function not in LINEAR_FUNCTIONS:
                sentence = f"{operator.function} is not linear, so its input must be complete"
                yield Violation("partial_sums", where, sentence)
        elif dim not in operator.dims:
            yield Violation("dim", where, f"{dim} is not one of its dims ({', '.join(operator.dims)})")
        elif dim in HEAD_DIMS:
            yield Violation("heads", where, f"{dim} is inside a head")
        elif operator.split(dim) is None:
            # a dim that some output does not have is summed over: its shards would be partial sums
            summed = any(dim not in output.indices for output in operator.outputs)
            reason = "shards of it would leave partial sums before a nonlinearity" if summed else "it must stay whole"
            yield Violation("partial_sums" if summed else "indivisible", where, f"{dim} is sharded, but {reason}")
        elif not divides(dim, sizes, parts):
            yield Violation("divides", where, f"{dim} of {sizes[dim]} is sharded into {parts} parts")


def _stream_violations(operator: Operator, sizes: Sizes, strings: Strings, where: str) -> Iterator[Violation]:
    travelling: dict[tuple[str, ...], str] = {}
    for factor in strings:
        if not factor.streamed or factor.size == 1:
            continue
        is_dim = factor.dim in operator.dims
        operand = streamed_operand(operator, factor.dim, sizes) if is_dim else ()
        if not operand:
            yield Violation("streamed", where, f"{_text(factor)} has no operand to stream")
        travelling.setdefault(operand, factor.dim)
    if len(travelling) > 1:
        several = "; ".join(f"{' and '.join(names) or 'nothing'} along {dim}" for names, dim in travelling.items())
        yield Violation("streamed", where, f"more than one operand is streamed ({several})")


def _text(factor: Factor) -> str:
    return f"{factor.size} × {factor.dim}"
