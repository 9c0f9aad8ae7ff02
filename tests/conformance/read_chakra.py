"""Run by the Python that has the mlc-chakra package: reads folders of traces, and says what each has, as JSON.

usage: read_chakra.py FOLDER...; FOLDER has the folders.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

schema: Any = import_module("chakra.schema.protobuf.et_def_pb2")
protolib: Any = import_module("chakra.src.third_party.utils.protolib")


def value_of(attribute: Any) -> Any:
    """Whichever value it has."""
    return getattr(attribute, attribute.WhichOneof("value"))


def read_file(path: Path) -> dict[str, Any]:
    """Sums over the nodes of one rank."""
    nodes, groups = 0, Counter()
    sends, receives, kinds = Counter(), Counter(), Counter()
    compute_us, ordered, seen = 0, True, set()
    with protolib.openFileRd(str(path)) as file:
        head = schema.GlobalMetadata()
        assert protolib.decodeMessage(file, head), path
        node = schema.Node()
        while protolib.decodeMessage(file, node):
            nodes += 1
            ordered &= all(before in seen for before in (*node.data_deps, *node.ctrl_deps))
            seen.add(node.id)
            kind = schema.NodeType.Name(node.type)
            kinds[kind] += 1
            said = {each.name: value_of(each) for each in node.attr}
            if kind == "COMP_NODE":
                compute_us += node.duration_micros
            elif kind == "COMM_COLL_NODE":
                kinds[schema.CollectiveCommType.Name(said["comm_type"])] += 1
                groups[said["pg_name"]] += said["comm_size"]
            else:
                ends = f"{said['comm_src']} {said['comm_dst']} {said['comm_tag']} {said['comm_size']}"
                (sends if kind == "COMM_SEND_NODE" else receives)[ends] += 1
                if kind == "COMM_SEND_NODE" and "pg_name" in said:
                    groups[said["pg_name"]] += said["comm_size"]
    return {
        "version": head.version, "nodes": nodes, "distinct": len(seen), "ordered": ordered, "kinds": kinds,
        "groups": groups, "sends": sends, "receives": receives, "compute_us": compute_us,
    }  # fmt: skip


def main() -> None:
    """Prints what was read."""
    folders = {}
    for folder in sorted(path for root in sys.argv[1:] for path in Path(root).iterdir()):
        files = {path.name.split(".")[1]: read_file(path) for path in folder.glob("trace.*.et")}
        folders[folder.name] = files
    versions = {name: version(name) for name in ("mlc-chakra", "protobuf")}
    json.dump({"versions": versions, "folders": folders}, sys.stdout)


if __name__ == "__main__":
    main()
