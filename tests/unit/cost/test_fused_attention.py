"""Fused attention: exponentials, filled-up heads, whole blocks and idle units, against formulas written out here."""

import math
from dataclasses import replace

import numpy as np
import pytest
from costed_layers import MIXER, Priced, layers, units
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.attention import ATTENTION_KERNELS, AttentionUnits, AttentionWork, attention_seconds, masked_keys
from dovetail.graph.mask import Mask, Span

PEAK, UNITS, FORWARD, BACKWARD = 1e15, 100, 0.6, 0.4
#: nothing but products and idle units takes time
CHIP = AttentionUnits(
    *(np.asarray(value, float) for value in (PEAK, UNITS, FORWARD, BACKWARD)),
    vector_flops=np.asarray(1e30),
    exponentials_per_s=np.asarray(np.inf),
    blocked=np.asarray(0.0),
    memory_bytes_per_s=np.asarray(1e30),
    launch_s=np.asarray(0.0),
)
GPU = replace(CHIP, blocked=np.asarray(1.0))


def work(flops=1e12, *, queries=128 * 1000, keys=1024, longest=1.0, head=128, value=128, masked=0.0, moved=0.0):
    numbers = (flops, 0.0, moved, queries, keys, masked, longest, head, value)
    return AttentionWork(*(np.asarray(number, float) for number in numbers))


def seconds(*, chip=CHIP, backward=False, **sizes):
    return float(attention_seconds(work(**sizes), chip, backward=backward))


@pytest.mark.parametrize(("backward", "rate"), [(False, PEAK * FORWARD), (True, PEAK * BACKWARD)])
def test_the_tail_is_a_part_of_the_longest_block_on_every_other_unit(backward, rate):
    tail = ATTENTION_KERNELS.tail[backward] * 99 / 1000
    assert seconds(backward=backward) == pytest.approx(1e12 * (1 + tail) / rate)
    assert seconds(backward=backward, longest=2.0) == pytest.approx(1e12 * (1 + 2 * tail) / rate)


@given(flops=st.floats(1e6, 1e18), queries=st.floats(1, 1e9), longest=st.floats(1, 2), backward=st.booleans())
def test_nothing_is_slower_than_one_unit_doing_all(flops, queries, longest, backward):
    rate = PEAK * (BACKWARD if backward else FORWARD)
    took = seconds(flops=flops, queries=queries, longest=longest, backward=backward)
    assert flops / rate * (1 - 1e-12) <= took <= UNITS * flops / rate * (1 + 1e-12)


@given(
    flops=st.floats(1e6, 1e18), queries=st.floats(1, 1e8), keys=st.floats(1, 1e5), masked=st.floats(0, 128),
    head=st.integers(1, 600), value=st.integers(1, 600), moved=st.floats(0, 1e12), backward=st.booleans(),
)  # fmt: skip
def test_no_term_makes_attention_faster_than_its_products_or_bytes(flops, backward, moved, **sizes):
    chip = replace(GPU, exponentials_per_s=np.asarray(4e12), memory_bytes_per_s=np.asarray(3e12))
    took = seconds(chip=chip, flops=flops, backward=backward, moved=moved, **sizes)
    products = flops / (PEAK * (BACKWARD if backward else FORWARD))
    assert took >= max(products, moved / 3e12) * (1 - 1e-12)
    # and twice the sequences take at most twice as long: bounds rest on that
    double = sizes | {"queries": 2 * sizes["queries"]}
    twice = seconds(chip=chip, flops=2 * flops, backward=backward, moved=2 * moved, **double)
    assert took <= twice <= 2 * took * (1 + 1e-12)


def test_exponentials_and_products_hide_each_other_in_part():
    # 1e6 blocks: no idle units; products 1 s, exponentials by their rate
    large = {"flops": PEAK * FORWARD, "queries": 128 * 10**6, "keys": 1000}
    rate = ATTENTION_KERNELS.exponents * 128e6 * 1000
    for share in (0.0, 0.5, 1.0, 2.0):
        chip = replace(CHIP, exponentials_per_s=np.asarray(rate / share if share else np.inf))
        assert seconds(chip=chip, **large) == pytest.approx(math.sqrt(1 + share**2), rel=1e-3)


