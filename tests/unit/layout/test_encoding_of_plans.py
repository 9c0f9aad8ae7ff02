"""Plans on wafers as encodings and back: the same plan, dies that hold what the plan gives them, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dovetail import frameworks, hardware
from dovetail.documents import to_yaml, validate
from dovetail.errors import InputError
from dovetail.hardware import Cluster, DefectMap, Store
from dovetail.launch.encoding.plan_encoding import encode_plan
from dovetail.launch.encoding.read import EncodingReading
from dovetail.launch.targets import EXPORTERS, read_launch
from dovetail.layout.encoding import Activation, MeshAxis, StateStore, Strings, TileLayouts
from dovetail.layout.encoding.document import from_json
from dovetail.layout.encoding.factor import places, split_at
from dovetail.mapping.tiles.free_plan import FreeSearch
from dovetail.models import Job, Model
from dovetail.plans.arrange import arrange
from dovetail.plans.plan_file import Task, load_task, plan_of_document, task_of
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from dovetail.plans.wafer_tiles import die_tiles
from dovetail.plans.write import plan_document

JOB = {"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 96}
LLAMA = {**JOB, "model": "llama-3-8b"}
MIXTURE = {**JOB, "model": "gpt-oss-20b", "seq_len": 2048}
SMALL = {
    "name": "small",
    "hidden": 512,
    "vocab": 8192,
    "max_seq_len": 1024,
    "embedding": {"positions": 1024},
    "blocks": {
        "layer": {
            "mixer": {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 64, "rotary": False},
            "feed_forward": {"kind": "dense", "size": 2048, "activation": "gelu_tanh"},
            "norm": "layer",
        }
    },
    "layers": [{"blocks": ["layer"], "repeat": 3}],
    "head": {"tied": True, "norm": "layer"},
}

BLOCKS = [{"blocks": 1, "recompute": "none"}, {"blocks": 2, "recompute": ["mlp.activation"]}]

#: Named plans on 8 × 6 dies: a job and its plan.
NAMED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensor": (JOB, {"tensor_parallel": 8, "pipeline_parallel": 6}),
    "sequence": (LLAMA, {"tensor_parallel": 8, "pipeline_parallel": 6, "sequence_parallel": True}),
    "data": (JOB, {"pipeline_parallel": 6, "zero_stage": 1, "recompute": "full"}),
    "both": (JOB, {"tensor_parallel": 2, "pipeline_parallel": 4, "zero_stage": 2, "recompute": "selective"}),
    "sharded": (LLAMA, {"zero_stage": 3, "recompute": ["mlp.activation", "mixer_norm"]}),
    "partly sharded": (JOB, {"tensor_parallel": 2, "pipeline_parallel": 3, "zero_stage": 3, "zero_group": 4}),
    "gathered": (JOB, {"context_parallel": 8, "pipeline_parallel": 6, "context_kind": "all_gather"}),
    "ring": (JOB, {"context_parallel": 4, "pipeline_parallel": 6, "context_kind": "ring", "zero_stage": 1}),
    "ulysses": (JOB, {"context_parallel": 4, "pipeline_parallel": 6, "context_kind": "ulysses"}),
    "interleaved": (JOB, {"tensor_parallel": 8, "pipeline_parallel": 6, "virtual_stages": 2}),
    "zero bubble": (JOB, {"tensor_parallel": 8, "pipeline_parallel": 6, "pipeline_schedule": "zb_h1"}),
    "gpipe": (JOB, {"tensor_parallel": 8, "pipeline_parallel": 6, "pipeline_schedule": "gpipe"}),
    "uneven": (JOB, {"tensor_parallel": 8, "pipeline_parallel": 6, "layers_per_stage": [3, 4, 5, 5, 4, 3]}),
    "by block": (
        JOB,
        {
            "tensor_parallel": 8,
            "pipeline_parallel": 6,
            "recompute_by_block": [
                {"blocks": 2, "recompute": "none"},
                {"blocks": 3, "recompute": ["mlp.activation"]},
                {"blocks": 19, "recompute": "full"},
            ],
        },
    ),
    "experts": (
        MIXTURE,
        {"tensor_parallel": 2, "pipeline_parallel": 6, "expert_parallel": 4, "zero_stage": 1, "recompute": "full"},
    ),
}


def task(job: dict[str, Any], plan: dict[str, Any], cluster: dict[str, Any] | None = None) -> Task:
    document = {"job": job, "cluster": {"name": "temp-like", "framework": "wafer"} | (cluster or {}), "plan": plan}
    return task_of(document, "plan")


def back(text: str) -> Task:
    reading = read_launch(text, "encoding.json")
    assert isinstance(reading, EncodingReading)
    return reading.own_task("encoding.json")


def edited(text: str, change: Mapping[str, Any]) -> str:
    """A file with parts of it changed; a path of names and numbers, None deletes."""
    document = json.loads(text)
    for path, value in change.items():
        *parents, last = [int(word) if word.isdigit() else word for word in path.split("/")]
        target = document
        for word in parents:
            target = target[word]
        if value is None:
            del target[last]
        else:
            target[last] = value
    return json.dumps(document)


@cache
def small_wafer(rows: int, cols: int, megabytes: int, wafers: int = 1) -> Cluster:
    base = hardware.wafer("temp-like")
    die = replace(base.die, hbm_bytes=megabytes * 1e6)
    return replace(base, name="small", rows=rows, cols=cols, die=die).cluster(wafers)


@cache
def free_tasks() -> tuple[Task, ...]:
    """The best free plan of every skeleton that a search on two wafers looks at."""
    framework, cluster = frameworks.load("wafer"), small_wafer(2, 2, 120, 2)
    job = Job(validate(Model, SMALL, "model"), seq_len=512, global_batch=8)
    search = FreeSearch(job, cluster, framework, most_stages=2)
    search.run()
    plans = [evaluation.plan for evaluation in search.best_of.values()]
    return tuple(Task(job, cluster, framework, plan) for plan in plans if plan.layouts is not None)


@cache
def two_stages() -> Task:
    """Layouts on two tiles of two dies, of two wafers of four."""
    framework, cluster = frameworks.load("wafer"), small_wafer(2, 2, 120)
    job = Job(validate(Model, SMALL, "model"), seq_len=512, global_batch=8)
    fields = {"tensor_parallel": 2, "pipeline_parallel": 2, "recompute_by_block": BLOCKS}
    plan = plan_of_document({"plan": fields}, job, cluster, "plan")
    text = EXPORTERS["encoding"].export(Task(job, cluster, framework, plan)).text
    return replace(back(edited(text, {"plan": None})), cluster=small_wafer(2, 2, 120, 2))


@pytest.mark.parametrize("case", NAMED)
def test_named_plans_come_back(case: str) -> None:
    asked = task(*NAMED[case])
    text = EXPORTERS["encoding"].export(asked).text
    read = back(text)
    assert read == asked
    assert from_json(text) == encode_plan(asked)
    assert "layouts" not in json.loads(text)["plan"]


def test_free_plans_come_back_from_their_stages_alone() -> None:
    tasks = free_tasks()
    assert tasks
    for asked in tasks:
        text = EXPORTERS["encoding"].export(asked).text
        assert back(text).plan == asked.plan
        # tiles of a snake may be listed or left out
        assert json.loads(text).get("plan", {}).keys() <= {"wafer"}


@pytest.mark.parametrize(
    ("part", "cluster"),
    [
        (None, {}),
        (WaferPart((StageTile(1, 0, 0, 1, 2), StageTile(1, 1, 0, 1, 2))), {}),
        (WaferPart((StageTile(0, 0, 0, 1, 2), StageTile(1, 0, 1, 2, 1))), {}),
        (WaferPart((StageTile(0, 0, 1, 2, 1), StageTile(0, 0, 0, 2, 1))), {}),
        (WaferPart(loans=(Loan(0, 1, 1e6),)), {}),
        (WaferPart(store=("optimizer",)), {"store": Store(1e12, 1e12)}),
        (WaferPart(store=("optimizer", "activations")), {"store": Store(1e12, 1e12)}),
        (
            WaferPart(
                (StageTile(0, 0, 0, 1, 2), StageTile(0, 1, 0, 1, 2)),
                defects=(DefectMap((), (((0, 0), (1, 0)),)), DefectMap(((1, 1),))),
            ),
            {"defects": (DefectMap((), (((0, 0), (1, 0)),)), DefectMap(((1, 1),)))},
        ),
    ],
)
def test_what_a_plan_says_of_its_wafer_comes_back(part: WaferPart | None, cluster: dict[str, Any]) -> None:
    asked = two_stages()
    assert asked.plan.layouts is not None
    assert asked.plan.layouts.chips == 2
    asked = replace(asked, plan=replace(asked.plan, wafer=part), cluster=replace(asked.cluster, **cluster))
    text = EXPORTERS["encoding"].export(asked).text
    assert back(text).plan == asked.plan
    stages = from_json(text).stages
    if part is not None and part.tiles:
        assert [(s.wafer, s.tile) for s in stages] == [(tile.wafer, tile.tile()) for tile in part.tiles]
    if part is not None and part.loans:
        assert [stage.helper for stage in stages] == [1, None]
    operators = [operator for stage in stages for each in stage.classes.values() for operator in each.values()]
    if part is not None and part.store:
        assert any(operator.optimizer.store is StateStore.STREAMED for operator in operators)
    off_wafer = any(operator.activation is Activation.OFF_WAFER for operator in operators)
    assert off_wafer == (part is not None and "activations" in part.store)


def test_a_dead_die_of_a_tile_is_refused() -> None:
    asked = two_stages()
    tiles = (StageTile(1, 0, 0, 1, 2), StageTile(0, 1, 0, 1, 2))
    part = WaferPart(tiles, defects=(DefectMap(((1, 0),)), DefectMap()))
    with pytest.raises(InputError, match=r"die \(0, 1\) of the tile of 1 × 2 dies at \(0, 1\) is dead"):
        EXPORTERS["encoding"].export(replace(asked, plan=replace(asked.plan, wafer=part)))


def part_of(strings: Strings, dim: str, row: int, col: int) -> tuple[int, ...]:
    """Which part of a dim a die of a tile holds: its place along every factor that shards the dim."""
    at = {MeshAxis.ROWS: row, MeshAxis.COLS: col}
    return tuple(
        at[axis] // place.low % place.factor.size
        for axis in MeshAxis
        for place in places(strings.along(axis))
        if place.factor.dim == dim
    )


@pytest.mark.parametrize("case", ["tensor", "sequence", "both", "partly sharded", "ring", "interleaved"])
def test_dies_hold_the_parts_of_their_ranks(case: str) -> None:
    """Dies have the same part of ffn where their tensor rank is the same; so for batch and sequence."""
    asked = task(*NAMED[case])
    stages, arrangement = encode_plan(asked).stages, arrange(asked.plan, asked.job.graph(), asked.cluster)
    dies = die_tiles(asked.plan, arrangement, asked.cluster)
    covered = 0
    for number, stage in enumerate(stages):
        name = next(layer for layer in stage.classes if "mlp.up" in stage.classes[layer])
        strings = stage.classes[name]["mlp.up"].forward
        own = [die for die in dies if die.stage == number]
        assert {(die.col, die.row) for die in own} == set(stage.tile.dies())
        for dim, rank in (("ffn", "tensor"), ("batch", "replica"), ("seq", "context")):
            pairs = {(part_of(strings, dim, d.row - stage.tile.y, d.col - stage.tile.x), getattr(d, rank)) for d in own}
            assert len(pairs) == len({part for part, _ in pairs}) == len({rank for _, rank in pairs})
            covered += len(pairs) > 1
    assert covered


def test_homes_follow_the_zero_stage_and_policies_the_blocks() -> None:
    stages = encode_plan(task(*NAMED["both"])).stages
    up = next(iter(stages[1].classes.values()))["mlp.up"]
    # gradients of a pipeline are whole until they are reduced, so ZeRO-2 shards what ZeRO-1 does
    assert (bool(up.optimizer.sharded), bool(up.gradients.sharded), bool(up.weights.sharded)) == (True, False, False)
    assert {up.optimizer.store, up.gradients.store, up.weights.store} == {StateStore.HBM}
    attention = next(iter(stages[1].classes.values()))["attention"]
    assert attention.activation is Activation.RECOMPUTE
    assert up.activation is Activation.STASH
    full = encode_plan(task(*NAMED["sharded"])).stages[0]
    name = next(layer for layer in full.classes if "mlp.up" in full.classes[layer])
    assert all(home.sharded for home in full.classes[name]["mlp.up"].homes.values())


def test_blocks_of_a_stage_that_differ_are_overrides() -> None:
    first, second = encode_plan(task(*NAMED["by block"])).stages[:2]
    name = next(layer for layer in first.classes if "mlp.up" in first.classes[layer])
    usual = {o for o, e in first.classes[name].items() if e.activation is Activation.RECOMPUTE}
    layers = {(each.layers.first, each.layers.end): each.activation for each in first.overrides}
    # two blocks save everything, two recompute one operator: the first kind is the class's, the others differ
    assert usual == set()
    assert layers == {(3, 5): {"mlp.activation": Activation.RECOMPUTE}}
    assert all(e.activation is Activation.RECOMPUTE for e in second.classes[name].values())
    assert [(each.layers.first, each.layers.end) for each in second.overrides] == [(5, 6)]


@pytest.mark.parametrize(
    ("job", "plan", "cluster", "sentence"),
    [
        (JOB, {"tensor_parallel": 8, "pipeline_parallel": 6}, {"name": "hgx-h100", "chips": 48}, "is no wafer"),
        (
            JOB,
            {"tensor_parallel": 2, "pipeline_parallel": 4, "axis_order": "tp-cp-pp-dp"},
            {},
            "plan: axis_order: puts other stages between",
        ),
        (JOB, {"zero_stage": 3}, {"chips": 96}, "spreads a stage over several wafers"),
        (
            JOB,
            {"tensor_parallel": 8, "pipeline_parallel": 6, "pipeline_schedule": "dualpipe"},
            {"framework": "ideal"},
            "an encoding has one of gpipe, 1f1b, interleaved, zb_h1",
        ),
        ({**LLAMA, "global_batch": 4800}, {"micro_batch": 100}, {}, "stage 0: a die needs"),
    ],
)
def test_what_no_tile_holds_is_refused(
    job: dict[str, Any], plan: dict[str, Any], cluster: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        EXPORTERS["encoding"].export(task(job, plan, cluster))
    assert sentence in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_stage_may_follow_on_another_wafer() -> None:
    asked = task(JOB, {"tensor_parallel": 8, "pipeline_parallel": 12}, {"chips": 96})
    assert [stage.wafer for stage in encode_plan(asked).stages] == [0] * 6 + [1] * 6
    assert back(EXPORTERS["encoding"].export(asked).text) == asked


def test_an_edited_file_is_the_plan_it_says_or_refused() -> None:
    text = EXPORTERS["encoding"].export(task(*NAMED["tensor"])).text
    moved = {"stages/0/layers/0/end": 4, "stages/1/layers/0/first": 4}
    assert back(edited(text, moved)).plan.layers_per_stage == (3, 5, 4, 4, 4, 4)
    block = next(name for name in json.loads(text)["stages"][0]["classes"] if name not in ("embedding", "head"))
    up = f"stages/0/classes/{block}/mlp.up"
    refused = {
        f"{up}/rows/0/dim": ("batch", "mlp.up: is not what the plan says there; delete tensor_parallel"),
        f"{up}/activation": ("off_wafer", "is not what the plan says there"),
        "microbatches": (48, "48 micro-batches of 1 sequences, 48 in all; the job has 96"),
        "plan/pipeline_parallel": (6, "plan.pipeline_parallel: is what the stages say"),
        "stages/0/tile/x": (1, "stage 0, tile: is not what the plan says there"),
    }
    for path, (value, sentence) in refused.items():
        with pytest.raises(InputError, match=sentence):
            back(edited(text, {path: value}))


def test_strings_without_degrees_are_free_layouts() -> None:
    asked = task(*NAMED["tensor"])
    read = back(edited(EXPORTERS["encoding"].export(asked).text, {"plan": None}))
    assert read.plan.layouts is not None
    assert (read.plan.layouts.rows * read.plan.layouts.cols, read.plan.pipeline_parallel) == (8, 6)
    assert EXPORTERS["encoding"].export(read).text != ""


def test_layouts_along_finer_axes_come_back() -> None:
    """Strings merge in the file, but collectives run along the axes of the plan."""
    read = back(edited(EXPORTERS["encoding"].export(task(*NAMED["tensor"])).text, {"plan": None}))
    layouts = read.plan.layouts
    assert layouts is not None

    def split(strings: Strings) -> Strings:
        return Strings(split_at(strings.rows, (2, 4)), split_at(strings.cols, (2, 4)))

    classes = {name: {o: split(each) for o, each in operators} for name, operators in layouts.classes}
    finer = TileLayouts.of(layouts.rows, layouts.cols, split(layouts.stream), classes)
    assert finer.axes() != layouts.axes()
    text = EXPORTERS["encoding"].export(replace(read, plan=replace(read.plan, layouts=finer))).text
    assert back(text).plan.layouts == finer
    assert "layouts" not in json.loads(text).get("plan", {})
    axes = json.loads(text)["stages"][0]["axes"]
    with pytest.raises(InputError, match="they should nest and be those of the strings, or more"):
        back(edited(text, {f"stages/{n}/axes": {**axes, "rows": [1, 3, 8]} for n in range(6)}))


@pytest.fixture
def call(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in an empty folder; returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    return command


def test_export_import_diff(call: Any) -> None:
    named = task(*NAMED["by block"])
    for number, asked in enumerate((named, two_stages(), free_tasks()[0])):
        plan, encoding, again = f"{number}.yaml", f"{number}.json", f"{number}-again.yaml"
        document = plan_document(asked.plan, asked.job, asked.cluster, asked.framework.name)
        Path(plan).write_text(to_yaml(document), encoding="utf-8")
        code, out, err = call("export", plan, "--to", "encoding", "--out", encoding)
        assert (code, out) == (0, f"wrote {encoding} for dovetail-encoding/1\n")
        assert "canonical form " in err
        assert " reshards " in err
        assert call("import", encoding, "--out", again)[0] == 0
        assert call("diff", plan, again)[:2] == (0, "the plans are identical\n")
        assert load_task(again).plan == asked.plan


def test_job_and_cluster_may_be_given(call: Any) -> None:
    asked = task(*NAMED["both"])
    text = edited(EXPORTERS["encoding"].export(asked).text, {"job": None, "cluster": None})
    Path("alone.json").write_text(text, encoding="utf-8")
    code, _, err = call("import", "alone.json")
    assert (code, "needs --model, --seq-len, --global-batch and --cluster or --chip" in err) == (2, True)
    flags = ("--model", "gpt3-1.3b", "--seq-len", "1024", "--global-batch", "96", "--cluster", "temp-like")
    code, _, err = call("import", "alone.json", *flags, "--out", "again.yaml")
    assert (code, err) == (0, "")
    assert load_task("again.yaml").plan == asked.plan
    code, _, err = call("export", "again.yaml", "--to", "encoding", "--as", "slurm")
    assert (code, "an encoding is not started" in err) == (2, True)
