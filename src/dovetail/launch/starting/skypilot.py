"""A launch as a SkyPilot task."""

from __future__ import annotations

from dovetail.launch.starting.nodes import (
    FILL_IN,
    NodeLaunch,
    checks,
    exports,
    heading,
    node_command,
    port,
    written_files,
)
from dovetail.launch.starting.yaml_text import block

#: Our chips → SkyPilot's accelerators.
ACCELERATORS = {
    "a100-40gb": "A100",
    "a100-80gb": "A100-80GB",
    "b200": "B200",
    "b300": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "mi300x": "MI300X",
    "trainium1": "Trainium",
    "trainium2": "Trainium2",
}
#: TPUs → name of their slices, and what a chip counts in it: some are named after cores, two on a chip.
SLICES = {
    "tpu-v3": ("tpu-v3", 2),
    "tpu-v4": ("tpu-v4", 2),
    "tpu-v5e": ("tpu-v5litepod", 1),
    "tpu-v5p": ("tpu-v5p", 2),
    "tpu-v6e": ("tpu-v6e", 1),
}


def skypilot(launch: NodeLaunch) -> tuple[str, str]:
    """The task; SkyPilot itself refuses to start it while a variable of `envs` is null."""
    name = f"{launch.target}-sky.yaml"
    num_nodes, accelerators = _resources(launch)
    asked = {"setup": f"commands that install {launch.framework} on a node, or set resources.image_id"}
    if accelerators.startswith(FILL_IN):
        asked["accelerators"] = f"what your clouds call {launch.cluster.chip.name}: sky show-gpus --all"
    usage = [f"Start it in the folder of the program, which is copied to every node: sky launch {name}"]
    if launch.start.fill_in:
        usage.append("Set the variables below in envs, or with --env NAME=VALUE.")
    run = [
        "set -euo pipefail",
        *checks(launch),
        'NODE_RANK="$SKYPILOT_NODE_RANK"',
        'MASTER_ADDR="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"',
        port(),
        *exports(launch),
        *written_files(launch),
        "",
        *node_command(launch),
    ]
    envs = ["", "envs:", *(f"  {variable}: null" for variable in launch.start.fill_in)] if launch.start.fill_in else []
    lines = [
        *heading(launch, usage, asked),
        "",
        f"name: {launch.name}",
        f"num_nodes: {num_nodes}",
        "workdir: .",
        "",
        "resources:",
        f"  accelerators: {accelerators}",
        *envs,
        "",
        "setup: |",
        f"  # install {launch.framework} here",
        "",
        "run: |",
        block(run, 2),
    ]
    return name, "\n".join(lines) + "\n"


def _resources(launch: NodeLaunch) -> tuple[int, str]:
    """SkyPilot's nodes, and what each has; a slice of TPUs is one node of several hosts."""
    chip = launch.cluster.chip.name
    if chip in SLICES:
        slice_name, count = SLICES[chip]
        chips = launch.cluster.tiers[0].size if launch.cluster.tiers else 1
        return launch.cluster.chips // chips, f"{slice_name}-{chips * count}"
    return launch.nodes, f"{ACCELERATORS.get(chip, FILL_IN)}:{launch.chips_per_node}"
