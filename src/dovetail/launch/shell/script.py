"""A launch script as text: its commands, the files it writes, and what Slurm's header says; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dovetail.frozen import frozen
from dovetail.launch.shell.words import commands

#: The name of a command that no script has: it hands on what the text knows.
_MARK = "dovetail:"
_HERE = re.compile(r"(?<!<)<<(?!<)(?P<tabs>-?)[ \t]*(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote)")
#: Where the text of a heredoc goes: `> name`, or a name behind `tee`.
_TARGET = re.compile(r"(?:(?<!\d)>[ \t]*|\btee[ \t]+)(?P<name>\"[^\"\n]+\"|'[^'\n]+'|[^\s;&|<>]+)")
#: Commands that run what the heredoc holds.
_SHELL = re.compile(r"\s*(?:sbatch|bash|sh|srun|ssh)\b")
_CODE = re.compile(r"[.](?:py|sh|sbatch|ya?ml)[\"']?$")
_RUNS = re.compile(r"[.]py(?:\s|$)")
_HEADER = re.compile(r"^#SBATCH[ \t]+(--?[A-Za-z-]+)(?:[ \t]*=[ \t]*|[ \t]+|(?=\d))(\S+)", re.MULTILINE)
_NODES, _TASKS, _CHIPS = ("--nodes", "-N"), ("--ntasks-per-node",), ("--gpus-per-node", "--gres")


@frozen
class Script:
    """What a script says."""

    commands: tuple[tuple[str, ...], ...]
    #: files it writes from heredocs: name → text
    files: Mapping[str, str]
    #: those asked for that it sets
    variables: Mapping[str, str]
    #: processes `srun` starts, where the header says so
    tasks: int | None


def read_script(text: str, where: str, variables: tuple[str, ...] = ()) -> Script:
    """Reads a script; a value that only running it would tell stays as it stands."""
    slurm = _slurm(text)
    bodies: list[str] = []
    plain = "; ".join((*(f"{name}={value}" for name, value in slurm.items()), ""))
    plain += "\n".join(_lines(iter(text.replace("\r\n", "\n").split("\n")), bodies))
    asked = " ".join(f'"${{{name}}}"' for name in variables)
    plain += f"\n{_MARK}variables {asked}\n" if variables else ""
    words, files, values = list[tuple[str, ...]](), dict[str, str](), dict[str, str]()
    for command in commands(plain, where):
        match command:
            case ("dovetail:file", name, body):
                files[name] = body
            case ("dovetail:literal", name, number) if number.isdecimal() and int(number[:9]) < len(bodies):
                files[name] = bodies[int(number[:9])]
            case ("mv" | "cp", name, other) if name in files:
                files[other] = files[name]
            case ("dovetail:variables", *texts):
                values = {n: t for n, t in zip(variables, texts, strict=False) if t != f"${{{n}}}"}
            case ("echo" | "printf", *_):
                pass
            case ("eval", *texts):
                words += commands(" ".join(texts), where)
            case _:
                words.append(command)
    return Script(tuple(map(_joined, words)), files, values, _tasks(slurm))


def _joined(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words in which what only running would tell, `$(hostname -i)` for example, is one word again."""
    joined: list[str] = []
    open_brackets = 0
    for word in words:
        if open_brackets:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
        if open_brackets or "$(" in word:
            open_brackets = max(0, open_brackets + word.count("(") - word.count(")"))
    return tuple(joined)


def _lines(lines: Iterator[str], bodies: list[str]) -> Iterator[str]:
    """The text without heredocs: one that writes a file becomes a command with name and text.

    As many lines as before, so that a sentence names the right one. Texts without variables go to the bodies.
    """
    for line in lines:
        match = None if line.lstrip().startswith("#") else _HERE.search(line)
        if match is None:
            yield line
            continue
        body: list[str] = []
        for inner in lines:
            shown = inner.lstrip("\t") if match["tabs"] else inner
            if shown == match["end"]:
                break
            body.append(shown)
        without = line[: match.start()] + line[match.end() :]
        target = _TARGET.search(without)
        if target is None and _SHELL.match(without):
            yield from ("", *(inner.replace("\\$", "$") for inner in body), "")
        elif target is not None and match["quote"]:
            bodies.append("\n".join((*body, "")))
            yield from (f"{_MARK}literal {target['name']} {len(bodies) - 1}", *[""] * (len(body) + 1))
        elif target is None or _CODE.search(target["name"]) or any(_RUNS.search(inner) for inner in body):
            yield from (without, *[""] * (len(body) + 1))
        else:
            text = "\n".join(body).replace('"', '\\"')
            yield from (f'{_MARK}file {target["name"]} "{text}"', "", "")


def _slurm(text: str) -> dict[str, str]:
    """Variables that Slurm sets, as far as the header has plain numbers."""
    given = {name: re.sub(r"^(?:gpu:)?(?:[A-Za-z]\w*:)?", "", value) for name, value in _HEADER.findall(text)}
    nodes, tasks, chips = (
        next((given[name] for name in names if re.fullmatch(r"\d{1,7}", given.get(name, ""))), None)
        for names in (_NODES, _TASKS, _CHIPS)
    )
    variables = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS_PER_NODE": tasks}
    variables |= {"SLURM_GPUS_ON_NODE": chips, "SLURM_GPUS_PER_NODE": chips}
    if nodes is not None and tasks is not None:
        variables["SLURM_NTASKS"] = str(int(nodes) * int(tasks))
    return {name: value for name, value in variables.items() if value is not None}


def _tasks(slurm: Mapping[str, str]) -> int | None:
    return int(slurm["SLURM_NTASKS"]) if "SLURM_NTASKS" in slurm else None
