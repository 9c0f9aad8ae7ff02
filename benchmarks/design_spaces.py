"""Design spaces enumerated and filtered as arrays, against the same limits one design at a time, and their memory.

`python benchmarks/design_spaces.py`: the grid of PHAZE, a space some hundred times as large, and one of 10^8 designs,
each in a process of its own. Counted is CPU time from an open file to the designs kept, as arrays of their variables.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from importlib.resources import files
from typing import Any

from dovetail import hardware
from dovetail.documents import parse_document
from dovetail.hardware.design_space import DesignSpace

#: Designs looked at one by one.
SINGLE = 2000


def grid() -> DesignSpace:
    return hardware.space("phaze-grid")


def wide() -> DesignSpace:
    return hardware.space("phaze-wide")


def huge() -> DesignSpace:
    """The wide space with eleven clocks."""
    text = (files("dovetail.hardware") / "data" / "spaces" / "phaze-wide.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = parse_document(text, "phaze-wide")
    document["vary"]["clock_hz"] = {"range": ["0.8 GHz", "1.8 GHz"], "step": "0.1 GHz"}
    return hardware.space_from(document, "phaze-huge")


SPACES = {"phaze-grid": grid, "phaze-wide": wide, "10^8 designs": huge}


def measure(name: str) -> None:
    """One space; prints JSON."""
    space = SPACES[name]()
    space.count(stop=min(space.size, 2**17))
    before = time.process_time()
    kept = sum(len(batch) for batch in space.batches())
    seconds = time.process_time() - before
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = time.process_time()
    counts = space.count()
    counted = time.process_time() - before
    assert counts.kept == kept
    sample = [int(n * space.size / SINGLE) for n in range(SINGLE)]
    before = time.process_time()
    alone = [bool(space.keeps([index])[0]) for index in sample]
    single = (time.process_time() - before) / SINGLE
    assert alone == space.keeps(sample).tolist()
    found = {"size": space.size, "kept": kept, "cpu_s": seconds, "count_s": counted, "single_s": single}
    print(json.dumps(found | {"peak_bytes": peak_bytes}))


def main() -> None:
    for name in SPACES:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        rate = found["size"] / found["cpu_s"]
        print(
            f"{name}: {found['size']:,} designs, {found['kept']:,} kept, in {found['cpu_s']:.3g} s of CPU "
            f"(counted alone: {found['count_s']:.3g} s); {rate:.3g} designs a CPU second, "
            f"{rate * found['single_s']:,.0f} times one at a time; peak {found['peak_bytes'] / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
