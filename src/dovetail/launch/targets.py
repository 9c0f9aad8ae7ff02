"""The launch files that are written and read: a table of targets, and which of them a file is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import InputError, quoted
from dovetail.launch.accelerate import read as accelerate_read
from dovetail.launch.accelerate import write as accelerate
from dovetail.launch.companions import Companions
from dovetail.launch.deepspeed import read as deepspeed_read
from dovetail.launch.deepspeed import write as deepspeed
from dovetail.launch.deepspeed.read_command import COMMAND
from dovetail.launch.launch_file import Launch, Reading
from dovetail.launch.maxtext import read as maxtext_read
from dovetail.launch.maxtext import write as maxtext
from dovetail.launch.megatron import bridge
from dovetail.launch.megatron import read as megatron_read
from dovetail.launch.megatron import write as megatron
from dovetail.launch.shell.script import read_script
from dovetail.launch.torchtitan import read as torchtitan_read
from dovetail.launch.torchtitan import write as torchtitan
from dovetail.plans.launch_models.megatron import RELEASES
from dovetail.plans.plan_file import Task


@dataclass(frozen=True, slots=True)
class Exporter:
    """A target that plans are written for."""

    #: the framework version that is written for, without the release where there are several
    version: str
    #: a task and one of the releases as a launch file
    write: Callable[[Task, str], Launch]
    #: releases there is a choice of, the newest first
    releases: tuple[str, ...] = ("",)

    def export(self, task: Task, release: str | None = None) -> Launch:
        """The launch file; for the newest release unless one is named."""
        if release is not None and release not in self.releases:
            choices = ", ".join(self.releases) if self.releases != ("",) else self.version
            raise InputError("--release", f"is {quoted(release)}", f"it should be one of {choices}")
        return self.write(task, release or self.releases[0])

    def version_of(self, release: str | None) -> str:
        """The version that is written for, in full."""
        return f"{self.version} {release or self.releases[0]}".strip()


EXPORTERS: dict[str, Exporter] = {
    "megatron": Exporter("Megatron-LM core", megatron.export, RELEASES),
    "bridge": Exporter(bridge.VERSION, lambda task, _: bridge.export(task)),
    "torchtitan": Exporter(torchtitan.VERSION, lambda task, _: torchtitan.export(task)),
    "deepspeed": Exporter(deepspeed.VERSION, lambda task, _: deepspeed.export(task)),
    "accelerate": Exporter(accelerate.VERSION, lambda task, _: accelerate.export(task)),
    "maxtext": Exporter(maxtext.VERSION, lambda task, _: maxtext.export(task)),
}

#: Target → what reads its launch files: the text, what to call the file, the number of chips where that is said, and
#: the files it may name.
IMPORTERS: dict[str, Callable[[str, str, int | None, Companions], Reading]] = {
    "megatron": lambda text, where, chips, _: megatron_read.read(text, where, chips),
    "torchtitan": torchtitan_read.read,
    "deepspeed": deepspeed_read.read,
    "accelerate": lambda text, where, _, __: accelerate_read.read(_configuration(text, where), where),
    "maxtext": lambda text, where, _, __: maxtext_read.read(_configuration(text, where), where),
}


def _configuration(text: str, where: str) -> str:
    """The YAML of a file: the file itself, or what a script writes."""
    if not text.startswith("#!"):
        return text
    written = [each for name, each in read_script(text, where).files.items() if name.endswith((".yaml", ".yml"))]
    if len(written) != 1:
        raise InputError(where, f"writes {len(written)} YAML files", "it should write one, or give the YAML itself")
    return written[0]


#: What only files of a target have, in the order of asking: DeepSpeed also starts Megatron-LM.
_SIGNS = (
    ("deepspeed", re.compile(r"^\s*\{")),
    ("megatron", re.compile(r"--(tensor-model-parallel-size|num-layers|micro-batch-size|hidden-size)\b")),
    ("accelerate", re.compile(r"^(compute_environment|fsdp_config):", re.MULTILINE)),
    ("maxtext", re.compile(r"^(base_config|base_emb_dim|per_device_batch_size|ici_\w+_parallelism):", re.MULTILINE)),
    ("deepspeed", COMMAND),
    (
        "torchtitan",
        re.compile(
            r"--(parallelism|training|activation_checkpoint|module)\b[.\s=]|torchtitan|\brun_train[.]sh\b"
            r"|^\s*\[(parallelism|training|model|activation_checkpoint)\]",
            re.MULTILINE,
        ),
    ),
)


def read_launch(
    text: str, where: str, target: str | None = None, chips: int | None = None, folder: Path | None = None
) -> Reading:
    """What a launch file says; its format is told by what stands in it where nobody says.

    Files that it names are read from its folder where that is given.
    """
    format_name = target or next((name for name, sign in _SIGNS if sign.search(text)), None)
    if format_name is None:
        fix = f"say which with --format, one of {', '.join(IMPORTERS)}"
        raise InputError(where, "does not look like a launch file of a framework we read", fix)
    return IMPORTERS[format_name](text, where, chips, Companions(folder))
