"""The TOML of torchtitan 0.1 and 0.2 as options, under the names that flags have."""

from __future__ import annotations

import re
import tomllib
from typing import cast

from dovetail.documents import MAX_DEPTH
from dovetail.errors import InputError
from dovetail.launch.torchtitan.flavors import CONVERTERS, RENAMED, model_of
from dovetail.launch.torchtitan.options import FlagWords, TitanOptions, renamed

#: Sections that only these files have.
SECTIONS = re.compile(r"^\s*\[(model|training|parallelism|job)\]\s*(#.*)?$", re.MULTILINE)
#: Configurations are short; anything longer is something else.
_MAX_BYTES = 2**18


def toml_options(text: str, where: str) -> FlagWords:
    """The options a file sets: `[training] steps = 5` is `training.steps`."""
    if len(text) > _MAX_BYTES:
        raise InputError(where, f"has more than {_MAX_BYTES} characters", "give a TOML configuration of torchtitan")
    try:
        document = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(where, f"is not TOML ({str(error)[:100]})", "correct the syntax there") from None
    except (ValueError, RecursionError):
        raise InputError(where, "contains a value that cannot be read", "correct that value") from None
    options: FlagWords = {}
    level: list[tuple[str, object]] = list(document.items())
    for _ in range(MAX_DEPTH):
        inner: list[tuple[str, object]] = []
        for name, value in level:
            if isinstance(value, dict):
                inner += [(f"{name}.{key}", each) for key, each in cast("dict[str, object]", value).items()]
            else:
                option, words = _option(name, value)
                options[option] = words
        level = inner
        if not level:
            return renamed(options, RENAMED)
    raise InputError(where, "is nested too deeply", f"nest at most {MAX_DEPTH} levels")


def _option(name: str, value: object) -> tuple[str, tuple[str, ...]]:
    if isinstance(value, bool):
        section, _, last = name.rpartition(".")
        return (name if value else f"{section}.no_{last}"), ()
    if isinstance(value, list):
        return name, tuple(_word(item) for item in cast("list[object]", value))
    return name, (_word(value),)


def _word(value: object) -> str:
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)


def name_model(given: TitanOptions) -> None:
    """The model and the precision that `[model]` names; everything else is torchtitan's default."""
    name, flavor = given.take("model.name") or "llama3", given.take("model.flavor") or "debugmodel"
    given.model = model_of(name, flavor)
    given.sets = {}
    if given.model is None:
        given.unknown.append(f"[model] {name} {flavor} (not a model we know; name it with --model)")
    converters = [word for words in given.options.pop("model.converters", ()) for word in words.split(",") if word]
    for word in converters:
        if word in CONVERTERS:
            given.precision = CONVERTERS[word]
        else:
            given.unknown.append(f"model.converters {word}")
