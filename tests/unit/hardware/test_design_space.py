"""Design spaces: batches against every combination looked at one by one, indices that stay, counts, single designs."""

from __future__ import annotations

import itertools
import math
import pickle
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail as dt
from dovetail.documents import validate
from dovetail.hardware.chip import ChipSpec
from dovetail.hardware.design import VARIABLES, Designs, design_of
from dovetail.hardware.design_space import DesignSpace
from dovetail.hardware.design_space import space as space_module
from dovetail.hardware.design_space.scope import PROPERTIES, UNITS
from dovetail.hardware.design_space.variable import BOUNDS
from dovetail.hardware.silicon import ESTIMATES, Silicon
from dovetail.hardware.write import chip_document

BASE = dt.hardware.chip("tpu-v4")
TECHNOLOGY = dt.hardware.technology("7nm")

#: Axes as a file writes them, and the designs along each.
AXES: dict[str, list[tuple[Any, list[dict[str, float]]]]] = {
    "tensor_cores": [
        ({"powers_of_two": [1, 64]}, [{"tensor_cores": 2.0**n} for n in range(7)]),
        ([8, 3, 64], [{"tensor_cores": n} for n in (8, 3, 64)]),
    ],
    "rows": [
        ({"range": [2, 10], "step": 3}, [{"rows": n} for n in (2, 5, 8)]),
        ({"powers_of_two": [16, 128]}, [{"rows": n} for n in (16, 32, 64, 128)]),
    ],
    "cols": [([128], [{"cols": 128}]), ([4, 256], [{"cols": 4}, {"cols": 256}])],
    "dataflow": [(["weight", "output"], [{"output_stationary": 0}, {"output_stationary": 1}])],
    "clock_hz": [
        ({"range": ["0.9 GHz", "1.2 GHz"], "step": "0.1 GHz"}, [{"clock_hz": n * 1e8} for n in (9, 10, 11, 12)]),
        (["0.94 GHz", 1.4e9], [{"clock_hz": 0.94e9}, {"clock_hz": 1.4e9}]),
    ],
    "shared_sram_bytes": [
        ({"powers_of_two": ["2 MiB", "8 MiB"]}, [{"shared_sram_bytes": n * 2.0**20} for n in (2, 4, 8)])
    ],
    "memory": [
        (
            [
                {"hbm_stacks": 2, "hbm_stack_bytes_per_s": "0.3 TB/s"},
                {"hbm_stack_bytes_per_s": 4.6e11, "hbm_stacks": 8},
            ],
            [
                {"hbm_stacks": 2, "hbm_stack_bytes_per_s": 3e11},
                {"hbm_stacks": 8, "hbm_stack_bytes_per_s": 4.6e11},
            ],
        )
    ],
    "link_ports": [({"range": [1, 3]}, [{"link_ports": n} for n in (1, 2, 3)])],
    "dies": [([1, 2], [{"dies": 1}, {"dies": 2}])],
}
DERIVED = {
    "vector_lanes": ["rows", "cols / 8", "4 * rows + dies", "2 ** 12 / rows", "sqrt(rows - 8)"],
    "vector_cores": ["tensor_cores", "ceil(macs_per_cycle / 4096)", "max(1, tensor_cores // 2)", "heavy"],
    "shared_sram_bytes_per_s": ["feed", "2 * rows * tensor_cores * clock_hz", "1 * TB if dies > 1 else 2 * TB"],
}
DEFINED = {"feed": "2 * rows * tensor_cores * clock_hz", "heavy": "floor(feed / 1e12)"}
LIMITS = [
    "tensor_cores * rows <= 300",
    "8 <= rows < 100 or cols == 4",
    "not (rows == 128 and tensor_cores > 4)",
    "macs_per_cycle % 3 != 0",
    "area_mm2 <= 1.1 * large.area_mm2",
    "area_mm2 >= 0.6 * large.area_mm2 or tensor_cores == 1",
    "shoreline_share <= 0.6",
    "peak_power_w / peak_flops <= 2e-12",
    "cost_usd < 600 or link_bytes_per_s > 1e11",
    "vector_lanes >= 16",
    "log2(rows - 8) >= 2",
    "1 / (rows - 5) > 0",
    "feed <= 0.5 * hbm_bytes_per_s * vector_cores",
    "shared_sram_bytes >= 4 * MiB",
    "rows > 10 ** 6",
]
REFERENCES = {"large": {"tensor_cores": 16, "cols": 128, "vector_lanes": 128, "vector_cores": 2}}

DOCUMENT = {"name": "small", "base": "tpu-v4", "define": DEFINED, "references": REFERENCES}


