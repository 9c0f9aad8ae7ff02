"""The canonical form: equal neighbours merged, factors of 1 dropped, one of all mirror images."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from dovetail.layout.encoding.document import to_json
from dovetail.layout.encoding.factor import Factor, MeshAxis, String, Strings, merged
from dovetail.layout.encoding.job_encoding import Encoding, StageEncoding, Tile
from dovetail.layout.encoding.operator_encoding import Home, OperatorEncoding
from dovetail.layout.encoding.wafer_grid import Symmetry, WaferGrid, symmetries

#: The homes that are sharded along a factor.
_Marks: TypeAlias = "frozenset[str]"


def canonical_strings(strings: Strings, rows: int, cols: int) -> Strings:
    """The canonical strings of an operator by itself; on a square tile the lesser of a pair and its transpose.

    Mirroring a tile left to right or top to bottom changes no string: parts of a dim change names, no group of dies
    does. Mirroring a square tile along its diagonal changes the strings over.
    """
    plain = Strings(merged(strings.rows), merged(strings.cols))
    return min(plain, plain.transposed()) if rows == cols else plain


def canonical_operator(operator: OperatorEncoding) -> OperatorEncoding:
    """An operator's canonical form as it lies; factors merge only where the same homes are sharded along them."""
    sharded: dict[str, list[tuple[MeshAxis, int]]] = {name: [] for name in operator.homes}
    strings: dict[MeshAxis, String] = {}
    for axis in MeshAxis:
        factors: list[tuple[Factor, _Marks]] = []
        for position, factor in enumerate(operator.forward.along(axis)):
            marks = frozenset(name for name, home in operator.homes.items() if (axis, position) in home.sharded)
            if factor.size == 1:
                continue
            if factors and factors[-1][0].label == factor.label and factors[-1][1] == marks:
                factor = Factor(factors.pop()[0].size * factor.size, *factor.label)
            factors.append((factor, marks))
        strings[axis] = tuple(factor for factor, _ in factors)
        for position, (_, marks) in enumerate(factors):
            for name in marks:
                sharded[name].append((axis, position))
    forward = Strings(strings[MeshAxis.ROWS], strings[MeshAxis.COLS])
    homes = {name: Home(home.store, tuple(sorted(sharded[name]))) for name, home in operator.homes.items()}
    return replace(
        operator,
        forward=forward,
        input_gradient=_override(operator.input_gradient, forward),
        weight_gradient=_override(operator.weight_gradient, forward),
        **homes,
    )


def canonical_as_placed(encoding: Encoding) -> Encoding:
    """The canonical form on the tiles as they are: nothing is mirrored."""
    return replace(encoding, stages=tuple(_canonical_stage(stage) for stage in encoding.stages))


def canonicalise(encoding: Encoding, wafer: WaferGrid | None = None) -> Encoding:
    """The canonical form of a whole encoding: the least of its mirror images on this wafer.

    Without a wafer no tile has a place, so only a job of one stage on a square tile has an image. All operators of
    all stages are mirrored at once: each by itself would change what lies beside what, and so what resharding costs.
    """
    # axes of collectives change no part that a die holds
    stages = tuple(replace(stage, axes=None) for stage in canonical_as_placed(encoding).stages)
    unmirrored = replace(encoding, stages=stages)
    if wafer is not None:
        images = [_mirrored(unmirrored, wafer, symmetry) for symmetry in symmetries(wafer)]
    else:
        square = len(stages) == 1 and stages[0].tile.rows == stages[0].tile.cols
        images = [unmirrored, *([replace(unmirrored, stages=(stages[0].transposed(),))] if square else [])]
    # tiles tell most images apart; the whole document is written only where they do not
    first = min(_tiles(image) for image in images)
    images = [image for image in images if _tiles(image) == first]
    return images[0] if len(images) == 1 else min(images, key=to_json)


def _tiles(encoding: Encoding) -> tuple[Tile, ...]:
    return tuple(stage.tile for stage in encoding.stages)


def _canonical_stage(stage: StageEncoding) -> StageEncoding:
    classes = {
        name: {operator: canonical_operator(stage.classes[name][operator]) for operator in sorted(stage.classes[name])}
        for name in sorted(stage.classes)
    }
    stream = None if stage.stream is None else Strings(merged(stage.stream.rows), merged(stage.stream.cols))
    return replace(stage, classes=classes, stream=stream)


def _mirrored(encoding: Encoding, wafer: WaferGrid, symmetry: Symmetry) -> Encoding:
    stages: list[StageEncoding] = []
    for stage in encoding.stages:
        turned = stage.transposed() if symmetry.transposes else stage
        stages.append(replace(turned, tile=symmetry.tile(wafer, stage.tile)))
    return replace(encoding, stages=tuple(stages))


def _override(strings: Strings | None, forward: Strings) -> Strings | None:
    """Gradients' own strings, unless they say what the forward's do."""
    if strings is None:
        return None
    short = Strings(merged(strings.rows), merged(strings.cols))
    plain = Strings(merged(forward.rows), merged(forward.cols))
    return None if short == plain else short
