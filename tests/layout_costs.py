"""What one layout of a layer costs, derived and profiled by itself: what the tables of all layouts add up to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dovetail.arrays import Floats
from dovetail.frameworks.parameter_bytes import state_bytes
from dovetail.graph import Backward
from dovetail.layout import CollectivePhase, Strategy, place_layer
from dovetail.layout.encoding import Strings, layer_strategy
from dovetail.mapping.layouts.setting import LayerSetting, group_of
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.profile import LayerPrices, LayerSizes, profile_layer, recompute


def layout_costs(
    setting: LayerSetting,
    tile: LayerTile,
    strings: Mapping[str, Strings],
    stream: Mapping[str, str],
    again: Collection[str] = (),
    backward: Backward | None = None,
) -> tuple[float, float, float]:
    """Seconds of a microbatch, bytes of state and bytes a microbatch keeps."""
    strategy = layer_strategy(setting.graph, dict(strings), tile.axes, dict(stream), setting.zero_stage, backward)
    return strategy_costs(setting, tile, strategy, again, backward)


def strategy_costs(
    setting: LayerSetting,
    tile: LayerTile,
    strategy: Strategy,
    again: Collection[str] = (),
    backward: Backward | None = None,
) -> tuple[float, float, float]:
    """The same of a strategy along the axes of the tile."""
    placed = place_layer(setting.graph, strategy, backward)
    sizes = LayerSizes(setting.sizes, tile.sizes, setting.widths)
    profile = profile_layer(setting.graph, placed, sizes, LayerPrices(setting.chip, setting.price, group_of))
    repeated = recompute(setting.graph, profile, tuple(again))

    def exposed(by_group: Mapping[str, Floats], phase: CollectivePhase) -> float:
        return sum(float(s) * setting.exposure(group, phase) for group, s in by_group.items())

    seconds = float(profile.forward_s + profile.input_gradient_s + profile.weight_gradient_s + repeated.added_s)
    seconds += exposed(profile.forward_collective_s, CollectivePhase.FORWARD)
    seconds += exposed(profile.backward_collective_s, CollectivePhase.BACKWARD)
    seconds += exposed(repeated.added_collective_s, CollectivePhase.BACKWARD)
    seconds += exposed(profile.step_collective_s, CollectivePhase.STEP) * setting.step_weight
    used, home = profile.parameters, profile.home_parameters
    state = state_bytes(used, home, setting.zero_stage, setting.parameter_bytes)
    return seconds, float(sum(state)), float(repeated.saved_bytes)
