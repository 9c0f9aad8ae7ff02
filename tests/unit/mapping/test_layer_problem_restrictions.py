"""What the restrictions of the layer problem cost: each is lifted on small tiles, and the best layout compared.

The figures are those of docs/explanation/free-layouts.md; a test fails if lifting a restriction gains more.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.graph import Operator, Phase, differentiate
from dovetail.layout import CollectivePhase
from dovetail.mapping.elimination import cheapest
from dovetail.mapping.layouts import LayerSetting, LayerTile, LayoutSpace, Together, layer_problem, tiles
from dovetail.mapping.layouts import axis_labels as labels_room
from dovetail.mapping.layouts import groups as groups_room
from dovetail.mapping.layouts import options as options_room
from dovetail.mapping.layouts.conversion_kernels import FLAT_SHARD, WHOLE
from dovetail.mapping.layouts.options import Variable
from dovetail.mapping.layouts.scoped import Scoped
from dovetail.mapping.layouts.shards import LayerShards
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.models import Job

PROBLEM_ROOM = sys.modules[LayoutSpace.__module__]

#: Fewer sequences than dies: with one for each, a block that only shards sequences sends nothing between operators.
SEQUENCES = 1

BLOCKS = [("gpt3-175b", 2048), ("llama-3-70b", 4096), ("mixtral-8x7b", 4096)]
SHAPES = [(2, 1), (2, 2), (1, 4)]
#: Prices of a full die's memory as multiples of a block's seconds.
PRICES = (0.0, 0.1)

pytestmark = pytest.mark.slow


def layers_of(model: str, seq: int, shape: tuple[int, int], zero_stage: int, batch: int = SEQUENCES) -> TileLayers:
    job = Job(model=models.load(model), seq_len=seq, global_batch=336)
    cluster = hardware.cluster("watos-like", 56)
    stages = 56 // (shape[0] * shape[1])
    skeleton = TileSkeleton(*shape, min(stages, job.model.num_layers), batch)
    return TileLayers(job, cluster, frameworks.load("wafer"), skeleton, zero_stage)


def least(layers: TileLayers, setting: LayerSetting, tile: LayerTile, price: float, together: Together) -> float:
    """The lowest seconds plus priced bytes of the main block on a tile."""
    problem = layer_problem(setting, tile, LayoutSpace(together=together, recompute=price > 0)).problem
    share = layers.capacity_bytes * layers.skeleton.stages / layers.job.model.num_layers
    byte_s = price * 0.05 / share
    return cheapest(problem, np.array([1.0, byte_s, byte_s * layers.in_flight]))[0]


def best(layers: TileLayers, price: float, together: Together = Together.SIBLINGS, *, one_tile: bool = False) -> float:
    """The same over all tiles of the shape, or over the first, where it stands for all."""
    graph = layers.main_block
    every = list(tiles(graph, layers.sizes(graph), layers.skeleton.rows, layers.skeleton.cols))
    every = [tile for tile in every if tile.batch_axes == ()] if one_tile else every
    return min(least(layers, layers.setting(graph, tile), tile, price, together) for tile in every)


def layouts_of(layers: TileLayers) -> float:
    """The number of layouts on the first tile, as a logarithm."""
    graph = layers.main_block
    tile = next(iter(tiles(graph, layers.sizes(graph), layers.skeleton.rows, layers.skeleton.cols)))
    space = LayoutSpace(together=Together.SIBLINGS, recompute=False)
    return float(np.log(layer_problem(layers.setting(graph, tile), tile, space).problem.sizes).sum())


def gains(model, seq, shape, lift, *, one_tile=False, batch=SEQUENCES):
    """How much lower the best is without a restriction, by price."""
    layers = layers_of(model, seq, shape, zero_stage=1, batch=batch)
    within, layouts = [best(layers, price) for price in PRICES], layouts_of(layers)
    with pytest.MonkeyPatch.context() as patch:
        lift(patch)
        assert layouts_of(layers) > layouts, "nothing was lifted"
        lifted = [best(layers, price, one_tile=one_tile) for price in PRICES]
    found = [1 - after / before for before, after in zip(within, lifted, strict=True)]
    assert min(found) > -1e-9
    print(f"{model} {shape}: {['%.4f' % (100 * gain) for gain in found]} %")  # noqa: T201
    return max(found)


def free_tokens(patch: pytest.MonkeyPatch) -> None:
    """Every operator shards tokens as sequences or as positions along any axis."""
    for room in (labels_room, options_room):
        patch.setattr(room, "TOKEN_DIMS", ())


def free_siblings(patch: pytest.MonkeyPatch) -> None:
    """Products that read the same tensor, and their bias adds, are sharded each in its own way."""
    patch.setattr(groups_room, "_join_siblings", lambda *_: None)


def free_weight_gradients(patch: pytest.MonkeyPatch) -> None:
    """The gradient of each weight of a product is sharded in its own way."""
    variables_of, place = options_room.layer_variables, LayerShards._place

    def with_gradients(graph, sizes, tile, together, stream=None, allowed=None):
        variables = list(variables_of(graph, sizes, tile, together, stream, allowed))
        for operator in differentiate(graph).graph.operators:
            if operator.phase is Phase.WEIGHT_GRADIENT and operator.function.startswith("einsum"):
                options = options_room._options([operator], sizes, tile, allowed)
                variables.append(Variable((operator.name,), tuple(options)))
        return tuple(variables)

    def placed(self: LayerShards, operator: Operator, told: Scoped) -> None:
        place(self, operator, self.told.get(operator.name, told))

    patch.setattr(PROBLEM_ROOM, "layer_variables", with_gradients)
    patch.setattr(LayerShards, "_place", placed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("model", "seq"), BLOCKS)
def test_tokens_along_one_axis(model, seq, shape):
    assert gains(model, seq, shape, free_tokens, one_tile=True, batch=2) < 0.001


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("model", "seq"), BLOCKS)
def test_siblings_alike(model, seq, shape):
    assert gains(model, seq, shape, free_siblings) < 0.001


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("model", "seq"), BLOCKS)
def test_weight_gradients_as_their_operators(model, seq, shape):
    assert gains(model, seq, shape, free_weight_gradients) < 0.0017


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("model", "seq"), BLOCKS)
def test_homes_along_some_axes(model, seq, shape):
    """Homes of all weights sharded along any one set of axes, against ZeRO 1 and 3 along all."""
    stages = [layers_of(model, seq, shape, zero_stage) for zero_stage in (1, 3)]
    names = next(iter(tiles(stages[0].main_block, stages[0].sizes(stages[0].main_block), *shape))).names

    def home_along(chosen: int):
        along = np.array([chosen >> number & 1 for number in range(len(names))], np.bool_)

        def home(self: LayerShards, use: Scoped) -> Scoped:
            return Scoped(use.scope, np.where((use.values == WHOLE) & along, FLAT_SHARD, use.values))

        return home

    found: list[float] = []
    for price in PRICES:
        within = min(best(layers, price) for layers in stages)
        lifted: list[float] = []
        for chosen in range((1 << len(names)) - 1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LayerShards, "sharded_home", home_along(chosen))
                lifted += [best(layers, price) for layers in stages]
        found.append(1 - min(lifted) / within)
    print(f"{model} {shape}: {['%.4f' % (100 * gain) for gain in found]} %")  # noqa: T201
    assert max(found) < 0.001


@pytest.mark.parametrize("shape", [*SHAPES, (4, 2), (4, 4)])
@pytest.mark.parametrize(("model", "seq"), BLOCKS)
def test_streamed_weights_hide_no_more_than_all_their_messages(model, seq, shape):
    """A streamed weight is sharded where ZeRO-3 shards it; at best its operator hides every hop."""
    largest = 0.0
    for price in PRICES:
        within: list[float] = []
        hidden: list[float] = []
        for zero_stage in (1, 3):
            layers = layers_of(model, seq, shape, zero_stage)
            graph = layers.main_block
            every = list(tiles(graph, layers.sizes(graph), *shape))
            tile = max(every, key=lambda each: len(each.batch_axes) - len(each.group_axes))
            setting = layers.setting(graph, tile)

            def exposed(group: str, phase: CollectivePhase, before=setting.exposure) -> float:
                return 0.0 if group == "weight-gather" else before(group, phase)

            within.append(least(layers, setting, tile, price, Together.STREAM))
            hidden.append(least(layers, replace(setting, exposure=exposed), tile, price, Together.STREAM))
        largest = max(largest, 1 - min(hidden) / min(within))
    print(f"{model} {shape}: {100 * largest:.4f} %")  # noqa: T201
    assert largest < 0.01
