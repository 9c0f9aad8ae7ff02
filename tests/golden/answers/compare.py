"""Asks the questions of `questions/` by the command line and compares with the answers of `frozen/`.

python tests/golden/answers/compare.py [--only estimate] [--match TEXT] prints a table of what differs; exit code 1 if
anything does that `corrected.json` does not explain. `--freeze` writes the answers instead. Only commands, flags and
JSON fields are used: these are a contract, modules and functions are not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from dovetail.cli import main as dovetail

HERE = Path(__file__).parent
KINDS = ("estimate", "plan", "place", "explore", "simulate")
#: Fields of input files by the names the questions use: if one is renamed, say here what it is called now.
INPUT_NAMES = {"cuts": "partition", "again": "recompute"}
#: Two numbers are equal up to this part of the larger.
TOLERANCE = 1e-12

#: What an answer says of one plan.
EVALUATION = ("fits", "step_time_s", "mfu", "tokens_per_s_per_chip", "breakdown", "memory_bytes", "energy_j")
#: How much was searched: may change with bounds and enumeration while the answer stays.
COUNTS = ("counted", "pruned", "infeasible", "evaluated", "open")
CERTIFICATE = ("status", "lower_bound_s", "lower_bound_framework_s", "lower_bound", "gap", "time", *COUNTS)
#: Seconds of the clock and sentences; and at the top of an answer, paths.
LEFT_OUT = ("timing", "provenance", "space", "space_text", "study")
PATHS = ("run_dir", "trace", "picture", "plans", "simulated_plans")

Question = dict[str, Any]
Record = dict[str, Any]


# --- questions -----------------------------------------------------------------------------------------------------


def questions(kind: str) -> list[Question]:
    """The questions of a kind, each with an `id`."""
    return _lines(HERE / "questions" / f"{kind}.jsonl")


def frozen(kind: str) -> dict[str, Record]:
    """The answers of a kind by the id of their question."""
    return {record["id"]: record for record in _lines(HERE / "frozen" / f"{kind}.jsonl")}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def arguments(kind: str, question: Question, folder: Path) -> list[str]:
    """The command line of a question, whose files are written into a folder; JSON is YAML."""
    if kind == "plan":
        return ["plan", "--fastest", *_flags(question)]
    file = folder / ("chain.json" if kind == "place" else "question.yaml")
    document = chain(**question["chain"]) if kind == "place" else _renamed(question["file"], INPUT_NAMES)
    file.write_text(json.dumps(document), encoding="utf-8")
    run = ["--out", str(folder / "run")] if kind == "explore" else []
    return [kind, str(file), *run, *question.get("flags", [])]


def _flags(question: Question) -> Iterator[str]:
    for name, value in question["flags"].items():
        yield from (f"--{name}", *([] if value is True else [str(value)]))
    for name, values in question.get("fix", {}).items():
        yield from ("--fix", f"{INPUT_NAMES.get(name, name)}={values}")


def _renamed(document: Any, names: Mapping[str, str]) -> Any:
    if isinstance(document, dict):
        return {names.get(key, key): _renamed(value, names) for key, value in document.items()}
    return [_renamed(value, names) for value in document] if isinstance(document, list) else document


def chain(
    seed: int, layers: int, devices: int, memory: float, widths: list[int], recompute: bool, adam: bool
) -> dict[str, Any]:
    """A chain of layers drawn from a seed; `random.Random(seed).random()` is the same in every version of Python."""
    draw = random.Random(seed).random  # noqa: S311
    blocks = [(0.5 + draw(), 0.3 + draw(), 0.01 * (1 + draw()), 10 ** (6 + 2 * draw()), draw()) for _ in range(layers)]
    nodes: dict[str, list[dict[str, Any]]] = {}
    edges: dict[str, list[dict[str, Any]]] = {}
    for width in widths:
        nodes[str(width)] = [
            {
                "id": number,
                "parameterSize": 1e8 * size / (width if width > 1 and split > 0.2 else 1),
                "activationSize": 2e8 * saved / (width if width > 1 and split > 0.2 else 1),
                "optimalLatencyFw": seconds / (width**0.9 if split > 0.2 else 1),
                "optimalLatencyBw": 2 * seconds / (width**0.9 if split > 0.2 else 1),
                "isTensorParallelized": width > 1 and split > 0.2,
            }
            for number, (size, saved, seconds, _, split) in enumerate(blocks)
        ]
        edges[str(width)] = [
            {"sourceId": number, "destId": number + 1, "communicationCost": size}
            for number, (_, _, _, size, _) in enumerate(blocks[:-1])
        ]
    return {
        "maxMemoryPerDevice": memory,
        "maxDevices": devices,
        "bandwidth": 1e10,
        "mbsInBatch": 64,
        "activationRecomputation": recompute,
        "optimizerAlgorithm": "Adam" if adam else "SGD",
        "nodes": nodes,
        "edges": edges,
    }


# --- answers -------------------------------------------------------------------------------------------------------


def ask(kind: str, question: Question) -> Record:
    """Runs the command in this process: id, exit code and what is compared of the answer."""
    printed: list[str] = []

    def echo(text: str = "", *, err: bool = False, **_: Any) -> None:
        if not err:
            printed.append(text)

    with tempfile.TemporaryDirectory() as name, mock.patch("typer.echo", echo), Path(os.devnull).open("w") as nowhere:
        try:
            with mock.patch("sys.stderr", nowhere):
                dovetail([*arguments(kind, question, Path(name)), "--json"])
        except SystemExit as ended:
            code = ended.code
        else:
            raise AssertionError(f"{question['id']}: the command did not end")
    answer = json.loads("\n".join(printed)) if printed else None
    return {"id": question["id"], "exit": code, "answer": answer if answer is None else trimmed(kind, answer)}


def trimmed(kind: str, answer: dict[str, Any]) -> dict[str, Any]:
    """What is compared: figures, plans and certificates; no sentences, paths and clock times."""
    if kind == "estimate":
        names = EVALUATION
    elif kind == "plan" and "front" not in answer:
        names = (*EVALUATION, "plan", "certificate", "simulation")
    else:
        names = tuple(name for name in answer if name not in PATHS)
    return _compact({name: answer[name] for name in names if name in answer})


def _compact(value: Any) -> Any:
    """Stages side by side instead of one under the other, and certificates without sentences."""
    if isinstance(value, list):
        return [_compact(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "certificate" in value and isinstance(value["certificate"], dict):
        certificate = {name: value["certificate"][name] for name in CERTIFICATE if name in value["certificate"]}
        value = value | {"certificate": certificate}
    if "by_stage" in value:
        stages = value["by_stage"]
        value = value | {"by_stage": {part: [stage.get(part) for stage in stages] for part in stages[0]}}
    return {name: _compact(part) for name, part in value.items() if name not in LEFT_OUT}


# --- comparison ----------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """What differs between the answers of a kind and the frozen ones."""

    cases: int = 0
    equal: int = 0  #: exit code, plan and status
    identical: int = 0  #: every bit
    cpu_s: float = 0.0
    largest: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("seconds", "bytes", "joules", "other"), 0.0)
    )
    differing: dict[str, list[str]] = field(default_factory=dict)
    corrected: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, before: Record, after: Record, corrections: Mapping[str, Mapping[str, str]]) -> None:
        """Compares two answers to one question."""
        name, explained = before["id"], corrections.get(before["id"], {})
        self.cases += 1
        self.identical += before == after
        self.equal += before["exit"] == after["exit"] and chosen_parts(before) == chosen_parts(after)
        for path, old, new in differences(before, after):
            difference = relative(old, new)
            text = f"{path}: {old!r} -> {new!r}" + (f" ({difference:.1e})" if math.isfinite(difference) else "")
            if path.startswith("counts.") or path.rsplit(".", 1)[-1] in COUNTS:
                self.counts.setdefault(name, []).append(text)
            elif any(path == part or path.startswith((f"{part}.", f"{part}[")) for part in explained):
                self.corrected.setdefault(name, []).append(text)
            else:
                unit = unit_of(path)
                self.largest[unit] = max(self.largest[unit], difference)
                if difference > TOLERANCE:
                    self.differing.setdefault(name, []).append(text)


def chosen_parts(record: Record) -> list[tuple[str, Any]]:
    """Plans, designs, statuses and whether they fit, wherever they stand in an answer."""
    parts = (".plan.", ".stages[", ".variables.", ".best_chips", ".design", ".status", ".fits")
    return [
        (path, value)
        for path, value in leaves(record["answer"], "")
        if any(part in path for part in parts) and (".plan." in path or not isinstance(value, float))
    ]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value of a document with where it stands; lists of plain values are one value."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}")
    elif isinstance(value, list) and any(isinstance(part, dict | list | float) for part in value):
        for number, part in enumerate(value):
            yield from leaves(part, f"{path}[{number}]")
    else:
        yield path, value


def differences(before: Record, after: Record) -> Iterator[tuple[str, Any, Any]]:
    """Where two answers differ at all."""
    old, new = (dict(leaves({name: record[name] for name in ("exit", "answer")}, "")) for record in (before, after))
    for path in old | new:
        if path not in old or path not in new or old[path] != new[path]:
            yield path.removeprefix(".").removeprefix("answer."), old.get(path, "nothing"), new.get(path, "nothing")


def relative(old: Any, new: Any) -> float:
    """By which part of the larger two numbers differ; anything else differs wholly."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (old, new)):
        return math.inf
    return abs(old - new) / max(abs(old), abs(new))


