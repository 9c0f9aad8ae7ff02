"""What operators cost beyond their plain model: launches, casts, odd sizes, permutations and the loss."""

from dataclasses import replace

import numpy as np
import pytest
from costed_layers import BIASED, EXPERTS, MIXER, Priced, layers, units

from dovetail.cost.contraction import gpu_seconds, systolic_seconds
from dovetail.cost.operators import PERMUTATIONS, UNALIGNED_RATE, runs_narrow
from dovetail.graph import Kind, bytes_read, bytes_written
from dovetail.graph.size import as_array

TOKENS = 2048
HIDDEN = 2048


def block(**parts):
    return layers(**parts)["block"]


def launched_by_consumers(priced):
    return {o.operator.name for o in priced.placed.forward if priced.kernels[o.operator.name] == 0}


def test_sums_are_the_last_step_of_the_product_before_them():
    assert launched_by_consumers(Priced(block())) == {"output", "mlp.down"}


def test_biases_and_dropout_run_in_one_kernel_with_what_follows():
    priced = Priced(layers(**BIASED, dropout=True)["block"])
    # what the activation's gradient reads has to reach memory: mlp.up.biased is a kernel
    assert launched_by_consumers(priced) == {
        "query", "key", "value", "output", "output.biased", "mixer_dropout",
        "mlp.up", "mlp.down", "mlp.down.biased", "feed_forward_dropout",
    }  # fmt: skip
    assert set(priced.kernels.values()) == {0.0, 1.0}


def test_a_fused_operator_costs_its_lanes_alone():
    priced = Priced(layers(**BIASED, dropout=True)["block"])
    # one sum for every element of the stream
    assert priced.seconds["output.biased"] == pytest.approx(TOKENS * HIDDEN / float(priced.chip.vector.vector_flops))
    assert priced.seconds["mlp.up.biased"] > float(priced.chip.vector.launch_s)


@pytest.mark.parametrize("parts", [1, 4, 16])
def test_products_of_experts_are_launched_one_by_one(parts):
    priced = Priced(block(feed_forward=EXPERTS), experts=parts)
    of_experts = {n for n, o in priced.operators.items() if o.kind is Kind.CONTRACTION and n.startswith("expert.")}
    assert len(of_experts) == 9
    assert {priced.kernels[name] for name in of_experts} == {16 / parts}
    for name in ("router", "dispatch", "expert.activation", "query", "router.einsum.grad1"):
        assert priced.kernels[name] == 1


def narrow_products(priced):
    contractions = {n: o for n, o in priced.operators.items() if o.kind is Kind.CONTRACTION}
    narrow = {n for n, o in contractions.items() if runs_narrow(o, priced.tensors)}
    return narrow, contractions.keys() - narrow


def test_linear_layers_of_blocks_run_narrow_and_routers_do_not():
    narrow, wide = narrow_products(Priced(block(feed_forward=EXPERTS)))
    names = ("query", "key", "value", "output", "expert.gate", "expert.up", "expert.down")
    assert narrow == {f"{name}{part}" for name in names for part in ("", ".einsum.grad0", ".einsum.grad1")}
    assert wide == {"router", "router.einsum.grad0", "router.einsum.grad1"}


def test_logits_and_products_without_weights_do_not_run_narrow():
    _, wide = narrow_products(Priced(block(fused=False)))
    parts = ("", ".einsum.grad0", ".einsum.grad1")
    assert wide == {f"{name}{part}" for name in ("scores", "attention") for part in parts}
    narrow, wide = narrow_products(Priced(layers()["head"]))
    assert (narrow, wide) == (set(), {f"logits{part}" for part in parts})


@pytest.mark.parametrize(("precision", "width"), [("fp8", 1.0), ("fp4", 0.5 + 1 / 16)])
def test_narrow_jobs_cast_what_a_product_multiplies(precision, width):
    chip = units("b200", precision)
    priced = Priced(block(), chip)
    memory = float(chip.vector.memory_bytes_per_s)
    moved = 2 + 2 * width  # read in bf16, written as it is and transposed
    # inputs and incoming gradients where the first product needs them; the others, and weight gradients, find them
    for name, elements in (
        ("query", TOKENS * HIDDEN),
        ("key", 0),
        ("mlp.gate", TOKENS * HIDDEN),
        ("mlp.up", 0),
        ("mlp.down", TOKENS * 8192),
        ("mlp.up.einsum.grad0", TOKENS * 8192),
        ("mlp.gate.einsum.grad0", TOKENS * 8192),
        ("mlp.up.einsum.grad1", 0),
        ("mlp.down.einsum.grad1", 0),
    ):
        product = float(gpu_seconds(priced.gemm(name), chip.matrix, width))
        assert priced.seconds[name] - product == pytest.approx(moved * elements / memory, abs=1e-12), name


def test_a_chip_without_the_format_casts_nothing():
    wide, narrow = (Priced(block(), units("a100-80gb", precision)) for precision in ("bf16", "fp8"))
    assert narrow.seconds == pytest.approx(wide.seconds)


def test_products_that_stay_wide_have_no_cast_and_the_rate_of_half_precision():
    chip = units("h100-sxm", "fp8")
    head, priced = Priced(layers()["head"], chip), Priced(block(feed_forward=EXPERTS), chip)
    assert head.seconds["logits"] == pytest.approx(float(gpu_seconds(head.gemm("logits"), chip.half, 2)))
    assert priced.seconds["router"] == pytest.approx(float(gpu_seconds(priced.gemm("router"), chip.half, 2)))
    assert float(chip.half.peak_flops) == 989e12 < float(chip.matrix.peak_flops)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_wide_jobs_cast_nothing(precision):
    chip = units("h100-sxm", precision)
    priced = Priced(block(), chip)
    for name in ("query", "query.einsum.grad0", "mlp.down"):
        assert priced.seconds[name] == pytest.approx(float(gpu_seconds(priced.gemm(name), chip.matrix, 2)))


