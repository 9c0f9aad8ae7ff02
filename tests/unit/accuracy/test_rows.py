"""Measured runs as tasks: every published row that can be, hand-made rows exactly, wrong files by one sentence."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from small_runs import MIXTURE, PLAIN, read, reason, run

from dovetail.accuracy import MeasuredRuns, read_runs
from dovetail.accuracy.rows import NEEDED
from dovetail.accuracy.table import MAX_FILE_BYTES

DATA = Path(__file__).parents[4] / "shared" / "data"
PUBLISHED = DATA / "training_runs.csv"
#: Rows whose source prints the parameters of a smaller model; FLOPS and step time are those of its layers.
OTHER_SIZE = ("bloom-prequel-L660",)


@pytest.fixture(scope="module")
def published() -> MeasuredRuns:
    if not PUBLISHED.exists():
        pytest.skip("../shared/data/training_runs.csv, the measured runs, is not here")
    return read_runs(PUBLISHED)


def test_nearly_every_published_run_is_expressed(published):
    expressed, refused = (Counter(r.family for r in rows) for rows in (published.runs, published.refused))
    used = expressed + refused
    lines = [f"{published.rows_read} rows read, {used.total()} used, {expressed.total()} expressed"]
    lines += [f"{family:20}{used[family]:6}{expressed[family]:6}" for family in sorted(used)]
    lines += [f"{r.id}: {r.reason}" for r in published.refused]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")  # seen with -s, and where this fails
    assert published.rows_used == used.total()
    assert expressed.total() >= 0.97 * used.total()
    assert [family for family in used if expressed[family] < 0.8 * used[family]] == []


def test_nearly_every_later_run_is_expressed_and_none_refused_for_a_name():
    path = DATA / "training_runs_2.csv"
    if not path.exists():
        pytest.skip("../shared/data/training_runs_2.csv, later measured runs, is not here")
    found = read_runs(path)
    assert len(found.runs) >= 0.97 * found.rows_used
    assert [r for r in found.refused if r.reason.startswith(("framework:", "chip:"))] == []
    expressed, refused = (Counter(r.family for r in rows) for rows in (found.runs, found.refused))
    assert [family for family in refused if expressed[family] < 0.8 * refused[family]] == []


def test_published_runs_hold_what_is_hard_to_express(published):
    plans = [(r, r.task.plan) for r in published.runs]
    assert any(p.num_microbatches < p.pipeline_parallel for _, p in plans)
    assert any(p.tensor_parallel > r.task.cluster.tiers[0].size for r, p in plans if r.task.cluster.tiers)
    assert any(len(set(p.layers_per_stage)) > 1 for _, p in plans)
    assert any(p.layers_per_stage[0] == 0 for _, p in plans)
    assert any(p.zero_stage and p.zero_group < p.data_parallel for _, p in plans)
    assert any(p.expert_parallel > p.data_parallel > 1 for _, p in plans)
    assert any(p.recompute_share < 1 for _, p in plans)
    assert any(not isinstance(p.recompute, str) for _, p in plans)


def test_published_metrics_agree_with_the_step_times_derived_from_them_before(published):
    with PUBLISHED.open(newline="") as file:
        before = {row["id"]: float(row["step_time_s"]) for row in csv.DictReader(file) if row["step_time_s"]}
    metrics = {r.metric for r in published.runs}
    assert metrics == {"step time", "tokens per second", "FLOPS", "derived step time"}
    for r in published.runs:
        assert r.step_time_s == pytest.approx(before[r.id], rel=0.005), r.id


def test_published_sizes_make_the_published_parameter_counts(published):
    with PUBLISHED.open(newline="") as file:
        billions = {row["id"]: float(row["params_b"]) for row in csv.DictReader(file) if row["params_b"]}
    for r in {(r.family, r.architecture): r for r in published.runs if r.id in billions}.values():
        if r.id in OTHER_SIZE:
            continue
        counted = r.task.job.graph().parameters() / 1e9
        assert counted == pytest.approx(billions[r.id], rel=0.035), r.id  # the papers print two digits


def test_a_plain_row_says_all_it_says(tmp_path):
    found = run(tmp_path)
    task, plan = found.task, found.task.plan
    assert (found.family, found.tier, found.step_time_s, found.metric) == ("ours", "A", 1.5, "step time")
    assert (found.peak_memory_bytes, found.memory_kind, found.assumptions) == (None, None, ())
    assert task.framework.name == "megatron-2022"
    assert (task.job.precision, task.job.fused_attention, task.job.model.dropout) == ("fp16", False, True)
    assert task.job.model.vocab == 50432  # a multiple of 128 × 2
    assert task.job.model.num_layers == 8
    assert [tier.size for tier in task.cluster.tiers] == [8, 16]
    assert task.cluster.tiers[1].bytes_per_s == pytest.approx(12.5e9)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (2, 2, 4)
    assert (plan.micro_batch, plan.num_microbatches, plan.recompute) == (2, 8, "full")
    assert (plan.zero_stage, plan.layers_per_stage) == (0, (4, 4))


def test_runs_of_one_architecture_are_recognised_whatever_their_padding(tmp_path):
    one, two = read(tmp_path, {}, {"tp": "8", "dp": "1"}).runs
    assert one.architecture == two.architecture
    assert one.task.job.model.vocab != two.task.job.model.vocab


def test_tiers_other_than_a_and_b_are_only_counted(tmp_path):
    found = read(tmp_path, {"tier": "C"}, {"tier": "B"}, {"tier": "C", "layers": "nonsense"}, {"tier": ""})
    assert (found.rows_read, found.rows_used, len(found.runs)) == (4, 2, 2)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"step_time_kind": "derived", "tokens_per_s_per_chip": "4096", "tokens_kind": "reported"}, 1),
        ({"step_time_s": "", "tokens_per_s_per_chip": "1024", "tokens_kind": "derived"}, 4),
        ({"step_time_kind": "derived"}, 1.5),
        ({"tokens_per_s_per_chip": "4096", "tokens_kind": "reported"}, 1.5),
    ],
)  # fmt: skip
def test_the_reported_metric_counts(tmp_path, changes, seconds):
    assert run(tmp_path, **changes).step_time_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("kind", "passes"), [("model flops (full attn)", 72), ("hardware flops incl. full recompute", 96)]
)
def test_flops_count_as_narayanan_et_al_count_them(tmp_path, kind, passes):
    batch, s, layers, h, vocab = 64, 1024, 8, 1024, 50432
    # 72 or 96 B s l h² (1 + s/6h) for the blocks and 6 B s h V for the head, which is not computed again
    flops = passes * batch * s * layers * h**2 * (1 + s / (6 * h)) + 6 * batch * s * h * vocab
    found = run(tmp_path, step_time_kind="derived", tflops_per_chip="100", tflops_kind=kind)
    assert found.metric == "FLOPS"
    assert found.step_time_s == pytest.approx(flops / (100e12 * 16))


def test_causal_flops_take_less_time(tmp_path):
    def seconds(kind: str) -> float:
        return run(tmp_path, step_time_kind="derived", tflops_per_chip="100", tflops_kind=kind).step_time_s

    assert seconds("model flops (causal attn)") < seconds("model flops (full attn)")


def test_memory_has_a_kind(tmp_path):
    found = run(tmp_path, peak_memory_bytes="5e10", memory_kind="reserved")
    assert (found.peak_memory_bytes, found.memory_kind) == (5e10, "reserved")
    assert "memory_kind" in reason(tmp_path, peak_memory_bytes="5e10", memory_kind="vram")


def test_what_a_row_leaves_out_is_derived_only_where_nothing_else_is_possible(tmp_path):
    assert run(tmp_path, micro_batch="", global_batch="4", pp="2").task.plan.micro_batch == 1
    assert "leave it open" in reason(tmp_path, micro_batch="")
    assert run(tmp_path, dp="").task.plan.data_parallel == 4


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"framework": "HAI-LLM"}, "framework"),
        ({"chip": "abacus"}, "abacus"),
        ({"head_dim": "149.33"}, "16 heads of it should be a whole width"),
        ({"layers": ""}, "layers"),
        ({"layers": "-3"}, "layers"),
        ({"hidden": "9" * 400}, "hidden"),
        ({"heads": "nan"}, "heads"),
        ({"tp": "3", "num_chips": "24"}, "3 chips"),
        ({"dp": "8"}, "data_parallel"),
        ({"num_chips": "20"}, "20"),
        ({"num_chips": str(2**30)}, "chips"),
        ({"global_batch": "60"}, "micro_batch"),
        ({"micro_batch": "3"}, "global batch"),
        ({"recompute": "unknown"}, "recompute"),
        ({"offload": "activations to the host"}, "offload"),
        ({"precision": "int8"}, "precision"),
        ({"attention": "sparse"}, "attention"),
        ({"zero": "4"}, "zero"),
        ({"pp": "7"}, "divide"),
        ({"pp": str(2**30)}, "pipeline_parallel"),
        ({"gated_mlp": "perhaps"}, "gated_mlp"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel"),
        ({"step_time_s": ""}, "step_time_s"),
        ({"step_time_s": "0"}, "step_time_s"),
        ({"step_time_s": "inf"}, "step_time_s"),
        ({"experts": "8"}, "top_k"),
        ({"experts": "8", "top_k": "2", "moe_other": "MLA(q_lora=12)"}, "moe_other"),
    ],
)
def test_rows_that_say_too_little_or_nonsense_are_refused_one_by_one(tmp_path, changes, word):
    assert word in reason(tmp_path, **changes)
    good_beside_bad = read(tmp_path, changes, {})
    assert (len(good_beside_bad.runs), len(good_beside_bad.refused)) == (1, 1)


NASTY = (
    "", "0", "-1", "1", "3", "7", "64", "3.5", "1e308", str(2**40), "nan", "inf", "x", "yes", "no", "full", "a,b", '"',
    "MLA(", "expert_ffn=0", "tpu-v5e", "wse-3", "groq-tsp1", "MaxText", "llama-3.1-8b", "nemotron-h-56b", "fp4", "é",
    "num_layers=0", 'modules ["moe"]',
)  # fmt: skip


def test_generated_mistakes_make_runs_or_refusals(tmp_path):
    random = Random(0)  # noqa: S311
    columns = [*(name for name in PLAIN if name != "tier"), *MIXTURE, "vp", "cp", "ep", "zero", "zero_group", "notes"]
    rows = [{random.choice(columns): random.choice(NASTY) for _ in range(random.randint(1, 3))} for _ in range(1000)]
    found = read(tmp_path, *rows)
    assert len(found.runs) + len(found.refused) == 1000
    assert len(found.runs) > 100
    assert all(r.reason.isprintable() and r.reason.endswith(".") for r in found.refused)


def test_a_row_without_a_name_is_known_by_its_line(tmp_path):
    assert read(tmp_path, {"id": "", "layers": ""}).refused[0].id == "line 2"


def test_only_needed_columns_must_exist(tmp_path, refusal):
    path = tmp_path / "runs.csv"
    path.write_text("id,chip,anything\nx,y,z\n")
    sentence = refusal(read_runs, path)
    for name in set(NEEDED) - {"id", "chip"}:
        assert name in sentence
    path.write_text(",".join(n for n in NEEDED if n != "chip") + "\n")
    assert "has no column chip" in refusal(read_runs, path)
    path.write_text(",".join(NEEDED) + ",anything\n")
    assert read_runs(path).rows_read == 0


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "has no columns"),
        (b"\xff\xfe\x00", "UTF-8"),
        (",".join([*NEEDED, "id"]).encode(), "twice"),
        ((",".join(NEEDED) + "\na,b\n").encode(), "line 2"),
        ((",".join(NEEDED) + '\n"a"b,"\n').encode(), "not CSV"),
        ((",".join(NEEDED) + "\n" + "x" * 200_000 + "\n").encode(), "not CSV"),
        (b"x" * (MAX_FILE_BYTES + 1), "bytes"),
    ],
)
def test_wrong_files_are_answered_by_one_sentence(tmp_path, refusal, content, word):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert word in refusal(read_runs, path)


def test_a_file_that_is_not_there(tmp_path, refusal):
    assert "cannot be read" in refusal(read_runs, tmp_path / "nowhere.csv")
    assert "cannot be read" in refusal(read_runs, tmp_path)