@st.composite
def spaces(draw: Any) -> tuple[dict[str, Any], list[list[dict[str, float]]]]:
    """A file of a small space, and what its axes hold."""
    names = draw(st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=4, unique=True))
    axes = [(name, *draw(st.sampled_from(AXES[name]))) for name in names]
    given_once = {variable for _, _, rows in axes for variable in rows[0]}
    candidates = st.lists(st.sampled_from(sorted(DERIVED)), unique=True, max_size=2)
    derive = {name: draw(st.sampled_from(DERIVED[name])) for name in draw(candidates) if name not in given_once}
    if "heavy" in derive.values() or "feed" in derive.values():
        derive = dict(sorted(derive.items()))
    limits = draw(st.lists(st.sampled_from(LIMITS), max_size=4, unique=True))
    document = DOCUMENT | {"vary": {name: entry for name, entry, _ in axes}, "derive": derive, "limits": limits}
    return document, [rows for _, _, rows in axes]


FUNCTIONS = {
    "min": lambda *a: np.min(a), "max": lambda *a: np.max(a), "abs": np.abs, "ceil": np.ceil, "floor": np.floor,
    "log2": np.log2, "sqrt": np.sqrt,
}  # fmt: skip


def figures(designs: Designs) -> dict[str, Any]:
    """Every name a limit may use, for one design."""
    silicon = Silicon(designs, TECHNOLOGY)
    found = {name: np.float64(designs.value(name)) for name in VARIABLES}
    found |= {name: np.float64(value(designs)) for name, (value, _) in PROPERTIES.items()}
    found |= {name: np.float64(getattr(silicon, name)) for name in ESTIMATES}
    for name, text in DEFINED.items():
        found[name] = evaluated(text, found)
    return found


def evaluated(text: str, names: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        units = {name: np.float64(unit) for name, unit in UNITS.items()}
        return eval(text, {"__builtins__": {}}, FUNCTIONS | units | names)  # noqa: S307


def within_bounds(name: str, value: float) -> bool:
    bounds = BOUNDS[name]
    whole = bounds.quantity is not None or (math.isfinite(value) and value == int(value))
    return bounds.low <= value <= bounds.high and whole


def one_by_one(document: dict[str, Any], axes: list[list[dict[str, float]]]) -> tuple[list[Any], dict[str, int]]:
    """What is kept, with index and values, and what each rule leaves out, in plain Python."""
    large = figures(completed(document, REFERENCES["large"], REFERENCES["large"]))
    kept: list[Any] = []
    left_out: dict[str, int] = {}
    for index, choice in enumerate(itertools.product(*axes)):
        values = {name: value for part in choice for name, value in part.items()}
        designs = completed(document, values, {})
        names: dict[str, Any] = figures(designs) | {"large": SimpleNamespace(**large)}
        broken = [
            f"{name} is {BOUNDS[name].text}" for name in document["derive"] if not within_bounds(name, names[name])
        ]
        broken += [limit for limit in document["limits"] if not broken and not evaluated(limit, names)]
        if broken:
            left_out[broken[0]] = left_out.get(broken[0], 0) + 1
        else:
            kept.append((index, [float(designs.value(name)) for name in VARIABLES], names))
    return kept, left_out


def completed(document: dict[str, Any], values: Mapping[str, float], fixed: Mapping[str, Any]) -> Designs:
    designs = design_of(BASE).varied({name: np.asarray(value) for name, value in values.items()})
    for name, text in document["derive"].items():
        if name not in fixed:
            known = {n: np.float64(designs.value(n)) for n in VARIABLES}
            known |= {n: np.float64(value(designs)) for n, (value, _) in PROPERTIES.items()}
            for own, definition in DEFINED.items():
                known[own] = evaluated(definition, known)
            designs = designs.varied({name: np.asarray(evaluated(text, known))})
    return designs


def table_of(space: DesignSpace, **options: Any) -> list[Any]:
    rows: list[Any] = []
    for batch in space.batches(**options):
        columns = [np.broadcast_to(batch.designs.value(name), len(batch)).tolist() for name in VARIABLES]
        rows += zip(batch.index.tolist(), map(list, zip(*columns, strict=True)), strict=True)
    return rows


@given(made=spaces(), rows=st.sampled_from([1, 2, 7, 30, 2**17]), data=st.data())
def test_batches_are_what_looking_at_every_combination_keeps(made, rows, data):
    document, axes = made
    space = dt.hardware.space_from(document, "small.yaml")
    assert space.size == math.prod(map(len, axes))
    kept, left_out = one_by_one(document, axes)
    found = table_of(space, rows=rows)
    assert found == [(index, values) for index, values, _ in kept]
    counts = space.count(["area_mm2", "feed"], rows=rows)
    assert (counts.size, counts.kept) == (space.size, len(kept))
    assert {text: number for text, number in counts.left_out.items() if number} == left_out
    for name, (low, high) in counts.ranges.items():
        assert (low, high) == (min(n[name] for *_, n in kept), max(n[name] for *_, n in kept))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, space.size)] * 2)))
    assert table_of(space, rows=rows, start=start, stop=stop) == [row for row in found if start <= row[0] < stop]


