"""Design-space files made wrong, tables, and the list of designs PHAZE published."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.hardware.design_space import table as table_reader
from dovetail.hardware.write import chip_document
from made_wrong import Document, changed, nodes, replaced
from timing import within

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "../shared/data/phaze_designs.csv.gz"

RIGHT: Document = {
    "name": "mine",
    "base": "tpu-v4",
    "technology": "7nm",
    "coefficients": "value",
    "set": {"core_sram_bytes": "1 MiB", "hbm_stacks": 6, "narrowest_bits": 8},
    "vary": {
        "tensor_cores": {"powers_of_two": [1, 64]},
        "dataflow": ["weight", "output"],
        "clock_hz": {"range": ["0.8 GHz", "1.2 GHz"], "step": "0.2 GHz"},
        "rows": [64, 128],
        "links": [
            {"link_ports": 4, "link_port_bytes_per_s": "50 GB/s"},
            {"link_ports": 6, "link_port_bytes_per_s": "25 GB/s"},
        ],
    },
    "derive": {"cols": "rows", "vector_lanes": "16 * rows"},
    "define": {"feed": "2 * rows * tensor_cores * clock_hz", "share": "feed / large.feed"},
    "references": {"large": {"tensor_cores": 8, "rows": 128, "dataflow": "weight", "shared_sram_bytes": "64 MiB"}},
    "limits": ["share <= 2", "area_mm2 <= large.area_mm2 or feed < 1e13"],
    "source": "ours",
}


def read(document: Document) -> Any:
    return dt.hardware.space_from(document, "mine.yaml")


def refused_at_once(refusal: Callable[..., str], document: Document) -> str:
    with within(1):
        sentence = refusal(read, document)
    assert sentence.startswith("mine.yaml: ")
    assert len(sentence) < 1000
    return sentence


def test_the_unchanged_file_is_right():
    space = read(RIGHT)
    assert space.size == 7 * 2 * 3 * 2 * 2
    assert 0 < space.count().kept < space.size
    assert [axis.name for axis in space.axes] == list(RIGHT["vary"])


NUMBERS = st.integers() | st.floats()
ANYTHING = NUMBERS | st.text(max_size=20) | st.none() | st.booleans() | st.lists(NUMBERS, max_size=2)
ANYTHING |= st.dictionaries(st.text(max_size=5), NUMBERS, max_size=2)
#: Where almost any text or number is right.
FREE = {"name", "source", "coefficients"}


@given(data=st.data())
def test_any_other_value_is_read_or_refused_in_one_sentence(data, refusal):
    """Nothing but a sentence ever comes of a wrong file: no other error, no warning, no long wait."""
    path, _ = data.draw(st.sampled_from(list(nodes(RIGHT))))
    document = replaced(RIGHT, path, data.draw(ANYTHING))
    try:
        with within(2):
            space = read(document)
        # tens of millions of designs are counted at some ten million a second
        with within(2 + 2e-7 * space.size):
            space.count()
    except InputError as error:
        sentence = str(error)
        assert sentence.isprintable()
        assert sentence.startswith("mine.yaml: ")


@given(data=st.data())
def test_a_misspelt_name(data, refusal):
    paths = [path for path, _ in nodes(RIGHT) if isinstance(path[-1], str) and path[-1] not in ("links", "large")]
    paths = [path for path in paths if path[0] != "define"]
    path = data.draw(st.sampled_from(paths))
    right = str(path[-1])
    at = data.draw(st.integers(0, len(right) - 1))
    misspelt = right[:at] + right[at] + right[at:]
    document = changed(RIGHT, path, lambda container, name: container.__setitem__(misspelt, container.pop(name)))
    sentence = refused_at_once(refusal, document)
    assert misspelt in sentence
    assert right in sentence


#: Where, what stands there instead, what the sentence must name.
WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("base",), "tpu-v44", "base: 'tpu-v44' is not in the catalogue"),
    (("base",), {"name": "own"}, "base: "),
    (("technology",), "8nm", "technology: '8nm' is not in the catalogue"),
    (("coefficients",), "middle", "coefficients"),
    (("set", "hbm_stacks"), 1.5, "set.hbm_stacks"),
    (("set", "hbm_stacks"), 65, "a whole number from 0 to 64"),
    (("set", "core_sram_bytes"), "1 GHz", "set.core_sram_bytes"),
    (("set", "core_sram_bytes"), "2 GiB", "set.core_sram_bytes"),
    (("set", "narrowest_bits"), 6, "one of 4, 8, 16"),
    (("set", "rows"), 64, "set.rows: gives rows, as vary.rows does"),
    (("set", "output_stationary"), 1, "set.output_stationary: gives output_stationary, as vary.dataflow does"),
    (("vary",), {}, "vary"),
    (("vary", "rows"), [], "vary.rows: is not a list of values"),
    (("vary", "rows"), 64, "vary.rows: is not a list of values"),
    (("vary", "rows"), {"ranges": [1, 2]}, "did you mean 'range'"),
    (("vary", "rows"), [64, 64], "has 64 twice"),
    (("vary", "rows"), [1], "rows should be a whole number from 2 to 512"),
    (("vary", "rows"), [513], "rows should be a whole number from 2 to 512"),
    (("vary", "rows"), ["64"], "vary.rows.0"),
    (("vary", "rows"), [True], "vary.rows.0"),
    (("vary", "tensor_cores"), {"powers_of_two": [1, 8192]}, "tensor_cores should be a whole number from 1 to 4,096"),
    (("vary", "tensor_cores"), {"powers_of_two": [1, 48]}, "48 is not a power of two; the nearest is 64"),
    (("vary", "tensor_cores"), {"powers_of_two": [64, 1]}, "give the lower end first"),
    (("vary", "tensor_cores"), {"powers_of_two": [1]}, "vary.tensor_cores: powers_of_two: is [1]"),
    (("vary", "tensor_cores"), {"powers_of_two": [1, 8], "step": 2}, "is not a list of values"),
    (("vary", "clock_hz"), {"range": ["0.8 GHz", "1.2 GHz"]}, "has 400,000,001 values"),
    (("vary", "clock_hz"), {"range": ["0.8 GHz", "1.2 GHz"], "step": 0}, "step"),
    (("vary", "clock_hz"), {"range": ["1.2 GHz", "0.8 GHz"], "step": "0.1 GHz"}, "is in the wrong order"),
    (("vary", "clock_hz"), ["1 MHz"], "clock_hz should be from 1e+08 to 1e+10 hz"),
    (("vary", "dataflow"), ["input"], "weight or output"),
    (("vary", "links"), [1, 2], "is not a variable of a design"),
    (("vary", "links"), [], "is not a variable of a design"),
    (("vary", "links", 0), {}, "vary.links.0"),
    (("vary", "links", 1), {"link_ports": 4, "link_port_bytes_per_s": "50 GB/s"}, "is given twice"),
    (("vary", "links", 1), {"link_ports": 4}, "every entry should give link_ports, link_port_bytes_per_s"),
    (("vary", "links", 1, "link_ports"), 0, "vary.links.1.link_ports"),
    (("vary", "cols"), [64], "derive.cols: gives cols, as vary.cols does"),
    (("vary", "links", 0, "rows"), 64, "vary.links"),
    (("derive", "cols"), "cols + 1", "derive.cols: needs cols, which is not derived yet"),
    (("derive", "cols"), "macs_per_cycle", "derive.cols: needs cols"),
    (("derive", "cols"), "vector_lanes", "derive.cols: needs vector_lanes"),
    (("derive", "cols"), "area_mm2 / 4", "known only once the design is complete"),
    (("derive", "cols"), "large.rows", "known only once the design is complete"),
    (("derive", "cols"), "share", "known only once the design is complete"),
    (("derive", "cols"), "row", "did you mean 'rows'"),
    (("derive", "cols"), "rows > 3", "is a condition"),
    (("derive", "dataflow"), "1", "dataflow"),
    (("derive", "colour"), "1", "derive.colour"),
    (("define", "feed"), "share", "'share' is not defined here"),
    (("define", "feed"), "feed + 1", "'feed' is not defined here"),
    (("define", "feed"), "2 * rows * tensorcores", "did you mean 'tensor_cores'"),
    (("define", "rows"), "3", "rows: is already taken"),
    (("define", "sqrt"), "3", "sqrt: is already taken"),
    (("define", "large"), "3", "large: is already taken"),
    (("define", "my name"), "3", "cannot be used in an expression"),
    (("define", "for"), "3", "cannot be used in an expression"),
    (("define", "share"), "large.share", "'share' is no"),
    (("references", "large", "rows"), 1024, "references.large.rows"),
    (("references", "large", "colour"), 3, "references.large.colour"),
    (("references", "large"), 3, "references.large"),
    (("limits",), "rows > 3", "limits"),
    (("limits", 0), "share", "is a number"),
    (("limits", 0), "large <= 3", "name a figure, as large.rows"),
    (("limits", 0), "larg.rows <= 3", "did you mean 'large'"),
    (("limits", 0), "large.row <= 3", "did you mean 'rows'"),
    (("limits", 0), "large.share <= 3", "'share' is not a figure of a reference"),
    (("limits", 0), "area_mm <= 600", "did you mean 'area_mm2'"),
    (("limits", 0), "__import__('os').system('true') == 0", "cannot be used in an expression"),
    (("limits", 0), "shared_sram_bytes <= 16 MiB", "16 * MiB"),
    (("limits", 0), "area_mm2 <= large.area_mm2 or feed < 1e13", "is given twice"),
    (("limits", 0), "x" * 501, "501 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "named"), WRONG)
def test_what_is_wrong_is_named(path, value, named, refusal):
    assert named in refused_at_once(refusal, replaced(RIGHT, path, value))


def test_spaces_too_large_are_refused(refusal):
    every = {"range": [1, 4096]}
    names = ("tensor_cores", "vector_cores", "vector_lanes", "link_ports", "hbm_stacks")
    wide = dict.fromkeys(names[:3], every) | {"link_ports": {"range": [1, 1024]}, "hbm_stacks": {"range": [0, 64]}}
    sentence = refused_at_once(refusal, {"name": "mine", "base": "tpu-v4", "vary": wide})
    assert "makes 4.57e+15 designs" in sentence
    del wide["hbm_stacks"]
    space = read({"name": "mine", "base": "tpu-v4", "vary": wide, "limits": ["tensor_cores == vector_cores"]})
    assert space.size == 2**46
    last = space.designs([space.size - 1])
    assert (last.tensor_cores[0], last.link_ports[0]) == (4096, 1024)
    assert len(space.sample(20, seed=0)) == 20
    assert space.count(start=space.size - 5).kept == 5


def test_long_axes_are_read_quickly():
    tied = [{"link_ports": 1 + n % 1024, "link_port_bytes_per_s": 1e9 + n} for n in range(20_000)]
    clocks = [1e9 + n for n in range(20_000)]
    with within(2):
        space = read({"name": "mine", "base": "tpu-v4", "vary": {"links": tied, "clock_hz": clocks}})
    assert space.size == 4 * 10**8


def test_silicon_needs_a_technology(refusal):
    chip = {
        "name": "own", "kind": "systolic", "year": 2025, "node": "N5", "clock_hz": "1 GHz", "tensor_cores": 4,
        "rows": 128, "cols": 128, "dataflow": "weight", "dense_flops": {"bf16": "131 TFLOPS"}, "vector_cores": 2,
        "vector_lanes": 1024, "hbm_bytes": "32 GiB", "hbm_bytes_per_s": "1 TB/s",
    }  # fmt: skip
    document: Document = {"name": "mine", "base": chip, "vary": {"rows": [64, 128]}}
    space = read(document)
    assert space.count().kept == 2
    assert space.chip(1).area_mm2 is None
    wrong = document | {"limits": ["area_mm2 <= 600"]}
    assert "limits.0: area_mm2 needs a technology" in refused_at_once(refusal, wrong)
    assert "technology" in refusal(space.count, ["area_mm2"])
    assert read(wrong | {"technology": "5nm"}).chip(1).area_mm2 > 0


def test_files_that_a_file_names(tmp_path, refusal):
    path = tmp_path / "space.yaml"
    path.write_text("name: mine\nbase: own.yaml\ntechnology: 7nm\nvary: {rows: [64]}\n")
    assert "own.yaml: cannot be read" in refusal(dt.hardware.space, str(path))
    chip = chip_document(dt.hardware.chip("tpu-v4")) | {"name": "own"}
    (tmp_path / "own.yaml").write_text(to_yaml(chip))
    assert dt.hardware.space(str(path)).base.name == "own"


def test_a_gpu_has_no_dataflow(refusal):
    sentence = refused_at_once(refusal, {"name": "mine", "base": "h100-sxm", "vary": {"dataflow": ["weight"]}})
    assert "leave it out: h100-sxm is a gpu chip" in sentence


def table(folder: Path, text: str, **columns: str) -> Path:
    (folder / "designs.csv").write_text(text)
    (folder / "designs.csv.gz").write_bytes(gzip.compress(text.encode()))
    path = folder / "space.yaml"
    written = ", ".join(f"{name}: {column}" for name, column in columns.items())
    path.write_text(
        f"name: listed\nbase: tpu-v4\nvary:\n  clock_hz: [1 GHz, 2 GHz]\n"
        f"  listed: {{table: designs.csv, columns: {{{written}}}}}\n"
    )
    return path


def test_an_axis_is_read_from_a_table(tmp_path):
    path = table(tmp_path, 'depth,"a, b",width\n8,x,16\n32,"y, z",4\n2,,512\n', rows="depth", cols="width")
    space = dt.hardware.space(str(path))
    designs = space.designs(range(6))
    assert designs.rows.tolist() == [8, 32, 2] * 2
    assert designs.cols.tolist() == [16, 4, 512] * 2
    assert space.index_of({"clock_hz": "2 GHz", "rows": 32, "cols": 4}) == 4
    path.write_text(path.read_text().replace("designs.csv", "designs.csv.gz"))
    assert np.array_equal(dt.hardware.space(str(path)).designs(range(6)).rows, designs.rows)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("depth,width\n8,16\n", "no column 'deep'"),
        ("", "no column 'deep'"),
        ("deep\n", "has no rows"),
        ("deep\n8\nmany\n", "not a table of numbers"),
        ("deep,width\n8,3\n\n9\n,4\n", "not a table of numbers"),
        ("deep\n8\n9\n1\n", "row 3: has rows 1; it should be a whole number from 2 to 512"),
        ("deep\n8.5\n", "row 1: has rows 8.5"),
        ("deep\nnan\n", "row 1"),
        ("deep\n1e999\n", "row 1"),
        ("deep\n" + "9\n" * 60, "more than"),
    ],
)
def test_a_wrong_table(text, named, tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(table_reader, "MAX_BYTES", 100)
    path = table(tmp_path, text, rows="deep")
    assert named in refusal(dt.hardware.space, str(path))


def test_a_table_that_cannot_be_read(tmp_path, refusal, monkeypatch):
    path = table(tmp_path, "deep\n8\n9\n", rows="deep")
    monkeypatch.setattr(table_reader, "MAX_ROWS", 1)
    assert "more than 1 rows" in refusal(dt.hardware.space, str(path))
    for content in (b"\x1f\x8b broken", b"\xff\xfe\x00", gzip.compress(b"deep\n8\n")[:-6]):
        (tmp_path / "designs.csv").write_bytes(content)
        assert "designs.csv" in refusal(dt.hardware.space, str(path))
    (tmp_path / "designs.csv").unlink()
    assert "cannot be read" in refusal(dt.hardware.space, str(path))


def test_a_packed_table_is_unpacked_no_further_than_allowed(tmp_path, refusal, monkeypatch):
    path = table(tmp_path, "deep\n", rows="deep")
    (tmp_path / "designs.csv").write_bytes(gzip.compress(b"deep\n" + b"8\n" * 10**6))
    monkeypatch.setattr(table_reader, "MAX_BYTES", 10**5)
    assert "more than 100,000 bytes" in refusal(dt.hardware.space, str(path))


def published_areas() -> tuple[list[dict[str, int]], np.ndarray]:
    """PHAZE's designs, and its areas of them in square millimetres."""
    if not PUBLISHED.exists():
        pytest.skip("../shared/data/phaze_designs.csv.gz is not beside the repository")
    names = {
        "tensor_cores": "tensor_cores", "vector_cores": "vector_cores", "cols": "width", "rows": "depth",
        "vector_lanes": "vector_width", "shared_sram_bytes": "global_buffer_bytes",
    }  # fmt: skip
    with gzip.open(PUBLISHED, "rt") as file:
        rows = list(csv.DictReader(file))
    listed = [{name: int(row[column]) for name, column in names.items()} for row in rows]
    return listed, np.array([float(row["phaze_area_um2"]) for row in rows]) / 1e6


def test_the_grid_of_phaze_keeps_the_designs_it_published():
    listed, areas = published_areas()
    grid = dt.hardware.space("phaze-grid")
    (batch,) = grid.batches()
    columns = {name: batch.designs.value(name).tolist() for name in listed[0]}
    kept = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    area_of = dict(zip((tuple(each.values()) for each in listed), areas.tolist(), strict=True))
    assert len(kept) == len(listed) == 29_360
    ours = grid.values("phaze_area_mm2", batch.designs)
    published = np.array([area_of.pop(tuple(each.values())) for each in kept])
    assert area_of == {}
    assert np.abs(ours / published - 1).max() < 1e-14
