"""Layouts of every operator in a plan: what named strategies mean is what they mean written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.hardware import Cluster
from dovetail.layout.encoding import AxesOnTile, TileLayouts, encode
from dovetail.layout.encoding.named import encode_strategy
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.plan_file import task_of
from dovetail.plans.write import plan_document
from dovetail.simulation import simulate
from dovetail.step.evaluate import evaluate

WAFER = hardware.wafer("watos-like").cluster()
NODE = hardware.cluster("dgx-a100-80gb", 16)


def job_of(name: str) -> Job:
    return Job(models.load(name), seq_len=1024, global_batch=112)


def written_out(plan: Plan, job: Job, cluster: Cluster) -> Plan:
    """The same plan with the layouts its strategy gives to every operator."""
    found = arrange(plan, job.graph(), cluster)
    grid = len(cluster.tiers[0].shape) == 2
    rows = tuple((axis, found.joins[axis][0]) for axis in found.axes.sizes) if grid else ()
    cols = tuple((a, found.joins[a][1] if grid else n) for a, n in found.axes.sizes.items())
    on = AxesOnTile(rows, cols)
    classes = {
        name: {o: e.forward for o, e in encode_strategy(layer, found.strategy, on).items()}
        for name, layer in job.graph().layers.items()
    }
    stream = encode(found.strategy.stream_shard(), on)
    shape = (found_extent(rows), found_extent(cols))
    degrees = {"tensor_parallel": shape[0] * shape[1], "data_parallel": 1, "context_parallel": 1}
    return replace(
        plan,
        **degrees,
        expert_parallel=1,
        expert_tensor_parallel=shape[0] * shape[1],
        zero_group=1,
        sequence_parallel=False,
        micro_batch=plan.micro_batch * plan.data_parallel,
        layouts=TileLayouts.of(*shape, stream, classes),
    )


def found_extent(axes: tuple[tuple[str, int], ...]) -> int:
    result = 1
    for _, size in axes:
        result *= size
    return result


def named_plan(cluster: Cluster, job: Job, **fields: object) -> Plan:
    return resolve_plan(
        PlanSpec.model_validate(fields),
        chips=cluster.chips,
        global_batch=job.global_batch,
        num_layers=job.model.num_layers,
    )


CASES = {
    "megatron": ("gpt3-1.3b", WAFER, {"tensor_parallel": 8, "pipeline_parallel": 7}),
    "sequence": ("llama-3-8b", WAFER, {"tensor_parallel": 8, "pipeline_parallel": 7, "sequence_parallel": True}),
    "data": ("gpt3-1.3b", WAFER, {"pipeline_parallel": 8, "zero_stage": 1, "recompute": "full"}),
    "sharded": ("llama-3-8b", WAFER, {"zero_stage": 3, "recompute": "full"}),
    "both": ("gpt3-1.3b", WAFER, {"tensor_parallel": 2, "pipeline_parallel": 4, "zero_stage": 1}),
    "context": ("gpt3-1.3b", WAFER, {"context_parallel": 8, "pipeline_parallel": 7, "recompute": "selective"}),
    "cluster": ("gpt3-1.3b", NODE, {"tensor_parallel": 4, "pipeline_parallel": 2, "zero_stage": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_named_strategy_written_out_is_the_same_plan(case):
    name, cluster, fields = CASES[case]
    job, framework = job_of(name), frameworks.load("wafer")
    plan = named_plan(cluster, job, **fields)
    free = written_out(plan, job, cluster)
    one, other = (evaluate(each, job, cluster, framework) for each in (plan, free))
    # layouts also shard the state of what tensor-parallel chips copy: norms and biases
    close = 0.01 if plan.zero_stage and plan.tensor_parallel > 1 else 1e-12
    assert other.step_time_s == pytest.approx(one.step_time_s, rel=close)
    assert other.peak_bytes == pytest.approx(one.peak_bytes, rel=close)
    if case in ("both", "megatron"):
        times = [simulate(each, job, cluster, framework).step_time_s for each in (plan, free)]
        assert times[1] == pytest.approx(times[0], rel=close)
    document = yaml.safe_load(yaml.safe_dump(plan_document(free, job, cluster, "wafer")))
    assert task_of(document, "plan.yaml").plan == free


def wrong(**changes: object) -> str:
    job = job_of("gpt3-1.3b")
    free = written_out(named_plan(WAFER, job, tensor_parallel=8, pipeline_parallel=7), job, WAFER)
    document = plan_document(free, job, WAFER, "wafer")
    document["plan"] |= changes.pop("plan", {})
    document["plan"]["layouts"] |= changes
    with pytest.raises(InputError) as error:
        task_of(document, "plan.yaml")
    return str(error.value)


def changed(operator: str, rows: str) -> dict[str, object]:
    """The classes of a good plan with one operator cut otherwise."""
    job = job_of("gpt3-1.3b")
    free = written_out(named_plan(WAFER, job, tensor_parallel=8, pipeline_parallel=7), job, WAFER)
    classes = plan_document(free, job, WAFER, "wafer")["plan"]["layouts"]["classes"]
    classes["layer"][operator] = {"rows": rows}
    return classes


def test_wrong_layouts_are_refused_in_a_sentence():
    assert "should be 8" in wrong(plan={"tensor_parallel": 4})
    assert "smaller tiles or fewer stages" in wrong(plan={"pipeline_parallel": 8})
    assert "leave it out" in wrong(plan={"data_parallel": 2})
    assert "are missing the layer class" in wrong(classes={})
    assert "has 'eight seq'" in wrong(stream={"rows": "eight seq"})
    assert "multiply to 8 rows" in wrong(stream={"rows": "4 seq"})
    assert "shards 'heads'" in wrong(stream={"rows": "8 heads"})
    assert "is 2 with layouts" in wrong(plan={"zero_stage": 2})
    assert "into 8 parts" in wrong(classes=changed("mlp.up", "8 batch"))
    assert "shards 'head_dim'" in wrong(classes=changed("query", "8 head_dim"))
    assert "is no operator of the layer" in wrong(classes=changed("mlp.over", "8 ffn"))
    assert "is no layer class" in wrong(classes={"layers": {}})


def test_frameworks_of_today_run_no_layouts_of_their_own():
    job = job_of("gpt3-1.3b")
    free = written_out(named_plan(WAFER, job, tensor_parallel=8, pipeline_parallel=7), job, WAFER)
    with pytest.raises(InputError, match="framework wafer or ideal"):
        task_of(plan_document(free, job, WAFER, "megatron"), "plan.yaml")
