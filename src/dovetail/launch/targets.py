"""The launch files that are written and read: a table of targets, and which of them a file is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.launch.accelerate import write as accelerate
from dovetail.launch.deepspeed import read as deepspeed_read
from dovetail.launch.deepspeed import write as deepspeed
from dovetail.launch.launch_file import Launch, Reading
from dovetail.launch.maxtext import write as maxtext
from dovetail.launch.megatron import read as megatron_read
from dovetail.launch.megatron import write as megatron
from dovetail.launch.torchtitan import read as torchtitan_read
from dovetail.launch.torchtitan import write as torchtitan
from dovetail.plans.plan_file import Task


@dataclass(frozen=True, slots=True)
class Exporter:
    """A target that plans are written for."""

    #: the framework version that is written for
    version: str
    export: Callable[[Task], Launch]


EXPORTERS: dict[str, Exporter] = {
    "megatron": Exporter(megatron.VERSION, megatron.export),
    "torchtitan": Exporter(torchtitan.VERSION, torchtitan.export),
    "deepspeed": Exporter(deepspeed.VERSION, deepspeed.export),
    "accelerate": Exporter(accelerate.VERSION, accelerate.export),
    "maxtext": Exporter(maxtext.VERSION, maxtext.export),
}

#: Target → what reads its launch files: the text, what to call the file, and the number of chips where that is said.
IMPORTERS: dict[str, Callable[[str, str, int | None], Reading]] = {
    "megatron": megatron_read.read,
    "torchtitan": lambda text, where, _: torchtitan_read.read(text, where),
    "deepspeed": lambda text, where, _: deepspeed_read.read(text, where),
}

#: What only files of a target have.
_SIGNS = {
    "deepspeed": re.compile(r"^\s*\{"),
    "torchtitan": re.compile(r"--(parallelism|training|activation_checkpoint|module)\b[.\s=]|torchtitan"),
    "megatron": re.compile(r"--(tensor-model-parallel-size|num-layers|micro-batch-size|hidden-size)\b"),
}


def read_launch(text: str, where: str, target: str | None = None, chips: int | None = None) -> Reading:
    """What a launch file says; its format is told by what stands in it where nobody says."""
    format_name = target or next((name for name, sign in _SIGNS.items() if sign.search(text)), None)
    if format_name is None:
        fix = f"say which with --format, one of {', '.join(IMPORTERS)}"
        raise InputError(where, "does not look like a launch file of Megatron-LM, torchtitan or DeepSpeed", fix)
    return IMPORTERS[format_name](text, where, chips)
