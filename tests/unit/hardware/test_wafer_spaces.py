"""Design spaces of wafers: the same verdicts one by one, counts against every combination, a million in seconds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.cli import main
from dovetail.errors import InputError
from dovetail.exploration.resolving import study_of
from dovetail.hardware.design_space import DesignSpace
from dovetail.hardware.design_space.file import WHOLE_STORE
from dovetail.hardware.silicon.wafer_check import RULES, check, estimate
from timing import within

VARY: dict[str, Any] = {
    "grid_rows": [4, 7],
    "grid_cols": [5, 8],
    "die_width_mm": [16, 24, "30 mm"],
    "die_height_mm": [18, 28],
    "cores": [{"tensor_cores": 64, "vector_cores": 64}, {"tensor_cores": 324, "vector_cores": 324}],
    "hbm_stacks": {"range": [0, 4], "step": 2},
    "link_port_bytes_per_s": ["0.5 TB/s", "4 TB/s"],
    "clock_hz": ["1 GHz", "2 GHz"],
    "spare_dies": [0, 3],
    "power_limit_w": ["12 kW"],
}
DOCUMENT: dict[str, Any] = {"name": "few", "wafer": "watos-like", "vary": VARY, "source": "a test"}
STORE: dict[str, Any] = {"store_bytes": "640 GB", "store_bytes_per_s": "4 TB/s"}
LIMITS = [f"{figure} <= 1" for figure in RULES.values()]


def space(**changes: Any) -> DesignSpace:
    return dt.hardware.space_from(DOCUMENT | changes, "few")


@pytest.mark.parametrize("base", ["watos-like", "dojo-tile", "temp-like"])
def test_arrays_and_single_wafers_agree(base):
    """The dies of the tile have a published area and power, of the templates one has a power."""
    vary = {name: values for name, values in VARY.items() if base != "dojo-tile" or name != "hbm_stacks"}
    whole = space(wafer=base, vary=vary)
    chosen = list(range(0, whole.size, 7))
    designs = whole.designs(chosen)
    columns = {rule: whole.values(figure, designs) for rule, figure in RULES.items()}
    kept = whole.keeps(chosen)
    technology = whole.formulas.technology
    assert technology is not None
    for position, wafer in enumerate(whole.wafers(chosen)):
        found = {finding.rule: finding for finding in check(wafer, technology)}
        assert {rule: f.value for rule, f in found.items()} == pytest.approx(
            {rule: float(column[position]) for rule, column in columns.items()}, rel=1e-9
        )
        assert kept[position] == all(finding.passes for finding in found.values())
    assert kept.any()
    assert not kept.all()


def test_counts_are_those_of_every_combination():
    whole = space(limits=["wafer_flops >= 1 * 1000 * TFLOPS"])
    texts = [*LIMITS, "wafer_flops >= 1 * 1000 * TFLOPS"]
    first, alone, kept = dict.fromkeys(texts, 0), dict.fromkeys(texts, 0), []
    sizes = [len(axis) for axis in whole.axes]
    for index, places in enumerate(itertools.product(*map(range, sizes))):
        values = {
            name: column[place]
            for axis, place in zip(whole.axes, places, strict=True)
            for name, column in axis.values.items()
        }
        one = whole.fixed.varied({name: np.asarray(value) for name, value in values.items()})
        broken = [
            text for text, figure in zip(LIMITS, RULES.values(), strict=True) if not whole.values(figure, one) <= 1
        ]
        broken += texts[-1:] if whole.values("wafer_flops", one) < 1e15 else []
        for text in broken:
            alone[text] += 1
        if broken:
            first[broken[0]] += 1
        else:
            kept.append(index)
    assert whole.size == len(list(itertools.product(*map(range, sizes)))) == 2 * 2 * 3 * 2 * 2 * 3 * 2 * 2 * 2
    counts = whole.count()
    assert (counts.kept, counts.left_out) == (len(kept), first)
    assert whole.broken() == whole.broken(rows=50) == alone
    assert np.concatenate([batch.index for batch in whole.batches(rows=100)]).tolist() == kept
    assert all(first[text] for text in LIMITS if text not in ("wire_share <= 1", "power_share <= 1"))


STORES: dict[str, Any] = {
    "store_bytes": [0, "640 GB"],
    "store_bytes_per_s": [0, "4 TB/s", "40 TB/s"],
    "edge_bytes_per_s": ["1 TB/s", "20 TB/s"],
    "grid_rows": [4, 7],
}


def test_stores_are_variables():
    """A store without a rate, or the other way round, is none; what it sends counts at the rim."""
    whole = space(wafer="dojo-tile", set={}, vary=STORES)
    assert [rule.text for rule in whole.rules] == [*LIMITS, WHOLE_STORE]
    kept: list[int] = []
    expected = itertools.product(*([0, 640e9], [0, 4e12, 40e12], [1e12, 20e12], [4, 7]))
    for index, (size, rate, edge, rows) in enumerate(expected):
        (wafer,) = whole.wafers([index])
        assert (wafer.store_bytes, wafer.store_bytes_per_s, wafer.edge_bytes_per_s, wafer.rows) == (
            size,
            rate,
            edge,
            rows,
        )
        rim = 2 * 25.4 * (wafer.cols + rows)
        off = (rate + edge) * 1.67e-11 / rim
        assert float(whole.values("shoreline_share", whole.designs([index]))[0]) == pytest.approx(max(off, 20 / 25.4))
        fits = all(finding.passes for finding in check(wafer, dt.hardware.technology_of(wafer)))
        kept += [index] if fits and (size > 0) == (rate > 0) else []
    assert np.concatenate([batch.index for batch in whole.batches()]).tolist() == kept
    assert 0 < len(kept) < whole.size / 2
    assert whole.broken()[WHOLE_STORE] == 12


@pytest.mark.parametrize(
    ("changes", "checked"),
    [
        ({"vary": {"store_bytes_per_s": ["1 TB/s", "4 TB/s"]}}, False),  # of a wafer that has a store
        ({"set": {"store_bytes": 0, "store_bytes_per_s": 0}, "vary": {"grid_rows": [4]}}, False),
        ({"set": {"store_bytes": 0}, "vary": {"grid_rows": [4]}}, True),
        ({"vary": {"store": [{"store_bytes": 0, "store_bytes_per_s": 0}, STORE]}}, True),
        ({"vary": {"grid_rows": [4]}, "derive": {"store_bytes_per_s": "2 * edge_bytes_per_s"}}, True),
    ],
)
def test_half_a_store_is_looked_for_where_it_may_be(changes, checked):
    whole = space(**{"wafer": "dojo-tile", "set": {}} | changes)
    assert (WHOLE_STORE in [rule.text for rule in whole.rules]) == checked
    (halves,) = {(w.store_bytes > 0) != (w.store_bytes_per_s > 0) for w in whole.wafers(range(whole.size))}
    assert not halves or not whole.count().kept


def test_stores_and_memory_in_formulas():
    whole = space(
        wafer="dojo-tile",
        vary={"store_bytes_per_s": ["1 TB/s", "4 TB/s"], "spare_dies": [0, 5]},
        define={"seconds": "store_bytes / store_bytes_per_s"},
        limits=["seconds <= 0.1", "wafer_sram_bytes <= 20 * 354 * 1.25 * MiB"],
    )
    assert whole.values("seconds", whole.designs([0, 2])) == pytest.approx([0.16, 0.04])
    sram = 354 * 1.25 * 2**20
    assert whole.values("wafer_sram_bytes", whole.designs([0, 1])) == pytest.approx([25 * sram, 20 * sram])
    assert whole.broken()["seconds <= 0.1"] == 2
    derived = space(wafer="dojo-tile", vary={"grid_rows": [3, 5]}, derive={"store_bytes": "64 * GB * grid_rows"})
    assert [wafer.store_bytes for wafer in derived.wafers([0, 1])] == pytest.approx([192e9, 320e9])


def test_wafers_of_sram_alone():
    whole = dt.hardware.space("wafer-sram")
    counts = whole.count(["wafer_hbm_bytes", "store_bytes", "store_bytes_per_s"])
    assert counts.kept >= 100_000
    assert list(counts.left_out) == LIMITS
    assert counts.ranges["wafer_hbm_bytes"] == (0, 0)
    assert counts.ranges["store_bytes"] == (12e12, 12e12)
    assert counts.ranges["store_bytes_per_s"] == (0.15e12, 16e12)
    batch = whole.sample(20, seed=1)
    for wafer in whole.wafers(batch.index):
        assert wafer.hbm_stacks == 0
        assert all(finding.passes for finding in check(wafer, dt.hardware.technology_of(wafer)))


def test_a_wafer_by_its_index():
    whole = space()
    values = {
        "grid_rows": 7, "grid_cols": 8, "die_width_mm": "24 mm", "die_height_mm": 28, "tensor_cores": 324,
        "vector_cores": 324, "hbm_stacks": 2, "link_port_bytes_per_s": "4 TB/s", "clock_hz": "2 GHz", "spare_dies": 3,
        "power_limit_w": 12_000,
    }  # fmt: skip
    (wafer,) = whole.wafers([whole.index_of(values)])
    assert (wafer.rows, wafer.cols, wafer.die_width_mm, wafer.die_height_mm, wafer.spare_dies) == (7, 8, 24, 28, 3)
    assert (wafer.d2d_bytes_per_s, wafer.power_limit_w, wafer.die.hbm_bytes) == (4e12, 12_000, 70e9)
    assert wafer.die.peak_flops("bf16") == pytest.approx(362e12 * 324 / 354, rel=1e-3)
    assert wafer.cluster(2).chips == 112
    assert wafer.source == f"design {whole.index_of(values)} of the design space few, from watos-like"
    (known,) = whole.values("wafer_yield", whole.designs([whole.index_of(values)]))
    assert float(estimate(wafer, dt.hardware.technology_of(wafer)).wafer_yield) == pytest.approx(float(known))


def test_figures_of_wafers_in_formulas():
    whole = space(
        vary={"grid_rows": [3, 5], "tensor_cores": [64, 128]},
        derive={"vector_cores": "tensor_cores", "grid_cols": "grid_rows + 1"},
        define={"working": "grid_dies - spare_dies"},
        limits=["working < 20"],
    )
    assert whole.broken()["working < 20"] == 2
    assert whole.values("grid_dies", whole.designs([0, 3])).tolist() == [12, 30]
    assert whole.values("wafer_hbm_bytes", whole.designs([0])).tolist() == [12 * 70e9]
    spare = space(vary={"spare_dies": [0, 6]}, set={"clock_hz": "1 GHz"})
    assert spare.values("wafer_flops", spare.designs([0, 1])) == pytest.approx([56 * 181e12, 50 * 181e12], rel=2e-3)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"base": "tpu-v4"}, "few: wafer: cannot be combined with base; drop one of them"),
    "unknown": ({"wafer": "watos"}, "few: wafer: 'watos' is not in the catalogue; did you mean 'watos-like'"),
    "chip": ({"wafer": None, "base": "tpu-v4"}, "few: grid_rows: belongs to wafers; name a wafer instead of a base"),
    "ports": ({"set": {"link_ports": 2}}, "few: link_ports: is the same for all wafers; leave it out"),
    "bounds": ({"vary": {"grid_rows": [0]}}, "few: vary.grid_rows.0: is 0; grid_rows should be a whole number from 1"),
    "unit": ({"vary": {"die_width_mm": ["3 W"]}}, "few: vary.die_width_mm.0: the unit 'W' does not measure mm"),
    "derived": (
        {"derive": {"edge_bytes_per_s": "wafer_power_w"}},
        "few: derive.edge_bytes_per_s: needs wafer_power_w, which is known only once the design is complete",
    ),
    "store": (
        {"vary": {"store_bytes": ["1 TB/s"]}},
        "few: vary.store_bytes.0: the unit 'TB/s' does not measure bytes",
    ),
    "store of chips": (
        {"wafer": None, "base": "tpu-v4", "vary": {"store_bytes": ["1 TB"]}},
        "few: store_bytes: belongs to wafers; name a wafer instead of a base",
    ),
    "limit": ({"limits": ["wafer_powr < 3"]}, "few: limits.0: 'wafer_powr' is not defined here; did you mean"),
    "twice": ({"limits": ["die_share <= 1"]}, "few: limits.0: 'die_share <= 1' is given twice; drop one of them"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence(case):
    change, start = WRONG[case]
    document = {name: value for name, value in (DOCUMENT | change).items() if value is not None}
    with pytest.raises(InputError) as error:
        dt.hardware.space_from(document, "few")
    assert str(error.value).startswith(start)


def test_names_of_wafers_are_unknown_to_spaces_of_chips():
    chips = {"name": "chips", "base": "tpu-v4", "vary": {"tensor_cores": [4, 8]}}
    with pytest.raises(InputError, match=r"limits.0: 'grid_share' is not defined here"):
        dt.hardware.space_from(chips | {"limits": ["grid_share < 1"]}, "chips")
    own = {"define": {"grid_share": "rows", "grid_dies": "2 * grid_share"}, "limits": ["grid_dies == 256"]}
    mine = dt.hardware.space_from(chips | own, "chips")
    assert (mine.wafer, mine.count().kept) == (None, 2)
    with pytest.raises(InputError, match="chips: is a space of chips; ask for its chips"):
        dt.hardware.space_from(chips, "chips").wafers([0])


def test_a_million_wafers_in_seconds():
    """The space of the catalogue: every rule leaves something out, and something is left."""
    whole = dt.hardware.space("wafer-grid")
    assert whole.size >= 10**6
    with within(10):
        counts, alone = whole.count(), whole.broken()
    assert counts.size == whole.size == counts.kept + sum(counts.left_out.values())
    assert list(counts.left_out) == LIMITS
    assert all(0 < counts.left_out[text] <= alone[text] for text in LIMITS)
    assert 0.05 < counts.kept / counts.size < 0.5


def test_studies_count_wafers_and_not_their_dies():
    document = {
        "name": "s", "jobs": [{"model": "bert-large", "seq_len": 512, "global_batch": 64}],
        "hardware": {"space": "wafer-grid"}, "cluster": {"chips": 8, "framework": "ideal"},
    }  # fmt: skip
    with pytest.raises(
        InputError, match=r"^s: cluster.chips: cannot be combined with wafer-grid, a space of wafers; use cluster"
    ):
        study_of(document, "s")


def test_show_prints_the_share_of_each_rule(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as ended:
        main(["spaces", "show", "wafer-grid"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(limit in text for limit in LIMITS)
    for part in ("alone", "wafer_power_w", "watos-like", "5,760,000"):
        assert part in text
