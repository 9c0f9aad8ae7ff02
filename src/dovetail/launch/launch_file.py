"""What exporters and importers have in common: a launch file written, and one read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from dovetail import frameworks
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.plans.overlaps import OverlapSwitches, overlaps_of
from dovetail.plans.plan_file import Task


@frozen
class Start:
    """How a launch is started: the same on every node."""

    #: what starts a node's processes
    launcher: Literal["torchrun", "deepspeed", "accelerate", "python"]
    #: what each process runs, as words of a shell line: quoted already, with `$NAME` where the user fills something in
    program: tuple[str, ...]
    #: files that have to stand in the folder it starts from: name → text
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    #: variables of the environment it needs
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    #: what only the user knows: variable → what to put there
    fill_in: Mapping[str, str] = field(default_factory=dict[str, str])


@frozen
class Launch:
    """A launch file."""

    #: what to call it where nobody says
    name: str
    text: str
    #: what it leaves to whoever launches: paths, tokenizers, things the format has no word for
    notes: tuple[str, ...] = ()
    #: how to start it by hand: not needed where a file that starts it is written
    by_hand: tuple[str, ...] = ()
    start: Start | None = None


@frozen
class Reading:
    """What a launch file says, as parts of a plan file; what it does not say is absent."""

    #: a framework of the catalogue
    framework: str
    #: fields of the `job`, `cluster` and `plan` parts
    job: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cluster: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: options that are known and change nothing a plan has: paths, logging, schedules of learning rates
    passed_over: tuple[str, ...] = ()
    #: options nobody here knows: listed, never dropped in silence
    unknown: tuple[str, ...] = ()
    #: what the file leaves to its framework and is taken to be otherwise here
    assumed: tuple[str, ...] = ()


def launched_overlaps(task: Task, *targets: str) -> OverlapSwitches:
    """What overlaps where a target runs a plan: as its own framework permits, whichever the plan was made for."""
    framework: Framework = task.framework if task.framework.name in targets else frameworks.load(targets[0])
    return overlaps_of(task.plan, framework, task.job)


def refuse(target: str, version: str, field_name: str, what: str, fix: str) -> InputError:
    """The sentence for a plan that a target cannot run, to be raised."""
    return InputError(f"plan: {field_name}", f"{what}, which {target} ({version}) does not run", fix)
