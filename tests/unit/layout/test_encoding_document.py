"""Encodings as JSON: complete, byte-stable, refused with one sentence; round trips of random encodings."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from encoded_jobs import SEQ, WAFER, job, model, operator
from placed_layers import layers
from sampled_jobs import EncodingSpace
from sampled_operators import SampledOperatorSpace

from dovetail.errors import InputError
from dovetail.graph import Kind, ModelGraph, Run
from dovetail.layout.encoding import Activation, ActivationOverride, Encoding, Factor, LayerInterval, Strings, tile_axes
from dovetail.layout.encoding.canonical import canonical_as_placed, canonicalise
from dovetail.layout.encoding.document import EncodingHeader, from_json, read_encoding, to_json
from dovetail.layout.encoding.factor import MeshAxis, merged
from dovetail.layout.encoding.operator_space import count_operator
from dovetail.layout.encoding.rules import RULES
from dovetail.layout.encoding.shards import AxesOnTile, decode, encode, streamed_axes
from dovetail.layout.encoding.validate import validate_encoding
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.models import load, model_graph

DOCS = Path(__file__).parents[3] / "docs" / "explanation" / "encoding.md"
HARMED = WaferGrid(4, 4, dead=frozenset({(3, 3)}), dead_links=frozenset({((0, 0), (1, 0))}))


def test_a_document_holds_everything() -> None:
    text = to_json(job())
    assert from_json(text) == canonicalise(job())
    assert to_json(from_json(text)) == text
    document = json.loads(text)
    assert document["format"] == "dovetail-encoding/1"
    assert document["stages"][0]["tile"] == {"x": 0, "y": 0, "rows": 2, "cols": 2}
    assert document["stages"][0]["classes"]["block"]["mlp.up"] == {
        "rows": [{"factor": 2, "dim": "ffn"}],
        "cols": [{"factor": 2, "dim": "batch"}],
        "optimizer": {"store": "sram", "sharded": [{"axis": "cols", "position": 0}]},
    }


def test_parts_of_a_plan_file_stand_ahead() -> None:
    header = EncodingHeader({"model": "gpt3-1.3b"}, {"name": "temp-like"}, {"zero_stage": 1})
    text = to_json(job(), header)
    assert read_encoding(text) == (canonicalise(job()), header)
    assert read_encoding(to_json(job()))[1] == EncodingHeader()
    assert list(json.loads(text))[:4] == ["format", "job", "cluster", "plan"]


def test_what_plans_add_is_written_and_read() -> None:
    stream = Strings((Factor(2, "seq"),), (Factor(2, "batch"),))
    override = ActivationOverride(LayerInterval(1, 2), {"mlp.up": Activation.RECOMPUTE})
    one, other = job().stages
    changed = replace(job(), stages=(replace(one, stream=stream, overrides=(override,)), replace(other, wafer=1)))
    assert from_json(to_json(changed)) == canonical_as_placed(changed)
    assert one.transposed().stream is None
    assert changed.stages[0].transposed().stream == stream.transposed()


def test_the_example_of_the_docs_is_complete_valid_and_canonical() -> None:
    text = DOCS.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    example = from_json(text)
    graphs = layers({"feed_forward": {"kind": "dense", "size": 256}}, 64)
    blocks = ModelGraph("blocks", graphs, (Run("embedding", 1), Run("block", 4), Run("head", 1)))
    assert validate_encoding(example, blocks, WaferGrid(2, 2), seq=128) == ()
    assert to_json(example) == text
    assert canonicalise(example) == example


def test_the_docs_state_every_rule_and_the_counts() -> None:
    docs = DOCS.read_text(encoding="utf-8")
    for rule, sentence in RULES.items():
        assert f"| `{rule}` | {sentence} |" in docs
    graphs = model_of("llama-3.1-70b").layers["full"], model_of("deepseek-v3").layers["sparse"]
    shown = {"query", "key", "attention", "mlp.up", "key_positional", "expert.up"}
    for graph in graphs:
        sizes = graph.resolve(batch=16, seq=4096)
        for own in (o for o in graph.operators if o.name in shown and o.kind in (Kind.CONTRACTION, Kind.ATTENTION)):
            cells = [
                f"{count_operator(own, sizes, r, c):,}, {count_operator(own, sizes, r, c, dominated=False):,}"
                for r, c in ((2, 2), (2, 4), (4, 4))
            ]
            assert f"| {' | '.join(cells)} |" in docs, own.name


def changed(path: str, value: object) -> str:
    """The document with one field set; `-` takes it away."""
    document = json.loads(to_json(job()))
    *folders, last = path.split("/")
    place: Any = document
    for folder in folders:
        place = place[int(folder)] if isinstance(place, list) else place[folder]
    if value == "-":
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


UP = "stages/0/classes/block/mlp.up"


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("format", "dovetail-encoding/2", "it should be 'dovetail-encoding/1'"),
        ("format", "-", "format: is missing"),
        ("microbatch", 0, "microbatch: is 0; it should be greater than or equal to 1"),
        ("schedule", "dualpipe", "it should be 'gpipe', '1f1b', 'interleaved' or 'zero_bubble'"),
        ("stages", [], "stages: is "),
        ("stages/0/tile/x", -1, "x: is -1"),
        ("stages/0/tiles", 1, "did you mean 'tile'"),
        (f"{UP}/rows/0/factor", 1.5, "factor: is 1.5"),
        (f"{UP}/rows/0/factor", True, "factor: is True"),
        (f"{UP}/rows/0/streamed", "yes", "streamed: is 'yes'"),
        (f"{UP}/rows/0/dims", "ffn", "did you mean 'dim'"),
        (f"{UP}/activation", "drop", "it should be 'stash', 'recompute', 'helper' or 'off_wafer'"),
        (f"{UP}/optimizer/store", "disk", "it should be 'sram', 'hbm' or 'streamed'"),
        (f"{UP}/optimizer/sharded/0/axis", "depth", "it should be 'rows' or 'cols'"),
    ],
)
def test_what_is_no_encoding_is_refused_with_a_sentence(path: str, value: object, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        from_json(changed(path, value), "job.json")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("job.json")
    assert "\n" not in str(caught.value)


@cache
def model_of(name: str) -> ModelGraph:
    return model() if name == "small" else model_graph(load(name))


def round_trips(name: str, wafer: WaferGrid, number: int, *, seq: int, batch: int) -> list[Encoding]:
    """Random encodings: valid, canonical, and the same after a document."""
    space, random = EncodingSpace(model_of(name), wafer, seq=seq, global_batch=batch), Random(number)  # noqa: S311
    found = []
    for _ in range(number):
        encoding = space.sample(random)
        text = to_json(encoding)
        again = from_json(text)
        assert again == encoding
        assert to_json(again) == text
        assert canonicalise(again, wafer) == encoding
        assert validate_encoding(again, space.model, wafer, seq=seq) == ()
        found.append(encoding)
    return found


def test_samples_make_the_round_trip() -> None:
    found = round_trips("small", HARMED, 120, seq=SEQ, batch=8)
    assert len({len(e.stages) for e in found}) > 2
    assert len({e.schedule for e in found}) == 3
    operators = [o for e in found for s in e.stages for c in s.classes.values() for o in c.values()]
    assert any(o.input_gradient for o in operators)
    assert any(o.weight_gradient for o in operators)
    assert len({o.activation for o in operators}) == 4
    assert any(f.streamed for o in operators for f in o.forward)
    assert any(home.sharded for o in operators for home in o.homes.values())


@pytest.mark.slow
def test_ten_thousand_samples_make_the_round_trip() -> None:
    assert len(round_trips("small", HARMED, 10_000, seq=SEQ, batch=8)) == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3.1-70b", "deepseek-v3"])
def test_samples_of_real_models_make_the_round_trip(name: str) -> None:
    round_trips(name, WaferGrid(6, 8, dead=frozenset({(2, 5)})), 100, seq=4096, batch=16)


@pytest.mark.parametrize("number", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["mlp.up", "attention", "mixer_norm"])
def test_strings_and_cuts_are_two_ways_to_say_the_same(name: str, number: int) -> None:
    """Cuts along atomic axes, written as strings again, are the strings."""
    own, random = operator(name), Random(7)  # noqa: S311
    spaces = [
        SampledOperatorSpace(own, model().layers["block"].resolve(batch=16, seq=SEQ), r, c) for r, c in ((4, 4), (2, 8))
    ]
    for turn in range(number):
        strings = spaces[turn % 2].sample(random)
        axes = tile_axes([strings])
        lying = {axis: tuple((n, s) for n, s in axes.sizes().items() if n.startswith(f"{axis}.")) for axis in MeshAxis}
        on = AxesOnTile(lying[MeshAxis.ROWS], lying[MeshAxis.COLS])
        again = encode(decode(own, strings, axes), on, streamed_axes(strings, axes))
        assert (merged(again.rows), merged(again.cols)) == (strings.rows, strings.cols)


def test_changes_of_a_job_are_valid_and_canonical() -> None:
    space, random = EncodingSpace(model(), WAFER, seq=SEQ, global_batch=8), Random(11)  # noqa: S311
    current = space.sample(random)
    seen = {to_json(current)}
    for _ in range(60):
        changed_job = space.mutate(current, random)
        assert changed_job != current
        assert validate_encoding(changed_job, model(), WAFER, seq=SEQ) == ()
        assert canonicalise(changed_job, WAFER) == changed_job
        current = changed_job
        seen.add(to_json(current))
    assert len(seen) > 40


def test_memory_is_respected_by_samples_and_changes() -> None:
    """Only jobs of at least three stages fit: whatever is drawn or changed has them."""
    wafer = WaferGrid(4, 4, capacity_bytes=10**9)
    space = EncodingSpace(
        model(), wafer, seq=SEQ, global_batch=8, memory=lambda stage: 0 if len(stage.classes) < 3 else 10**10
    )  # fmt: skip
    random = Random(2)  # noqa: S311
    current = space.sample(random)
    for _ in range(20):
        assert all(len(stage.classes) < 3 for stage in current.stages)
        current = space.mutate(current, random)


def test_tiles_of_six_rows_are_sampled_too() -> None:
    """2 × 3 and 3 × 2 do not nest: the strings of a stage are drawn on one chain of groups."""
    space, random = EncodingSpace(model(), WaferGrid(6, 1), seq=96, global_batch=6), Random(3)  # noqa: S311
    found = [space.sample(random) for _ in range(25)]
    orders = set()
    for encoding in found:
        for stage in encoding.stages:
            operators = [o for c in stage.classes.values() for o in c.values()]
            orders |= {o.forward.rows[0].size for o in operators if stage.tile.rows == 6 and len(o.forward.rows) > 1}
    assert orders == {2, 3}
