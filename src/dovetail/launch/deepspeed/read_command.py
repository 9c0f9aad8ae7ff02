"""The command that starts DeepSpeed: its chips, the configuration it names, and what the Trainer is told beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import InputError, quoted
from dovetail.launch.companions import Companions
from dovetail.launch.deepspeed.arguments import (
    LAUNCHER,
    LENGTHS,
    OPTIMIZERS,
    PASSED_OVER,
    SHORT,
    SWITCHES,
)
from dovetail.launch.deepspeed.read_config import parse_config, read_config, section_of
from dovetail.launch.launch_file import Reading
from dovetail.launch.shell.script import read_script
from dovetail.models.catalogue import catalogue_name

_STARTER = re.compile(r"(.*/)?(deepspeed|torchrun)")
#: What only a command that starts DeepSpeed has.
COMMAND = re.compile(r"^[^#\n]*(\bdeepspeed\s+([-$\"\\]|\S+[.]py\b)|--deepspeed\b)", re.MULTILINE)
_CONFIG = ("deepspeed_config", "deepspeed")
_MICRO, _STEPS, _TRAIN = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
_HOST = re.compile(r"(\S+)\s+slots=(\d{1,6})")
_MAX_COUNT = 2**24


@dataclass(slots=True)
class _Command:
    """The words of a launch, by option."""

    where: str
    launcher: dict[str, str] = field(default_factory=dict[str, str])
    options: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    stray: list[str] = field(default_factory=list[str])
    read: set[str] = field(default_factory=set[str])

    def wrong(self, name: str, what: str, fix: str) -> InputError:
        return InputError(f"{self.where}: --{name}", what, fix)

    def text(self, name: str) -> str | None:
        """The last word of an option."""
        self.read.add(name)
        words = self.options.get(name)
        return None if words is None else words[-1] if words else ""

    def whole(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else self._number(name, text)

    def launched(self, name: str) -> int | None:
        """A whole number the launcher is told; none where only running the script would tell it."""
        text = self.launcher.get(name)
        if text is None or text.startswith(("$", "`")) or text == "-1":
            return None
        return self._number(name, text)

    def _number(self, name: str, text: str) -> int:
        if not re.fullmatch(r"\d{1,8}", text) or not 1 <= int(text) <= _MAX_COUNT:
            raise self.wrong(name, f"is {quoted(text)}", f"it should be a whole number from 1 to {_MAX_COUNT}")
        return int(text)

    def switch(self, name: str) -> bool | None:
        text = self.text(name)
        if text is None:
            return None
        if text.lower() not in ("", "true", "false", "1", "0", "yes", "no"):
            raise self.wrong(name, f"is {quoted(text)}", "it should be true or false")
        return text.lower() in ("", "true", "1", "yes")


def is_command(text: str) -> bool:
    """Whether a text is a script or a command, and not a configuration."""
    return not text.lstrip().startswith("{") and COMMAND.search(text) is not None


def read_command(text: str, where: str, chips: int | None, companions: Companions) -> Reading:
    """What the command and its configuration say together."""
    script = read_script(text, where)
    companions = companions.with_written(script.files)
    command = _command([words for words in script.commands if _starts(words)], where)
    command.read |= set(_CONFIG)
    named, name = next(((n, t) for n in _CONFIG if (t := command.text(n))), ("deepspeed_config", None))
    if name is None:
        raise command.wrong(named, "is missing", "it should name a configuration, ds_config.json for example")
    document = parse_config(companions.text(name, f"{where}: --{named}"), name)
    trainer = _is_trainer(command)
    _fill(document, command, name, trainer=trainer)
    chips = chips or _chips(command, companions)
    _count_replicas(document, chips, name)
    reading = read_config(document, name)
    job, plan, unknown = dict(reading.job), dict(reading.plan), list(reading.unknown)
    _read_job(command, job, unknown)
    if command.switch("gradient_checkpointing") is not None:
        plan["recompute"] = "full" if command.switch("gradient_checkpointing") else "none"
    left = [option for option in command.options if option not in command.read]
    passed_over = [*reading.passed_over, *(f"--{option}" for option in left if option in PASSED_OVER)]
    unknown += [f"--{option}" for option in left if option not in PASSED_OVER] + command.stray
    unknown += [f"--{option}" for option in command.launcher if option not in LAUNCHER]
    cluster = {} if chips is None else {"chips": chips}
    return Reading("deepspeed", job, cluster, plan, tuple(passed_over), tuple(unknown))


# The words.


def _starts(words: tuple[str, ...]) -> bool:
    if words[0] in ("echo", "printf", "pip", "cd"):
        return False
    flagged = any(re.fullmatch(r"--deepspeed(_config)?(=.*)?", word) for word in words)
    launched = any(re.fullmatch(r"(.*/)?deepspeed", word) for word in words[:-1])
    return flagged or (launched and any(word.endswith(".py") for word in words))


def _command(launches: list[tuple[str, ...]], where: str) -> _Command:
    if len(launches) != 1:
        what = "starts DeepSpeed more than once" if launches else "has no command that starts DeepSpeed"
        raise InputError(
            where, what, "it should have one launch: deepspeed or torchrun, a program and its configuration"
        )
    words = list(launches[0])
    start = next((i for i, word in enumerate(words) if _STARTER.fullmatch(word)), None)
    if start is None:  # python -m torch.distributed.run, or a program alone
        start = next((i for i, word in enumerate(words) if word.startswith("torch.distributed.")), -1)
    command = _Command(where)
    position = _read_launcher(words, start + 1, command) if start >= 0 else _program(words)
    current: str | None = None
    for word in words[position + 1 :]:
        if word.startswith("--") and len(word) > len("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            command.options[name] = (value,) if equals else ()
            current = None if equals else name
        elif current is not None:
            command.options[current] = (*command.options[current], word)
        elif word not in ("$@", "$*", "${@}"):
            command.stray.append(word)
    for name, value in command.options.items():
        command.options[name] = tuple(word for word in value if word not in ("$@", "$*", "${@}"))
    return command


def _program(words: list[str]) -> int:
    return next((i for i, word in enumerate(words) if word.endswith(".py")), -1)


def _read_launcher(words: list[str], position: int, command: _Command) -> int:
    """Reads the launcher's options; where the program stands."""
    while position < len(words) and words[position].startswith("-"):
        name, equals, value = words[position].lstrip("-").partition("=")
        name = SHORT.get(name, name.replace("-", "_"))
        if words[position] == "-m":
            name = "module"
        if not equals and name not in SWITCHES and position + 1 < len(words):
            position += 1
            value = words[position]
        command.launcher[name] = value
        position += 1
    return position


