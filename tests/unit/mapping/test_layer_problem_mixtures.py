"""A mixture of experts as operators of their own: tables, named strategies and the best of all layouts."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from dovetail.graph import Kind, LayerGraph, Operator
from dovetail.layout import Mesh, Strategy
from dovetail.mapping.elimination import cheapest
from dovetail.mapping.layouts import LayoutSpace, Together, free_layouts, layer_problem
from dovetail.mapping.layouts.groups import mixture_operators
from free_layout_settings import NODE, WAFER, costs_of, layer, setting_of, tile_of
from layout_costs import strategy_costs

DEEPSEEK, MIXTRAL = ("deepseek-v3", "sparse"), ("mixtral-8x7b", "full")

#: Layer, tile, cluster, ZeRO stage, operators together.
CASES = [
    (DEEPSEEK, tile_of(2, 2, ("rows.1",)), WAFER, 1, Together.SIBLINGS),
    (DEEPSEEK, tile_of(2, 2), WAFER, 3, Together.CHAINS),
    (DEEPSEEK, tile_of(1, 8, ("cols.2",)), NODE, 0, Together.STREAM),
    (MIXTRAL, tile_of(1, 4, ("cols.1",)), NODE, 3, Together.SIBLINGS),
    (MIXTRAL, tile_of(2, 2, (), ("rows.1",)), WAFER, 1, Together.STREAM),
    (MIXTRAL, tile_of(2, 2, ("cols.1",)), WAFER, 0, Together.MIXTURE),
]


def check(case, number, seed=0, *, recompute=True):
    (model, name), tile, cluster, zero_stage, together = case
    setting = setting_of(layer(model, name), tile, cluster, zero_stage=zero_stage)
    problem = layer_problem(setting, tile, LayoutSpace(together=together, recompute=recompute))
    draw = np.random.default_rng(seed)
    for _ in range(number):
        choice = np.array([draw.integers(size) for size in problem.problem.sizes])
        found = problem.problem.cost(choice[None])[0]
        assert found == pytest.approx(costs_of(setting, problem, choice), rel=1e-9), problem.shards(choice)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0][0]}-{case[1].rows}x{case[1].cols}-{case[4].name}")
def test_tables_of_mixtures_add_up_to_what_is_derived(case):
    check(case, 6)


@pytest.mark.slow
@pytest.mark.parametrize("together", Together)
@pytest.mark.parametrize("zero_stage", [0, 1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0][0]}-{case[1].rows}x{case[1].cols}")
def test_tables_of_mixtures_add_up_whatever_is_together(case, zero_stage, together):
    # with operators of three axes all separate and recompute, tables would be too large
    recompute = prod(case[1].sizes.values()) < 8 or together > Together.SIBLINGS
    check((*case[:3], zero_stage, together), 40, seed=1, recompute=recompute)


R, C, D = "rows.1", "cols.1", "cols.2"

EXPERT_PARALLEL = {
    "over data": Strategy(Mesh(tensor=(C,), data=(R, D), expert=(R, D))),
    "over tensor": Strategy(Mesh(tensor=(C, D), data=(R,), expert=(C, D))),
    "folded": Strategy(Mesh(tensor=(C, D), data=(R,), expert=(C, D)), sequence_parallel=True),
    "folded over both": Strategy(Mesh(tensor=(C,), data=(R, D), expert=(C, D)), sequence_parallel=True),
    "with expert tensor": Strategy(Mesh(tensor=(C,), data=(R, D), expert=(R,), expert_tensor=(C,))),
    "expert tensor over data": Strategy(Mesh(data=(R, C, D), expert=(R,), expert_tensor=(C, D))),
    "over context": Strategy(Mesh(tensor=(C,), context=(D,), data=(R,), expert=(D,)), sequence_parallel=True),
    "none": Strategy(Mesh(tensor=(C, D), data=(R,)), sequence_parallel=True),
}


@pytest.mark.parametrize("named", EXPERT_PARALLEL)
@pytest.mark.parametrize("together", [Together.CHAINS, Together.MIXTURE])
def test_expert_parallelism_is_in_the_space(together, named):
    strategy = EXPERT_PARALLEL[named]
    graph, tile = layer(*DEEPSEEK), tile_of(2, 4, strategy.mesh.data)
    setting = setting_of(graph, tile, batch=8)
    problem = layer_problem(setting, tile, LayoutSpace(together=together, recompute=False))
    shards = {o.name: {a: d for a, d in strategy.shard(o).items() if o.split(d) is not None} for o in graph.operators}
    choice = problem.choice(shards, strategy.stream_shard())
    assert problem.problem.cost(choice[None])[0] == pytest.approx(strategy_costs(setting, tile, strategy), rel=1e-9)


def test_each_operator_of_a_mixture_has_a_variable():
    graph, tile = layer(*DEEPSEEK), tile_of(2, 2)
    setting = setting_of(graph, tile)
    sizes = {}
    for together in Together:
        problem = layer_problem(setting, tile, LayoutSpace(together=together, recompute=False))
        mixture = set(mixture_operators(graph))
        sizes[together] = [v.operators for v in problem.variables if mixture.intersection(v.operators)]
    assert ("expert.gate", "expert.up") in sizes[Together.SIBLINGS]
    assert ("shared.gate", "shared.up") in sizes[Together.SIBLINGS]
    assert ("router",) in sizes[Together.SIBLINGS]
    assert ("router", "gates", "dispatch") in sizes[Together.STREAM]
    assert [len(each) for each in sizes.values()] == [11, 9, 9, 1]


def only(graph: LayerGraph, free: dict[str, tuple[str, ...]]):
    """Allows some dims of some operators, and of all others tokens only."""

    def allowed(operator: Operator, dim: str) -> bool:
        return dim in free.get(operator.name, ())

    return allowed


#: Operators whose dims may be sharded, so few that every layout can be tried.
SMALL = [
    {"dispatch": ("seq", "experts"), "expert.gate": ("experts", "expert_tokens"), "combine": ("seq", "experts")},
    {"router": ("experts",), "expert.gate": ("expert_ffn",), "expert.down": ("expert_ffn",), "combine": ("hidden",)},
    {"expert.gate": ("experts",), "expert.activation": ("experts",), "expert.down": ("experts",), "combine": ("seq",)},
]


@pytest.mark.parametrize("free", SMALL)
def test_the_best_layouts_of_a_small_mixture_are_those_of_every_layout(free):
    graph, tile = layer(*MIXTRAL), tile_of(1, 2)
    setting = setting_of(graph, tile, zero_stage=1)
    free = free | {"expert.up": free.get("expert.gate", ())}
    space = LayoutSpace(stream={}, allowed=only(graph, free), recompute=False, together=Together.SIBLINGS)
    problem = layer_problem(setting, tile, space)
    choices = [np.array(choice) for choice in product(*map(range, problem.problem.sizes))]
    assert len(choices) >= 8
    every = np.array([costs_of(setting, problem, choice) for choice in choices])
    for weights in ([1.0, 0.0, 0.0], [1.0, 1e-12, 1e-11], [0.0, 1.0, 1.0]):
        assert cheapest(problem.problem, weights)[0] == pytest.approx((every @ weights).min(), rel=1e-9)
    front = [
        p for p in every if not ((every <= p * (1 + 1e-12)).all(axis=1) & (every < p * (1 - 1e-12)).any(axis=1)).any()
    ]
    found = np.array([point.costs for point in free_layouts(setting, [tile], space=space)])
    assert len({tuple(float(f"{x:.10e}") for x in p) for p in front}) == len(found)
    for point in found:
        assert any(np.allclose(point, p, rtol=1e-9) for p in front)


def test_experts_spread_by_their_own_operators_are_found():
    """The exchange to experts is the conversion of what is dispatched: with it, experts shard along axes of tokens."""
    graph, tile = layer(*DEEPSEEK), tile_of(2, 2, ("rows.1", "cols.1"))
    setting = setting_of(graph, tile, batch=4, zero_stage=0)
    problem = layer_problem(setting, tile, LayoutSpace(recompute=False))
    _, choice = cheapest(problem.problem, [0.0, 1.0, 0.0])
    shards = problem.shards(np.array(choice))
    products = [o.name for o in graph.operators if o.kind is Kind.CONTRACTION and o.name.startswith("expert.")]
    assert all(len(shards[name]) == 2 for name in products)
    joint = layer_problem(setting, tile, LayoutSpace(recompute=False, together=Together.MIXTURE))
    for weights in ([1.0, 0.0, 0.0], [1.0, 1e-12, 1e-11]):
        apart = cheapest(problem.problem, weights)[0]
        assert apart <= cheapest(joint.problem, weights)[0] * (1 + 1e-12)
