"""DeepSpeed's launches as parts of a plan file: a configuration, or the command that passes one."""

from __future__ import annotations

from dovetail.launch.companions import Companions
from dovetail.launch.deepspeed.read_command import is_command, read_command
from dovetail.launch.deepspeed.read_config import parse_config, read_config
from dovetail.launch.launch_file import Reading


def read(text: str, where: str, chips: int | None = None, companions: Companions | None = None) -> Reading:
    """What a launch says; nothing of it is run. `chips` from elsewhere goes before what a command says."""
    if is_command(text):
        return read_command(text, where, chips, companions or Companions())
    return read_config(parse_config(text, where), where)