def _is_trainer(command: _Command) -> bool:
    """Whether the Trainer of transformers runs it: it takes the configuration as the word of --deepspeed."""
    return bool(command.options.get("deepspeed")) or "per_device_train_batch_size" in command.options


# Chips.


def _chips(command: _Command, companions: Companions) -> int | None:
    """Chips the launcher starts on, where that is said."""
    each = command.launched("num_gpus") or command.launched("num_accelerators") or command.launched("nproc_per_node")
    nodes = command.launched("num_nodes") or command.launched("nnodes")
    include, hostfile = command.launcher.get("include"), command.launcher.get("hostfile")
    if "exclude" in command.launcher:
        return None
    if include is None and each is not None and (nodes is not None or hostfile is None):
        return each * (nodes or 1)
    slots: dict[str, int] = {}
    if hostfile is not None:
        slots = _slots(command, companions, hostfile)
    if include is not None:
        return _included(command, include, slots)
    hosts = list(slots.values())[:nodes]
    return sum(min(count, each or count) for count in hosts) or None


def _slots(command: _Command, companions: Companions, name: str) -> dict[str, int]:
    """Hosts of a hostfile and their slots."""
    try:
        text = companions.text(name, f"{command.where}: --hostfile")
    except InputError as error:
        raise InputError(error.where, error.what, f"{error.fix}, or say --chips") from None
    slots: dict[str, int] = {}
    for line in text.splitlines():
        content = line.partition("#")[0].strip()
        match = _HOST.match(content)
        if content and match is None:
            raise InputError(name, f"has the line {quoted(content)}", "lines should be as in worker-1 slots=8")
        if match is not None:
            slots[match[1]] = int(match[2])
    return slots


