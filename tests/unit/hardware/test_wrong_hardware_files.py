"""One field of a valid chip or cluster file made wrong: always one sentence that names it, and at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.documents import validate
from dovetail.hardware import Chip, Cluster, cluster_from
from dovetail.hardware.chip import ChipSpec
from made_wrong import Document, Path, changed, nodes, replaced
from timing import within

_SWITCH = {"name": "links", "size": 8, "topology": "switch", "bytes_per_s": "450 GB/s", "latency_s": "1 us"}
_NETWORK = {
    "name": "network", "size": 64, "topology": "switch", "bytes_per_s": 5.0e10, "latency_s": "5 us",
    "oversubscription": 2.0, "in_network_reduction": True,
}  # fmt: skip
_TORUS = {
    "name": "ici", "size": 64, "topology": "torus", "shape": [4, 4, 4], "wrap_multiple": 4,
    "bytes_per_s": "300 GB/s", "latency_s": "1 us",
}  # fmt: skip

CHIPS: dict[str, Document] = {
    "gpu": {
        "name": "mine", "title": "a chip", "kind": "gpu", "year": 2025, "node": "TSMC N4", "technology": "5nm",
        "clock_hz": "1.83 GHz", "tensor_cores": 528, "macs_per_core": 512,
        "dense_flops": {"bf16": "989 TFLOPS", "fp8": 1.979e15, "fp32": "67 TFLOPS"},
        "vector_cores": 132, "vector_lanes": 128, "core_sram_bytes": "256 KiB", "core_sram_bytes_per_s": "234 GB/s",
        "shared_sram_bytes": "50 MiB", "shared_sram_bytes_per_s": "5.5 TB/s", "hbm_bytes": "80 GiB",
        "hbm_bytes_per_s": "3.35 TB/s", "hbm_stacks": 5, "link_ports": 18, "tiers": [_SWITCH, _NETWORK], "dies": 1,
        "area_mm2": "814 mm2", "tdp_w": "700 W", "price_usd": "30 kUSD", "rent_usd_per_h": "3 USD",
        "source": "a sheet", "doubts": {"clock_hz": "guessed"},
        "calibration": {"values": {"matrix.half": 0.7, "memory": 0.8, "launch_s": 2.2e-6}, "source": "six runs"},
    },
    "systolic": {
        "name": "mine", "kind": "systolic", "year": 2025, "node": "N5", "clock_hz": "1 GHz", "tensor_cores": 4,
        "rows": 128, "cols": 128, "dataflow": "weight", "dense_flops": {"bf16": "131 TFLOPS"}, "vector_cores": 2,
        "vector_lanes": 1024, "hbm_bytes": "32 GiB", "hbm_bytes_per_s": "1 TB/s", "tiers": [_TORUS],
    },
}  # fmt: skip

CLUSTERS: dict[str, Document] = {
    "named": {
        "name": "ours", "chip": "h100-sxm", "chips": 64, "tiers": [_SWITCH, _NETWORK], "source": "a plan",
        "doubts": {"network": "guessed"},
    },
    "grid": {"name": "ours", "chip": "tpu-v4", "chips": 64, "tiers": [_TORUS]},
    "own chip": {"name": "ours", "chip": CHIPS["gpu"], "chips": 64},
}  # fmt: skip

REQUIRED = {
    "name", "kind", "year", "node", "clock_hz", "tensor_cores", "dense_flops", "vector_cores", "vector_lanes",
    "hbm_bytes", "hbm_bytes_per_s", "topology", "bytes_per_s", "latency_s", "chip", "chips",
    "macs_per_core", "rows", "cols", "dataflow", "shape",
}  # fmt: skip

NUMBERS = st.integers() | st.floats()
MAPPINGS = st.dictionaries(st.text(max_size=5), st.integers(), min_size=1, max_size=3)
HUGE = st.sampled_from([10**30, 10**400, 1e300, float("inf"), float("nan")])
WRONG_QUANTITIES = (
    st.sampled_from(["", "many", "80", "GB", "-3 GB", "80 apples", "3 XB/s", "1e999 GB", "80 GB 3", "x" * 100, "١ GB"])
    | st.floats(max_value=-1e-9)
    | HUGE
    | st.booleans()
    | MAPPINGS
    | st.lists(st.integers(), max_size=2)
).filter(lambda value: value != "80")
WRONG_COUNTS = (
    st.integers(max_value=0)
    | st.integers(min_value=2**25)
    | st.floats().filter(lambda number: number != int(number) if abs(number) < 1e300 else True)
    | st.booleans()
    | st.text(max_size=10)
    | MAPPINGS
    | st.just([1])
)
WRONG_WORDS = NUMBERS | st.sampled_from(["nonsense", "", "Switch", "gpu ", "a\nb", "x" * 200]) | MAPPINGS
WRONG_NAMES = NUMBERS | st.sampled_from(["", "two words", "-", "x" * 101, "a\nb", "\x1b[31m"])
WRONG_TEXTS = NUMBERS | MAPPINGS | st.just("x" * 2001)
WRONG_PARTS = NUMBERS | st.text(max_size=20)
NAMED = {"name", "technology", "chip"}
TEXTS = {"title", "node", "source"}
WORDS = {"kind", "dataflow", "topology"}


def wrong(path: Path, value: Any) -> st.SearchStrategy[Any]:
    """Values that are wrong for a field, judged by the right one it has."""
    field = path[-1]
    match value:
        case bool():
            found = NUMBERS | st.sampled_from(["yes", "true", ""]) | MAPPINGS
        case int():
            found = WRONG_COUNTS
        case float() if field == "oversubscription":
            found = st.floats(max_value=0.99) | st.sampled_from([1e9, "2", True])
        case float():
            found = WRONG_QUANTITIES
        case str() if field in NAMED:
            found = WRONG_NAMES
        case str() if field in TEXTS or "doubts" in path:
            found = WRONG_TEXTS
        case str() if field in WORDS:
            found = WRONG_WORDS
        case str():
            found = WRONG_QUANTITIES
        case list() if field == "shape":
            found = NUMBERS | st.text(max_size=5) | st.sampled_from([[0, 4], [1], [4, 4], [-4, -16], [2**30, 2**30]])
        case list():
            found = NUMBERS | st.text(min_size=1, max_size=20) | st.sampled_from([[3], [None], [{}]])
        case _:
            found = WRONG_PARTS
    return found | st.none() if field in REQUIRED else found


def field_of(path: Path) -> str:
    """The name the sentence must hold: of the field, or of the list an entry stands in."""
    return next(part for part in reversed(path) if isinstance(part, str))


def as_chip(document: Document) -> Chip:
    return validate(ChipSpec, document, "mine.yaml").chip()


def as_cluster(document: Document) -> Cluster:
    return cluster_from(document, "mine.yaml")


READERS = [(as_chip, document) for document in CHIPS.values()] + [
    (as_cluster, document) for document in CLUSTERS.values()
]


def refused_at_once(refusal: Callable[..., str], function: Callable[..., Any], *args: Any) -> str:
    with within(1):
        sentence = refusal(function, *args)
    assert sentence.startswith("mine.yaml: ")
    assert len(sentence) < 1000
    return sentence


@pytest.mark.parametrize("number", range(len(READERS)))
def test_the_unchanged_files_are_right(number):
    reader, document = READERS[number]
    assert reader(document).tiers


@given(data=st.data())
def test_a_wrong_value(data, refusal):
    reader, document = data.draw(st.sampled_from(READERS))
    path, value = data.draw(st.sampled_from(list(nodes(document))))
    document = replaced(document, path, data.draw(wrong(path, value)))
    assert field_of(path) in refused_at_once(refusal, reader, document)


@given(data=st.data())
def test_a_missing_field(data, refusal):
    reader, document = data.draw(st.sampled_from(READERS))
    paths = [path for path, _ in nodes(document) if path[-1] in REQUIRED and "doubts" not in path]
    path = data.draw(st.sampled_from(paths))
    document = changed(document, path, lambda container, name: container.pop(name))
    assert field_of(path) in refused_at_once(refusal, reader, document)


@given(data=st.data())
def test_a_misspelt_field(data, refusal):
    reader, document = data.draw(st.sampled_from(READERS))
    named = [path for path, _ in nodes(document) if isinstance(path[-1], str)]
    path = data.draw(st.sampled_from(named))
    right = str(path[-1])
    at = data.draw(st.integers(0, len(right) - 1))
    misspelt = data.draw(st.sampled_from([right[:at] + right[at] + right[at:], right[:at] + "x" + right[at:]]))
    document = changed(document, path, lambda container, name: container.__setitem__(misspelt, container.pop(name)))
    sentence = refused_at_once(refusal, reader, document)
    assert misspelt in sentence
    assert right in sentence


#: Values that are right alone and wrong beside the others: reader, file, where, value, what the sentence must name.
RELATIONS = [
    (as_chip, CHIPS["gpu"], ("rows",), 128, "rows: cannot be combined with kind gpu"),
    (as_chip, CHIPS["gpu"], ("dataflow",), "weight", "dataflow"),
    (as_chip, CHIPS["gpu"], ("dense_flops",), {"fp32": "67 TFLOPS"}, "dense_flops.bf16"),
    (as_chip, CHIPS["gpu"], ("hbm_bytes",), 0, "hbm_bytes_per_s"),
    (as_chip, CHIPS["gpu"], ("hbm_usable_bytes",), "81 GiB", "hbm_usable_bytes: is 8.69731e+10"),
    (as_chip, CHIPS["gpu"], ("hbm_usable_bytes",), 0, "hbm_usable_bytes: is 0"),
    (as_chip, CHIPS["gpu"], ("doubts",), {"colour": "grey"}, "doubts.colour"),
    (as_chip, CHIPS["gpu"], ("calibration",), {"values": {}}, "calibration.values"),
    (as_chip, CHIPS["gpu"], ("calibration", "values", "memory"), 1.01, "calibration.values.memory: is 1.01"),
    (as_chip, CHIPS["gpu"], ("calibration", "values", "memory"), 0, "calibration.values.memory: is 0"),
    (as_chip, CHIPS["gpu"], ("calibration", "values", "matrix.int8"), 0.5, "matrix.int8"),
    (as_chip, CHIPS["gpu"], ("tiers", 0, "shape"), [2, 4], "tiers.0.shape"),
    (as_chip, CHIPS["gpu"], ("tiers", 0, "wrap_multiple"), 2, "tiers.0.wrap_multiple"),
    (as_chip, CHIPS["systolic"], ("macs_per_core",), 20_000, "macs_per_core"),
    (as_chip, CHIPS["systolic"], ("tiers", 0, "shape"), [4, 4, 8], "tiers.0.shape"),
    (as_chip, CHIPS["systolic"], ("tiers", 0, "wrap_multiple"), 8, "tiers.0.shape"),
    (as_cluster, CLUSTERS["named"], ("chip",), "h100", "chip: 'h100' is not in the catalogue"),
    (as_cluster, CLUSTERS["named"], ("chips",), 65, "chips: 65 do not fill groups of 8 (links)"),
    (as_cluster, CLUSTERS["named"], ("chips",), 12, "chips: 12 do not fill groups of 8 (links)"),
    (as_cluster, CLUSTERS["named"], ("tiers", 0, "bytes_per_s"), 0, "tiers.0.bytes_per_s"),
    (as_cluster, CLUSTERS["named"], ("tiers", 1, "size"), 8, "tiers"),
    (as_cluster, CLUSTERS["named"], ("tiers", 1, "name"), "links", "tiers"),
    (as_cluster, CLUSTERS["named"], ("tiers",), [], "chips"),
    (as_cluster, CLUSTERS["named"], ("doubts",), {"netwrk": "x"}, "did you mean 'network'"),
    (as_cluster, CLUSTERS["grid"], ("chips",), 128, "chips: 128 are more than the torus 'ici' holds"),
    (as_cluster, CLUSTERS["own chip"], ("chip", "clock_hz"), "1 GB", "chip: clock_hz"),
]


@pytest.mark.parametrize(("reader", "document", "path", "value", "named"), RELATIONS)
def test_fields_that_contradict_each_other(reader, document, path, value, named, refusal):
    assert named in refused_at_once(refusal, reader, replaced(document, path, value))
