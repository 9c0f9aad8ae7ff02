"""10^6 contraction costs (1,000 shapes × 1,000 chips) in one call, against one call per pair."""

import time

import numpy as np

from dovetail.cost.contraction import MatrixUnits, gpu_seconds, systolic_seconds
from dovetail.cost.shapes import Gemm


def main() -> None:
    rng = np.random.default_rng(0)
    shapes = Gemm(np.ones(1000), *(rng.integers(1, 16384, 1000).astype(float) for _ in range(3)))
    column = np.ones((1000, 1))
    chips = MatrixUnits(
        peak_flops=column * 312e12,
        units=rng.integers(1, 512, (1000, 1)).astype(float),
        rows=2.0 ** rng.integers(3, 9, (1000, 1)),
        cols=2.0 ** rng.integers(3, 9, (1000, 1)),
        clock_hz=column * 1e9,
        memory_bytes_per_s=column * 2e12,
        buffer_bytes=column * 40e6,
        sustained=column * 0.9,
        launch_s=column * 1e-6,
    )
    for name, model in (("gpu", gpu_seconds), ("systolic", systolic_seconds)):
        times = []
        for _ in range(5):
            start = time.process_time()
            model(shapes, chips)
            times.append(time.process_time() - start)
        start = time.process_time()
        for i in range(300):
            one = Gemm(shapes.batch[i], shapes.m[i], shapes.n[i], shapes.k[i])
            figures = (np.broadcast_to(getattr(chips, f), (1000, 1)) for f in MatrixUnits.__dataclass_fields__)
            model(one, MatrixUnits(*(figure[i, 0] for figure in figures)))
        single = (time.process_time() - start) / 300
        median = sorted(times)[2]
        print(f"{name}: 10^6 costs in {median:.2f} s CPU; {single * 1e6 / median:.0f} times one call per pair")


if __name__ == "__main__":
    main()
