"""A file that starts a launch, of the kind a user asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.errors import InputError, one_of, quoted
from dovetail.hardware import Cluster
from dovetail.launch.launch_file import Launch
from dovetail.launch.starting.kubernetes import kubernetes
from dovetail.launch.starting.nodes import NodeLaunch, on_nodes
from dovetail.launch.starting.script import script
from dovetail.launch.starting.skypilot import skypilot
from dovetail.launch.starting.slurm import slurm

_WRITERS: dict[str, Callable[[NodeLaunch], tuple[str, str]]] = {
    "script": script,
    "slurm": slurm,
    "skypilot": skypilot,
    "kubernetes": kubernetes,
}
KINDS = tuple(_WRITERS)


def start_file(kind: str, launch: Launch, target: str, cluster: Cluster, version: str | None = None) -> tuple[str, str]:
    """The name and the text of the file that starts a target's launch on a cluster.

    The version is the framework with the release that the launch was written for; left out, the target's usual one.
    """
    if kind not in _WRITERS:
        raise InputError("--as", f"is {quoted(kind)}", one_of(KINDS, kind))
    return _WRITERS[kind](on_nodes(launch, target, cluster, version))


def started(kind: str, launch: Launch, target: str, cluster: Cluster, version: str | None = None) -> Launch:
    """The launch with that file in place of its own."""
    name, text = start_file(kind, launch, target, cluster, version)
    return replace(launch, name=name, text=text, by_hand=())
