"""What a chip has to hold: state that no plan runs without, what recompute keeps, and the fullest moment of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dovetail import frameworks
from dovetail.models import load
from dovetail.plans.plan_file import Task
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from valid_plans import EXPERTS, Document, costed, model, with_changes

#: What any framework keeps per parameter, by ZeRO stage: bf16 weights and gradients, float32 copy and two moments;
#: where weights are sharded the float32 copy may stand for them.
WHOLE = {0: 16.0, 1: 4.0, 2: 2.0, 3: 0.0}
SHARDED = {0: 0.0, 1: 12.0, 2: 14.0, 3: 14.0}

MODELS = ("llama-3-70b", "gpt3-175b", "qwen3-235b-a22b", "llama-3.1-405b", "deepseek-v3")
CLUSTERS = ("dgx-a100-40gb", "hgx-h100", "hgx-b200")

ALONE: Document = {
    "job": {"model": model(4), "seq_len": 2048, "global_batch": 32},
    "cluster": {"name": "hgx-h100", "chips": 1, "framework": "ideal"},
    "plan": {},
}


def small(document: Document, **parts: Document) -> Task:
    return costed(with_changes(document, **parts))


def run(document: Document, **parts: Document) -> Evaluation:
    return answer(small(document, **parts))


def answer(task: Task) -> Evaluation:
    return evaluate(task.plan, task.job, task.cluster, task.framework)


def too_large(name: str, cluster: str, framework: str, stage: int) -> tuple[Task, float] | None:
    """The plan on the most chips whose unavoidable state exceeds their memory, with that state."""
    runs = frameworks.load(framework)
    if stage not in runs.zero_stages:
        return None
    even = load(name).num_layers % 2 == 0
    stages = 2 if even and "1f1b" in runs.pipeline_schedules and stage in runs.zero_stages_with_pipeline else 1
    for chips in (256, 64, 16, 8):
        document = {
            # next to nothing but state: short sequences, one at a time, everything computed again
            "job": {"model": name, "seq_len": 128, "global_batch": chips // stages},
            "cluster": {"name": cluster, "chips": chips, "framework": framework},
            "plan": {"zero_stage": stage, "pipeline_parallel": stages, "micro_batch": 1, "recompute": "full"},
        }
        task = costed(document)
        shards = chips // stages
        # uneven stages hold more than their share, never all of them less
        state = task.job.graph().parameters() / stages * (WHOLE[stage] + SHARDED[stage] / shards)
        if state > task.cluster.chip.hbm_bytes:
            return task, float(state)
    return None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_plans_whose_state_exceeds_the_memory_are_all_refused(name, cluster):
    """Fifteen times at least eight plans: every framework, every ZeRO stage, with and without a pipeline."""
    tried = (too_large(name, cluster, *case) for case in product(frameworks.names(), (0, 1, 2, 3)))
    cases = [case for case in tried if case is not None]
    assert len(cases) >= 8
    assert {task.framework.name for task, _ in cases} == set(frameworks.names())
    for task, state in cases:
        result = answer(task)
        assert not result.fits
        assert result.missing_bytes >= state - task.cluster.chip.hbm_bytes
        # gradients may be there at the end of a step alone
        states = [phases["optimizer"] for phases in result.memory_by_phase]
        fullest = max(sum(parts[part] for part in ("weights", "gradients", "optimizer")) for parts in states)
        assert fullest >= state * (1 - 1e-9)


def activations(*operators: str, framework: str = "ideal", **parts: Document) -> float:
    plan = {"recompute": list(operators) if operators else "none"}
    result = run(with_changes(ALONE, **parts), cluster={"framework": framework}, plan=plan)
    return result.memory_by_stage[0]["activations"]


#: Tokens of a microbatch, layers, and bytes of an element.
POINTS = 2048 * 4 * 2


@pytest.mark.parametrize(
    ("operators", "gained"),
    [
        # kept products read the norm's result: it goes all the same, and comes again before they need it
        (("mixer_norm",), 1024),
        (("mixer_norm", "feed_forward_norm"), 2 * 1024),
        (("mlp.activation",), 4096),
        # its input is kept instead of its output: nothing is gained
        (("mixer_residual",), 0),
        # nothing of it is kept in the first place
        (("output",), 0),
        # gate and up come again from the norm's result, which is kept anyway
        (("mlp.gate", "mlp.up", "mlp.activation"), 3 * 4096),
    ],
)
def test_what_a_listed_operator_wrote_is_dropped_and_what_it_reads_is_kept(operators, gained):
    assert activations() - activations(*operators) == pytest.approx(gained * POINTS, rel=1e-3, abs=POINTS * 5)


def test_only_operators_whose_results_are_missing_run_again():
    needless = run(ALONE, plan={"recompute": ["feed_forward_residual"]})
    assert needless.breakdown["recompute"] == 0
    norm, both = (
        run(ALONE, plan={"recompute": names}).breakdown["recompute"]
        for names in (["mixer_norm"], ["mixer_norm", "feed_forward_residual"])
    )
    assert norm == both > 0


def test_inputs_of_fp8_products_are_kept_in_fp8():
    wide, narrow = (activations(framework="megatron", job={"precision": p}) for p in ("bf16", "fp8"))
    # norms and the activation go to one byte; the attention's result is kept for itself and once more in fp8
    assert wide - narrow == pytest.approx((1024 + 1024 + 4096 - 1024) * POINTS / 2)


def test_results_of_experts_are_not_kept_to_weigh_them():
    task = small(ALONE, job={"model": model(4, feed_forward=EXPERTS)})
    kept, widths = 0.0, task.job.element_bytes()
    for name, layer in task.job.graph().layers.items():
        sizes = layer.resolve(batch=1, seq=2048)
        saved = {t.name: float(t.points(sizes)) * widths[t.element] for t in layer.saved()}
        assert (saved.pop("expert.down", 0.0) > 0) is (name == "block")
        # what the loss keeps is not there between forward and backward
        saved.pop("loss.probabilities", None)
        kept += sum(saved.values()) * (4 if name == "block" else 1)
    assert answer(task).memory_by_stage[0]["activations"] == pytest.approx(kept)


@pytest.mark.parametrize("framework", frameworks.names())
def test_the_loss_holds_its_logits_once_however_many_microbatches_are_in_flight(framework):
    job = {"model": model(4) | {"vocab": 2**20}, "seq_len": 2**16}
    task = small(ALONE, job=job, cluster={"framework": framework}, plan={"recompute": "full"})
    whole = answer(task).memory_by_stage[0]
    assert whole["loss"] == task.framework.logits_bytes * 2**16 * 2**20
    # it is over before the backward of a layer begins
    assert whole["layer at work"] == whole["layer gradients"] == 0
    parts = answer(replace(task, framework=replace(task.framework, loss_chunks=4))).memory_by_stage[0]
    assert parts["loss"] == whole["loss"] / 4


def test_a_small_loss_leaves_the_backward_as_the_fullest_moment():
    parts = run(ALONE, job={"model": model(4) | {"vocab": 256}}, plan={"recompute": "full"}).memory_by_stage[0]
    assert parts["loss"] == 0
    assert parts["layer at work"] > 0


@pytest.mark.parametrize("feed_forward", [None, EXPERTS])
def test_gradients_of_the_layer_at_work(feed_forward):
    task = small(ALONE, job={"model": model(4, feed_forward=feed_forward) | {"vocab": 256}},
                 cluster={"framework": "megatron"})  # fmt: skip
    layer = task.job.graph().layers["block"]
    sizes = layer.resolve(batch=1, seq=2048)
    # grouped products of experts write into the accumulated gradients
    dense = sum(float(w.points(sizes)) for w in layer.weights() if w.active_share == 1)
    assert answer(task).memory_by_stage[0]["layer gradients"] == dense * 2


@pytest.mark.parametrize(("stages", "width"), [(1, 2), (2, 6)])
def test_deepspeed_accumulates_in_float32_beside_bf16_in_a_pipeline(stages, width):
    plan = {"pipeline_parallel": stages, "recompute": "full"}
    result = run(ALONE, cluster={"chips": stages, "framework": "deepspeed"}, plan=plan)
    for parts in result.memory_by_stage:
        assert parts["gradients"] == pytest.approx(parts["weights"] / 2 * width)


def test_the_copies_of_an_update_need_room_beyond_that_of_activations_only():
    parts = run(ALONE, job={"seq_len": 1}, cluster={"framework": "deepspeed"}, plan={"recompute": "full"})
    tiny = parts.memory_by_stage[0]
    assert tiny == parts.memory_by_phase[0]["optimizer"]
    assert tiny["activations"] == tiny["layer at work"] == tiny["loss"] == 0
    assert tiny["optimizer step"] == pytest.approx(tiny["weights"] * 2)
    full = run(ALONE, cluster={"framework": "deepspeed"}, job={"seq_len": 65536}, plan={"recompute": "full"})
    assert full.memory_by_stage[0]["optimizer step"] == 0


def test_a_compiler_gathers_weights_one_by_one():
    cluster, plan = {"chips": 8}, {"zero_stage": 3, "recompute": "full"}
    whole = run(ALONE, cluster=cluster | {"framework": "torchtitan"}, plan=plan)
    single = run(ALONE, cluster=cluster | {"framework": "maxtext"}, plan=plan).memory_by_stage[0]
    table = 32000 * 1024
    block = small(ALONE).job.graph().layers["block"]
    layer = sum(float(w.points(block.fixed_sizes())) for w in block.weights())
    phases = {when: parts["gathered weights"] for when, parts in whole.memory_by_phase[0].items()}
    # a layer and the one fetched ahead; the head stays whole from its forward to its backward
    assert phases["loss"] == pytest.approx(table * 2, rel=0.01)
    assert phases["backward of the head"] == pytest.approx((table + layer) * 2, rel=0.01)
    assert phases["backward of the last layer"] == 2 * layer * 2
    assert single["gathered weights"] == 2 * table * 2


def test_no_weight_is_fetched_ahead_of_itself():
    plan = {"zero_stage": 3, "recompute": "full", "pipeline_parallel": 2}
    first, last = run(ALONE, cluster={"chips": 8}, plan=plan).memory_by_stage
    table, feed_forward = 32000 * 1024, 4096 * 1024
    # embedding and head are on a stage each, beside blocks
    assert first["gathered weights"] == last["gathered weights"] == 2 * (table + feed_forward)
