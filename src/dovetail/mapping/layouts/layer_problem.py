"""A layer class on a tile as a cost problem: every free layout costs the sum of some table entries.

All collectives of a layer are local: those of a tensor depend on its writer and readers, those of statistics and
weights on one operator. The tables add up to what `place_layer`, `profile_layer` and `recompute` say of the same
layout. The space is every assignment of dims to atomic axes by operator, with these restrictions:

1. Along one axis tokens are sharded as `batch` or as `seq`, and query groups only by attention (`LayerTile`).
2. Operators of one group (`groups.Together`) are sharded alike: products that read the same tensor and their bias
   adds; on larger tiles also chains of vector operators, what is between projections and attention, router, gates
   and dispatch, and all residual adds (like the residual stream); on the largest a mixture of experts, as by a named
   strategy with each axis in any role. A group's outputs are saved or recomputed as a whole.
3. Nothing is streamed.
4. Backward operators are sharded like their forward operators.
5. ZeRO shards along all axes that replicate a weight.

What each costs is measured by lifting it (docs/explanation/free-layouts.md). A table tells options apart only where
its costs differ, if that makes it much smaller (`scoped.OptionScope`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import numpy as np

from dovetail.arrays import Ints
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import Backward, LayerGraph, differentiate
from dovetail.layout.encoding import REPLICATE, Activation, Factor, MeshAxis, OperatorEncoding, Strings
from dovetail.layout.encoding.shards import axis_name
from dovetail.mapping.elimination.problem import CostProblem, CostTable
from dovetail.mapping.layouts.groups import Together, mixture_operators, recompute_groups
from dovetail.mapping.layouts.options import Allowed, Variable, layer_variables
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tensor_tables import LayerCosts, TableTooLargeError
from dovetail.mapping.layouts.tile import LayerTile

#: Most entries of one table; and most if operators that could be grouped stay separate: solving over such tables
#: takes much longer than building them.
MOST_ENTRIES = 30_000_000
MOST_SEPARATE = 20_000
#: Most entries if a mixture of experts is not one variable.
MOST_OF_MIXTURE = 1_000_000

#: What the costs of a problem are, in order.
OBJECTIVES = ("seconds", "state_bytes", "saved_bytes")


@frozen
class LayoutSpace:
    """The layouts a search may choose from."""

    #: the layout of the residual stream; free if None
    stream: Mapping[str, str] | None = None
    #: which dims operators may shard; all if None
    allowed: Allowed | None = None
    #: without it everything the backward needs is saved
    recompute: bool = True
    #: how operators are grouped; if None, the first grouping whose tables are small enough
    together: Together | None = None
    #: operators of a group are recomputed one by one instead of together
    recompute_singly: bool = False
    most_entries: int = MOST_ENTRIES


@frozen
class LayerProblem:
    """A cost problem, and what its variables and options mean."""

    problem: CostProblem
    tile: LayerTile
    together: Together
    variables: tuple[Variable, ...]
    #: the variables that follow, by option: operators that are recomputed
    policies: tuple[tuple[tuple[str, ...], ...], ...]

    def shards(self, choice: Ints) -> dict[str, dict[str, str]]:
        """Operator → the dim each axis shards."""
        shards: dict[str, dict[str, str]] = {}
        for number, variable in enumerate(self.variables):
            for name, labels in variable.options[int(choice[number])].items():
                shards[name] = _named(self.tile, labels)
        return shards

    def stream(self, choice: Ints) -> dict[str, str]:
        """The layout of the residual stream."""
        return _named(self.tile, self.variables[0].stream[int(choice[0])])

    def recomputed(self, choice: Ints) -> tuple[str, ...]:
        """The operators recomputed when the backward needs their outputs."""
        numbers: list[int] = choice[len(self.variables) :].tolist()
        return tuple(name for options, number in zip(self.policies, numbers, strict=True) for name in options[number])

    def choice(
        self, shards: Mapping[str, Mapping[str, str]], stream: Mapping[str, str], recomputed: Collection[str] = ()
    ) -> Ints:
        """The choice that gives this layout; raises an error if it is not in the space."""
        numbers: list[int] = []
        for variable in self.variables:
            labels = {name: tuple(shards[name].get(axis) for axis in self.tile.names) for name in variable.operators}
            lying = tuple(stream.get(axis) for axis in self.tile.names)
            same = [
                number
                for number, option in enumerate(variable.options)
                if option == labels and (not variable.stream or variable.stream[number] == lying)
            ]
            if not same:
                what = f"{', '.join(variable.operators) or 'the stream'} cannot be sharded like this"
                raise InputError("layout", what, "choose a layout of the space")
            numbers.append(same[0])
        for options in self.policies:
            inside = [number for number, names in enumerate(options) if set(names) <= set(recomputed)]
            numbers.append(max(inside, key=lambda number: len(options[number])))
        return np.array(numbers, np.int64)

    def strings(self, choice: Ints) -> dict[str, Strings]:
        """Every operator's strings along the rows and columns of the tile."""
        return {name: tile_strings(self.tile, shards) for name, shards in self.shards(choice).items()}

    def encoding(self, choice: Ints) -> dict[str, OperatorEncoding]:
        """Every operator's encoding; the ZeRO stage decides where weights are stored."""
        recomputed = set(self.recomputed(choice))
        return {
            name: OperatorEncoding(strings, activation=Activation.RECOMPUTE if name in recomputed else Activation.STASH)
            for name, strings in self.strings(choice).items()
        }


