"""A launch as a bash script that is run once on every node."""

from __future__ import annotations

from dovetail.launch.starting.nodes import (
    NodeLaunch,
    check,
    checks,
    exports,
    heading,
    node_command,
    port,
    written_files,
)


def script(launch: NodeLaunch) -> tuple[str, str]:
    """The script; on one node it needs nothing but what the launch itself asks for."""
    name = f"{launch.target}.sh"
    asked: dict[str, str] = {}
    where = "in the folder of the program"
    if launch.nodes == 1:
        rendezvous = ['NODE_RANK="${NODE_RANK:-0}"', 'MASTER_ADDR="${MASTER_ADDR:-localhost}"']
    else:
        where = f"on every node, {where}"
        asked = {
            "NODE_RANK": f"the number of this node, from 0 to {launch.nodes - 1}",
            "MASTER_ADDR": "the address of node 0, the same on every node",
        }
        rendezvous = [check(*item) for item in asked.items()]
    usage = [f"Run it {where}: bash {name}", "It reads the variables below from the environment."]
    lines = [
        "#!/usr/bin/env bash",
        *heading(launch, usage, asked),
        "",
        "set -euo pipefail",
        "",
        *checks(launch),
        *rendezvous,
        port(),
        *exports(launch),
        *written_files(launch, shared=launch.nodes > 1),
        "",
        *node_command(launch),
    ]
    return name, "\n".join(lines) + "\n"
