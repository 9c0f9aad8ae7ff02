"""The error style: one sentence that says where, what is wrong, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.util import find_spec


class InputError(ValueError):
    """A user's mistake; the command line prints it as one sentence and exits with code 2."""

    def __init__(self, where: str, what: str, fix: str) -> None:
        self.where = _one_line(where)
        self.what = _one_line(what)
        self.fix = _one_line(fix).rstrip(".")
        super().__init__(f"{self.where}: {self.what}; {self.fix}.")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        """Pickled by its three parts, so that it can cross to another process."""
        return type(self), (self.where, self.what, self.fix)


def require_package(package: str, where: str, purpose: str, extra: str = "study") -> None:
    """Raises the error of a question that needs a package of an extra, if that is not installed."""
    if find_spec(package) is None:
        fix = f'run `pip install "dovetail[{extra}]"`'
        raise InputError(where, f"needs the package {package} {purpose}, which is not installed", fix)


def quoted(value: object, limit: int = 60) -> str:
    """The user's value for a sentence: on one line, quoted, shortened."""
    try:
        text = _one_line(repr(value))
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        text = "a number too long to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_of(names: Iterable[str], given: object = None, most: int = 8) -> str:
    """Names the right choices, the likely one first: the `fix` of an unknown name."""
    choices = sorted(names)
    if not choices:
        return "there is nothing to choose from"
    if isinstance(given, str) and (likely := near(choices, given)) is not None:
        return f"did you mean {likely!r}"
    shown = ", ".join(choices[:most])
    rest = len(choices) - most
    return f"it should be one of {shown}" + (f" and {rest} more" if rest > 0 else "")


def near(names: Iterable[str], given: str, cutoff: float = 0.6) -> str | None:
    """The name that a misspelt one stands for, where one is as close as `cutoff`."""
    choices = sorted(names)
    same = [name for name in choices if name.casefold() == given.casefold()]
    return next(iter(same or difflib.get_close_matches(given[:100], choices, n=1, cutoff=cutoff)), None)


def _one_line(text: str) -> str:
    # User text may contain line breaks or terminal escapes; neither belongs in a sentence.
    return "".join(c if c.isprintable() else " " for c in text).strip()
