"""Tables of a layer's free layouts: they add up to what deriving and profiling each layout says."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.graph import Operator
from dovetail.layout import Mesh, Strategy
from dovetail.mapping.elimination import cheapest
from dovetail.mapping.layouts import LayoutSpace, Together, free_layouts, layer_problem, tiles
from free_layout_settings import NODE, WAFER, costs_of, layer, setting_of, tile_of
from layout_costs import layout_costs, strategy_costs

#: Model, layer class, tile, cluster, sequences, ZeRO stage, operators together.
CASES = [
    ("gpt3-175b", "layer", tile_of(2, 2, ("cols.1",)), WAFER, 4, 1, Together.SIBLINGS),
    ("gpt3-175b", "layer", tile_of(2, 4, ("rows.1",)), WAFER, 4, 3, Together.STREAM),
    ("gpt3-175b", "layer", tile_of(1, 8), NODE, 4, 0, Together.CHAINS),
    ("llama-3-8b", "full", tile_of(2, 4, (), ("cols.2",)), WAFER, 4, 3, Together.SIBLINGS),
    ("llama-3-70b", "full", tile_of(1, 8, ("cols.1",), ("cols.4",)), NODE, 4, 1, Together.STREAM),
    ("llama-30b", "full", tile_of(3, 2), WAFER, 6, 0, Together.SIBLINGS),
    ("deepseek-v3", "dense", tile_of(1, 4), WAFER, 4, 3, Together.SIBLINGS),
    ("deepseek-v3", "sparse", tile_of(2, 2, ("rows.1",)), WAFER, 4, 1, Together.SIBLINGS),
    ("deepseek-v3", "sparse", tile_of(1, 8), NODE, 4, 3, Together.STREAM),
    ("gpt3-175b", "embedding", tile_of(2, 2, ("cols.1",)), WAFER, 4, 1, Together.SIBLINGS),
    ("gpt3-175b", "head", tile_of(2, 4, ("rows.1",)), WAFER, 4, 3, Together.SIBLINGS),
]


def check(case, number, seed=0):
    model, name, tile, cluster, batch, zero_stage, together = case
    setting = setting_of(layer(model, name), tile, cluster, batch=batch, zero_stage=zero_stage)
    problem = layer_problem(setting, tile, LayoutSpace(together=together))
    draw = np.random.default_rng(seed)
    for _ in range(number):
        choice = np.array([draw.integers(size) for size in problem.problem.sizes])
        found = problem.problem.cost(choice[None])[0]
        assert found == pytest.approx(costs_of(setting, problem, choice), rel=1e-9), problem.shards(choice)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2].rows}x{case[2].cols}")
def test_tables_add_up_to_what_is_derived(case):
    check(case, 4)


@pytest.mark.slow
@pytest.mark.parametrize("together", Together)
@pytest.mark.parametrize("zero_stage", [0, 1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2].rows}x{case[2].cols}")
def test_tables_add_up_whatever_is_sharded_and_together(case, zero_stage, together):
    check((*case[:5], zero_stage, together), 40, seed=1)


R, C, D = "rows.1", "cols.1", "cols.2"

NAMED = {
    "data": (Strategy(Mesh(data=(R, C, D))), 0),
    "zero 1": (Strategy(Mesh(data=(R, C, D), zero=(R, C, D)), zero_stage=1), 1),
    "zero 3": (Strategy(Mesh(data=(R, C, D), zero=(R, C, D)), zero_stage=3), 3),
    "tensor": (Strategy(Mesh(tensor=(C, D), data=(R,))), 0),
    "sequence": (Strategy(Mesh(tensor=(C, D), data=(R,)), sequence_parallel=True), 0),
    "context": (Strategy(Mesh(tensor=(C,), context=(D,), data=(R,)), sequence_parallel=True), 0),
    "experts": (Strategy(Mesh(tensor=(C,), data=(R, D), expert=(R, D))), 0),
    "experts folded": (Strategy(Mesh(tensor=(C, D), data=(R,), expert=(C, D)), sequence_parallel=True), 0),
}


GPT, LLAMA, MIXTURE = ("gpt3-175b", "layer"), ("llama-3-8b", "full"), ("deepseek-v3", "sparse")


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize(
    ("model", "together"),
    [
        (GPT, Together.STREAM),
        pytest.param(GPT, Together.SIBLINGS, marks=pytest.mark.slow),
        pytest.param(LLAMA, Together.SIBLINGS, marks=pytest.mark.slow),
        pytest.param(LLAMA, Together.STREAM, marks=pytest.mark.slow),
        (MIXTURE, Together.STREAM),
        pytest.param(MIXTURE, Together.SIBLINGS, marks=pytest.mark.slow),
    ],
)
def test_named_strategies_are_in_the_space(model, together, named):
    strategy, zero_stage = NAMED[named]
    graph, tile = layer(*model), tile_of(2, 4, strategy.mesh.data)
    setting = setting_of(graph, tile, batch=8, zero_stage=zero_stage)
    problem = layer_problem(setting, tile, LayoutSpace(together=together, recompute=False))
    cuts = {o.name: {a: d for a, d in strategy.shard(o).items() if o.split(d) is not None} for o in graph.operators}
    choice = problem.choice(cuts, strategy.stream_shard())
    found = problem.problem.cost(choice[None])[0]
    assert found == pytest.approx(strategy_costs(setting, tile, strategy), rel=1e-9)


def test_the_stream_and_what_may_be_cut_can_be_narrowed():
    graph, tile = layer("gpt3-175b", "layer"), tile_of(2, 2)
    setting = setting_of(graph, tile)

    def tokens_only(operator: Operator, dim: str) -> bool:
        return dim == "seq"

    problem = layer_problem(setting, tile, LayoutSpace(stream={"rows.1": "seq"}, allowed=tokens_only, recompute=False))
    assert problem.policies == ()
    seconds, choice = cheapest(problem.problem, [1.0, 0.0, 0.0])
    chosen = np.array(choice)
    assert problem.stream(chosen) == {"rows.1": "seq"}
    assert {dim for cuts in problem.shards(chosen).values() for dim in cuts.values()} == {"seq"}
    assert seconds == pytest.approx(costs_of(setting, problem, chosen)[0], rel=1e-9)
    free, _ = cheapest(layer_problem(setting, tile).problem, [1.0, 0.0, 0.0])
    assert free < seconds


def test_a_layout_outside_the_space_is_refused():
    graph, tile = layer("gpt3-175b", "layer"), tile_of(2, 2)
    problem = layer_problem(setting_of(graph, tile), tile)
    cuts = {o.name: {} for o in graph.operators} | {"query": {"rows.1": "kv_heads"}}
    with pytest.raises(InputError, match="cannot be sharded like this"):
        problem.choice(cuts, {})


def test_a_table_that_is_too_large_is_refused():
    graph, tile = layer("gpt3-175b", "layer"), tile_of(2, 2)
    with pytest.raises(InputError, match="needs a table"):
        layer_problem(setting_of(graph, tile), tile, LayoutSpace(most_entries=100))


def test_points_of_the_frontier_are_layouts_that_cost_so_much():
    graph = layer("llama-3-8b", "full")
    every = list(tiles(graph, graph.resolve(batch=2, seq=1536), 1, 2))
    assert [(t.batch_axes, t.group_axes) for t in every] == [((), ()), (("cols.1",), ())]
    setting = setting_of(graph, every[0], batch=2, zero_stage=1)
    points = free_layouts(setting, every, space=LayoutSpace(together=Together.STREAM))
    assert len(points) > 5
    assert {point.recomputed == () for point in points} == {True, False}
    for point in points[:: len(points) // 5]:
        strings = {name: encoding.forward for name, encoding in point.encoding.items()}
        one = layout_costs(setting, point.tile, strings, point.stream, point.recomputed)
        assert point.costs == pytest.approx(one, rel=1e-9)
