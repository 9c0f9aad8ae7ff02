"""What an explanation costs beside the search it explains: CPU seconds of both, in one new process for each question.

    python benchmarks/explain.py                 # the questions below, medians of three processes each
    python benchmarks/explain.py llama-3.1-70b   # those of one model

Kernels are compiled before: a first process of each question is not counted. *Explanation / search* is the explanation
alone, *with / without* the whole command with `--explain` against the one without it, start of Python included.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys

#: Model, chips, global batch, tokens of a sequence, precision.
QUESTIONS = (
    ("llama-3.1-70b", 1024, 1024, 8192, "bf16"),
    ("llama-3.1-405b", 16384, 2048, 8192, "bf16"),
    ("deepseek-v3", 2048, 15360, 4096, "fp8"),
)
REPEATS = 3
#: Run in a process of its own.
BOTH = """
import json, sys, time
from dovetail import hardware, models
from dovetail.explanation.explain import explain
from dovetail.models import Job
from dovetail.search import plan
from dovetail.step.ties import TIE_MARGIN
model, chips, batch, tokens, precision = json.loads(sys.argv[1])
job = Job(models.load(model), tokens, batch, precision=precision)
cluster = hardware.cluster("h100-sxm", chips)
began = time.process_time()
answer = plan(job, cluster, "megatron", tie_margin=TIE_MARGIN, keep_tables=True)
searched = time.process_time()
explanation = explain(answer, time_limit_s=float("inf"))
explained = time.process_time()
others = len(explanation.neighbours) + len(explanation.marginal)
print(json.dumps([searched - began, explained - searched, others]))
"""


def cpu_of(question: tuple[str, int, int, int, str]) -> tuple[float, float, float, int]:
    """CPU seconds of start, search and explanation of a new process; and how many plans were asked for around it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", BOTH, json.dumps(question)], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    search_s, explain_s, others = json.loads(done.stdout)
    return whole - search_s - explain_s, search_s, explain_s, others


def main(models: list[str]) -> None:
    print("| question | search | explanation | asked around it | explanation / search | with / without |")
    print("|---|---|---|---|---|---|")
    for question in QUESTIONS:
        if models and question[0] not in models:
            continue
        cpu_of(question)
        runs = [cpu_of(question) for _ in range(REPEATS)]
        search_s, explain_s = (statistics.median(run[i] for run in runs) for i in (1, 2))
        alone = statistics.median(run[2] / run[1] for run in runs)
        whole = statistics.median(sum(run[:3]) / sum(run[:2]) for run in runs)
        name = f"{question[0]} on {question[1]:,} h100-sxm"
        print(
            f"| {name} | {search_s:.1f} s | {explain_s:.1f} s | {runs[0][3]} | {alone:.2f} | {whole:.2f} |", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
