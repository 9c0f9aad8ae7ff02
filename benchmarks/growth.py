"""How the time of an answer grows: a plan's with layers, chips, experts and batch, a study's with designs.

`python benchmarks/growth.py [plan|designs|all]` prints the tables of docs/results/speed.md and
draws its plots: CPU seconds. A plan is the first of its job in a process that has compiled and planned before;
`--repeats` takes the median of more, and an axis ends where one takes longer than `--limit`. A study runs in a process
of its own, as `dovetail explore` runs it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dovetail import hardware, models
from dovetail.api import plan
from dovetail.documents import read_document
from dovetail.exploration.resolving import study_of
from dovetail.exploration.study import Study
from dovetail.models import Job, Model
from dovetail.report.svg import Panel, Series, growth
from dovetail.search import Answer

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "docs" / "assets"
#: The points of each axis; what is not varied stands at the values below.
AXES: dict[str, tuple[int, ...]] = {
    "layers": (16, 64, 256, 512),
    "chips": (64, 1024, 16384, 65536),
    "experts": (8, 32, 128, 512),
    "sequences of the batch": (64, 1024, 16384, 65536),
}
CHIPS, BATCH, SEQ_LEN = 1024, 1024, 8192
#: Chips and tokens of a sequence where experts are varied, chips where the batch is.
EXPERT_CHIPS, EXPERT_SEQ_LEN, BATCH_CHIPS = 256, 4096, 64
#: Clocks and stacks of HBM that turn the other variables of studies/million.yaml into 10^5 to 10^7 designs; 10^8 with
#: --huge, which takes six minutes of CPU more.
SPACES = ((1, 1), (2, 4), (10, 8))
HUGE = (86, 8)
#: Designs that could be better by less are not searched for.
GAP = 0.9


def main() -> None:
    """Prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=("plan", "designs", "all", "run"))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds of a call that ends an axis")
    parser.add_argument("--huge", action="store_true", help="also 10^8 designs")
    parser.add_argument("--clocks", type=int, default=1, help="of a run, which `designs` starts")
    parser.add_argument("--stacks", type=int, default=1)
    options = parser.parse_args()
    if options.part == "run":
        explored(options.clocks, options.stacks)
        return
    if options.part in ("plan", "all"):
        plans(options.repeats, options.limit)
    if options.part in ("designs", "all"):
        designs((*SPACES, HUGE) if options.huge else SPACES)


def plans(repeats: int, limit_s: float) -> None:
    """CPU seconds of plan searches along each axis, and the plot."""
    lines: dict[str, list[tuple[float, float]]] = {}
    ask_for(*question("chips", 64))
    print("| axis | value | CPU s | answer |")
    for axis, values in AXES.items():
        for value in values:
            job, chips = question(axis, value)
            seconds, answer = measured(job, chips, repeats)
            lines.setdefault(axis, []).append((value, seconds))
            print(f"| {axis} | {value:,} | {seconds:.2f} | {answer.certificate.status} |", flush=True)
            if seconds > limit_s:
                break
    panels = [Panel(axis, (Series("one plan", tuple(line)),)) for axis, line in lines.items()]
    (ASSETS / "plan-growth.svg").write_text(growth("What a plan costs", panels, "CPU seconds"), encoding="utf-8")


def question(axis: str, value: int) -> tuple[Job, int]:
    """The job and the number of chips of a point: Llama 3.1 70B, or a Mixtral of other experts."""
    dense = models.load("llama-3.1-70b")
    match axis:
        case "layers":
            return Job(deeper(dense, value), seq_len=SEQ_LEN, global_batch=BATCH), CHIPS
        case "chips":
            return Job(dense, seq_len=SEQ_LEN, global_batch=max(BATCH, value)), value
        case "experts":
            model = of_experts(models.load("mixtral-8x7b"), value)
            return Job(model, seq_len=EXPERT_SEQ_LEN, global_batch=BATCH), EXPERT_CHIPS
        case _:
            return Job(dense, seq_len=SEQ_LEN, global_batch=value), BATCH_CHIPS


def deeper(model: Model, layers: int) -> Model:
    """The model with another number of layers."""
    (pattern,) = model.layers
    return model.model_copy(update={"layers": (pattern.model_copy(update={"repeat": layers}),)})


def of_experts(model: Model, experts: int) -> Model:
    """The model with its experts divided into more of them, at most eight at work."""
    block = model.blocks["full"]
    whole: Any = block.feed_forward
    size = whole.size * whole.experts // experts
    smaller = whole.model_copy(update={"experts": experts, "top_k": min(8, experts // 4), "size": size})
    return model.model_copy(update={"blocks": {"full": block.model_copy(update={"feed_forward": smaller})}})


def ask_for(job: Job, chips: int) -> Answer:
    """The plan of a job on H100s under Megatron-LM."""
    return plan(job, hardware.cluster("h100-sxm", chips=chips))


def measured(job: Job, chips: int, repeats: int) -> tuple[float, Answer]:
    """The median CPU time of some calls, and the answer."""
    spent: list[float] = []
    for _ in range(repeats):
        before = time.process_time()
        answer = ask_for(job, chips)
        spent.append(time.process_time() - before)
    return statistics.median(spent), answer


def designs(spaces: Sequence[tuple[int, int]]) -> None:
    """CPU seconds and memory of studies against designs, and the plot."""
    print("| designs | within limits | left by physics | left by profiles | searched | CPU s | us/design | peak MiB |")
    points: list[dict[str, Any]] = []
    for clocks, stacks in spaces:
        command = [sys.executable, __file__, "run", "--clocks", str(clocks), "--stacks", str(stacks)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        points.append(found)
        counts = found["counts"]
        numbers = [f"{counts[name]:,}" for name in ("designs", "kept", "physical", "profile", "searched")]
        each = f"{1e6 * found['cpu_s'] / counts['designs']:.2f}"
        print(f"| {' | '.join(numbers)} | {found['cpu_s']:.1f} | {each} | {found['peak_mib']:.0f} |", flush=True)
    sizes = [found["counts"]["designs"] for found in points]
    panels = [
        Panel(title, (Series("one study", tuple(zip(sizes, (found[key] for found in points), strict=True))),))
        for title, key in (("designs: CPU seconds", "cpu_s"), ("designs: peak MiB", "peak_mib"))
    ]
    picture = growth("What a study costs", panels, "CPU seconds, or MiB")
    (ASSETS / "study-growth.svg").write_text(picture, encoding="utf-8")


def explored(clocks: int, stacks: int) -> None:
    """Runs the study of a million chips with other clocks and stacks; prints JSON."""
    document = read_document(ROOT / "studies" / "million.yaml")
    lowest, highest = 0.7e9, 1.4e9
    steps = [highest - (highest - lowest) * n / clocks for n in range(clocks)]
    document["hardware"]["vary"] |= {"clock_hz": steps, "hbm_stacks": [8, 6, 4, 2, 1, 3, 5, 7][:stacks]}
    resolved = study_of({**document, "search": {"gap": GAP}}, "million", ROOT / "studies")
    study = Study(**{field.name: getattr(resolved, field.name) for field in fields(resolved)})
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        found = study.run(Path(folder) / "run")
        spent = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"counts": dict(found.document["counts"]), "cpu_s": spent, "peak_mib": peak}))


if __name__ == "__main__":
    main()
