"""Throughput that a wafer keeps with dead dies or links: the plan of the whole wafer kept, and planned again.

Everything is asked by command: a plan of the whole wafer once for each model, then for every map of defects
`dovetail plan --strategy free --defect-rate R --seed N --keep PLAN`, and `dovetail simulate` of what it answers, which
refuses a plan on a dead die or link. Every die, or every link, is dead with the probability named, whatever the
others are; three maps of each. A plan that does not fit has throughput 0.

    python benchmarks/wafer_faults.py [FOLDER for pictures] [SECONDS for each search]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODELS = ("gpt3-175b", "llama-3.1-70b")
QUESTION = ["--strategy", "free", "--framework", "wafer", "--cluster", "watos-like"]
QUESTION += ["--seq-len", "2048", "--global-batch", "336"]
RATES = [(what, rate) for what in ("dies", "links") for rate in (0.05, 0.10, 0.20)]
SEEDS, SECONDS, WHOLE_SECONDS = range(3), 20.0, 120.0
#: The map that is drawn.
DRAWN = ("llama-3.1-70b", "dies", 0.10, 0)


def dovetail(*arguments: str) -> dict[str, Any] | None:
    """What a command says as JSON; None if there is no plan."""
    command = [sys.executable, "-m", "dovetail", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return None if done.returncode else json.loads(done.stdout)


def defects(what: str, rate: float, seed: int) -> list[str]:
    """The options that draw a map."""
    dies, links = (rate, 0.0) if what == "dies" else (0.0, rate)
    return ["--defect-rate", str(dies), "--link-defect-rate", str(links), "--seed", str(seed)]


def parts_text(parts: Sequence[float]) -> str:
    """Median, least and most, and how many are 0."""
    return f"{statistics.median(parts):.1%} ({min(parts):.1%} to {max(parts):.1%}) | {parts.count(0.0)}"


def main() -> None:
    """A row for every model and rate of dead dies or links."""
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    seconds = sys.argv[2] if len(sys.argv) > 2 else str(SECONDS)
    print("| model | dead | kept | do not fit | planned again | do not fit | simulated against modelled |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            whole = str(Path(folder) / f"{model}.yaml")
            question = ["plan", "--model", model, *QUESTION]
            answer = dovetail(*question, "--time-limit", str(WHOLE_SECONDS), "--out", whole)
            assert answer is not None
            print(f"| {model} | nothing | 100 %: {answer['step_time_s']:.2f} s | | | | |", flush=True)
            for what, rate in RATES:
                kept, again, apart = list[float](), list[float](), list[float]()
                for seed in SEEDS:
                    out = str(Path(folder) / f"{model}-{what}-{rate}-{seed}.yaml")
                    ask = [
                        *question,
                        *defects(what, rate, seed),
                        "--keep",
                        whole,
                        "--time-limit",
                        seconds,
                        "--out",
                        out,
                    ]
                    found = dovetail(*ask, "--time-limit", seconds)
                    kept.append(0.0 if found is None else found["keep"]["throughput_kept"] or 0.0)
                    again.append(0.0 if found is None else found["keep"]["throughput_replanned"])
                    if found is not None:
                        drawn = pictures is not None and (model, what, rate, seed) == DRAWN
                        picture = ["--picture", str(pictures / "wafer-faults.svg"), "--force"] if drawn else []
                        step = dovetail("simulate", out, *picture)
                        assert step is not None
                        apart.append(step["step_time_s"] / found["step_time_s"] - 1)
                print(
                    f"| {model} | {rate:.0%} of {what} | {parts_text(kept)} | {parts_text(again)} "
                    f"| {min(apart, default=0):+.1%} to {max(apart, default=0):+.1%} |",
                    flush=True,
                )
    print(f"\n{resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime:.0f} s CPU")


if __name__ == "__main__":
    main()
