"""CPU seconds of the bound L0 of a million designs, beside `hardware_bound` design by design in the same run.

`python benchmarks/design_bounds.py [designs]`: GPT-3 175B, 1,536 sequences of 2,048 tokens, on 1,024 chips like TPU v4
but for their figures, which are drawn at random; micro-batches 1, 2, 4 and 8. Counted is the whole call, with the plans
it lists first; one by one only a sample is asked for, with those plans given.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from dovetail import hardware, models
from dovetail.bounds.design_bound import DesignBound, enumerated_plans
from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.hardware import Chip, Cluster
from dovetail.hardware.design import design_of
from dovetail.models import Job

MICRO_BATCHES = (1, 2, 4, 8)
#: Designs that are bounded one by one for the comparison.
SCALAR = 200
#: Least and most of what is drawn, evenly over orders of magnitude.
RANGES = {
    "tensor_cores": (1, 4096), "rows": (2, 512), "cols": (2, 512), "vector_cores": (1, 1024), "vector_lanes": (1, 4096),
    "clock_hz": (0.2e9, 4e9), "hbm_stacks": (1, 16), "link_ports": (1, 64),
}  # fmt: skip


def main(number: int) -> None:
    """Prints seconds, what they are made of, and the largest difference between both ways."""
    job = Job(models.load("gpt3-175b"), seq_len=2048, global_batch=1536)
    cluster = hardware.cluster("tpu-v4", chips=1024)
    draw = np.random.default_rng(0)
    drawn = {name: np.exp(draw.uniform(np.log(low), np.log(high), number)) for name, (low, high) in RANGES.items()}
    designs = design_of(cluster.chip).varied({n: v if n == "clock_hz" else np.rint(v) for n, v in drawn.items()})
    before = time.process_time()
    bounds = np.stack([DesignBound(job, cluster, [size]).least_s(designs) for size in MICRO_BATCHES], axis=-1)
    all_s = time.process_time() - before
    before = time.process_time()
    for size in MICRO_BATCHES:
        DesignBound(job, cluster, [size]).least_s(design_of(cluster.chip))
    one_s = time.process_time() - before
    plans = enumerated_plans(job, cluster, MICRO_BATCHES)
    print(f"{number:,} designs × {len(MICRO_BATCHES)} micro-batches: {all_s:.2f} s of CPU; one design {one_s:.3f} s")

    sizes, off = [plans.micro_batch == size for size in MICRO_BATCHES], 0.0
    sample = draw.choice(number, SCALAR, replace=False)
    some = designs.varied({name: designs.value(name)[sample] for name in RANGES})
    clusters = [cluster_of(some.chip(i, "design"), cluster) for i in range(SCALAR)]
    before = time.process_time()
    for i, here in zip(sample.tolist(), clusters, strict=True):
        found = hardware_bound(job, here, plans)
        least = np.array([found[of_size].min() for of_size in sizes])
        off = max(off, float(np.abs(bounds[i] / least - 1).max()))
    scalar_s = (time.process_time() - before) / SCALAR
    print(f"hardware_bound of its {plans.micro_batch.size:,} plans: {1e3 * scalar_s:.1f} ms per design,", end=" ")
    print(f"{scalar_s * number / all_s:,.0f} times as long; largest difference {off:.0e}")


def cluster_of(chip: Chip, cluster: Cluster) -> Cluster:
    """The cluster with a design in the place of its chip."""
    tiers = (replace(cluster.tiers[0], bytes_per_s=chip.link_bytes_per_s), *cluster.tiers[1:])
    return replace(cluster, chip=chip, tiers=tiers)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10**6)
