"""CPU time of the chain solver: three published instances, and how it grows with layers, devices and widths.

`python benchmarks/placement.py` prints tables; with `--plot docs/assets` it draws the growth as placement-growth.svg.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cpu_time import cpu_seconds

from dovetail.partition.chain import Chain, Layers, read_chain
from dovetail.partition.chain_solver import solve_chain
from dovetail.report.svg import Panel, Series, growth

INSTANCES = Path(__file__).parents[2] / "shared" / "data" / "placement"
#: CPU seconds of the published C++ solver at -O2, as stated with the instances; it was not run here.
PUBLISHED_S = {"gpt3-1024": 8.4, "gpt3-10000": 75.3, "gpt3-1024-fine": 46.5}
REPEATS = 21

LAYERS = (10, 18, 32, 56, 100, 180, 320, 560, 1000)
DEVICES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
#: Layers, devices and widths while one of them grows.
BASES = ((100, 1000, 4), (1000, 100_000, 8))


def plain_seconds(chain: Chain) -> float:
    """The reference: the dynamic program in lists and dicts, over all stages that fit, without any bound."""
    return min(plain_seconds_of_width(chain, layers) for layers in chain.layers)


def plain_seconds_of_width(chain: Chain, layers: Layers) -> float:
    """Its answer for one width: by start and stages on one device, the least longest stage of s stages to the end."""
    count, best = len(layers.ids), math.inf
    forward, backward, parameters, activations, inputs = (
        values.tolist()
        for values in (
            layers.forward_s, layers.backward_s, layers.parameter_bytes, layers.activation_bytes, layers.input_bytes
        )
    )  # fmt: skip
    cut, rounds = layers.sharded.tolist(), [math.ceil(chain.microbatches / d) for d in range(1, chain.microbatches + 1)]
    fewest = [d for d in range(1, chain.microbatches + 1) if d == 1 or rounds[d - 1] < rounds[d - 2]]
    behind: dict[int, dict[int, float]] = {count: {0: 0.0}}
    for s in range(1, count + 1):
        grown: dict[int, dict[int, float]] = {}
        for i in range(count):
            f = b = p = a = 0.0
            wide = False
            for j in range(i + 1, count + 1):
                f, b, p, a = f + forward[j - 1], b + backward[j - 1], p + parameters[j - 1], a + activations[j - 1]
                wide = wide or cut[j - 1]
                if chain.state * p + a + (s - 1) * (inputs[i] if chain.recompute else a) > chain.device_bytes:
                    break
                leaves = inputs[j] / chain.bytes_per_s if j < count else 0.0
                returned = max(f, leaves) if chain.recompute and j < count else leaves
                load = inputs[i] / chain.bytes_per_s + f + returned + b
                for n, others in behind.get(j, {}).items():
                    longest, alone = max(load, others), n if wide else n + 1
                    if i > 0:
                        places = grown.setdefault(i, {})
                        places[alone] = min(longest, places.get(alone, math.inf))
                        continue
                    for d in fewest:
                        if d * ((s - alone) * layers.width + alone) > chain.devices:
                            break
                        value = longest * (rounds[d - 1] + s - 1) + 4 * (d - 1) / d * p / chain.bytes_per_s
                        best = min(best, value)
        behind = grown
    return best


def transformer(layers: int, devices: int, widths: int, every_other: bool = False) -> Chain:
    """An embedding, blocks that differ by some percent, and a head, the ends not cut; for widths 1, 2, 4 and so on.

    11 blocks fill a device's memory; a wider stage computes a little less well. With `every_other` half of the blocks
    are not cut either.
    """
    shape = 1 + 0.05 * np.random.default_rng(layers).uniform(-1, 1, (4, layers))
    forward, parameters, activations, handed = shape * np.array([[0.02], [1.8e9], [1.6e9], [5e7]])
    forward[0], forward[-1] = 1e-5, 7e-3
    parameters[[0, -1]], activations[[0, -1]], handed[0] = 5e8, 1e8, 0.0
    cut = np.ones(layers, np.bool_)
    cut[[0, -1]] = False
    cut[1::2] &= not every_other
    by_width = []
    for width in (2**power for power in range(widths)):
        share = np.where(cut, width, 1)
        faster = np.where(cut, width * 0.93 ** math.log2(width), 1.0)
        times, bytes_of = (forward / faster, 2 * forward / faster), (parameters / share, activations / share)
        by_width.append(Layers(width, tuple(range(layers)), *times, *bytes_of, handed, cut))
    return Chain(tuple(by_width), 80e9, devices, 6e9, 4096, True, 3.0)


def print_instances() -> None:
    """One line per published instance."""
    if not INSTANCES.exists():
        print("The published instances are left out: there is no ../shared/data/placement beside the repository.")
        return
    print(f"CPU milliseconds, warm, median of {REPEATS}; ratios against the published C++ solver and plain Python")
    print(f"{'instance':16}{'parse':>8}{'solve':>8}{'published':>11}{'ratio':>9}{'plain':>10}{'ratio':>9}")
    for name, published in PUBLISHED_S.items():
        path = INSTANCES / f"{name}.json"
        chain = read_chain(path)
        parse, solve = (
            cpu_seconds(lambda path=path: read_chain(path)),
            cpu_seconds(lambda chain=chain: solve_chain(chain)),
        )
        line = f"{name:16}{1e3 * parse:8.1f}{1e3 * solve:8.2f}{1e3 * published:11,.0f}{published / solve:9,.0f}"
        before = time.process_time()
        answer = plain_seconds(chain)
        plain = time.process_time() - before
        assert math.isclose(answer, solve_chain(chain).seconds, rel_tol=1e-9)
        print(f"{line}{1e3 * plain:10,.0f}{plain / solve:9,.0f}")


def print_mixed() -> None:
    """Chains half of whose layers are not cut: stages on one device are an axis of the search."""
    print(f"\nCPU milliseconds with every other layer not cut\n{'layers':>8}{'devices':>9}{'widths':>8}{'solve':>9}")
    for layers, devices, widths in ((200, 1000, 5), (200, 10_000, 5), (1000, 10_000, 5)):
        chain = transformer(layers, devices, widths, every_other=True)
        print(f"{layers:8,}{devices:9,}{widths:8}{1e3 * cpu_seconds(lambda chain=chain: solve_chain(chain)):9.2f}")


def measured_growth() -> list[Panel]:
    """Prints and returns CPU milliseconds against layers, devices and widths, each with the other two as in a base."""
    panels: list[Panel] = []
    for axis, (name, values) in enumerate(zip(("layers", "devices", "widths"), (LAYERS, DEVICES, WIDTHS), strict=True)):
        print(f"\nCPU milliseconds by {name}\n{'layers':>8}{'devices':>9}{'widths':>8}{'solve':>9}")
        series: list[Series] = []
        for base in BASES:
            points: list[tuple[float, float]] = []
            for value in values:
                sizes = (*base[:axis], value, *base[axis + 1 :])
                chain = transformer(*sizes)
                points.append((value, 1e3 * cpu_seconds(lambda chain=chain: solve_chain(chain))))
                note = "" if solve_chain(chain).placement else "  fits nowhere"
                print(f"{sizes[0]:8,}{sizes[1]:9,}{sizes[2]:8}{points[-1][1]:9.2f}{note}")
            series.append(Series("at {:,} layers, {:,} devices, {} widths".format(*base), tuple(points)))
        panels.append(Panel(name, tuple(series)))
    return panels


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables, and draws the growth where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the growth into this folder")
    options = parser.parse_args(arguments)
    print_instances()
    panels = measured_growth()
    print_mixed()
    if options.plot:
        path = options.plot / "placement-growth.svg"
        path.write_text(growth("CPU time to place a chain: one size varies, two stay", panels, "milliseconds"))
        print(f"\nwritten: {path}")


if __name__ == "__main__":
    main()