def unfused(head_dim, chip="a100-80gb"):
    return Priced(block(fused=False, mixer=MIXER | {"head_dim": head_dim}), units(chip))


def test_heads_of_odd_width_run_on_vector_lanes():
    odd, even, wide = (unfused(head) for head in (150, 152, 128))
    lanes = UNALIGNED_RATE * float(odd.chip.vector.vector_flops)
    for name in ("scores", "attention", "scores.einsum.grad0", "attention.einsum.grad1"):
        assert odd.seconds[name] == pytest.approx(2 * 16 * TOKENS * TOKENS * 150 / lanes), name
        assert odd.seconds[name] > 5 * wide.seconds[name]
        assert even.seconds[name] < 1.4 * wide.seconds[name]


def test_a_sequence_of_odd_length_is_as_slow():
    priced = Priced(block(fused=False), units("a100-80gb"), seq=2047)
    assert priced.seconds["scores"] > 5 * unfused(128).seconds["scores"]


def test_single_products_experts_and_systolic_arrays_take_any_size():
    single = Priced(block(feed_forward={"kind": "dense", "size": 8191}))
    experts = Priced(block(feed_forward=EXPERTS | {"size": 767}))
    for priced, name in ((single, "mlp.up"), (experts, "expert.up"), (experts, "expert.up.einsum.grad1")):
        gemm = priced.gemm(name)
        assert any(float(size) % 8 for size in (gemm.m, gemm.n, gemm.k))
        assert priced.seconds[name] == pytest.approx(float(gpu_seconds(gemm, priced.chip.matrix)))
    tpu = unfused(150, "tpu-v5p")
    assert tpu.seconds["scores"] == pytest.approx(float(systolic_seconds(tpu.gemm("scores"), tpu.chip.matrix)))


def streamed(priced, name):
    """Bytes over bandwidth, when every operand is moved once."""
    operator = priced.operators[name]
    moved = [as_array(count(operator, priced.tensors, priced.sizes)) for count in (bytes_read, bytes_written)]
    return float(sum(moved)) / float(priced.chip.vector.memory_bytes_per_s)


def test_tokens_are_permuted_twice_on_their_way_to_experts_and_back():
    priced = Priced(block(feed_forward=EXPERTS))
    assert PERMUTATIONS == 2
    launch = float(priced.chip.vector.launch_s)
    for name in ("dispatch", "combine", "dispatch.gather.grad", "combine.weighted_sum.grad0"):
        assert priced.seconds[name] - launch == pytest.approx(2 * streamed(priced, name), rel=1e-9), name
    for name in ("mixer_norm", "gates"):
        assert priced.seconds[name] - launch == pytest.approx(streamed(priced, name), rel=1e-9), name


LOGITS = TOKENS * 32000
LOSSES = ("loss", "loss.cross_entropy.grad")


def loss_seconds(chip, **options):
    seconds = Priced(layers()["head"], chip, **options).seconds
    return [seconds[name] for name in LOSSES]


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_loss_moves_so_many_bytes_per_logit_half_of_them_forward(tensor):
    chip = replace(units(), loss_bytes=12.0)
    memory, launch = float(chip.matrix.memory_bytes_per_s), float(chip.vector.launch_s)
    expected = LOGITS / tensor * 6 / memory + launch
    assert loss_seconds(chip, tensor=tensor) == pytest.approx([expected, expected])


def test_traffic_of_other_kernels_is_not_the_losss():
    chip = units()
    slow = replace(chip, vector=replace(chip.vector, memory_bytes_per_s=chip.vector.memory_bytes_per_s / 3))
    given, derived = ([loss_seconds(replace(c, loss_bytes=b)) for c in (chip, slow)] for b in (60.0, None))
    assert given[0] == given[1]
    # otherwise it reads and writes as its operator says, at the rate of vector kernels
    assert derived[1][0] > 2.5 * derived[0][0]
    assert derived[0][0] == pytest.approx(
        streamed(Priced(layers()["head"], chip), "loss") + float(chip.vector.launch_s), rel=1e-9
    )


@pytest.mark.parametrize("field", ["sustained", "memory_bytes_per_s", "launch_s"])
def test_products_priced_together_cost_what_each_does_whatever_varies_between_chips(field):
    one = units()
    factors = (0.5, 0.8, 1.0)
    # as many chips as other axes might have: a mix-up of axes would not show otherwise
    many = replace(one, half=replace(one.half, **{field: np.array(factors) * getattr(one.half, field)}))
    many = replace(many, matrix=many.half)
    together = Priced(block(feed_forward=EXPERTS), many, experts=4)
    seconds = together.all_seconds
    for position, factor in enumerate(factors):
        own = replace(one, half=replace(one.half, **{field: factor * getattr(one.half, field)}))
        alone = Priced(block(feed_forward=EXPERTS), replace(own, matrix=own.half), experts=4)
        for name, expected in alone.seconds.items():
            if alone.operators[name].kind is Kind.CONTRACTION:
                assert np.broadcast_to(seconds[name], (3,))[position] == pytest.approx(expected), name
