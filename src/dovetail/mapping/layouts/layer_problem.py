"""A layer class on a tile as a cost problem: what every free layout costs is the sum of entries of tables.

All collectives of a layer are local: those of a tensor depend on the operators that write and read it, statistics and
weights on one operator alone. The tables add up to what `place_layer`, `profile_layer` and `recompute` say of the same
layout. The space is every assignment of dims to atomic axes by operator, with these restrictions:

1. Along one axis tokens are cut as `batch` or as `seq`, and query groups by attention or by nobody (`LayerTile`).
2. Operators of one group (`groups.Together`) are cut alike: products that read the same tensor, bias adds behind such
   products; on larger tiles chains of vector operators, what lies between projections and attention with attention, and
   all residual adds with the residual stream. A group of operators is kept or computed again as a whole.
3. Nothing is streamed; gradients are cut as the operators they belong to.
4. A mixture of experts (router to combine, with the shared expert) is cut as a named strategy cuts it, with each axis
   in any role.
5. ZeRO shards what it shards along all axes that copy a weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dovetail.arrays import Ints
from dovetail.errors import InputError
from dovetail.graph import Backward, differentiate
from dovetail.layout.encoding import REPLICATE, Activation, Factor, MeshAxis, OperatorEncoding, Strings
from dovetail.layout.encoding.shards import axis_name
from dovetail.mapping.elimination.problem import CostProblem, CostTable
from dovetail.mapping.layouts.groups import Together, operator_groups
from dovetail.mapping.layouts.options import Allowed, Variable, layer_variables
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tensor_tables import LayerCosts, TableTooLargeError
from dovetail.mapping.layouts.tile import LayerTile

#: Most entries of one table; and most where operators that could be put together stay apart: what is found behind
#: such tables takes much longer than they do.
MOST_ENTRIES = 30_000_000
MOST_SEPARATE = 20_000

#: What the costs of a problem are, in order.
OBJECTIVES = ("seconds", "state_bytes", "saved_bytes")


@dataclass(frozen=True, slots=True)
class LayerProblem:
    """A cost problem, and what its variables and options mean."""

    problem: CostProblem
    tile: LayerTile
    together: Together
    variables: tuple[Variable, ...]
    #: variables behind those, by option: operators that are computed again
    policies: tuple[tuple[tuple[str, ...], ...], ...]

    def shards(self, choice: Ints) -> dict[str, dict[str, str]]:
        """Operator → the dim each axis cuts."""
        shards: dict[str, dict[str, str]] = {}
        for number, variable in enumerate(self.variables):
            for name, labels in variable.options[int(choice[number])].items():
                shards[name] = _named(self.tile, labels)
        return shards

    def stream(self, choice: Ints) -> dict[str, str]:
        """How the residual stream lies."""
        return _named(self.tile, self.variables[0].stream[int(choice[0])])

    def recomputed(self, choice: Ints) -> tuple[str, ...]:
        """The operators that are computed again where the backward needs what they write."""
        numbers: list[int] = choice[len(self.variables) :].tolist()
        return tuple(name for options, number in zip(self.policies, numbers, strict=True) for name in options[number])

    def choice(
        self, shards: Mapping[str, Mapping[str, str]], stream: Mapping[str, str], recomputed: Collection[str] = ()
    ) -> Ints:
        """The choice that is this layout; refuses one that is not in the space."""
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
                what = f"{', '.join(variable.operators) or 'the stream'} cut so is no option"
                raise InputError("layout", what, "take one of the space")
            numbers.append(same[0])
        for options in self.policies:
            inside = [number for number, names in enumerate(options) if set(names) <= set(recomputed)]
            numbers.append(max(inside, key=lambda number: len(options[number])))
        return np.array(numbers, np.int64)

    def strings(self, choice: Ints) -> dict[str, Strings]:
        """The strings of every operator along the rows and columns of the tile."""
        return {name: tile_strings(self.tile, shards) for name, shards in self.shards(choice).items()}

    def encoding(self, choice: Ints) -> dict[str, OperatorEncoding]:
        """Every operator's encoding; homes are left to the ZeRO stage."""
        recomputed = set(self.recomputed(choice))
        return {
            name: OperatorEncoding(strings, activation=Activation.RECOMPUTE if name in recomputed else Activation.STASH)
            for name, strings in self.strings(choice).items()
        }


def layer_problem(
    setting: LayerSetting,
    tile: LayerTile,
    *,
    stream: Mapping[str, str] | None = None,
    allowed: Allowed | None = None,
    recompute: bool = True,
    together: Together | None = None,
    each_by_itself: bool = False,
    most_entries: int = MOST_ENTRIES,
    backward: Backward | None = None,
) -> LayerProblem:
    """The cost problem of a layer class on a tile.

    `stream` fixes how the residual stream lies; `allowed` narrows what is cut; without `recompute` everything needed is
    kept. Of ways to put operators together the first whose tables are small enough is taken, unless one is given. Such
    operators are also computed again together, unless each is to choose by itself.
    """
    backward = backward or differentiate(setting.graph)
    tried = tuple(Together) if together is None else (together,)
    for grouping in tried:
        variables = layer_variables(setting.graph, setting.sizes, tile, grouping, stream, allowed)
        chains, _ = operator_groups(setting.graph, min(grouping, Together.CHAINS))
        if each_by_itself:
            chains = tuple((operator.name,) for operator in setting.graph.operators)
        costs = LayerCosts(setting, tile, variables, chains, backward, recompute=recompute)
        try:
            tables = costs.tables(most_entries if grouping is tried[-1] else min(most_entries, MOST_SEPARATE))
        except TableTooLargeError as large:
            if grouping is tried[-1]:
                fix = "allow larger tables, fewer cuts or a smaller tile"
                raise InputError(f"layer {setting.graph.name}", f"needs a table of {large} entries", fix) from large
            continue
        policies = costs.policies.options
        sizes = (*(len(variable.options) for variable in variables), *(len(options) for options in policies))
        problem = CostProblem(sizes, tuple(CostTable(scope, table) for scope, table in tables.items()))
        return LayerProblem(problem, tile, grouping, variables, policies)
    raise AssertionError("a level was tried")


def tile_strings(tile: LayerTile, shards: Mapping[str, str]) -> Strings:
    """Cuts along the axes of a tile as strings, a factor for each axis."""
    along: dict[MeshAxis, tuple[Factor, ...]] = {}
    for axis in MeshAxis:
        ends = tile.axes.ends(axis)
        along[axis] = tuple(
            Factor(high // low, shards.get(axis_name(axis, low), REPLICATE)) for low, high in pairwise(ends)
        )
    return Strings(along[MeshAxis.ROWS], along[MeshAxis.COLS])


def _named(tile: LayerTile, labels: tuple[str | None, ...]) -> dict[str, str]:
    return {axis: dim for axis, dim in zip(tile.names, labels, strict=True) if dim is not None}
