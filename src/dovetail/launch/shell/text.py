"""A shell script cut into commands and words; quotes are told apart, variables are left as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dovetail.errors import InputError
from dovetail.frozen import frozen

_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")


@frozen
class Fragment:
    """A part of a word."""

    text: str
    #: literal: as it stands; quoted: variables are filled in; raw: and what they hold is split at spaces
    kind: Literal["literal", "quoted", "raw"]


Word = tuple[Fragment, ...]


@frozen
class ArrayAssignment:
    """`NAME=( ... )`, or `NAME+=( ... )`, which adds to it."""

    name: str
    more: bool
    words: tuple[Word, ...]


Command = tuple[Word | ArrayAssignment, ...]


def tokens(text: str, where: str) -> Iterator[tuple[str, Command]]:
    """The commands of a script, each with the operator before it."""
    cursor = _Cursor(text.replace("\r\n", "\n"), where)
    operator = ""
    command: list[Word | ArrayAssignment] = []
    while True:
        cursor.skip_spaces()
        if cursor.at_end:
            break
        taken = cursor.take_operator()
        if taken is not None:
            if command:
                yield operator, tuple(command)
                command, operator = [], taken
            elif taken != "\n":
                operator = taken
            continue
        array = cursor.take_array()
        if array is not None:
            command.append(array)
        elif word := cursor.take_word():
            command.append(word)
    if command:
        yield operator, tuple(command)


@dataclass(slots=True)
class _Cursor:
    """A place in the text."""

    text: str
    where: str
    at: int = 0

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.text)

    def skip_spaces(self, *, lines: bool = False) -> None:
        """Spaces, lines that go on, comments; between the words of an array ends of lines too."""
        while not self.at_end:
            here = self.text[self.at]
            if here in " \t" or (lines and here == "\n"):
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif here == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def take_operator(self) -> str | None:
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return operator
        return None

    def take_array(self) -> ArrayAssignment | None:
        match = _ARRAY.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        words: list[Word] = []
        while True:
            self.skip_spaces(lines=True)
            if self.at_end:
                raise InputError(self.where, f"has an array {match[1]} that is not closed", "close it with )")
            if self.text[self.at] == ")":
                self.at += 1
                return ArrayAssignment(match[1], bool(match[2]), tuple(words))
            start = self.at
            words.append(self.take_word())
            # an operator has no place in an array: passed over, so that the text comes to an end
            self.at += self.at == start

    def take_word(self) -> Word:
        """The fragments up to a space or operator."""
        fragments: list[Fragment] = []
        raw = ""
        while not self.at_end:
            here = self.text[self.at]
            ends = any(self.text.startswith(o, self.at) for o in _OPERATORS)
            if here in " \t" or (ends and not (here == "&" and raw.endswith(">"))):
                break
            if here == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                self.at += 2
                if escaped != "\n":
                    fragments += [Fragment(raw, "raw"), Fragment(escaped, "literal")]
                    raw = ""
            elif here in "\"'":
                fragments += [Fragment(raw, "raw"), self._take_quoted(here)]
                raw = ""
            elif here == "$" or here == "`":
                raw += self._take_expansion()
            else:
                raw += here
                self.at += 1
        fragments.append(Fragment(raw, "raw"))
        return tuple(f for f in fragments if f.text or f.kind != "raw")

    def _take_quoted(self, quote: str) -> Fragment:
        start, self.at = self.at, self.at + 1
        content = ""
        while not self.at_end and self.text[self.at] != quote:
            here = self.text[self.at]
            if quote == '"' and here == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                content += "" if following == "\n" else following if following in '"\\`' else here + following
                self.at += 2
            elif quote == '"' and here == "$":
                content += self._take_expansion()
            else:
                content += here
                self.at += 1
        if self.at_end:
            line = self.text.count("\n", 0, start) + 1
            raise InputError(self.where, f"has a quote on line {line} that is not closed", f"close it with {quote}")
        self.at += 1
        return Fragment(content, "literal" if quote == "'" else "quoted")

    def _take_expansion(self) -> str:
        """`$NAME`, `${...}`, `$(...)` or backticks, whole, whatever stands in them."""
        start = self.at
        if self.text[start] == "`":
            end = self.text.find("`", start + 1)
            self.at = len(self.text) if end < 0 else end + 1
            return self.text[start : self.at]
        opening = self.text[start + 1 : start + 2]
        bracket = {"{": "}", "(": ")"}.get(opening)
        self.at += 1
        if bracket is None:
            return self.text[start : self.at]
        depth = 0
        while not self.at_end:
            here = self.text[self.at]
            depth += (here == opening) - (here == bracket)
            self.at += 1
            if not depth:
                break
        return self.text[start : self.at]
