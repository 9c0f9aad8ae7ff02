"""A valid encoding has no violations; each rule is refused by its name where it is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from encoded_jobs import ON, SEQ, WAFER, block, job, model, operator, with_operator, with_stage
from placed_layers import llama

from dovetail.graph import ModelGraph, Operand, Run
from dovetail.layout import PARTIAL, CollectiveKind, Mesh, Strategy
from dovetail.layout.encoding import (
    Activation,
    ActivationOverride,
    AxesOnTile,
    Encoding,
    Factor,
    Home,
    LayerInterval,
    MeshAxis,
    OperatorEncoding,
    StageEncoding,
    StateStore,
    Strings,
    Tile,
    TileAxes,
    WaferSchedule,
    encode,
    tile_axes,
)
from dovetail.layout.encoding.named import encode_strategy
from dovetail.layout.encoding.reshard import placed, reshards
from dovetail.layout.encoding.rules import RULES, Violation, divides, operator_violations
from dovetail.layout.encoding.stream import stream_buffer_bytes, streamed_operand
from dovetail.layout.encoding.validate import validate_encoding
from dovetail.layout.encoding.wafer_grid import WaferGrid


def broken(encoding: Encoding, wafer: WaferGrid = WAFER, **options: Any) -> tuple[Violation, ...]:
    return validate_encoding(encoding, model(), wafer, seq=SEQ, **options)


def strings(rows: list[Any], cols: list[Any]) -> Strings:
    return Strings(tuple(Factor(*f) for f in rows), tuple(Factor(*f) for f in cols))


CUT = [(2, "batch")]

#: Rule, the operator whose forward strings break it, and the strings.
STRINGS = [
    ("product", "query", strings([(4, "batch")], CUT)),
    ("product", "query", strings([], CUT)),
    ("dim", "query", strings([(2, "ffn")], CUT)),
    ("heads", "query", strings([(2, "head_dim")], CUT)),
    ("heads", "attention", strings([(2, "value_dim")], CUT)),
    ("partial_sums", "mlp.activation", strings([(2, "+")], CUT)),
    ("partial_sums", "mixer_residual", strings([(2, "+")], CUT)),
    ("streamed", "mlp.up", strings([(2, "batch", True)], [(2, "ffn", True)])),
    ("streamed", "mixer_norm", strings([(2, "batch", True)], CUT)),
    ("streamed", "query", strings([(2, "replicate", True)], CUT)),
    ("streamed", "attention", strings([(2, "batch", True)], CUT)),
]


def test_every_named_rule_is_broken_by_some_test() -> None:
    shown = (
        {rule for rule, *_ in STRINGS} | {rule for rule, *_ in JOBS} | {"one_hop", "indivisible", "nested", "divides"}
    )
    assert shown == set(RULES)


def test_a_valid_encoding_breaks_no_rule() -> None:
    assert broken(job()) == ()


@pytest.mark.parametrize(("rule", "name", "own"), STRINGS)
def test_strings_are_refused_by_rule(rule: str, name: str, own: Strings) -> None:
    found = broken(with_operator(job(), name, forward=own))
    assert {v.rule for v in found} == {rule}
    assert all(f"stage 0, block, {name}" in v.where for v in found)
    assert all(str(v).endswith(f"(rule {rule}: {RULES[rule]}).") for v in found)


def test_parts_of_a_dim_are_equal() -> None:
    own = strings([(2, "kv_heads")], [(2, "kv_heads")])
    assert broken(with_operator(job(), "query", forward=own)) == ()
    assert broken(with_operator(replace(job(), microbatch=6), "query", forward=own)) == ()
    assert {v.rule for v in broken(replace(job(), microbatch=3))} == {"divides"}
    tile = Tile(0, 0, 2, 4)
    eight = OperatorEncoding(strings([(2, "kv_heads")], [(4, "kv_heads")]))
    stage = replace(job().stages[0], tile=tile, classes={"block": {"query": eight}})
    found = [v for v in broken(replace(job(), stages=(stage,))) if v.rule == "divides"]
    assert [v.sentence for v in found] == ["kv_heads of 4 is sharded into 8 parts"]


def test_a_padded_dim_need_not_divide() -> None:
    assert divides("vocab", {"vocab": 50257}, 4)
    assert not divides("vocab", {"vocab": 3}, 4)
    assert not divides("hidden", {"hidden": 50257}, 4)


def test_streams_take_one_hop() -> None:
    own = strings([(2, "seq"), (2, "batch", True)], [(2, "batch")])
    stage = replace(job().stages[0], tile=Tile(0, 0, 4, 2), classes={"block": {"mlp.up": OperatorEncoding(own)}})
    found = {v.rule for v in broken(replace(job(), stages=(stage,))) if v.where.endswith("mlp.up")}
    assert found == {"one_hop"}
    turned = strings([(2, "batch", True), (2, "seq")], [(2, "batch")])
    stage = replace(stage, classes={"block": {"mlp.up": OperatorEncoding(turned)}})
    assert not [v for v in broken(replace(job(), stages=(stage,))) if v.where.endswith("mlp.up")]


def test_what_must_be_seen_whole_is_not_cut() -> None:
    gate = replace(operator("mlp.activation"), indivisible=("ffn",))
    found = list(operator_violations(gate, block().resolve(batch=8, seq=SEQ), strings([(2, "ffn")], []), 2, 1))
    assert [v.rule for v in found] == ["indivisible"]
    summed = replace(operator("mlp.down"), indivisible=("ffn",))
    found = list(operator_violations(summed, block().resolve(batch=8, seq=SEQ), strings([(2, "ffn")], []), 2, 1))
    assert [v.rule for v in found] == ["partial_sums"]


def test_strings_of_a_stage_nest() -> None:
    one, two = strings([(2, "batch"), (3, "replicate")], []), strings([(3, "replicate"), (2, "batch")], [])
    classes = {"block": {"query": OperatorEncoding(one), "key": OperatorEncoding(two)}}
    stage = replace(job().stages[0], tile=Tile(0, 0, 6, 1), classes=classes)
    found = [v for v in broken(replace(job(), stages=(stage,)), WaferGrid(6, 6)) if v.rule == "nested"]
    assert [v.sentence for v in found] == ["groups of 2 and 3 dies do not nest"]


ZERO = Home(StateStore.SRAM, ((MeshAxis.COLS, 0),))
#: Rule, encoding, wafer.
JOBS = [
    ("home", with_operator(job(), "attention", weights=ZERO), WAFER),
    ("home", with_operator(job(), "mlp.up", weights=Home(StateStore.SRAM, ((MeshAxis.ROWS, 0),))), WAFER),
    ("home", with_operator(job(), "mlp.up", weights=Home(StateStore.SRAM, ((MeshAxis.ROWS, 1),))), WAFER),
    ("home", with_operator(job(), "mlp.up", weights=Home(StateStore.SRAM, ZERO.sharded * 2)), WAFER),
    ("home", with_operator(job(), "mlp.up", gradients=Home(StateStore.HBM)), replace(WAFER, hbm=False)),
    ("helper", with_operator(job(), "mlp.up", activation=Activation.HELPER), WAFER),
    ("helper", with_stage(job(), helper=0), WAFER),
    ("helper", with_stage(job(), helper=2), WAFER),
    ("layers", with_stage(job(), layers=(LayerInterval(0, 3),)), WAFER),
    ("layers", with_stage(job(), 1, layers=(LayerInterval(2, 3),), classes={"block": job().stages[1].classes["block"]}),
     WAFER),
    ("layers", with_stage(job(), layers=(LayerInterval(0, 1), LayerInterval(1, 2))), WAFER),
    ("layers", replace(job(), schedule=WaferSchedule.INTERLEAVED), WAFER),
    ("operators", with_stage(job(), classes={"block": job().stages[0].classes["block"]}), WAFER),
    ("operators", with_stage(job(), classes={**job().stages[0].classes, "head": {}}), WAFER),
    ("operators", with_stage(job(), classes={**job().stages[0].classes, "embedding": {}}), WAFER),
    ("operators", with_operator(job(), "attention", weight_gradient=Strings()), WAFER),
    ("inside", with_stage(job(), 1, tile=Tile(3, 0, 2, 2)), WAFER),
    ("inside", with_stage(job(), 1, tile=Tile(2, 3, 2, 2)), WAFER),
    ("live", job(), replace(WAFER, dead=frozenset({(1, 1)}))),
    ("connected", job(), replace(WAFER, dead_links=frozenset({((0, 0), (1, 0)), ((0, 1), (1, 1))}))),
    ("disjoint", with_stage(job(), 1, tile=Tile(1, 1, 2, 2)), WAFER),
    ("physical", job(), replace(WAFER, broken_limits=("power of 43 kW is over 23 kW",))),
    ("memory", job(), replace(WAFER, capacity_bytes=10)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "encoding", "wafer"), JOBS)
def test_jobs_are_refused_by_rule(rule: str, encoding: Encoding, wafer: WaferGrid) -> None:
    found = broken(encoding, wafer, memory=lambda _: 11 if rule == "memory" else 0)
    assert {v.rule for v in found} == {rule}


def test_one_dead_link_leaves_a_tile_connected() -> None:
    assert broken(job(), replace(WAFER, dead_links=frozenset({((0, 0), (1, 0))}))) == ()


def test_gradients_may_run_otherwise() -> None:
    own = strings([(2, "hidden")], [(2, "seq")])
    assert broken(with_operator(job(), "mlp.up", weight_gradient=own)) == ()
    found = broken(with_operator(job(), "mlp.up", input_gradient=strings([(2, "vocab")], [(2, "seq")])))
    assert [(v.rule, v.where) for v in found] == [("dim", "stage 0, block, mlp.up, input_gradient")]


def test_what_travels_is_what_lacks_the_dim() -> None:
    sizes = block().resolve(batch=8, seq=SEQ)
    up = operator("mlp.up")
    assert streamed_operand(up, "batch", sizes) == ("mlp.up.weight",)
    assert streamed_operand(up, "ffn", sizes) == ("feed_forward_norm",)
    assert streamed_operand(up, "hidden", sizes) == ("mlp.up",)  # every input has it: the sums travel
    attention = operator("attention")
    assert streamed_operand(attention, "seq", sizes) == ("key_rotary", "value")  # a ring
    assert streamed_operand(attention, "key_seq", sizes) == ("query_rotary",)
    assert streamed_operand(attention, "batch", sizes) == ()
    assert streamed_operand(operator("mixer_norm"), "batch", sizes) == ()
    # a logit per head lacks the sequence too, and stays
    sinks = replace(attention, inputs=(Operand("sinks", ("kv_heads", "group")), *attention.inputs))
    assert streamed_operand(sinks, "seq", sizes) == ("key_rotary", "value")


def test_stream_buffers_are_charged() -> None:
    sizes = block().resolve(batch=8, seq=SEQ)
    own = strings([(2, "batch", True)], [(2, "ffn")])
    # two buffers of the weight's part: 64 × 192 numbers of 2 bytes, halved by the cut and by the stream
    expected = 2 * 64 * 192 * 2 // 4
    assert stream_buffer_bytes(block(), operator("mlp.up"), own, sizes) == expected
    assert stream_buffer_bytes(block(), operator("mlp.up"), strings([(2, "batch")], [(2, "ffn")]), sizes) == 0
    streams = with_operator(job(), "mlp.up", forward=own)
    tight = replace(WAFER, capacity_bytes=1000 + expected)
    assert broken(streams, tight, memory=lambda _: 1000) == ()
    found = broken(streams, tight, memory=lambda _: 1001)
    assert [v.rule for v in found] == ["memory"]
    assert found[0].where == "stage 0"


def test_residual_inputs_agree_or_pay() -> None:
    encoded = job().stages[0].classes["block"]
    axes = ON.axes()
    agreeing = {o.tensor for o in reshards(placed(block(), encoded, axes))}
    assert agreeing == {"mixer_norm", "output", "feed_forward_norm", "mlp.down"}  # gathers and reduce-scatters
    turned = OperatorEncoding(encode({"t": "batch", "d": "seq"}, ON))
    paying = {o.tensor: o for o in reshards(placed(block(), {**encoded, "mixer_residual": turned}, axes))}
    assert broken(with_operator(job(), "mixer_residual", forward=turned.forward)) == ()
    assert paying["x"].readers == ("mixer_residual",)
    assert paying["x"].collectives == (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL)


def test_a_sum_may_stay_open_where_its_terms_are() -> None:
    """Attention and feed-forward side by side: both halves are partial along the tensor axis."""
    graph = llama(hidden=64, heads=8, kv_heads=4, parallel=True, shared_norm=True)["block"]
    on = AxesOnTile(rows=(("t", 2),))
    encoded = encode_strategy(graph, Strategy(Mesh(tensor=("t",))), on)
    halves = next(
        o for o in graph.operators if o.function == "add" and {i.tensor for i in o.inputs} == {"output", "mlp.down"}
    )
    encoded[halves.name] = OperatorEncoding(encode({"t": PARTIAL}, on))
    one = ModelGraph("one", {"block": graph}, (Run("block", 1),))
    stage = StageEncoding(Tile(0, 0, 2, 1), (LayerInterval(0, 1),), {"block": encoded})
    assert validate_encoding(Encoding(8, 1, (stage,)), one, WAFER, seq=SEQ) == ()
    assert tile_axes(o.forward for o in encoded.values()) == on.axes()


def test_the_stream_is_sharded_along_its_dims() -> None:
    def rules(rows: list[Any], cols: list[Any]) -> set[str]:
        found = broken(with_stage(job(), stream=strings(rows, cols)))
        assert all(v.where == "stage 0, stream" for v in found)
        return {v.rule for v in found}

    assert rules([(2, "seq")], [(2, "batch")]) == rules([(2, "replicate")], [(2, "hidden")]) == set()
    assert rules([(4, "seq")], [(2, "batch")]) == {"product"}
    assert rules([(2, "ffn")], [(2, "batch")]) == {"dim"}
    stage = with_stage(replace(job(), microbatch=2), stream=strings([(2, "batch")], [(2, "batch")]))
    assert {v.rule for v in broken(stage) if v.where == "stage 0, stream"} == {"divides"}


def test_axes_refine_the_strings() -> None:
    assert broken(with_stage(job(), axes=TileAxes((1, 2), (1, 2)))) == ()
    for axes in (
        TileAxes((1,), (1, 2)),
        TileAxes((1, 2, 4), (1, 2)),
        TileAxes((2,), (1, 2)),
        TileAxes((1, 1, 2), (1, 2)),
    ):
        found = broken(with_stage(job(), axes=axes))
        assert [(v.rule, v.where) for v in found] == [("nested", "stage 0, axes")]


def test_overrides_are_for_layers_and_operators_of_the_stage() -> None:
    def rules(first: int, end: int, name: str, policy: Activation = Activation.RECOMPUTE) -> list[str]:
        override = ActivationOverride(LayerInterval(first, end), {name: policy})
        return [v.rule for v in broken(with_stage(job(), overrides=(override,)))]

    assert rules(1, 2, "mlp.up") == []
    assert rules(1, 3, "mlp.up") == rules(2, 2, "mlp.up") == ["layers"]
    assert rules(0, 2, "mlp.up") == rules(1, 2, "logits") == ["operators"]
    assert rules(1, 2, "mlp.up", Activation.HELPER) == ["helper"]


def test_tiles_of_several_wafers() -> None:
    apart = with_stage(with_stage(job(), 1, tile=Tile(0, 0, 2, 2)), 1, wafer=1)
    whole, dead = WaferGrid(4, 4), WaferGrid(4, 4, dead=frozenset({(1, 1)}))
    assert validate_encoding(apart, model(), (whole, whole), seq=SEQ) == ()
    assert [(v.rule, v.where) for v in broken(apart)] == [("inside", "stage 1")]
    found = validate_encoding(apart, model(), (whole, dead), seq=SEQ)
    assert [(v.rule, v.where) for v in found] == [("live", "stage 1")]
    assert {v.rule for v in broken(with_stage(apart, 1, wafer=0))} == {"disjoint"}
