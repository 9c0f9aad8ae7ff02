"""Study files: every mistake is one sentence that names its field, at once; what may be left out is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.exploration.resolving import study_of
from dovetail.exploration.study import Study
from timing import within

JOB = {"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 64}
TIER = {"name": "flat", "topology": "switch", "bytes_per_s": "50 GB/s", "latency_s": "1 us"}
STUDY: dict[str, Any] = {
    "name": "asked",
    "jobs": [JOB],
    "hardware": {"base": "tpu-v4", "vary": {"tensor_cores": [4, 8], "hbm_stacks": [2, 4]}},
    "cluster": {"chips": 16},
}
#: A base whose technology nobody published.
NO_NODE = {"base": "tpu-v3", "vary": {"clock_hz": ["1 GHz"]}}
MISSING = object()


def changed(field: str, value: object) -> dict[str, Any]:
    """The study with another value at a dotted place, or none."""
    study = copy.deepcopy(STUDY)
    *outer, last = field.split(".")
    part: Any = study
    for name in outer:
        part = part[int(name)] if isinstance(part, list) else part.setdefault(name, {})
    if value is MISSING:
        del part[last]
    else:
        part[last] = value
    return study


def test_the_smallest_study_is_complete():
    study = study_of(STUDY, "study.yaml")
    assert (study.size, study.counts, study.objectives) == (4, (16,), ("step_time",))
    assert [(job.name, job.weight) for job in study.jobs] == [("gpt3-1.3b", 1.0)]
    assert study.framework.name == "megatron"
    assert (study.search.method, study.executor.name, study.output) == ("exact", "inline", None)


def test_weights_are_parts_of_a_whole_and_counts_are_sorted_once_each():
    jobs = [{**JOB, "weight": 3}, {**JOB, "name": "other"}]
    study = study_of({**STUDY, "jobs": jobs, "cluster": {"chips": [64, 16, 64]}}, "study.yaml")
    assert [(job.name, job.weight) for job in study.jobs] == [("gpt3-1.3b", 0.75), ("other", 0.25)]
    assert study.counts == (16, 64)
    assert study.size == 8


def test_fields_beside_a_named_space_are_added_to_it():
    named = study_of({**STUDY, "hardware": {"space": "phaze-grid"}}, "study.yaml").space
    more = {"space": "phaze-grid", "vary": {"hbm_stacks": [2, 4, 6]}, "limits": ["peak_power_w <= 300"]}
    wider = study_of({**STUDY, "hardware": more}, "study.yaml").space
    assert wider.size == 3 * named.size
    assert [limit.text for limit in wider.limits] == [*(limit.text for limit in named.limits), "peak_power_w <= 300"]


def test_paths_begin_at_the_folder_of_the_file(tmp_path, monkeypatch):
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / "space.yaml").write_text(to_yaml({"name": "here", **STUDY["hardware"]}))
    (folder / "study.yaml").write_text(to_yaml({**STUDY, "hardware": {"space": "space.yaml"}}))
    monkeypatch.chdir(tmp_path)
    assert Study.load("studies/study.yaml").space.name == "here"


def test_where_it_runs_is_no_part_of_what_is_asked():
    other = {**STUDY, "executor": {"name": "ray", "workers": 3}, "output": "elsewhere"}
    assert study_of(other, "a.yaml").document == study_of(STUDY, "b.yaml").document


def test_what_a_name_stands_for_is_part_of_what_is_asked(tmp_path):
    documents = []
    for stacks in ([2, 4], [2, 5]):
        space = {"name": "here", "base": "tpu-v4", "vary": {"hbm_stacks": stacks}}
        (tmp_path / "space.yaml").write_text(to_yaml(space))
        documents.append(study_of({**STUDY, "hardware": {"space": "space.yaml"}}, "a.yaml", tmp_path).document)
    assert documents[0] != documents[1]
    assert documents[0]["content"]["space"] != documents[1]["content"]["space"]
    assert documents[0]["content"]["jobs"] == documents[1]["content"]["jobs"]


#: Where, what stands there, what the sentence says.
WRONG: list[tuple[str, object, str]] = [
    # the file
    ("objective", ["step_time"], "objective: is not a field here; did you mean 'objectives'"),
    ("name", MISSING, "name: is missing"),
    ("name", "../run", "name: is '../run'"),
    ("seed", -1, "seed: is -1"),
    ("seed", 2**32, "seed: is 4294967296"),
    ("output", "", "output: is ''"),
    ("source", [1], "source: is [1]"),
    # jobs
    ("jobs", MISSING, "jobs: is missing"),
    ("jobs", [], "jobs: is []; it should have at least 1 item"),
    ("jobs", 3, "jobs: is 3; it should be a list"),
    ("jobs", [{**JOB, "name": f"job-{n}"} for n in range(21)], "it should have at most 20 items"),
    ("jobs.0.weight", 0, "jobs.0.weight: is 0; it should be greater than 0"),
    ("jobs.0.weight", -1.5, "jobs.0.weight: is -1.5"),
    ("jobs.0.weight", "heavy", "jobs.0.weight: is 'heavy'"),
    ("jobs.0.weight", float("nan"), "jobs.0.weight: is nan"),
    ("jobs.0.wieght", 2, "jobs.0.wieght: is not a field here; did you mean 'weight'"),
    ("jobs.0.name", "a/b", "jobs.0.name: is 'a/b'"),
    ("jobs.0.model", MISSING, "jobs.0.model: is missing"),
    ("jobs.0.model", "gpt3-1.3", "jobs.0.model: 'gpt3-1.3' is not in the catalogue; did you mean 'gpt3-1.3b'"),
    ("jobs.0.model", "none.yaml", "none.yaml: cannot be read"),
    ("jobs.0.model", {"name": "mine"}, "jobs.0.model.hidden: is missing"),
    ("jobs.0.seq_len", 0, "jobs.0.seq_len: is 0"),
    ("jobs.0.seq_len", 4096, "jobs.0.seq_len: is 4096; the model has learned positions up to 2048"),
    ("jobs.0.global_batch", 1.5, "jobs.0.global_batch: is 1.5"),
    ("jobs.0.precision", "bf8", "jobs.0.precision: is 'bf8'"),
    ("jobs.0.optimizer", "adam", "jobs.0.optimizer: is 'adam'; did you mean 'adamw'"),
    ("jobs.0.attention", "flash", "jobs.0.attention: is 'flash'; it should be 'fused' or 'unfused'"),
    ("jobs", [JOB, JOB], "jobs: has gpt3-1.3b more than once; give each job its own `name`"),
    ("jobs", [{**JOB, "name": "a"}, {**JOB, "name": "a"}], "give each job its own name"),
    ("jobs", [{**JOB, "name": "gpt2-1.5b"}, {**JOB, "model": "gpt2-1.5b"}], "jobs: has gpt2-1.5b more than once"),
    # hardware
    ("hardware", MISSING, "hardware: is missing"),
    ("hardware", {}, "hardware: names both a space and a base, or neither; give `space`, or `base` and `vary`"),
    ("hardware.space", "phaze-grid", "hardware: names both a space and a base, or neither"),
    ("hardware", {"base": "tpu-v4"}, "hardware.vary: is missing"),
    ("hardware.vary", {}, "hardware.vary: is missing"),
    ("hardware.base", "tpu-v44", "hardware: base: 'tpu-v44' is not in the catalogue; did you mean 'tpu-v4'"),
    ("hardware.base", "none.yaml", "none.yaml: cannot be read"),
    ("hardware.base", {"name": "mine"}, "hardware: base: kind: is missing"),
    ("hardware", {"space": "phaze-gird"}, "'phaze-gird' is not in the catalogue; did you mean 'phaze-grid'"),
    ("hardware", {"space": "none.yaml"}, "hardware.space: "),
    ("hardware", {"space": "phaze-grid", "vary": {"row": [64]}}, "did you mean 'rows'"),
    ("hardware.technology", "8nm", "hardware: technology: '8nm' is not in the catalogue"),
    ("hardware.coefficients", "mid", "hardware.coefficients: is 'mid'"),
    ("hardware.vary.tensor_core", [1], "vary.tensor_core: is not a variable of a design; did you mean 'tensor_cores'"),
    ("hardware.vary.rows", [1], "vary.rows.0: is 1; rows should be a whole number from 2 to 512"),
    ("hardware.vary.rows", [], "vary.rows: is not a list of values"),
    ("hardware.set", {"tensor_cores": 8}, "set.tensor_cores: gives tensor_cores, as vary.tensor_cores does"),
    ("hardware.derive", {"cols": "row"}, "derive.cols: 'row' is not defined here; did you mean 'rows'"),
    ("hardware.derive", {"cols": "__import__('os')"}, "derive.cols: '__import__' is not a function"),
    ("hardware.define", {"rows": "2"}, "rows: is already taken"),
    ("hardware.limits", ["area <= 3"], "limits.0: 'area' is not defined here; did you mean 'area_mm2'"),
    ("hardware.limits", ["area_mm2"], "limits.0: 'area_mm2' is a number; it should be a condition"),
    ("hardware.limits", "area_mm2 <= 3", "hardware.limits: is 'area_mm2 <= 3'; it should be a list"),
    ("hardware.references", {"built": {"row": 3}}, "references.built.row: is not a variable of a design"),
    ("hardware.chips", 8, "hardware.chips: is not a field here"),
    # cluster
    ("cluster", MISSING, "cluster: is missing"),
    ("cluster", {}, "cluster.chips: is missing"),
    ("cluster.chips", 0, "cluster.chips: is 0"),
    ("cluster.chips", [], "cluster.chips: is []"),
    ("cluster.chips", [16, 0], "cluster.chips.1: is 0"),
    ("cluster.chips", "16", "cluster.chips: is '16'"),
    ("cluster.chips", True, "cluster.chips: is True"),
    ("cluster.chip", "tpu-v4", "cluster.chip: is not a field here; did you mean 'chips'"),
    ("cluster.framework", "megatro", "framework: 'megatro' is not in the catalogue; did you mean 'megatron'"),
    ("cluster.tiers", [], "cluster.tiers: is []"),
    ("cluster.tiers", [{**TIER, "topology": "star"}], "cluster.tiers.0: topology: is 'star'"),
    ("cluster.tiers", [{**TIER, "bytes_per_s": "50 GBs"}], "the unit 'GBs' does not measure bytes_per_s"),
    ("cluster.tiers", [{**TIER, "topology": "torus", "shape": [2, 4]}], "cluster.chips: 16 are more than the torus"),
    ("cluster.tiers", [{**TIER, "size": 14}, TIER], "cluster.chips: 16 do not fill groups of 14"),
    # plans
    ("plans.tensor", [1], "plans.tensor: is not a field here"),
    ("plans.tensor_parallel", 2, "plans.tensor_parallel: is 2; it should be a list"),
    ("plans.tensor_parallel", [], "plans.tensor_parallel: is []"),
    ("plans.tensor_parallel", [0], "plans.tensor_parallel: 0 is in no plan of megatron"),
    ("plans.tensor_parallel", ["2"], "plans.tensor_parallel.0: is '2'"),
    ("plans.context_kind", ["rings"], "plans.context_kind: rings is in no plan of megatron"),
    ("plans.sequence_parallel", ["yes"], "plans.sequence_parallel.0: is 'yes'"),
    ("plans.recompute", ["ful"], "plans.recompute: ful is in no plan of megatron"),
    ("plans.recompute", ["by_block"], "plans.recompute: by_block is in no plan of megatron"),
    ("plans.recompute_share", [0], "plans.recompute_share.0: is 0"),
    ("plans.recompute_share", [2], "plans.recompute_share: 2.0 is in no plan of megatron"),
    ("plans.cuts", "ends", "plans.cuts: is called partition now; write partition instead"),
    ("plans.partition", "odd", "plans.partition: is 'odd'; it should be 'even', 'ends' or 'any'"),
    # limits
    ("limits.area", 800, "limits.area: is not a field here; did you mean 'area_mm2'"),
    ("limits.area_mm2", 0, "limits.area_mm2: is 0"),
    ("limits.power_w", -1, "limits.power_w: is -1"),
    ("limits.cost_usd", "many", "limits.cost_usd: is 'many'"),
    ("limits.total_price_usd", float("inf"), "limits.total_price_usd: is inf"),
    ("limits.chips", 8, "limits.chips: is 8; it should allow at least one number of cluster.chips"),
    # objectives, search, executor
    ("objectives", [], "objectives: is []"),
    ("objectives", ["speed"], "objectives: has 'speed'; choose from step_time, tokens_per_joule"),
    ("objectives", ["step_time", "step_time"], "objectives: names one twice"),
    ("objectives", "step_time", "objectives: is 'step_time'; it should be a list"),
    ("search.method", "anneal", "search.method: is 'anneal'"),
    ("search.window", 0, "search.window: is 0"),
    ("search.batch", 0, "search.batch: is 0"),
    ("search.evaluations", 0, "search.evaluations: is 0"),
    ("search.budget", 1, "search.budget: is not a field here"),
    ("executor.name", "spark", "executor.name: is 'spark'; it should be 'inline' or 'ray'"),
    ("executor.workers", 0, "executor.workers: is 0"),
]


@pytest.mark.parametrize(("field", "value", "said"), WRONG, ids=lambda part: part if isinstance(part, str) else "")
def test_a_mistake_is_one_sentence_about_its_field(refusal, field, value, said):
    sentence = refusal(study_of, changed(field, value), "study.yaml")
    assert sentence.startswith("study.yaml: ")
    assert said in sentence


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"jobs": [{**JOB, "precision": "fp8"}], "cluster": {"chips": 16, "framework": "megatron-2022"}},
         "jobs.gpt3-1.3b.precision: is fp8, which megatron-2022"),
        ({"hardware": NO_NODE, "limits": {"area_mm2": 800}}, "area_mm2 needs a technology"),
        ({"hardware": NO_NODE, "limits": {"total_price_usd": 1e6}}, "system_cost_usd needs a technology"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together_are_one_sentence(refusal, study, said):
    assert said in refusal(study_of, {**STUDY, **study}, "study.yaml")


#: What a search would find no plan for, without a word why.
LATE: list[tuple[str, object, str]] = [
    ("plans.zero_stage", [4], "zero_stage"),
    ("plans.pipeline_schedule", ["gpipes"], "pipeline_schedule"),
    ("plans.axis_order", ["pp-tp"], "axis_order"),
    ("plans.tensor_parallel", [3], "tensor_parallel"),
    ("plans.recompute", [["mpl"]], "recompute"),
]


@pytest.mark.parametrize(("field", "value", "said"), LATE)
def test_a_plan_value_that_nothing_runs_is_refused(refusal, field, value, said):
    assert said in refusal(study_of, changed(field, value), "study.yaml")


@pytest.mark.parametrize("chips", [2**39, [16, 2**21]])
def test_more_chips_than_any_cluster_has_are_refused(refusal, chips):
    assert "cluster.chips" in refusal(study_of, changed("cluster.chips", chips), "study.yaml")


@pytest.mark.parametrize("objective", ["area", "tokens_per_dollar", "tokens_per_joule"])
def test_an_objective_that_needs_a_technology_is_refused_without_one(refusal, objective):
    study = {**STUDY, "hardware": NO_NODE, "objectives": [objective]}
    assert "needs a technology" in refusal(study_of, study, "study.yaml")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("cluster.framework", "megatro", "study.yaml: cluster.framework: "),
        ("plans.tensor_parallel", [0], "study.yaml: plans.tensor_parallel: "),
        ("hardware", {"space": "phaze-gird"}, "study.yaml: hardware"),
        ("jobs.0.model", "none.yaml", "jobs.0.model"),
        ("cluster.tiers", [TIER, {**TIER, "topology": "star"}], "cluster.tiers.1: topology: is 'star'"),
    ],
)
def test_a_mistake_is_named_by_the_field_of_the_study(refusal, field, value, said):
    assert said in refusal(study_of, changed(field, value), "study.yaml")


@pytest.mark.parametrize("field", ["limits.total_power_w", "jobs.0.weight"])
def test_true_is_no_number(refusal, field):
    assert field in refusal(study_of, changed(field, True), "study.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "study.yaml"),
        ("- a list", "study.yaml"),
        ("name: [", "study.yaml, line 1: is not YAML"),
        ("name: a\nname: b\n", "study.yaml, line 2: is not YAML (the field 'name' is given twice)"),
        ("name: !!python/object/apply:os.system [true]", "tags are not allowed"),
    ],
)
def test_a_file_that_is_no_study_is_one_sentence(refusal, tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(text)
    assert said in refusal(Study.load, "study.yaml")


def test_a_missing_file_is_one_sentence(refusal, tmp_path):
    assert "none.yaml: cannot be read" in refusal(Study.load, tmp_path / "none.yaml")


def test_mistakes_are_found_at_once():
    with within(0.1 * len(WRONG)):
        for field, value, _ in WRONG:
            with pytest.raises(InputError):
                study_of(changed(field, value), "study.yaml")


def test_a_study_survives_being_written_and_read(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    assert Study.load(tmp_path / "study.yaml").document == study_of(STUDY, "study.yaml").document


BENT = "is not certain to rise or to fall with the step time, and to be positive"


@pytest.mark.parametrize(
    ("formula", "better", "said"),
    [
        ("energy_j / step_s", None, f"objectives.own: 'energy_j / step_s' {BENT}"),
        ("step_s - 1", None, BENT),
        ("abs(step_s - 1)", None, BENT),
        ("tokens_per_s * step_s", None, BENT),
        ("step_s % 2", None, BENT),
        ("log2(step_s)", None, BENT),
        ("step_s if energy_j > 3 else 2 * step_s", None, BENT),
        ("step_s * (chips - 4)", None, BENT),
        (
            "step_s * peak_power_w",
            "most",
            "own.better: is most, and the formula rises with the step time; set it to least",
        ),
        ("tokens_per_s", "least", "own.better: is least, and the formula falls with the step time; set it to most"),
        ("step_s > 3", None, "is a condition"),
        ("step_z", None, "step_z"),
        ("", None, "objectives.0.formula: is ''"),
    ],
)
def test_a_formula_that_bounds_nothing_is_one_sentence(refusal, formula, better, said):
    own = {"name": "own", "formula": formula, "better": better}
    assert said in refusal(study_of, {**STUDY, "objectives": [own]}, "study.yaml")