def _included(command: _Command, include: str, slots: Mapping[str, int]) -> int | None:
    """The chips of `worker-0@worker-1:0,2`: all of a host, or those listed."""
    total = 0
    for part in include.split("@"):
        host, colon, listed = part.partition(":")
        if colon:
            total += len(set(listed.split(",")))
        elif host in slots:
            total += slots[host]
        else:
            raise command.wrong("include", f"names {quoted(host)} without its chips", "list them, or say --chips")
    return total or None


def _count_replicas(document: dict[str, Any], chips: int | None, where: str) -> None:
    """Puts the replicas of these chips where the configuration leaves them open."""
    if chips is None or "data_parallel_size" in document:
        return
    sections = (("tensor_parallel", "autotp_size"), ("pipeline", "stages"))
    degrees = [section_of(document, section, where).get(key) for section, key in sections]
    model = 1
    for degree in (*degrees, document.get("sequence_parallel_size")):
        model *= degree if isinstance(degree, int) and 1 <= degree <= _MAX_COUNT else 1
    if chips % model:
        raise InputError(where, f"has degrees of {model}, which do not divide {chips} chips", "correct one of them")
    document["data_parallel_size"] = chips // model


# The configuration, with what the Trainer fills in.


def _fill(document: dict[str, Any], command: _Command, where: str, *, trainer: bool) -> None:
    """Replaces `auto` by arguments; where both say something, they must agree, as the Trainer checks."""
    filled = {
        _MICRO: command.whole("per_device_train_batch_size") or (8 if trainer else None),
        _STEPS: command.whole("gradient_accumulation_steps") or (1 if trainer else None),
    }
    given = {_MICRO: "per_device_train_batch_size", _STEPS: "gradient_accumulation_steps"}
    for key, value in filled.items():
        stated = document.get(key, "auto")
        if stated == "auto" and value is not None:
            document[key] = value
        elif stated != value and given[key] in command.options:
            raise InputError(f"{where}: {key}", f"is {quoted(stated)}, and --{given[key]} is {value}", "let them agree")
    if document.get(_TRAIN) == "auto":
        del document[_TRAIN]
    if document.get(_TRAIN) is None and document.get(_STEPS, "auto") == "auto":
        document[_STEPS] = 1  # what DeepSpeed takes
    for name in ("bf16", "fp16"):
        argument = command.switch(name)
        section = section_of(document, name, where)
        if section.get("enabled", "auto") == "auto" and (argument is not None or name in document):
            document[name] = {**section, "enabled": bool(argument)}
        elif argument is not None and section.get("enabled") is not argument:
            what = f"is {quoted(section.get('enabled'))}, and --{name} is {str(argument).lower()}"
            raise InputError(f"{where}: {name}.enabled", what, "let them agree")


def _catalogue_model(text: str) -> str | None:
    """The catalogue's model that an id on the Hub, or a folder named after it, means; tuned models have its shape."""
    last = text.rstrip("/").rpartition("/")[2]
    plain = re.sub(r"^meta-|-(hf|instruct|base|chat|it)$", "", last, flags=re.IGNORECASE)
    return catalogue_name(text) or catalogue_name(last) or catalogue_name(plain)


def _read_job(command: _Command, job: dict[str, Any], unknown: list[str]) -> None:
    lengths = {name: command.whole(name) for name in LENGTHS if name in command.options}
    if len(set(lengths.values())) > 1:
        names = [f"--{name} {length}" for name, length in lengths.items()]
        raise InputError(command.where, f"has {' and '.join(names)}", "keep the one that sequences are packed to")
    if lengths:
        job["seq_len"] = next(iter(lengths.values()))
    model = command.text("model_name_or_path")
    if model:
        name = _catalogue_model(model)
        if name is None:
            unknown.append(f"--model_name_or_path {model[:100]} (not in the catalogue; name the model with --model)")
        else:
            job["model"] = name
    if command.text("attn_implementation") == "eager":
        job["attention"] = "unfused"
    optimizer = command.text("optim")
    if optimizer and "optimizer" not in job:
        begun = next((ours for theirs, ours in OPTIMIZERS.items() if optimizer.startswith(theirs)), None)
        if begun is None:
            unknown.append(f"--optim {optimizer}")
        else:
            job["optimizer"] = begun
