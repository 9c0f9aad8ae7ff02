"""The canonical form: same dies, same parts; one of all mirror images; homes follow their factors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from encoded_jobs import SEQ, WAFER, job, model, with_stage

from dovetail.layout.encoding import (
    REPLICATE,
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
)
from dovetail.layout.encoding.canonical import canonical_operator, canonicalise
from dovetail.layout.encoding.factor import String, merged, places, split_at
from dovetail.layout.encoding.validate import validate_encoding
from dovetail.layout.encoding.wafer_grid import WaferGrid, symmetries


def part(string: String, die: int) -> dict[str, int]:
    """Which part of each dim a die along an axis holds."""
    parts: dict[str, int] = {}
    scale: dict[str, int] = {}
    for factor in string:
        digit, die = die % factor.size, die // factor.size
        if factor.dim != REPLICATE and factor.size > 1:
            parts[factor.dim] = parts.get(factor.dim, 0) + digit * scale.get(factor.dim, 1)
            scale[factor.dim] = scale.get(factor.dim, 1) * factor.size
    return parts


def test_merging_changes_no_die() -> None:
    random = Random(5)  # noqa: S311
    for _ in range(300):
        string = tuple(Factor(random.choice((1, 2, 3)), random.choice(("a", "b", REPLICATE))) for _ in range(5))
        short = merged(string)
        size = 1
        for factor in string:
            size *= factor.size
        assert [part(string, die) for die in range(size)] == [part(short, die) for die in range(size)]
        assert all(f.size > 1 for f in short)
        assert all(one.label != two.label for one, two in pairwise(short))
        assert merged(short) == short
        ends = [place.high for place in places(string)]
        assert split_at(short, ends) == tuple(factor for factor in string if factor.size > 1)
        assert split_at(short, ()) == short


def test_factors_merge_only_where_the_same_homes_are_sharded() -> None:
    two = Factor(2, "batch")
    rows, cols = (two, Factor(1, "seq"), two), (Factor(1, "seq"), two)
    zero = Home(StateStore.HBM, ((MeshAxis.ROWS, 2), (MeshAxis.COLS, 1)))
    found = canonical_operator(OperatorEncoding(Strings(rows, cols), optimizer=zero))
    assert found.forward == Strings((two, two), (two,))
    assert found.optimizer == Home(StateStore.HBM, ((MeshAxis.COLS, 0), (MeshAxis.ROWS, 1)))
    both = Home(StateStore.HBM, ((MeshAxis.ROWS, 0), (MeshAxis.ROWS, 2)))
    found = canonical_operator(OperatorEncoding(Strings(rows, cols), optimizer=both))
    assert found.forward == Strings((Factor(4, "batch"),), (two,))
    assert found.optimizer == Home(StateStore.HBM, ((MeshAxis.ROWS, 0),))
    assert canonical_operator(found) == found


def test_gradients_that_say_what_the_forward_does_are_dropped() -> None:
    two = Factor(2, "batch")
    same, other = Strings((two, two), ()), Strings((Factor(4, "seq"),), ())
    found = canonical_operator(OperatorEncoding(Strings((Factor(4, "batch"),)), same, other))
    assert found.input_gradient is None
    assert found.weight_gradient == other


def test_a_wafer_has_the_mirrorings_its_faults_leave() -> None:
    assert len(list(symmetries(WaferGrid(4, 4)))) == 8
    assert len(list(symmetries(WaferGrid(2, 4)))) == 4
    assert len(list(symmetries(WaferGrid(4, 4, dead=frozenset({(0, 0)}))))) == 2
    assert len(list(symmetries(WaferGrid(4, 4, dead=frozenset({(0, 1)}))))) == 1
    assert len(list(symmetries(WaferGrid(4, 4, dead=frozenset({(0, 0), (3, 3)}))))) == 4
    assert len(list(symmetries(WaferGrid(2, 4, dead_links=frozenset({((1, 0), (2, 0))}))))) == 2


@pytest.mark.parametrize("wafer", [WAFER, WaferGrid(4, 4, dead=frozenset({(3, 3)}))])
def test_all_mirror_images_have_one_canonical_form(wafer: WaferGrid) -> None:
    found = set()
    for symmetry in symmetries(wafer):
        stages = []
        for stage in job().stages:
            turned = stage.transposed() if symmetry.transposes else stage
            stages.append(replace(turned, tile=symmetry.tile(wafer, stage.tile)))
        image = replace(job(), stages=tuple(stages))
        assert validate_encoding(image, model(), wafer, seq=SEQ) == ()
        canonical = canonicalise(image, wafer)
        assert canonicalise(canonical, wafer) == canonical
        assert validate_encoding(canonical, model(), wafer, seq=SEQ) == ()
        found.add(canonicalise(image, wafer).stages[0].tile)
        assert canonical == canonicalise(job(), wafer)
    assert len(found) == 1


def test_operators_of_a_stage_are_mirrored_together() -> None:
    """Rows and columns of one operator alone cannot be changed over: what lies beside what would change."""
    one, two = Strings((Factor(2, "batch"),), (Factor(2, "seq"),)), Strings((Factor(2, "seq"),), (Factor(2, "batch"),))
    forms = set()
    for first, second in product((one, two), repeat=2):
        encoded = {"a": OperatorEncoding(first), "b": OperatorEncoding(second)}
        stage = StageEncoding(Tile(0, 0, 2, 2), (LayerInterval(0, 1),), {"c": encoded})
        found = canonicalise(Encoding(1, 1, (stage,))).stages[0].classes["c"]
        forms.add((found["a"].forward, found["b"].forward))
    assert forms == {(one, one), (one, two)}


def test_without_a_wafer_tiles_of_several_stages_stay_as_they_lie() -> None:
    turned = replace(job(), stages=tuple(stage.transposed() for stage in job().stages))
    assert canonicalise(turned) == turned
    assert canonicalise(turned) != canonicalise(job())
    alone = with_stage(replace(job(), stages=job().stages[:1]))
    assert canonicalise(alone) == canonicalise(replace(alone, stages=(alone.stages[0].transposed(),)))