def test_heads_are_filled_up_and_wide_values_have_their_scores_again():
    large = {"flops": PEAK * FORWARD, "queries": 128.0, "keys": 1e12, "chip": replace(GPU, units=np.asarray(1.0))}
    expected = {(128, 128): 1, (64, 64): 1, (72, 72): 96 / 72, (80, 80): 96 / 80, (192, 128): 1, (512, 512): 3 / 2}
    for (head, value), factor in expected.items():
        assert seconds(head=head, value=value, **large) == pytest.approx(factor, rel=1e-4), (head, value)
    # backward: three products along the head and two along the values
    large["flops"] = PEAK * BACKWARD
    assert seconds(head=72, value=64, backward=True, **large) == pytest.approx(
        (3 * 96 + 2 * 64) / (3 * 72 + 2 * 64), rel=1e-4
    )
    assert seconds(
        head=72, value=72, **large | {"chip": CHIP, "queries": 1e9, "flops": PEAK * FORWARD}
    ) == pytest.approx(1, rel=1e-4)


def computed_keys(mask, length, block=128):
    """Keys in blocks of which any pair is seen, for each query in the mean: every pair looked at."""
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    seen = (key <= query) if mask.causal else np.ones((length, length), bool)
    if mask.span is Span.WINDOW:
        seen &= (query - key < mask.width) & (key - query < mask.width)
    if mask.span is Span.CHUNK:
        seen &= query // mask.width == key // mask.width
    blocks = seen.reshape(length // block, block, length // block, block).any(axis=(1, 3))
    return blocks.sum() * block * block / length - seen.sum() / length


@pytest.mark.parametrize(
    "mask",
    [
        Mask(causal=False), Mask(causal=True), Mask(causal=True, span=Span.WINDOW, width=512),
        Mask(causal=True, span=Span.WINDOW, width=4096), Mask(causal=True, span=Span.CHUNK, width=512),
    ],
)  # fmt: skip
def test_blocks_at_the_edges_of_a_mask_are_computed_whole(mask):
    length = np.asarray(2048.0)
    keys = length * np.asarray(mask.coverage({mask.key: length}, causal=True))
    # a window's first queries see all before them, which half a block at every query overstates a little
    assert float(masked_keys(mask, keys, length)) == pytest.approx(computed_keys(mask, 2048), abs=20)


def test_masked_keys_are_never_more_than_a_sequence_has():
    assert masked_keys(Mask(causal=True), np.asarray(20.5), np.asarray(40.0)) == pytest.approx(19.5)


def rate(heads, *, batch=1, seq=2048, name="attention", **mixer):
    """Operations per second of an attention of so many heads, of its kernel's products."""
    priced = Priced(layers(mixer=MIXER | {"heads": heads, "kv_heads": heads} | mixer)["block"], batch=batch, seq=seq)
    chip = priced.chip.attention
    flops = 4 * batch * heads * 128 * seq * (seq + 1) / 2 * (1 if name == "attention" else 2.5)
    reached = chip.forward_efficiency if name == "attention" else chip.backward_efficiency
    return flops / (priced.seconds[name] - float(chip.launch_s)) / float(chip.matrix_flops * reached)


@pytest.mark.parametrize("name", ["attention", "attention.softmax.grad"])
def test_fewer_heads_and_shorter_sequences_run_at_a_lower_rate(name):
    rates = [rate(heads, name=name) for heads in (1, 2, 4, 8, 16, 32)]
    assert rates == sorted(rates)
    assert rates[0] < 0.5 * rates[-1]
    lengths = [rate(32, batch=64, seq=seq, name=name) for seq in (512, 2048, 8192, 131072)]
    assert lengths == sorted(lengths)
    assert lengths[0] < 0.75 * lengths[-1]
    assert lengths[-1] > 0.85


def test_an_h100_of_long_sequences_is_limited_by_products_and_exponentials():
    # 16 of 132 cores at 1.83 GHz; 512 operations of products for each score of heads of 128
    chip = units().attention
    products = 512 / (989e12 * float(chip.forward_efficiency))
    exponentials = ATTENTION_KERNELS.exponents / (16 * 132 * 1.83e9)
    assert rate(32, batch=64, seq=2**20) == pytest.approx(products / math.hypot(products, exponentials), rel=0.005)


def test_heads_cut_over_chips_have_the_rate_of_few_heads():
    block = layers()["block"]
    whole, cut = (Priced(block, tensor=t).seconds["attention"] for t in (1, 8))
    assert cut > 1.5 * whole / 8


@pytest.mark.parametrize("name", ["tpu-v5p", "gaudi3", "wse-3"])
def test_only_gpus_bind_a_block_to_one_unit(name):
    priced = Priced(layers(mixer=MIXER | {"heads": 1, "kv_heads": 1})["block"], units(name), seq=8192)
    chip = priced.chip.attention
    products = 4 * 128 * 8192 * 8193 / 2 / float(chip.matrix_flops * chip.forward_efficiency)
    assert priced.seconds["attention"] - float(chip.launch_s) == pytest.approx(products)


def test_blackwell_ultra_computes_twice_the_exponentials():
    assert units("b300").attention.exponentials_per_s == 2 * units("b200").attention.exponentials_per_s
