"""What a launch of torchtitan sets, whichever way it is written: flags, TOML or a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.launch.torchtitan import flavors
from dovetail.plans.launch_models.torchtitan import DEFAULTS, IMPLEMENTATIONS, ONLY, PASSED_OVER, Value

Document = dict[str, Any]
#: An option → its words, as flags have them; a switch has none, and `no_` before its last part turns it off.
FlagWords = dict[str, tuple[str, ...]]
_MAX_DEGREE = 2**24

#: Options whose values make a plan, with what holds where nothing says.
READ: Mapping[str, Value] = {**DEFAULTS, **flavors.DEFAULTS}
_ONLY: Mapping[str, Value] = {**flavors.ONLY, **ONLY}


@dataclass(slots=True)
class TitanOptions:
    """What a launch says, before any of it is read as a plan."""

    where: str
    options: FlagWords = field(default_factory=dict[str, tuple[str, ...]])
    #: none, selective, full or memory_budget, where a subcommand or a recipe chooses it
    checkpointing: str | None = None
    #: of the catalogue, or written out
    model: str | Document | None = None
    #: of the matrix products, where weights are gathered in bf16
    precision: str = "bf16"
    #: what a recipe sets where no option does; none where something unknown may set more
    sets: Mapping[str, Value] | None = None
    #: processes that are started
    world: int | None = None
    passed_over: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    #: options that come from another file → that file
    files: dict[str, str] = field(default_factory=dict[str, str])

    def add_below(self, options: FlagWords, file: str) -> None:
        """Options of a file, for which flags are put first."""
        for name, words in options.items():
            if name not in self.options and opposite(name) not in self.options:
                self.options[name] = words
                self.files[name] = file

    def shown(self, name: str) -> str:
        """An option as it is written where it stands."""
        return name if name in self.files else f"--{name}"

    def wrong(self, name: str, what: str, fix: str) -> InputError:
        """The sentence about an option."""
        return InputError(f"{self.files.get(name, self.where)}: {self.shown(name)}", what, fix)

    def take(self, name: str) -> str | None:
        """The last word of an option, which is then done with."""
        words = self.options.pop(name, ())
        return words[-1] if words else None

    def sort(self) -> None:
        """Puts options that no plan is read from where they belong; a value no plan has is refused."""
        for name in list(self.options):
            positive = name if name in READ else _positive(name)
            if name in READ or isinstance(READ.get(positive), bool):
                continue
            words = self.options.pop(name)
            value = words[-1] if words else str(positive == name)
            if name == "optimizer.implementation" and value in IMPLEMENTATIONS:
                self.passed_over.append(self.shown(name))
            elif positive in _ONLY or name == "optimizer.implementation":
                if value != str(_ONLY.get(positive)):
                    raise self.wrong(name, f"is {quoted(value)}, which plans cannot express", "drop it")
                self.passed_over.append(self.shown(name))
            elif positive in PASSED_OVER or positive in flavors.PASSED_OVER:
                self.passed_over.append(self.shown(name))
            else:
                self.unknown.append(self.shown(name))


def opposite(name: str) -> str:
    """The switch that says the contrary."""
    section, _, last = name.rpartition(".")
    return f"{section}.{last.removeprefix('no_')}" if last.startswith("no_") else f"{section}.no_{last}"


def _positive(name: str) -> str:
    return opposite(name) if name.rpartition(".")[2].startswith("no_") else name


def renamed(options: FlagWords, names: Mapping[str, str]) -> FlagWords:
    """The options under the names they have now, switches turned off too."""
    both = {**names, **{opposite(old): opposite(new) for old, new in names.items()}}
    return {both.get(name, name): words for name, words in options.items()}


@frozen
class OptionValues:
    """What options are: by flag, by recipe, or by default."""

    given: TitanOptions
    otherwise: Mapping[str, Value]

    @classmethod
    def of(cls, given: TitanOptions) -> OptionValues:
        """The values of sorted options."""
        return cls(given, {**READ, **(given.sets or {})})

    def has(self, names: Iterable[str]) -> bool:
        """Whether any of these is set."""
        return any(name in self.given.options for name in names)

    def wrong(self, name: str, what: str, fix: str) -> InputError:
        """The sentence about an option."""
        return self.given.wrong(name, what, fix)

    def number(self, name: str, also: int = 1) -> int | None:
        """A whole number from 1, or the other that has a meaning; none where none is set."""
        if name not in self.given.options:
            value = self.otherwise[name]
            return value if isinstance(value, int) else None
        text = self.text(name)
        if text == "None":
            return None
        if re.fullmatch(r"-?\d{1,12}", text) is None or (int(text) < 1 and int(text) != also):
            raise self.wrong(name, f"is {quoted(text)}", "it should be a whole number, 1 or more")
        return int(text)

    def degree(self, name: str) -> int:
        """A whole number of chips, layers or sequences."""
        value = self.number(name)
        if value is None or value > _MAX_DEGREE:
            raise self.wrong(name, f"is {value}", f"it should be a whole number from 1 to {_MAX_DEGREE}")
        return value

    def text(self, name: str) -> str:
        """The one word of an option."""
        if name not in self.given.options:
            return str(self.otherwise[name])
        words = self.given.options[name]
        if len(words) != 1:
            raise self.wrong(name, f"has {len(words)} values", "it should have one")
        return words[0]

    def words(self, name: str) -> tuple[str, ...]:
        """The words of an option that has several, with commas or spaces between them."""
        if name not in self.given.options:
            value = self.otherwise[name]
            return value if isinstance(value, tuple) else ()
        return tuple(word for value in self.given.options[name] for word in value.split(",") if word)

    def switch(self, name: str) -> bool:
        """Whether something is on."""
        for flag, value in ((name, True), (opposite(name), False)):
            if flag in self.given.options:
                if self.given.options[flag]:
                    raise self.wrong(flag, f"has the value {quoted(self.given.options[flag][0])}", "it takes none")
                return value
        return bool(self.otherwise[name])
