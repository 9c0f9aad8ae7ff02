"""Measured forward passes of experts: rows that count, the fullest chip's load, constants found again, errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.accuracy.gemm_timings import GemmFit
from dovetail.accuracy.grouped_timings import (
    AroundProducts,
    ExpertTimings,
    balanced,
    fit_grouped,
    forward_seconds,
    fullest_share,
    grouped_report,
    read_grouped,
)

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "grouped_gemm_measured.csv.gz"
HEADER = "chip,kernel,tokens,hidden,expert_ffn,experts,top_k,moe_tp,moe_ep,dtype,distribution,seconds\n"
#: Dense products of Hopper and Blackwell as accuracy.gemm_timings fits them.
PRODUCTS = {
    ("hopper", "bf16"): GemmFit(0.726, 0.812, 8000),
    ("hopper", "fp8"): GemmFit(0.684, 0.846, 8000),
    ("blackwell", "bf16"): GemmFit(0.575, 0.747, 8000),
    ("blackwell", "fp8"): GemmFit(0.562, 0.694, 8000),
    ("blackwell", "fp8_block"): GemmFit(0.552, 0.608, 8000),
}


def made(rows=60, seed=5, skew=0.0):
    """Forward passes without times."""
    rng = np.random.default_rng(seed)
    experts = np.asarray(2.0 ** rng.integers(3, 8, rows), np.float64)
    own = experts / 2.0 ** rng.integers(0, 3, rows)
    columns, hidden = (np.asarray(n * rng.integers(1, 8, rows), np.float64) for n in (512.0, 1024.0))
    tokens = experts * 2.0 ** rng.integers(6, 11, rows) / 2
    ones = np.ones(rows)
    return ExpertTimings("h100-sxm", "bf16", tokens, 2 * ones, experts, own, columns, hidden, skew * ones, ones)


def test_constants_are_found_again():
    truth = AroundProducts(0.7, 2.5e-5)
    group = made()
    group = replace(group, seconds=forward_seconds(group, PRODUCTS, truth))
    found = fit_grouped([group], PRODUCTS)
    assert found.streaming == pytest.approx(truth.streaming, rel=0.03)
    assert found.start_s == pytest.approx(truth.start_s, rel=0.03)


def test_only_rows_that_stand_for_training_count(tmp_path):
    path = tmp_path / "experts.csv"
    shape = "4096,1024,64,8,1,8"
    lines = (
        f"h100-sxm,moe_torch_flow_cutlass,8192,{shape},bfloat16,balanced,1e-3",
        f"h100-sxm,sglang_fused_moe_triton,8192,{shape},bfloat16,balanced,1e-3",
        f"h100-sxm,moe_torch_flow_cutlass,256,{shape},bfloat16,balanced,1e-3",
        f"h100-sxm,moe_torch_flow_cutlass,16384,{shape},bfloat16,balanced,9e-3",
        f"mi308x,moe_torch_flow_cutlass,8192,{shape},bfloat16,balanced,1e-3",
    )
    path.write_text(HEADER + "\n".join(lines) + "\n")
    (group,) = read_grouped(path)
    # of the others one is a server's kernel, one has 32 tokens per expert, one a bad kernel, one an unknown chip
    assert group.tokens.tolist() == [8192]
    assert group.own.tolist() == [8]


def test_the_fullest_chip_has_more_where_loads_are_skewed():
    assert (fullest_share(made()) == 1).all()
    skewed = made(skew=1.2)
    share = fullest_share(skewed)
    alone = skewed.own == skewed.experts
    assert (share[alone] <= 1 + 1e-9).all(), "one chip with all experts has all tokens, whatever their loads"
    assert (share[~alone] > 1).all()


@pytest.mark.skipif(not PUBLISHED.exists(), reason="measured experts are not beside this checkout")
def test_products_of_experts_run_as_batches_of_dense_ones():
    report = grouped_report([balanced(group) for group in read_grouped(PUBLISHED)], PRODUCTS)
    assert {error.chip for error in report} == {"h100-sxm", "h200-sxm", "b200", "gb200", "b300", "gb300"}
    assert sum(error.rows for error in report) > 4000
    for error in report:
        # single kernels the libraries chose badly decide the weighted error; the median and the bias show the model
        assert abs(error.bias) < 0.1, error
        assert error.median < 0.17, error
        assert error.time_weighted < 0.24, error
