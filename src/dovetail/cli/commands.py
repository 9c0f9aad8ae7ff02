"""The commands by name: the file of a command is imported, and its options are read, when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

#: Where each command is, in the order of the help.
PLACES: Final = {
    "estimate": "dovetail.cli.estimate:estimate",
    "simulate": "dovetail.cli.simulate:simulate",
    "plan": "dovetail.cli.plan:plan",
    "fit": "dovetail.cli.fit:fit",
    "export": "dovetail.cli.export:export",
    "import": "dovetail.cli.import_launch:import_launch",
    "diff": "dovetail.cli.diff:diff",
    "explore": "dovetail.cli.explore:explore",
    "schedule": "dovetail.cli.schedule:schedule",
    "place": "dovetail.cli.place:place",
    "report": "dovetail.cli.report:report",
    "serve": "dovetail.cli.serve:serve",
    "validate": "dovetail.cli.validate:validate",
    "calibrate": "dovetail.cli.calibrate:calibrate",
    "models": "dovetail.cli.models:app",
    "chips": "dovetail.cli.chips:app",
    "clusters": "dovetail.cli.clusters:app",
    "networks": "dovetail.cli.networks:app",
    "wafers": "dovetail.cli.wafers:app",
    "spaces": "dovetail.cli.spaces:app",
    "frameworks": "dovetail.cli.frameworks:app",
}
#: How help and mistakes are shown.
SETTINGS: Final[Mapping[str, Any]] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


class CommandLine(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast("dict[str, Any]", _Commands(self.commands))


class _Commands(Mapping[str, Any]):
    """Commands that are made when they are looked up, each once; behind them those that are made already."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made = dict(made)
        self._names = tuple(dict.fromkeys((*PLACES, *made)))

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _command(name: str) -> Any:
    module, _, attribute = PLACES[name].partition(":")
    function: Any = getattr(import_module(module), attribute)
    alone = typer.Typer(**SETTINGS)
    if isinstance(function, typer.Typer):
        alone.add_typer(function, name=name)
        group: Any = typer.main.get_command(alone)
        return group.commands[name]
    alone.command(name)(function)
    return typer.main.get_command(alone)
