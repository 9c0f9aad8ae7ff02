"""The words of a shell script's commands, read as text: nothing is run, and what only running would tell stays open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.errors import InputError, quoted
from dovetail.launch.shell.text import ArrayAssignment, Fragment, Word, tokens
from dovetail.launch.shell.values import arithmetic, holds

#: Far above any launch script; variables that repeat each other grow without end.
MAX_EXPANDED = 1_000_000

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_EXPANSION = re.compile(
    r"""\$(?:
        (?P<name>[A-Za-z_]\w*|\d|[@*\#?])                                  # $NAME, $1
        | \{(?P<braced>[A-Za-z_]\w*|\d+)(?P<array>\[[@*]\])?              # ${NAME}, ${NAME[@]}
             (?: :?[-=](?P<default>[^{}]*(?:\{[^{}]*\}[^{}]*)*) )?\}        # ${NAME:-default}
        | \(\((?P<sum>.*?)\)\)                                             # $((A * B))
    )""",
    re.VERBOSE | re.DOTALL,
)
_REDIRECTION = re.compile(r"\d?(>>?|<<?-?)&?")
_OPENING = frozenset({"for", "while", "until", "case", "select"})
_CLOSING = frozenset({"done", "esac"})
_BEFORE_ASSIGNMENTS = frozenset({"export", "declare", "local", "readonly", "typeset"})


@dataclass(slots=True)
class _Script:
    """What is known of a script so far."""

    where: str
    variables: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: variables whose value depends on a branch that cannot be decided from the text
    undecided: set[str] = field(default_factory=set[str])
    #: for each open branch or loop: taken, not taken, or open
    branches: list[bool | None] = field(default_factory=list[bool | None])
    #: for each open `if`: some branch of it was taken, or may have been
    taken: list[bool | None] = field(default_factory=list[bool | None])
    expanded: int = 0

    @property
    def state(self) -> bool | None:
        """Whether the command that follows runs."""
        if False in self.branches:
            return False
        return None if None in self.branches else True


def commands(text: str, where: str) -> tuple[tuple[str, ...], ...]:
    """The words of every command a script may run, with its variables filled in; `$NAME` stays where none is set."""
    return tuple(tuple(words) for words in _commands(text, _Script(where), depth=0))


def _commands(text: str, script: _Script, depth: int) -> Iterator[list[str]]:
    condition: list[tuple[str, list[Word | ArrayAssignment]]] | None = None
    for operator, command in tokens(text, script.where):
        words = list(command)
        while words:
            first = _bare(words[0])
            if condition is not None and first != "then":
                condition.append((operator, words))
                break
            keyword = _keyword(first, script)
            if keyword == "condition":
                condition, operator = [], ""
            elif keyword == "then":
                _decide(condition or [], script)
                condition = None
            elif keyword is None:
                yield from _simple(words, script, depth)
                break
            words = words[1:]


def _keyword(first: str | None, script: _Script) -> str | None:
    """What a word of the shell's grammar does to the branches; none for all other words."""
    match first:
        case "if":
            script.taken.append(False)
            script.branches.append(None)
            return "condition"
        case "elif" | "else" if script.taken and script.branches:
            if first == "elif":
                return "condition"
            before = script.taken[-1]
            script.branches[-1] = None if before is None else not before
        case "then":
            return "then"
        case "fi" if script.taken and script.branches:
            script.taken.pop()
            script.branches.pop()
        case _ if first in _OPENING:
            script.branches.append(None)
            return None
        case _ if first in _CLOSING and script.branches:
            script.branches.pop()
        case "do" | "{" | "}" | "(" | ")" | "!" | "time":
            pass
        case _:
            return None
    return "grammar"


def _decide(condition: list[tuple[str, list[Word | ArrayAssignment]]], script: _Script) -> None:
    """Opens the branch behind a condition."""
    if not script.taken or not script.branches:
        return
    result: bool | None = None
    for operator, words in condition:
        fields = [field for word in words if isinstance(word, tuple) for field in _fields(word, script, tested=True)]
        value = holds(fields)
        if operator == "&&":
            result = False if False in (result, value) else None if None in (result, value) else True
        elif operator == "||":
            result = True if True in (result, value) else None if None in (result, value) else False
        else:
            result = value
    before = script.taken[-1]
    if before is True:
        result = False
    elif before is None and result is not False:
        result = None
    script.branches[-1] = result
    script.taken[-1] = True if before is True or result is True else None if None in (before, result) else False


def _simple(words: list[Word | ArrayAssignment], script: _Script, depth: int) -> Iterator[list[str]]:
    """A command: its assignments are kept, its other words handed on."""
    if script.state is False:
        return
    rest = list(words)
    if _bare(rest[0]) in _BEFORE_ASSIGNMENTS:
        rest = rest[1:]
    while rest:
        head = rest[0]
        if isinstance(head, ArrayAssignment):
            _assign(script, head.name, [f for word in head.words for f in _fields(word, script)], more=head.more)
        elif (match := _ASSIGNMENT.match(head[0].text)) is not None and head[0].kind == "raw":
            value = (Fragment(head[0].text[match.end() :], "quoted"), *head[1:])
            _assign(script, match[1], [" ".join(_fields(_unsplit(value), script))], more=bool(match[2]))
        else:
            break
        rest = rest[1:]
    fields = [field for word in _without_files(rest) for field in _fields(word, script)]
    for position, text in enumerate(fields):
        # bash -c "python pretrain_gpt.py ...": a script within the script
        if depth < 3 and re.search(r"\.py\s", text) and not text.startswith("-"):
            yield from _commands(text, script, depth + 1)
            fields = fields[:position]
            break
    if fields:
        yield fields


def _without_files(words: list[Word | ArrayAssignment]) -> Iterator[Word]:
    """The words that are not about where output goes."""
    skip = False
    for word in words:
        if isinstance(word, ArrayAssignment):
            continue
        match = _REDIRECTION.match(word[0].text) if word[0].kind == "raw" else None
        if match is None and not skip:
            yield word
        skip = match is not None and match.end() == len(word[0].text) and len(word) == 1


def _assign(script: _Script, name: str, values: list[str], *, more: bool) -> None:
    if script.state is None:
        script.undecided.add(name)
        script.variables.pop(name, None)
    elif name not in script.undecided or not more:
        script.undecided.discard(name)
        old = script.variables.get(name, []) if more else []
        script.variables[name] = [*old, *values]


def _bare(word: Word | ArrayAssignment) -> str | None:
    """The text of a word without quotes or variables."""
    if isinstance(word, ArrayAssignment) or len(word) != 1 or word[0].kind != "raw":
        return None
    return word[0].text


def _unsplit(word: Word) -> Word:
    """The word as the shell reads it in an assignment: what variables hold is not taken apart."""
    return tuple(Fragment(f.text, "quoted") if f.kind == "raw" else f for f in word)


def _fields(word: Word, script: _Script, *, tested: bool = False) -> list[str]:
    """What a word becomes: several words where it names an array or a text with spaces."""
    fields: list[str] = []
    current: str | None = None
    for fragment in word:
        if fragment.kind == "literal":
            current = (current or "") + fragment.text
            continue
        if fragment.kind == "quoted":
            current = current or ""
        for value, splits in _parts(fragment, script, tested=tested):
            pieces = value if splits is None else value[0].split() if splits else value
            if splits and value[0][:1].isspace() and current is not None:
                fields.append(current)
                current = None
            for i, piece in enumerate(pieces):
                if i and current is not None:
                    fields.append(current)
                    current = None
                current = (current or "") + piece
            if splits and value[0][-1:].isspace() and current is not None:
                fields.append(current)
                current = None
    if current is not None:
        fields.append(current)
    script.expanded += sum(map(len, fields))
    if script.expanded > MAX_EXPANDED:
        raise InputError(
            script.where, f"has variables that grow beyond {MAX_EXPANDED} characters", "write the arguments out"
        )
    return fields


def _parts(fragment: Fragment, script: _Script, *, tested: bool) -> Iterator[tuple[list[str], bool | None]]:
    """Texts a fragment stands for, and whether spaces part them; none: they are words of their own."""
    end = 0
    for match in _EXPANSION.finditer(fragment.text):
        if match.start() > end:
            yield [fragment.text[end : match.start()]], False
        end = match.end()
        values = _value(match, script, tested=tested)
        if match["array"] and values is not None:
            if fragment.kind == "raw":
                values = [piece for value in values for piece in value.split()]
            yield values, None
        else:
            text = match[0] if values is None else " ".join(values)
            yield [text], fragment.kind == "raw" and values is not None
    if end < len(fragment.text):
        yield [fragment.text[end:]], False


def _value(match: re.Match[str], script: _Script, *, tested: bool) -> list[str] | None:
    """What a variable or sum is; none where the text does not tell."""
    if match["sum"] is not None:
        numbers = {name: " ".join(values) for name, values in script.variables.items()}
        result = arithmetic(match["sum"], numbers)
        return None if result is None else [str(result)]
    name = match["name"] or match["braced"]
    if name in script.undecided:
        if tested:
            return None
        what = f"uses {quoted(name)}, which is set in a branch that depends on more than the script says"
        raise InputError(script.where, what, "write the arguments out, or keep one branch")
    if name in script.variables:
        return script.variables[name]
    if match["default"] is not None:
        return _fields((Fragment(match["default"].strip("\"'"), "quoted"),), script, tested=tested)
    # an unset variable counts as empty in a test; elsewhere it is shown as it stands
    return [""] if tested else None