def layer_problem(
    setting: LayerSetting, tile: LayerTile, space: LayoutSpace | None = None, *, backward: Backward | None = None
) -> LayerProblem:
    """The cost problem of a layer class on a tile."""
    space = space or LayoutSpace()
    backward = backward or differentiate(setting.graph)
    tried = _groupings(setting.graph) if space.together is None else (space.together,)
    for grouping in tried:
        variables = layer_variables(setting.graph, setting.sizes, tile, grouping, space.stream, space.allowed)
        if space.recompute_singly:
            chains = tuple((operator.name,) for operator in setting.graph.operators)
        else:
            chains = recompute_groups(setting.graph, grouping)
        costs = LayerCosts(setting, tile, variables, chains, backward, recompute=space.recompute)
        try:
            separate = MOST_OF_MIXTURE if grouping is Together.STREAM else MOST_SEPARATE
            limit = space.most_entries if grouping is tried[-1] else min(space.most_entries, separate)
            tables = costs.tables(limit)
        except TableTooLargeError as large:
            if grouping is tried[-1]:
                fix = "allow larger tables, fewer sharded dims or a smaller tile"
                raise InputError(f"layer {setting.graph.name}", f"needs a table of {large} entries", fix) from large
            continue
        policies = costs.policies.options
        sizes = (*(len(variable.options) for variable in variables), *(len(options) for options in policies))
        problem = CostProblem(
            sizes, tuple(CostTable(scope.variables, table, scope.classes) for scope, table in tables.items())
        )
        return LayerProblem(problem, tile, grouping, variables, policies)
    raise AssertionError("no grouping was tried")


def _groupings(graph: LayerGraph) -> tuple[Together, ...]:
    """The groupings to try: without a mixture of experts the last is the same as the one before."""
    return tuple(Together) if mixture_operators(graph) else tuple(Together)[: Together.MIXTURE]


def tile_strings(tile: LayerTile, shards: Mapping[str, str]) -> Strings:
    """Shards along the axes of a tile as strings, with a factor for each axis."""
    along: dict[MeshAxis, tuple[Factor, ...]] = {}
    for axis in MeshAxis:
        ends = tile.axes.ends(axis)
        along[axis] = tuple(
            Factor(high // low, shards.get(axis_name(axis, low), REPLICATE)) for low, high in pairwise(ends)
        )
    return Strings(along[MeshAxis.ROWS], along[MeshAxis.COLS])


def _named(tile: LayerTile, labels: tuple[str | None, ...]) -> dict[str, str]:
    return {axis: dim for axis, dim in zip(tile.names, labels, strict=True) if dim is not None}
