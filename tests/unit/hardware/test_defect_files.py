"""Maps of defects: written and read back, drawn, refused, and shown by `dovetail wafers show`."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.cli import main
from dovetail.cli.wafer_facts import LARGEST_DRAWN, defects_lines, defects_text
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.hardware import DefectMap
from dovetail.hardware.defect_file import asked_defects, defects_document, drawn_defects, read_defects

SIDES = st.integers(1, 9)
RATES = st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, RATES, RATES, st.integers(0, 10**6), st.sampled_from(["yaml", "json"]))
def test_a_map_is_read_back(tmp_path_factory, rows, cols, dies, links, seed, suffix):
    drawn = drawn_defects(rows, cols, dies, links, seed)
    document = defects_document(drawn)
    path = tmp_path_factory.mktemp("maps") / f"map.{suffix}"
    path.write_text(to_yaml(document) if suffix == "yaml" else json.dumps(document))
    assert read_defects(path, rows, cols) == drawn == read_defects(str(path), rows + 1, cols + 1)
    # the same part of a wafer file
    wafer = dt.hardware.wafer("dojo-tile")
    if rows <= wafer.rows and cols <= wafer.cols:
        assert asked_defects(wafer.rows, wafer.cols, path) == drawn


def test_rates_are_of_the_dead():
    whole = drawn_defects(6, 7, 0, 0, 3)
    assert whole == DefectMap()
    assert len(drawn_defects(6, 7, 1, 0, 3).dead_dies) == 42
    assert len(drawn_defects(6, 7, 0, 1, 3).dead_links) == 2 * 42 - 13
    many = drawn_defects(60, 60, 0.1, 0.3, 5)
    assert len(many.dead_dies) / 3600 == pytest.approx(0.1, abs=0.02)
    assert len(many.dead_links) / 7080 == pytest.approx(0.3, abs=0.02)
    assert many == DefectMap.sampled(60, 60, 0.9, 0.7, 5)


def test_what_a_question_names(tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text("dead_dies: [[1, 1]]\n")
    assert asked_defects(2, 2) is None
    assert asked_defects(2, 2, path) == DefectMap(((1, 1),))
    assert asked_defects(4, 4, defect_rate=0.3) == drawn_defects(4, 4, 0.3, 0, 0)
    assert asked_defects(4, 4, link_defect_rate=0.3, seed=7) == drawn_defects(4, 4, 0, 0.3, 7)
    # a rate of 0 is a question too: a wafer file's own map gives way
    assert asked_defects(4, 4, defect_rate=0.0) == DefectMap()


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"path": "m.yaml", "defect_rate": 0.1}, "defects: cannot be combined with defect_rate; read a map or draw one."),
    ({"path": "m.yaml", "link_defect_rate": 0.1}, "defects: cannot be combined with link_defect_rate;"),
    ({"path": "m.yaml", "seed": 0}, "defects: cannot be combined with seed;"),
    ({"seed": 1}, "seed: draws nothing; add a rate of dead dies or links."),
    ({"defect_rate": 1.5}, "defect_rate: is 1.5; it should be from 0 to 1."),
    ({"defect_rate": float("nan")}, "defect_rate: is nan; it should be from 0 to 1."),
    ({"link_defect_rate": -0.1}, "link_defect_rate: is -0.1; it should be from 0 to 1."),
    ({"defect_rate": 0.1, "seed": -1}, "seed: is -1; it should be from 0 to"),
    ({"path": "none.yaml"}, "none.yaml: cannot be read (No such file or directory); name an existing file."),
]


@pytest.mark.parametrize(("options", "start"), WRONG_OPTIONS, ids=lambda part: str(part)[:40])
def test_options_that_contradict(options, start):
    with pytest.raises(InputError) as error:
        asked_defects(3, 4, **options)
    assert str(error.value).startswith(start)


WRONG_FILES: dict[str, tuple[str, str]] = {
    "outside": ("dead_dies: [[3, 0]]", ": dead_dies: has [3, 0]; it should be [row, col] below [3, 4]."),
    "no link": ("dead_links: [[[0, 0], [1, 1]]]", ": dead_links: has [[0, 0], [1, 1]]; it should join two neighbours"),
    "field": ("dead: [[0, 0]]", ": dead: is not a field here; did you mean 'dead_dies'"),
    "wafer": ("defects: {dead_dies: [[0, 0]]}", ": defects: is not a field here;"),
    "negative": ("dead_dies: [[-1, 0]]", ": dead_dies.0.0: is -1; it should be greater than or equal to 0"),
    "far": ("dead_dies: [[0, 256]]", ": dead_dies.0.1: is 256; it should be less than 256"),
    "half": ("dead_dies: [[1.5, 0]]", ": dead_dies.0.0: is 1.5"),
    "text": ("dead_dies: all", ": dead_dies: is 'all'"),
    "yaml": ("dead_dies: [[0, 0]", ", line 2: is not YAML"),
    "code": ("dead_dies: !!python/object/apply:os.getcwd []", ", line 1: is not YAML"),
    "long": (f"dead_dies: [{', '.join(['[0, 0]'] * 65_537)}]", ": has more than 262144 bytes; keep it shorter"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_mistake_in_a_file_is_one_sentence(case, tmp_path):
    text, start = WRONG_FILES[case]
    path = tmp_path / "map.yaml"
    path.write_text(text + "\n")
    with pytest.raises(InputError) as error:
        read_defects(path, 3, 4)
    assert str(error.value).startswith(f"{path}{start}")
    assert "\n" not in str(error.value)


def test_more_dies_than_a_grid_can_have(tmp_path):
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"dead_dies": [[0, 0]] * (256**2 + 1)}))
    with pytest.raises(InputError, match=r"dead_dies: .*it should have at most 65536 items"):
        read_defects(path, 3, 4)


def _walked(lines: list[str], rows: int, cols: int) -> list[int]:
    """Sizes of the parts that the signs of a picture show, by walking from sign to sign."""
    grid = [line[2:].ljust(2 * cols - 1) for line in lines]
    waiting = {(r, c) for r in range(rows) for c in range(cols) if grid[2 * r][2 * c] != "x"}
    sizes: list[int] = []
    while waiting:
        queue = deque([waiting.pop()])
        size = 1
        while queue:
            r, c = queue.popleft()
            for near, sign in (((r, c + 1), (2 * r, 2 * c + 1)), ((r, c - 1), (2 * r, 2 * c - 1)),
                               ((r + 1, c), (2 * r + 1, 2 * c)), ((r - 1, c), (2 * r - 1, 2 * c))):  # fmt: skip
                if near in waiting and grid[sign[0]][sign[1]] in "-|":
                    waiting.remove(near)
                    queue.append(near)
                    size += 1
        sizes.append(size)
    return sizes


@settings(max_examples=80, deadline=None)
@given(SIDES, SIDES, RATES, RATES, st.integers(0, 10**6))
def test_the_picture_shows_what_reaches_what(rows, cols, dies, links, seed):
    drawn = drawn_defects(rows, cols, dies, links, seed)
    document = {
        "name": "w", "die": "dojo-d1", "integration": "info-sow", "rows": rows, "cols": cols, "die_width_mm": 25,
        "die_height_mm": 25, "d2d_bytes_per_s": "2 TB/s", "power_limit_w": "15 kW", "defects": defects_document(drawn),
    }  # fmt: skip
    wafer = dt.hardware.wafer_from(document, "w")
    assert wafer.defects == drawn
    lines = defects_lines(wafer)
    if drawn == DefectMap():
        assert (lines, defects_text(wafer)) == ([], "")
        return
    *picture, legend = lines
    assert len(picture) == 2 * rows - 1
    signs = "".join(picture)
    assert signs.count("x") == len(drawn.dead_dies)
    assert signs.count("o") + signs.count(".") == len(wafer.live_dies())
    assert signs.count("-") + signs.count("|") == len(wafer.links())
    sizes = _walked(picture, rows, cols)
    assert signs.count("o") == len(wafer.connected_dies()) == max(sizes, default=0)
    assert ("does not reach them" in legend) == (len(sizes) > 1)


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process; returns its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


def test_a_damaged_wafer_by_command(run, tmp_path):
    path = tmp_path / "map.yaml"
    drawn = ("--defect-rate", "0.2", "--link-defect-rate", "0.1", "--seed", "5")
    code, out, err = run("wafers", "show", "watos-buildable", *drawn, "--out", str(path))
    assert (code, err) == (0, "")
    expected = drawn_defects(8, 7, 0.2, 0.1, 5)
    assert read_defects(path, 8, 7) == expected
    # the map that was written is shown in the same way
    assert run("wafers", "show", "watos-buildable", "--defects", str(path)) == (0, out, "")
    wafer = dt.hardware.wafer("watos-buildable").with_defects(expected)
    assert defects_text(wafer) in out
    assert "15 dead dies, 8 dead links; 37 of 56 dies reach each other" in out
    assert "\n".join(defects_lines(wafer)) in out
    answer = json.loads(run("wafers", "show", "watos-buildable", "--defects", str(path), "--json")[1])
    assert answer["defects"] == defects_document(expected)
    assert (answer["dies"], answer["live_dies"], answer["connected_dies"]) == (56, 41, 37)
    assert answer["live_links"] == len(wafer.links())


def test_the_file_is_written_with_care(run, tmp_path):
    path = tmp_path / "map.json"
    drawn = ("wafers", "show", "dojo-tile", "--defect-rate", "0.2", "--out")
    assert run(*drawn, str(path))[0] == 0
    assert json.loads(path.read_text()) == defects_document(drawn_defects(5, 5, 0.2, 0, 0))
    code, out, err = run(*drawn, str(path))
    assert (code, out) == (2, "")
    assert "already exists; name another file or add --force" in err
    assert run(*drawn, str(path), "--force", "--seed", "1")[0] == 0
    assert json.loads(path.read_text()) == defects_document(drawn_defects(5, 5, 0.2, 0, 1))
    assert "--out: is 'map.txt'; it should end in" in run(*drawn, str(tmp_path / "map.txt"))[2]
    assert run("wafers", "show", "dojo-tile", "--defect-rate", "2")[2].startswith("defect_rate: is 2;")


def test_a_whole_wafer_has_no_picture(run):
    text = run("wafers", "show", "dojo-tile", "--defect-rate", "0")[1]
    assert "o-o" not in text
    assert text == run("wafers", "show", "dojo-tile")[1]


def test_a_grid_too_large_to_read_is_not_drawn():
    side = LARGEST_DRAWN + 1
    document = {
        "name": "w", "die": "dojo-d1", "integration": "info-sow", "rows": 2, "cols": side, "die_width_mm": 3,
        "die_height_mm": 3, "d2d_bytes_per_s": "2 TB/s", "power_limit_w": "15 kW", "defects": {"dead_dies": [[0, 0]]},
    }  # fmt: skip
    wafer = dt.hardware.wafer_from(document, "w")
    assert defects_lines(wafer) == []
    assert f"1 dead die, 0 dead links; {2 * side - 1} of {2 * side} dies" in defects_text(wafer)
