"""Fused attention on few heads: the last blocks of queries leave the other units idle."""

import numpy as np
import pytest
from costed_layers import MIXER, Priced, layers, units
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.vector import ATTENTION_BLOCK, ATTENTION_TAIL, AttentionUnits, attention_seconds

PEAK, UNITS, FORWARD, BACKWARD = 1e15, 100, 0.6, 0.4
CHIP = AttentionUnits(
    *(np.asarray(value, float) for value in (PEAK, UNITS, FORWARD, BACKWARD)),
    vector_flops=np.asarray(1e30),
    memory_bytes_per_s=np.asarray(1e30),
    launch_s=np.asarray(0.0),
)


def seconds(flops, longest, *, backward=False):
    none = np.zeros(())
    return float(attention_seconds(np.asarray(flops), none, none, CHIP, np.asarray(longest), backward=backward))


@pytest.mark.parametrize(("backward", "rate"), [(False, PEAK * FORWARD), (True, PEAK * BACKWARD)])
def test_the_tail_is_a_part_of_the_longest_block_on_every_other_unit(backward, rate):
    tail = ATTENTION_TAIL[backward] * 99 * 1e9
    assert seconds(1e12, 1e9, backward=backward) == pytest.approx((1e12 + tail) / rate)
    assert seconds(1e12, 0.0, backward=backward) == pytest.approx(1e12 / rate)


@given(flops=st.floats(1e6, 1e18), share=st.floats(0, 1), backward=st.booleans())
def test_nothing_is_slower_than_one_unit_doing_all(flops, share, backward):
    rate = PEAK * (BACKWARD if backward else FORWARD)
    took = seconds(flops, share * flops, backward=backward)
    assert flops / rate * (1 - 1e-12) <= took <= UNITS * flops / rate * (1 + 1e-12)
    # a forward of one block: nobody helps
    if not backward:
        assert seconds(flops, flops) == pytest.approx(UNITS * flops / rate)


def rate(heads, *, batch=1, seq=2048, name="attention", **mixer):
    """Operations per second of an attention of so many heads, of what its kernel could reach."""
    sizes = MIXER | {"heads": heads, "kv_heads": heads} | mixer
    priced = Priced(layers(mixer=sizes)["block"], batch=batch, seq=seq)
    chip = priced.chip.attention
    pairs = seq * (seq + 1) / 2 if mixer.get("causal", True) else seq * seq
    flops = 4 * batch * heads * 128 * pairs * (1 if name == "attention" else 2.5)
    reached = chip.forward_efficiency if name == "attention" else chip.backward_efficiency
    return flops / (priced.seconds[name] - float(chip.launch_s)) / float(chip.matrix_flops * reached)


@pytest.mark.parametrize("name", ["attention", "attention.softmax.grad"])
def test_fewer_heads_on_a_chip_run_at_a_lower_rate(name):
    rates = [rate(heads, name=name) for heads in (1, 2, 4, 8, 16, 32)]
    assert rates == sorted(rates)
    assert rates[0] < 0.5 * rates[-1]
    assert rate(32, batch=64, name=name) == pytest.approx(1.0, abs=0.02)


def test_the_longest_block_of_a_growing_triangle_is_twice_the_mean():
    # blocks of 128 of 2048 queries on 8 heads: the longest is 2/128 of all, seen by 131 idle units of an H100
    part = ATTENTION_BLOCK / (8 * 2048)
    assert rate(8) == pytest.approx(1 / (1 + ATTENTION_TAIL[0] * 131 * 2 * part), rel=1e-6)
    assert rate(8, causal=False) == pytest.approx(1 / (1 + ATTENTION_TAIL[0] * 131 * part), rel=1e-6)


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
