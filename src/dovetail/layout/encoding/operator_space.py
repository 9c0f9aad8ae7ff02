"""Every canonical way to run one operator on a tile: counted and listed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import TypeAlias

from dovetail.frozen import frozen
from dovetail.graph import Operator
from dovetail.graph.size import Sizes
from dovetail.layout.encoding.canonical import canonical_strings
from dovetail.layout.encoding.factor import REPLICATE, Factor, MeshAxis, String, Strings, extent, primes, sharded_by
from dovetail.layout.encoding.rules import divides, is_free, may_shard
from dovetail.layout.encoding.stream import streamed_operand

Label: TypeAlias = "tuple[str, bool]"


@frozen
class _Signature:
    """What a string means for the rules: strings that share it can stand for each other."""

    parts: tuple[tuple[str, int], ...]
    #: the operand it streams, if any
    streams: tuple[str, ...]


class OperatorSpace:
    """The canonical encodings of one operator on a tile of rows × cols dies.

    `dominated` keeps replication where a free shard would do the same work in parts (see `dominated`).
    """

    def __init__(self, operator: Operator, sizes: Sizes, rows: int, cols: int, *, dominated: bool = True) -> None:
        self.operator = operator
        self.sizes = sizes
        self.rows = rows
        self.cols = cols
        self._keeps_dominated = dominated
        self._free = tuple(dim for dim in operator.dims if is_free(operator, dim))
        self._labels = tuple(self._all_labels())
        self._strings = {size: self._along(size) for size in {rows, cols}}
        self._pairs: list[tuple[_Signature, _Signature]] | None = None

    def __iter__(self) -> Iterator[Strings]:
        ways = {size: [(s, string) for s, strings in by.items() for string in strings] for size, by in self._each()}
        for (one, rows), (other, cols) in product(ways[self.rows], ways[self.cols]):
            if (self.rows != self.cols or rows <= cols) and self._fits(one, other):
                yield Strings(rows, cols)

    def __contains__(self, strings: Strings) -> bool:
        if canonical_strings(strings, self.rows, self.cols) != strings:
            return False
        if (extent(strings.rows), extent(strings.cols)) != (self.rows, self.cols):
            return False
        neighbours = (pair for axis in MeshAxis for pair in pairwise(strings.along(axis)))
        if any(later.streamed and not earlier.streamed for earlier, later in neighbours):
            return False
        one, other = self._signature(strings.rows), self._signature(strings.cols)
        return one is not None and other is not None and self._fits(one, other)

    def count(self) -> int:
        """How many there are, counted without listing them: strings that mean the same to the rules count at once."""
        rows, cols = self._strings[self.rows], self._strings[self.cols]
        pairs = sum(len(rows[one]) * len(cols[other]) for one, other in self._fitting())
        if self.rows != self.cols:
            return pairs
        # Burnside: a pair and its transpose are one, a pair of equal strings is its own transpose
        return (pairs + sum(len(strings) for one, strings in rows.items() if self._fits(one, one))) // 2

    def _all_labels(self) -> Iterator[Label]:
        yield REPLICATE, False
        for dim in self.operator.dims:
            if may_shard(self.operator, dim):
                yield dim, False
                if streamed_operand(self.operator, dim, self.sizes):
                    yield dim, True

    def _along(self, size: int) -> dict[_Signature, list[String]]:
        """Merged strings of an axis that break no rule by themselves, by what they mean for the rules."""
        by_signature: dict[_Signature, list[String]] = {}
        waiting: list[tuple[String, int]] = [((), size)]
        while waiting:
            string, left = waiting.pop()
            signature = self._signature(string)
            if signature is None:
                continue
            if left == 1:
                by_signature.setdefault(signature, []).append(string)
            for factor in (f for f in range(2, left + 1) if left % f == 0):
                for dim, streamed in self._labels:
                    last = string[-1] if string else None
                    if last is None or (last.label != (dim, streamed) and (last.streamed or not streamed)):
                        waiting.append(((*string, Factor(factor, dim, streamed)), left // factor))
        for strings in by_signature.values():
            strings.sort()
        return dict(sorted(by_signature.items(), key=lambda item: (item[0].parts, item[0].streams)))

    def _each(self) -> Iterator[tuple[int, dict[_Signature, list[String]]]]:
        return iter(self._strings.items())

    def _signature(self, string: String) -> _Signature | None:
        """What a string means for the rules; None where it breaks one."""
        if any(factor.label not in self._labels for factor in string):
            return None
        parts = sharded_by(string)
        if any(dim != REPLICATE and not divides(dim, self.sizes, n) for dim, n in parts.items()):
            return None
        streams = {streamed_operand(self.operator, f.dim, self.sizes) for f in string if f.streamed}
        if len(streams) > 1:
            return None
        return _Signature(tuple(sorted(parts.items())), next(iter(streams), ()))

    def _fits(self, one: _Signature, other: _Signature) -> bool:
        if one.streams and other.streams and one.streams != other.streams:
            return False
        parts = dict(one.parts)
        for dim, number in other.parts:
            parts[dim] = parts.get(dim, 1) * number
        if any(dim != REPLICATE and not divides(dim, self.sizes, n) for dim, n in parts.items()):
            return False
        return self._keeps_dominated or not self._dominated(parts)

    def _dominated(self, parts: dict[str, int]) -> bool:
        replicas = set(primes(parts.get(REPLICATE, 1)))
        return any(divides(dim, self.sizes, parts.get(dim, 1) * p) for p in replicas for dim in self._free)

    def _fitting(self) -> list[tuple[_Signature, _Signature]]:
        if self._pairs is None:
            pairs = product(self._strings[self.rows], self._strings[self.cols])
            self._pairs = [(one, other) for one, other in pairs if self._fits(one, other)]
        return self._pairs


def dominated(operator: Operator, sizes: Sizes, strings: Strings) -> bool:
    """Whether dies replicate work that a free shard would divide.

    A prime part of a replicate factor could shard a dim that every output has, whose sharding makes the operator send
    nothing, and which is still long enough: the dies would do less, store less and send nothing more. What reads
    the output may have to gather it, which is why deletion is a choice and not a rule.
    """
    parts = sharded_by(strings)
    replicas = set(primes(parts.get(REPLICATE, 1)))
    free = [dim for dim in operator.dims if is_free(operator, dim)]
    return any(divides(dim, sizes, parts.get(dim, 1) * prime) for prime in replicas for dim in free)


def enumerate_operator(
    operator: Operator, sizes: Sizes, rows: int, cols: int, *, dominated: bool = True
) -> Iterator[Strings]:
    """The canonical encodings of an operator on a tile, one after the other."""
    return iter(OperatorSpace(operator, sizes, rows, cols, dominated=dominated))


def count_operator(operator: Operator, sizes: Sizes, rows: int, cols: int, *, dominated: bool = True) -> int:
    """How many canonical encodings an operator has on a tile."""
    return OperatorSpace(operator, sizes, rows, cols, dominated=dominated).count()