@given(made=spaces(), seed=st.integers(0, 9))
def test_an_index_is_a_design_whatever_the_limits(made, seed):
    document, axes = made
    space, free = (dt.hardware.space_from(document | part, "small.yaml") for part in ({}, {"limits": []}))
    index = np.random.default_rng(seed).integers(0, space.size, 5)
    one, other = space.designs(index), free.designs(index)
    for name in VARIABLES:
        assert np.array_equal(one.value(name), other.value(name), equal_nan=True)
    for position, choice in enumerate(list(itertools.product(*axes))[i] for i in index):
        values = {name: value for part in choice for name, value in part.items()}
        assert {name: float(one.value(name)[position]) for name in values} == values
        written = {name: value if BOUNDS[name].quantity else int(value) for name, value in values.items()}
        assert space.index_of(written) == index[position]
    every = {index for index, _ in table_of(space)}
    assert space.keeps(range(space.size)).nonzero()[0].tolist() == sorted(every)


@pytest.mark.parametrize("small", [0, 2**20])
def test_a_sample_is_drawn_from_what_is_kept(small, monkeypatch):
    monkeypatch.setattr(space_module, "_SMALL", small)
    space = dt.hardware.space("phaze-grid")
    some = space.sample(200, seed=1)
    assert len(some) == 200 == len(set(some.index.tolist()))
    assert space.keeps(some.index).all()
    assert np.array_equal(space.sample(200, seed=1).index, some.index)
    assert not np.array_equal(space.sample(200, seed=2).index, some.index)
    none = dt.hardware.space_from(DOCUMENT | {"vary": {"rows": [2]}, "limits": ["rows > 2"]}, "none.yaml")
    assert len(none.sample(3, seed=0)) == 0


def test_a_design_is_a_chip_with_its_silicon():
    space = dt.hardware.space("phaze-wide")
    values: dict[str, Any] = {
        "tensor_cores": 4, "vector_cores": 8, "cols": 64, "rows": 128, "vector_lanes": 32,
        "shared_sram_bytes": "16 MiB", "shared_sram_bytes_per_s": "8 TB/s", "hbm_stacks": 6, "clock_hz": "1.4 GHz",
    }  # fmt: skip
    index = space.index_of(values)
    chip = space.chip(index)
    assert (chip.name, chip.technology) == (f"phaze-wide-{index}", "7nm")
    assert (chip.tensor_cores, chip.rows, chip.cols, chip.hbm_stacks) == (4, 128, 64, 6)
    designs = space.designs([index])
    for name in VARIABLES:
        assert float(design_of(chip).value(name)) == pytest.approx(float(np.squeeze(designs.value(name))))
    silicon = Silicon(design_of(chip), TECHNOLOGY)
    assert chip.area_mm2 == pytest.approx(float(silicon.area_mm2))
    assert chip.tdp_w == pytest.approx(float(silicon.peak_power_w))
    assert dt.hardware.cluster(chip, chips=64).chips == 64
    again = validate(ChipSpec, chip_document(chip), "again").chip()
    assert (again.name, again.rows, again.hbm_bytes, again.tiers) == (chip.name, 128, chip.hbm_bytes, chip.tiers)


def test_a_space_can_be_sent_elsewhere():
    space = dt.hardware.space("phaze-grid")
    space.count()
    assert pickle.loads(pickle.dumps(space)).count() == space.count()  # noqa: S301


def test_the_other_end_of_the_coefficients():
    document = DOCUMENT | {"vary": {"rows": [64]}}
    ends = [
        dt.hardware.space_from(document | {"coefficients": end}, "x").count(["area_mm2"]).ranges["area_mm2"][0]
        for end in ("low", "value", "high")
    ]
    assert ends == sorted(ends)
    assert ends[0] < ends[2]


def test_a_base_of_another_kind_varies_too():
    document = {
        "name": "wider", "base": "h100-sxm", "vary": {"vector_cores": {"range": [100, 140]}},
        "derive": {"tensor_cores": "4 * vector_cores"}, "limits": ["area_mm2 <= 800", "reticle_share <= 1"],
    }  # fmt: skip
    space = dt.hardware.space_from(document, "wider")
    kept = np.concatenate([batch.designs.vector_cores for batch in space.batches()])
    assert 100 in kept
    assert 140 not in kept


@pytest.mark.parametrize("name", dt.hardware.space_names())
def test_spaces_of_the_catalogue(name):
    space = dt.hardware.space(name)
    assert space.source
    varied = [variable for axis in space.axes for variable in axis.values]
    for one in space.formulas.references.values():
        place = {n: float(one.value(n).item()) for n in varied}
        index = space.index_of({n: v if BOUNDS[n].quantity else int(v) for n, v in place.items()})
        assert space.keeps([index]).all()


