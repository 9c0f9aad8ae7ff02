"""Cycles of systolic arrays against SCALE-Sim v3, which runs in an environment of its own.

python -m venv scale && scale/bin/pip install scalesim==3.0.0 numpy==1.26.4    (Python 3.11 or 3.12)
python benchmarks/scale_sim.py --python scale/bin/python                       (minutes; exit code 1 beyond 5 %)
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dovetail.cost.shapes import Gemm
from dovetail.cost.systolic import array_cycles

#: What the count without overlap may be off by.
MOST_DEVIATION = 0.05

ARRAYS = ((32, 32), (128, 128), (64, 256))
DATAFLOWS = ("ws", "os")

#: Name, m, n, k. Layers of published models, few tokens and one head or one chip's part, so that cycle by cycle is
#: minutes; then shapes that fill no array.
GEMMS = (
    ("BERT-base, attention output", 128, 768, 768),
    ("BERT-base, feed-forward in", 128, 3072, 768),
    ("BERT-base, weight gradient of a head", 768, 64, 128),
    ("BERT-base, scores of a head", 512, 512, 64),
    ("BERT-base, values of a head", 512, 64, 512),
    ("BERT-base, attention output of one token", 1, 768, 768),
    ("GPT-2 XL, projection, 1/4", 100, 400, 1600),
    ("GPT-3, query of a head", 64, 128, 12288),
    ("GPT-3, attention output of a head", 64, 12288, 128),
    ("Llama 2 7B, query of a head", 128, 128, 4096),
    ("Llama 2 7B, attention output of a head, 1/8", 4096, 512, 128),
    ("Llama 2 7B, gate, 1/32", 64, 344, 4096),
    ("Llama 3 70B, keys, 1/8", 64, 128, 8192),
    ("Llama 3 8B, scores of a head", 256, 256, 128),
    ("one more than the array", 129, 257, 33),
    ("odd", 127, 65, 97),
    ("thin", 1000, 10, 50),
    ("one by one", 1, 1, 1),
)

#: Memories so large and mode CALC, in which bandwidth follows demand: nothing stalls.
CONFIG = """[general]
run_name = run
[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {cols}
IfmapSramSzkB = 65536
FilterSramSzkB = 65536
OfmapSramSzkB = 65536
IfmapOffset = 0
FilterOffset = 100000000
OfmapOffset = 200000000
Dataflow = {dataflow}
ReadRequestBuffer = 32
WriteRequestBuffer = 32
[layout]
IfmapCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterCustomLayout = False
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = false
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
"""

#: The command line of version 3.0.0 writes gigabytes of traces whatever its options, and a run keeps the matrices of
#: all its layers; the class behind it, started for one product at a time, does neither.
RUN = """
import sys
from scalesim.scale_sim import scalesim
folder, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    scalesim(save_disk_space=True, verbose=False, config=folder + "/array.cfg", layout=folder + "/layout.csv",
             topology=f"{folder}/{number}.csv", input_type_gemm=True).run_scale(top_path=f"{folder}/{number}")
"""

Case = tuple[int, int, str]


def simulated_cycles(python: str, case: Case) -> list[int]:
    """SCALE-Sim's compute cycles of every product on one array under one dataflow."""
    rows, cols, dataflow = case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "array.cfg").write_text(CONFIG.format(rows=rows, cols=cols, dataflow=dataflow))
        (folder / "layout.csv").write_text("Layer,\n")
        for number, (_, m, n, k) in enumerate(GEMMS):
            (folder / f"{number}.csv").write_text(f"Layer,M,N,K,\n{number},{m},{n},{k},\n")
        command = [python, "-c", RUN, name, str(len(GEMMS))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"SCALE-Sim failed in {python}:\n{done.stderr[-2000:]}")
        return [_compute_cycles(folder / str(number) / "run" / "COMPUTE_REPORT.csv") for number in range(len(GEMMS))]


def _compute_cycles(report: Path) -> int:
    with report.open() as lines:
        (row,) = csv.DictReader(lines, skipinitialspace=True)
    return int(row["Total Cycles"]) - int(row["Stall Cycles"])


def our_cycles(case: Case, *, overlapped: bool) -> list[float]:
    """Ours of the same, in one call."""
    rows, cols, dataflow = case
    m, n, k = (np.array([gemm[place] for gemm in GEMMS], float) for place in (1, 2, 3))
    array = (np.asarray(float(rows)), np.asarray(float(cols)), np.ones(()), np.asarray(float(dataflow == "os")))
    return array_cycles(Gemm(np.ones(len(GEMMS)), m, n, k), *array, overlapped=overlapped).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter of an environment with scalesim==3.0.0")
    parser.add_argument("--jobs", type=int, default=1, help="arrays simulated at a time")
    options = parser.parse_args()
    cases: list[Case] = [(rows, cols, dataflow) for rows, cols in ARRAYS for dataflow in DATAFLOWS]
    start = time.perf_counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        simulated = list(pool.map(lambda case: simulated_cycles(options.python, case), cases))
    seconds = time.perf_counter() - start
    print("| product | m × n × k | array | dataflow | SCALE-Sim | serial | off | overlapped | off |")
    print("|---|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for case, theirs in zip(cases, simulated, strict=True):
        rows, cols, dataflow = case
        counts = zip(our_cycles(case, overlapped=False), our_cycles(case, overlapped=True), theirs, strict=True)
        for (name, m, n, k), (serial, overlapped, cycles) in zip(GEMMS, counts, strict=True):
            off, ahead = serial / cycles - 1, overlapped / cycles - 1
            print(f"| {name} | {m} × {n} × {k} | {rows} × {cols} | {dataflow} | {cycles:,}", end="")
            print(f" | {serial:,.0f} | {off:+.2%} | {overlapped:,.0f} | {ahead:+.0%} |")
            worst = max(worst, abs(off))
    print(f"\n{len(cases) * len(GEMMS)} products in {seconds:.0f} s; the serial count is off by {worst:.2%} at most")
    sys.exit(worst > MOST_DEVIATION)


if __name__ == "__main__":
    main()
