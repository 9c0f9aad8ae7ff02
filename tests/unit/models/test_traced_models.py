"""Traced models: the same answers as described ones, files of them, and what says that a part is approximated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from traced_catalogue import BLOCK, LLAMA, SOME, traced

import dovetail as dt
from changed_graphs import changed_model, frozen_weights
from dovetail import frameworks
from dovetail.documents import to_yaml
from dovetail.memory.reserved import reserved_memory
from dovetail.models import AnyModel, described, from_catalogue, model_graph
from dovetail.models.adapters import Adapters
from dovetail.models.catalogue import document_of
from dovetail.models.graph_document import document_of_graph
from dovetail.models.traced import Approximation
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.launch_models.facts import PLAN_AGAIN
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import load_task, task_of
from dovetail.plans.runs import why_no_launch_file
from dovetail.plans.write import plan_document, write_plan_file
from dovetail.report.answer_fields import evaluation_fields
from dovetail.step.evaluate import evaluated_step
from dovetail.step.evaluation import Evaluation

MIXTURE = traced("deepseek-v2-lite")
CLUSTER = dt.hardware.cluster("h100-sxm", chips=8)


def job(model: AnyModel, **fields: Any) -> dt.Job:
    return dt.Job(model, **{"seq_len": 2048, "global_batch": 16, **fields})


def plan_of(model: AnyModel, **fields: Any) -> dt.Plan:
    """A plan on the cluster."""
    spec = PlanSpec(**{"recompute": "full", "zero_stage": 3, **fields})
    return resolve_plan(spec, chips=8, global_batch=16, num_layers=model.num_layers)


@pytest.mark.parametrize("model", [LLAMA, MIXTURE], ids=lambda model: model.name)
def test_the_summary_is_that_of_the_described_model(model):
    ours, theirs = dt.models.summarise(model), dt.models.summarise(from_catalogue(model.name))
    for figure in ("parameters", "active_parameters", "layers", "flops_per_token", "layer_classes"):
        assert getattr(ours, figure) == getattr(theirs, figure), figure


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_the_plan_is_that_of_the_described_model(framework):
    ours, theirs = (
        dt.plan(job(model), CLUSTER, framework, space=dt.Space(context_parallel=(1,), virtual_stages=(1,)))
        for model in (LLAMA, from_catalogue("llama-3.1-8b"))
    )
    assert ours.plan == theirs.plan
    assert ours.step_time_s == theirs.step_time_s
    assert ours.certificate.counted == theirs.certificate.counted


@pytest.mark.parametrize("model", [LLAMA, MIXTURE], ids=lambda model: model.name)
def test_the_estimate_is_that_of_the_described_model(model):
    plan = plan_of(model, data_parallel=4, tensor_parallel=2)
    ours, theirs = (dt.evaluate(plan, job(each), CLUSTER) for each in (model, from_catalogue(model.name)))
    assert ours == theirs


def test_equal_graphs_are_built_once():
    again = traced("llama-3.1-8b", note="the same")
    assert again.graph is not LLAMA.graph
    assert model_graph(again) is model_graph(LLAMA)


def test_a_plan_file_holds_a_traced_model(tmp_path):
    plan = plan_of(LLAMA)
    document = plan_document(plan, job(LLAMA), CLUSTER, "megatron")
    task = task_of(document, "plan.yaml")
    assert task.job.model == LLAMA
    assert task.plan == plan
    (tmp_path / "model.yaml").write_text(dt.models.to_yaml(LLAMA))
    by_path = document | {"job": document["job"] | {"model": "model.yaml"}}
    assert task_of(by_path, "plan.yaml", tmp_path).job.model == LLAMA
    (tmp_path / "plan.yaml").write_text(to_yaml(document))
    assert dt.evaluate(tmp_path / "plan.yaml").step_time_s == dt.evaluate(plan, job(LLAMA), CLUSTER).step_time_s


def test_a_model_too_long_for_yaml_stands_beside_its_plan_file(tmp_path):
    long = traced("llama-3.1-8b", left_out=tuple(f"{n:0300d}" for n in range(900)))
    plan, path = plan_of(long), tmp_path / "plan.yaml"
    written = write_plan_file(path, plan_document(plan, job(long), CLUSTER, "megatron"))
    assert [file.name for file in written] == ["plan.yaml", "plan.model.json"]
    assert load_task(path).job.model == long
    assert write_plan_file(path, plan_document(plan, job(LLAMA), CLUSTER, "megatron")) == (path,)
    assert load_task(path).job.model == LLAMA


def test_a_mistake_in_a_plan_files_model_is_named(refusal):
    document = {"job": {"model": document_of(LLAMA) | {"hiden": 5}, "seq_len": 1, "global_batch": 1}, "cluster": {}}
    assert "plan.yaml: job.model.hiden: is not a field here" in refusal(task_of, document, "plan.yaml")


@pytest.mark.parametrize("file", ["model.yaml", "model.json", "config.json"])
def test_a_model_file_is_read_as_what_it_is(file, tmp_path, command):
    document = document_of(LLAMA)
    path = tmp_path / file
    path.write_text(json.dumps(document) if file.endswith("json") else to_yaml(document))
    assert dt.models.load(str(path)) == LLAMA
    code, out, _ = command("models", "show", str(path), "--json")
    assert code == 0
    assert json.loads(out)["parameters"] == dt.models.summarise(LLAMA).parameters
    assert "approximated" not in json.loads(out)


def test_sequences_of_another_length_are_refused(refusal):
    positions = traced("llama-3.1-8b", learned_positions=True, max_seq_len=1024)
    assert "learned positions up to 1024" in refusal(job, positions)
    assert job(traced("llama-3.1-8b", max_seq_len=1024)).seq_len == 2048
    fixed = traced("llama-3.1-8b", fixed_seq_len=512)
    assert "job: seq_len: is 2048; it should be 512" in refusal(job, fixed)
    assert dt.models.summarise(fixed).seq_len == job(fixed, seq_len=512).seq_len == 512


def test_a_traced_model_keeps_its_attention(refusal):
    assert "keeps the attention it was traced with" in refusal(job, LLAMA, fused_attention=False)
    assert "keeps the attention it was traced with" in refusal(model_graph, LLAMA, fused_attention=False)


def test_adapters_are_added_to_the_linear_layers():
    lora = Adapters(rank=8)
    ours, theirs = (job(model, adapters=lora).graph() for model in (LLAMA, from_catalogue("llama-3.1-8b")))
    assert ours == theirs


@pytest.mark.parametrize("plan", [{"zero_stage": 0}, {"zero_stage": 3}, {"pipeline_parallel": 2, "zero_stage": 1}])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_frozen_weights_are_those_of_a_job_with_adapters(framework, plan):
    """The same time and memory, of the model and tensor by tensor, whether the job or the model has the adapters."""
    adapted = job(from_catalogue("llama-3.1-8b"), adapters=Adapters(rank=8))
    own = job(traced("llama-3.1-8b", graph=document_of_graph(adapted.graph())))
    resolved = plan_of(LLAMA, **({"recompute": "none"} | plan))
    tool = frameworks.load(framework)
    steps = [evaluated_step(resolved, each, CLUSTER, tool) for each in (own, adapted)]
    assert steps[0].evaluation == steps[1].evaluation
    # two bytes of at least a stage's or shard's 8 billion
    assert steps[0].evaluation.memory_by_stage[0]["weights"] > 2 * own.graph().parameters() / 9
    on_chips = [reserved_memory(each, resolved, tool) for each in steps]
    assert on_chips[0] == on_chips[1]
    simulated = [dt.simulate(resolved, each, CLUSTER, framework) for each in (own, adapted)]
    assert simulated[0].step_time_s == simulated[1].step_time_s


def test_the_plan_for_frozen_weights_is_that_of_a_job_with_adapters():
    adapted = job(from_catalogue("llama-3.1-8b"), adapters=Adapters(rank=8))
    own = job(traced("llama-3.1-8b", graph=document_of_graph(adapted.graph())))
    space = dt.Space(context_parallel=(1,), virtual_stages=(1,))
    ours, theirs = (dt.plan(each, CLUSTER, space=space) for each in (own, adapted))
    assert ours.plan == theirs.plan
    assert ours.step_time_s == dt.evaluate(ours).step_time_s == theirs.step_time_s


def test_what_is_for_trained_weights_alone_refuses_frozen_ones(refusal):
    own = job(changed_model("llama-3.1-8b", frozen_weights(lambda weight: weight.name == "mixer_norm.weight")))
    assert "job: model: has frozen weights" in refusal(own.check_trains_all, "layouts by operator")
    asked = {"job": own, "cluster": CLUSTER, "framework": "deepspeed"}
    assert "has frozen weights, which files" in refusal(dt.export, plan_of(LLAMA), "deepspeed", **asked)


def task(model: AnyModel, framework: str) -> Any:
    plan = plan_of(model)
    return dt.export, plan, framework, {"job": job(model), "cluster": CLUSTER, "framework": framework}


def test_launch_files_are_written_from_the_description(refusal):
    known = traced("llama-3.1-8b", described=from_catalogue("llama-3.1-8b"))
    assert described(known) == from_catalogue("llama-3.1-8b")
    assert described(LLAMA) is None
    for framework in ("megatron", "torchtitan", "maxtext"):
        export, plan, _, asked = task(known, framework)
        of_described = export(plan, framework, **(asked | {"job": job(from_catalogue("llama-3.1-8b"))}))
        assert export(plan, framework, **asked).text == of_described.text
        export, plan, _, asked = task(LLAMA, framework)
        assert f"{LAUNCHES[framework].version.removeprefix('core ')} knows; {PLAN_AGAIN}" in refusal(
            export, plan, framework, **asked
        )
    export, plan, _, asked = task(LLAMA, "deepspeed")
    assert export(plan, "deepspeed", **asked).text


def test_a_description_of_another_depth_is_refused():
    with pytest.raises(ValueError, match="blocks, and the graph 32"):
        traced("llama-3.1-8b", described=from_catalogue("llama-3.2-1b"))


@pytest.mark.parametrize(
    ("changed", "figure"),
    [({"hidden": 2048}, "hidden is"), ({"vocab": 128000}, "vocab is 128,000, and the graph's 128,256"), ({}, "")],
)
def test_a_description_of_another_model_is_refused_where_it_is_read(changed, figure, tmp_path, refusal):
    right = from_catalogue("llama-3.1-8b")
    model = traced("llama-3.1-8b", described=right.model_copy(update=changed))
    path, document = tmp_path / "model.yaml", plan_document(plan_of(model), job(LLAMA), CLUSTER, "megatron")
    path.write_text(dt.models.to_yaml(model))
    document["job"]["model"] = document_of(model)
    if not figure:
        assert described(dt.models.load(str(path))) == described(task_of(document, "plan.yaml").job.model) == right
        return
    assert f"model.yaml: described: is another model than the graph: {figure}" in refusal(dt.models.load, str(path))
    assert f"plan.yaml: job.model.described: is another model than the graph: {figure}" in refusal(
        task_of, document, "plan.yaml"
    )


def test_a_description_with_other_parameters_is_refused(refusal):
    right = from_catalogue("llama-3.1-8b")
    document = document_of(traced("llama-3.1-8b", described=right))
    document["described"]["head"] = {"tied": not right.head.tied}
    assert "described: is another model than the graph: parameters is" in refusal(
        dt.models.model_from, document, "model.yaml"
    )


# What is approximated.

EVERY = {name: {each.name: "words" for each in layer.operators} for name, layer in LLAMA.graph.layers.items()}


def share(approximated: dict[str, dict[str, str]], **fields: Any) -> Evaluation:
    model = traced("llama-3.1-8b", approximated=approximated)
    return dt.evaluate(plan_of(model, **fields), job(model), CLUSTER)


def test_shares_of_approximated_operators_add_up():
    rest = {layer: {n: w for n, w in of.items() if n not in SOME.get(layer, {})} for layer, of in EVERY.items()}
    one, others, every = share(SOME), share(rest), share(EVERY)
    # sums of gradients that arrive at the stream belong to no operator of the forward
    assert 0.99 < every.approximated_share <= 1
    assert one.approximated_share + others.approximated_share == pytest.approx(every.approximated_share)
    assert 0.02 < one.approximated_share < 0.3
    assert one.approximated == (Approximation(BLOCK, "attention", "a scan as attention"),)
    assert one.step_time_s == share({}).step_time_s
    spread = share(SOME, data_parallel=4, pipeline_parallel=2)
    assert spread.approximated_share == pytest.approx(one.approximated_share)


def test_a_share_counts_every_layer_of_a_class():
    ends = {name: of for name, of in EVERY.items() if name != BLOCK}
    blocks_per_end: dict[int, float] = {}
    for blocks in (32, 16):
        document = document_of(LLAMA)
        document["graph"]["chain"][1]["count"] = blocks
        shares: list[float] = []
        for approximated in ({BLOCK: EVERY[BLOCK]}, ends):
            model = dt.models.model_from(document | {"approximated": approximated}, "model.yaml")
            shares.append(dt.evaluate(plan_of(model), job(model), CLUSTER).approximated_share)
        blocks_per_end[blocks] = shares[0] / shares[1]
    assert blocks_per_end[32] == pytest.approx(2 * blocks_per_end[16])


def test_an_estimate_says_what_is_approximated_and_left_out(tmp_path, command):
    names = ("approximated", "approximated_share")
    for approximated in (SOME, {}):
        model = traced("llama-3.1-8b", approximated=approximated, left_out=("a buffer", "another"))
        plan = plan_of(model)
        result = dt.evaluate(plan, job(model), CLUSTER)
        fields = evaluation_fields(result, job(model), CLUSTER, dt.frameworks.load("megatron"))
        assert all((name in fields) == bool(approximated) for name in names)
        (tmp_path / "plan.yaml").write_text(to_yaml(plan_document(plan, job(model), CLUSTER, "megatron")))
        code, out, _ = command("estimate", str(tmp_path / "plan.yaml"))
        assert code == 0
        assert ("of the operators' time: attention of" in out) == bool(approximated)
        assert [line.split(maxsplit=2)[2] for line in out.splitlines() if line.startswith("left out")] == [
            "a buffer and 1 more in --json"
        ]
        code, out, _ = command("estimate", str(tmp_path / "plan.yaml"), "--json")
        assert json.loads(out).get("approximated", []) == [
            {"layer": layer, "operator": name, "words": words}
            for layer, of in approximated.items()
            for name, words in of.items()
        ]
        assert json.loads(out)["left_out"] == ["a buffer", "another"]


SMALL = ("--chip", "h100-sxm", "--chips", "8", "--global-batch", "16", "--seq-len", "2048")


def test_a_plan_and_its_report_say_what_is_left_out_and_which_framework_can_start_it(tmp_path, command):
    model = traced("llama-3.1-8b", approximated=SOME, left_out=("a buffer",))
    (tmp_path / "model.yaml").write_text(dt.models.to_yaml(model))
    asked = ("plan", "--model", str(tmp_path / "model.yaml"), *SMALL, "--fix", "tensor_parallel=1")
    for framework, starts in (("megatron", False), ("fsdp", True)):
        code, out, _ = command(*asked, "--framework", framework)
        assert code == 0
        assert "left out      a buffer" in out
        assert ("no launch file: llama-3.1-8b is traced and has no description" in out) == (not starts)
        code, out, _ = command(*asked, "--framework", framework, "--json")
        answer = json.loads(out)
        assert answer["left_out"] == ["a buffer"]
        assert ("plan again with --framework fsdp" in answer.get("launch_note", "")) == (not starts)
    (tmp_path / "answer.json").write_text(out)
    code, _, error = command("report", str(tmp_path / "answer.json"), "--out", str(tmp_path / "page.html"), "--force")
    assert (code, error) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert "Left out: a buffer." in page
    assert "a scan as attention" in page
    code, out, _ = command("plan", "--model", str(tmp_path / "model.yaml"), *SMALL, "--chips", "8,16", *asked[-2:])
    assert code == 0
    assert "no launch file: llama-3.1-8b" in out
    assert why_no_launch_file(job(from_catalogue("llama-3.1-8b")), dt.frameworks.load("megatron")) is None


def test_the_frameworks_to_plan_again_with_are_those_whose_files_hold_no_model():
    named = {limits.framework for limits in LAUNCHES.values() if f" {limits.framework}" in PLAN_AGAIN}
    assert named == {limits.framework for limits in LAUNCHES.values() if not limits.describes}
