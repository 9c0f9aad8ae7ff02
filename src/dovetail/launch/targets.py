"""The launch files that are written and read: a table of targets, and which of them a file is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from dovetail import models
from dovetail.documents import validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.launch.accelerate import read as accelerate_read
from dovetail.launch.accelerate import write as accelerate
from dovetail.launch.catalogue_match import is_same
from dovetail.launch.companions import Companions
from dovetail.launch.deepspeed import read as deepspeed_read
from dovetail.launch.deepspeed import write as deepspeed
from dovetail.launch.deepspeed.read_command import COMMAND
from dovetail.launch.encoding import read as encoding_read
from dovetail.launch.launch_file import Launch, Reading
from dovetail.launch.maxtext import read as maxtext_read
from dovetail.launch.maxtext import write as maxtext
from dovetail.launch.megatron import bridge
from dovetail.launch.megatron import read as megatron_read
from dovetail.launch.megatron import write as megatron
from dovetail.launch.shell.script import read_script
from dovetail.launch.torchtitan import read as torchtitan_read
from dovetail.launch.torchtitan import write as torchtitan
from dovetail.layout.encoding.document import FORMAT as ENCODING
from dovetail.models import Model
from dovetail.plans.launch_models.facts import model_for
from dovetail.plans.launch_models.megatron import RELEASES
from dovetail.plans.plan_file import Task


@frozen
class Exporter:
    """A target that plans are written for."""

    #: the framework version that is written for, without the release where there are several
    version: str
    #: a task and one of the releases as a launch file
    write: Callable[[Task, str], Launch]
    #: releases there is a choice of, the newest first
    releases: tuple[str, ...] = ("",)
    #: what reads the model of a launch file, where it holds one
    reads: Callable[[str, str, int], Reading] | None = None

    def export(self, task: Task, release: str | None = None) -> Launch:
        """The launch file; for the newest release unless one is named."""
        if release is not None and release not in self.releases:
            one = f"leave it out, {self.version} is all there is"
            fix = one if self.releases == ("",) else one_of(self.releases, release)
            raise InputError("--release", f"is {quoted(release)}", fix)
        if task.job.adapters is not None:
            what = f"are {task.job.adapters.words}, which files for {self.version} do not say"
            raise InputError("job: adapters", what, "leave them out, and add them where the framework is told of them")
        if not task.job.graph().trains_all():
            what = f"has frozen weights, which files for {self.version} do not say"
            raise InputError("job: model", what, "train all of its weights, and freeze some where the framework runs")
        launch = self.write(task, release or self.releases[0])
        if self.reads is not None:
            self._check(task, launch)
        return launch

    def _check(self, task: Task, launch: Launch) -> None:
        """Reads what was written: a file that describes another model than the plan's is refused."""
        assert self.reads is not None
        read = self.reads(launch.text, launch.name, task.cluster.chips).job["model"]
        model = models.from_catalogue(read) if isinstance(read, str) else validate(Model, read, launch.name)
        if not is_same(model, model_for(task.job, self.version)):
            what = f"has parts that {self.version} would train otherwise"
            raise InputError("job: model", what, "export to another framework")

    def version_of(self, release: str | None) -> str:
        """The version that is written for, in full."""
        return f"{self.version} {release or self.releases[0]}".strip()


def _write_encoding(task: Task) -> Launch:
    from dovetail.launch.encoding.write import export  # with compiled formulas, which no other target needs

    return export(task)


EXPORTERS: dict[str, Exporter] = {
    "megatron": Exporter("Megatron-LM core", megatron.export, RELEASES, megatron_read.read),
    "bridge": Exporter(bridge.VERSION, lambda task, _: bridge.export(task)),
    "torchtitan": Exporter(torchtitan.VERSION, lambda task, _: torchtitan.export(task), reads=torchtitan_read.read),
    "deepspeed": Exporter(deepspeed.VERSION, lambda task, _: deepspeed.export(task)),
    "accelerate": Exporter(accelerate.VERSION, lambda task, _: accelerate.export(task)),
    "maxtext": Exporter(maxtext.VERSION, lambda task, _: maxtext.export(task), reads=maxtext_read.read),
    "encoding": Exporter(ENCODING, lambda task, _: _write_encoding(task)),
}

#: Target → what reads its launch files: the text, what to call the file, the number of chips where that is said, and
#: the files it may name.
IMPORTERS: dict[str, Callable[[str, str, int | None, Companions], Reading]] = {
    "megatron": lambda text, where, chips, _: megatron_read.read(text, where, chips),
    "torchtitan": torchtitan_read.read,
    "deepspeed": deepspeed_read.read,
    "accelerate": lambda text, where, _, __: _read_accelerate(text, where),
    "maxtext": lambda text, where, chips, _: _read_maxtext(text, where, chips),
    "encoding": lambda text, where, _, __: encoding_read.read(text, where),
}


def _configuration(text: str, where: str) -> tuple[str, list[str]]:
    """The YAML of a file and the words of its launch: the file itself, or what a script writes and starts."""
    if not text.startswith("#!"):
        return text, []
    script = read_script(text, where)
    written = {name: each for name, each in script.files.items() if name.endswith((".yaml", ".yml"))}
    texts = set(written.values())
    if len(texts) != 1:
        raise InputError(where, f"writes {len(texts)} YAML files", "it should write one, or give the YAML itself")
    launches = [words for words in script.commands if written.keys() & set(words) and words[0] != "mv"]
    return texts.pop(), [word for words in launches for word in words]


def _read_maxtext(text: str, where: str, chips: int | None) -> Reading:
    text, words = _configuration(text, where)
    pairs = [word.partition("=") for word in words if re.match(r"[a-z][a-z0-9_]*=", word)]
    return maxtext_read.read(text, where, chips, {key: value for key, _, value in pairs})


def _read_accelerate(text: str, where: str) -> Reading:
    text, words = _configuration(text, where)
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return accelerate_read.read(text, where, tuple(flag for flag in flags if flag not in accelerate_read.STARTED))


#: What only files of a target have, in the order of asking: DeepSpeed also starts Megatron-LM.
_SIGNS = (
    ("encoding", re.compile(r'"format":\s*"dovetail-encoding/')),
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