def test_the_grid_of_phaze():
    grid, wide = dt.hardware.space("phaze-grid"), dt.hardware.space("phaze-wide")
    assert grid.size == 13 * 13 * 8 * 8 * 7 == 75_712
    assert wide.size >= 100 * grid.size
    counts = grid.count()
    assert counts.kept == grid.count(rows=1000).kept == counts.size - sum(counts.left_out.values())
    assert all(counts.left_out[limit.text] for limit in grid.limits)


def test_memory_does_not_grow_with_the_space():
    space = dt.hardware.space("phaze-wide")
    space.count(stop=2**18)
    peaks: list[int] = []
    for stop in (10**6, 4 * 10**6):
        tracemalloc.start()
        space.count(stop=stop)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 50e6


@pytest.mark.parametrize("index", [[-1], [75_712], [0.5], [[1]], ["a"], [2**70]])
def test_a_wrong_index(index, refusal):
    assert "75711" in refusal(dt.hardware.space("phaze-grid").designs, index)


def test_wrong_questions(refusal):
    space = dt.hardware.space("phaze-grid")
    right = {"tensor_cores": 8, "vector_cores": 2, "cols": 128, "rows": 128, "shared_sram_bytes": "128 MiB"}
    assert space.keeps([space.index_of(right)]).all()
    assert "rows" in refusal(space.index_of, {n: v for n, v in right.items() if n != "rows"})
    assert "did you mean 'rows'" in refusal(space.index_of, right | {"row": 3})
    assert "vector_lanes" in refusal(space.index_of, right | {"vector_lanes": 128})
    assert "2, 4, 8" in refusal(space.index_of, right | {"rows": 127})
    assert "did you mean 'area_mm2'" in refusal(space.count, ["area_mm"])
    assert "rows" in refusal(list, space.batches(rows=0))
    assert "start" in refusal(list, space.batches(start=5, stop=4))
    assert "number" in refusal(space.sample, 0, 0)


def test_steps_that_are_no_exact_numbers_are_found_by_their_text():
    document = {
        "name": "mine",
        "base": "tpu-v4",
        "vary": {"clock_hz": {"range": ["0.55 GHz", "3.5 GHz"], "step": "0.05 GHz"}},
    }
    space = dt.hardware.space_from(document, "mine.yaml")
    assert [space.index_of({"clock_hz": f"{0.55 + 0.05 * n:.2f} GHz"}) for n in range(60)] == list(range(60))


def test_long_chains_of_definitions_take_no_time():
    define = {"d0": "rows", "d1": "cols"} | {f"d{n}": f"(d{n - 1} + d{n - 2}) / 2" for n in range(2, 100)}
    document = {"name": "mine", "base": "groq-tsp1", "vary": {"rows": [2, 4]}, "define": define, "limits": ["d99 > 1"]}
    assert dt.hardware.space_from(document, "mine.yaml").count().kept == 2
    deep = {"d0": "rows"} | {f"d{n}": "(" * 50 + f"d{n - 1}" + " + 1)" * 50 for n in range(1, 100)}
    document = {"name": "mine", "base": "tpu-v4", "vary": {"rows": [2, 4]}, "define": deep, "limits": ["d99 > 4953"]}
    assert dt.hardware.space_from(document, "mine.yaml").count().kept == 1


def test_chips_of_a_space_with_a_technology_of_its_own_can_be_priced(tmp_path):
    shipped = Path(dt.__file__).parent / "hardware/data/technologies/7nm.yaml"
    own = shipped.read_text().replace("name: 7nm", "name: own")
    (tmp_path / "own.yaml").write_text(own)
    (tmp_path / "space.yaml").write_text("name: mine\nbase: tpu-v4\ntechnology: own.yaml\nvary: {rows: [64, 128]}\n")
    chip = dt.hardware.space(str(tmp_path / "space.yaml")).chip(0)
    assert (chip.technology, chip.node) == (None, "own")
    assert chip.area_mm2
    assert chip.tdp_w


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"set": {"dataflow": "weight", "output_stationary": 1}}, "drop one"),
        ({"references": {"a": {"dataflow": "output"}}, "base": "h100-sxm"}, "systolic"),
        ({"define": {"ｒows": "2"}}, "cannot be used"),
        ({"limits": [int("f" * 5000, 16)]}, "limits.0"),
        ({"vary": {"hbm_stack_bytes": [0]}}, "hbm_stack_bytes"),
    ],
)
def test_what_contradicts_itself_is_refused(change, named, refusal):
    document = {"name": "mine", "base": "tpu-v4", "vary": {"rows": [2, 4]}} | change
    assert named in refusal(dt.hardware.space_from, document, "mine.yaml")