def unit_of(path: str) -> str:
    """What a number measures, by the name of its field."""
    for unit, words in (
        ("bytes", ("_bytes",)),
        ("joules", ("_j", "joule")),
        ("seconds", ("_s", "breakdown", "seconds")),
    ):
        if any(part.split("[")[0].endswith(words) for part in path.split(".")):
            return unit
    return "other"


# --- command -------------------------------------------------------------------------------------------------------


def compare(kind: str, match: str = "", skipped: Collection[str] = ()) -> Comparison:
    """Asks all questions of a kind again, but those skipped."""
    before, corrections = frozen(kind), json.loads((HERE / "corrected.json").read_text(encoding="utf-8"))
    comparison = Comparison()
    for question in questions(kind):
        if match in question["id"] and question["id"] not in skipped:
            start = time.process_time()
            record = ask(kind, question)
            comparison.cpu_s += time.process_time() - start
            comparison.add(before[question["id"]], json.loads(json.dumps(record)), corrections)
    return comparison


def freeze(kind: str) -> None:
    """Writes today's answers of a kind."""
    target = HERE / "frozen" / f"{kind}.jsonl"
    target.parent.mkdir(exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        for question in questions(kind):
            file.write(json.dumps(ask(kind, question), separators=(",", ":"), allow_nan=False) + "\n")
            file.flush()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def report(comparisons: Mapping[str, Comparison]) -> None:
    """One line a kind, then what differs."""
    _print(f"{'kind':<9}{'cases':>6}{'plan+status':>12}{'identical':>10}{'differ':>7}{'corrected':>10}{'counts':>7}"
           f"{'seconds':>9}{'bytes':>9}{'joules':>9}{'other':>9}{'CPU s':>8}")  # fmt: skip
    for kind, done in comparisons.items():
        sizes = "".join(f"{value:>9.1e}" for value in done.largest.values())
        _print(f"{kind:<9}{done.cases:>6}{done.equal:>12}{done.identical:>10}{len(done.differing):>7}"
               f"{len(done.corrected):>10}{len(done.counts):>7}{sizes}{done.cpu_s:>8.1f}")  # fmt: skip
    for title in ("differing", "corrected", "counts"):
        found = {name: texts for done in comparisons.values() for name, texts in getattr(done, title).items()}
        if found:
            _print(f"\n{title}:")
        for name, texts in found.items():
            _print("\n    ".join([f"  {name}", *texts]))


def main() -> int:
    """The command of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KINDS, action="append", help="a kind of question; may be repeated")
    parser.add_argument("--match", default="", help="only questions whose id contains this")
    parser.add_argument("--freeze", action="store_true", help="write the answers instead of comparing")
    options = parser.parse_args()
    kinds = options.only or KINDS
    if options.freeze:
        for kind in kinds:
            freeze(kind)
        return 0
    comparisons = {kind: compare(kind, options.match) for kind in kinds}
    report(comparisons)
    return int(any(done.differing for done in comparisons.values()))


if __name__ == "__main__":
    sys.exit(main())
