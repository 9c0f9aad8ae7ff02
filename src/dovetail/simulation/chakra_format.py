"""Messages of a Chakra execution trace as protobuf bytes: field numbers of et_def.proto of mlcommons/chakra 1.0.0.

A file is GlobalMetadata followed by Nodes, each message after its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache

from dovetail.layout import CollectiveKind

#: Of the schema.
VERSION = "1.0.0"


class NodeType(IntEnum):
    """What a node does."""

    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


#: A permute has no type there: it is written as sends and receives.
COMM_TYPES = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}


_ONE_BYTE = [bytes((number,)) for number in range(0x80)]


def varint(number: int) -> bytes:
    """A whole number of at least 0, seven bits a byte, the lowest first."""
    if number <= 0x7F:
        return _ONE_BYTE[number]
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def framed(message: bytes) -> bytes:
    """A message after its length."""
    return varint(len(message)) + message


def _number(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def _bytes(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + framed(content)


def _packed(field: int, numbers: Iterable[int]) -> bytes:
    content = b"".join(map(varint, numbers))
    return _bytes(field, content) if content else b""


@lru_cache(maxsize=2**16)
def _attribute(name: str, value: bytes) -> bytes:
    return _bytes(10, _bytes(1, name.encode()) + value)


def int32(name: str, number: int) -> bytes:
    """An attribute of a node, not negative."""
    return _attribute(name, _number(7, number))


def int64(name: str, number: int) -> bytes:
    """An attribute of a node, not negative."""
    return _attribute(name, _number(9, number))


def uint64(name: str, number: int) -> bytes:
    """An attribute of a node."""
    return _attribute(name, _number(13, number))


def boolean(name: str, *, value: bool) -> bytes:
    """An attribute of a node."""
    return _attribute(name, _number(27, int(value)))


def string(name: str, text: str) -> bytes:
    """An attribute of a node."""
    return _attribute(name, _bytes(29, text.encode()))


def node(
    number: int,
    name: str,
    kind: NodeType,
    data_deps: Iterable[int],
    ctrl_deps: Iterable[int],
    span_us: tuple[int, int],
) -> bytes:
    """A node that begins and ends at these microseconds; its attributes follow it."""
    start, end = span_us
    return b"".join((
        _number(1, number),
        _bytes(2, name.encode()),
        _number(3, kind),
        _packed(4, ctrl_deps),
        _packed(5, data_deps),
        _number(6, start),
        _number(7, end - start),
    ))  # fmt: skip


def metadata(producer: str) -> bytes:
    """What a file begins with."""
    attribute = _bytes(1, b"producer") + _bytes(29, producer.encode())
    return _bytes(1, VERSION.encode()) + _bytes(2, attribute)
